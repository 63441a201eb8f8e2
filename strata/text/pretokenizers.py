"""Pre-tokenizers of byte-level BPE by the name in `tokenizer.ggml.pre`: data only.

A pre-tokenizer is a list of regular expressions applied one after the other; each one cuts every piece that the one
before left into its matches and the text between them ("isolated" split). The text is never changed.

The reference for which name means which split is llama.cpp b11549 (src/llama-vocab.cpp, src/unicode.cpp), because GGUF
files are made and checked with it. Where its split differs from the model's original tokenizer.json, we follow it:

* `tekken`, `gpt-4o` and their kin tell upper from lower case for ASCII letters only;
* `youtu`, `tiny_aya`, `k2-horizon` do not tell letter cases apart at all;
* `afmoe` and `tiny_aya` keep the text before a number in one piece with the number's first group (which matters for
  white space before it: "  12" gives " ", " ", "12").

Written for Oniguruma's Ruby syntax, the engine inside `tokenizers`: `&&` intersects classes, `*+` is possessive, `\\A`
and `\\z` are the ends of the piece. Every expression takes linear time on runs of any one or two characters.

Letters, marks, numbers and symbols are those of Unicode 16; the reference's tables end at Unicode 15.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BYTE_LEVEL_PRE", "PreTokenizer", "known_names"]


class PreTokenizer(NamedTuple):
    """How text is cut before merging, and the defaults that hang on the name."""

    splits: tuple[str, ...]
    ignore_merges: bool = False
    """A piece that is a token as a whole becomes that token, whatever the merges say."""
    add_bos: bool = False
    """Default of `tokenizer.ggml.add_bos_token`."""
    byte_level: bool = True
    """False: raw UTF-8 with `<0xXX>` byte tokens and U+2581 for the space where `escape_space`."""
    escape_space: bool = False
    digit_groups: bool = False
    """Also cut ASCII digits into groups of three from the end of each run, before `splits`."""
    newline_runs_whole: bool = False
    """A piece of newlines only is looked up as one token before merging."""


# The building blocks. A word may take one leading character that is neither letter, number nor line end.
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_SPACE = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+|" + _SPACE


def _words(word: str, digits: str, symbols: str = r" ?[^\s\p{L}\p{N}]+[\r\n]*", space: str = _LINES) -> str:
    """Contraction, word, number, symbols, white space: the form that GPT-4's pattern made common."""
    return f"{_CONTRACTION}|{word}|{digits}|{symbols}|{space}"


_PLAIN_WORD = _LEAD + r"\p{L}+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACE
_LLAMA3 = _words(_PLAIN_WORD, r"\p{N}{1,3}")
_QWEN2 = _words(_PLAIN_WORD, r"\p{N}")
_QWEN35 = _words(_LEAD + r"[\p{L}\p{M}]+", r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")
_JAIS2 = _words(
    _PLAIN_WORD,
    r"\p{N}{1,3}",
    space=r"\s*[\r\n]+|"
    + "".join(rf"\s{{{n}}}(?!\S)|" for n in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"\s{1,2}(?!\S)|\s",
)
_K2_HORIZON = "'\u017f|" + _words(_LEAD + "[\\p{L}\\p{M}\u200c\u200d]+", r"\p{N}{1,3}")
_EXAONE_MOE = _words(
    _LEAD + r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
    r"\p{N}",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
    r"\s*[\r\n]|" + _SPACE,
)
_SEED_CODER = _words(_PLAIN_WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+")
_UFAKZEKA = _PLAIN_WORD + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _LINES
_BAILING = (
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|"
    + _PLAIN_WORD
    + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|"
    + _SPACE
)


def _cased(letters: str, digits: str, *, contraction: bool) -> str:
    """Words that end where ASCII lower case turns to upper case; `letters` is the inside of a class."""
    upper, lower = rf"[[{letters}]&&[^a-z]]", rf"[[{letters}]&&[^A-Z]]"
    tail = _CONTRACTION + "?" if contraction else ""
    return (
        f"{_LEAD}{upper}*{lower}+{tail}|{_LEAD}{upper}+{lower}*{tail}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
    )


_TEKKEN = _cased(r"\p{L}", r"\p{N}", contraction=False)
_GPT4O = _cased(r"\p{L}", r"\p{N}{1,3}", contraction=True)
_GRANITE_EMBED = _cased(r"\p{L}\p{M}", r"\p{N}{1,3}", contraction=True)


def _uncased(digits: str) -> str:
    """Letters and marks of any case, one contraction attached."""
    return rf"{_LEAD}[\p{{L}}\p{{M}}]+{_CONTRACTION}?|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"


_HAN = (
    "\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b820-\U0002ceaf\U0002ceb0-\U0002ebef\uf900-\ufaff\U0002f800-\U0002fa1f"
)
_KIMI_K2 = (
    rf"[{_HAN}]+|{_LEAD}[\p{{L}}&&[^{_HAN}]]+{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES}"
)

_CJK_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_WORD = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
)
_DEEPSEEK_V3 = (r"\p{N}{1,3}", _CJK_KANA, _DEEPSEEK_WORD + r"[\r\n]*|" + _LINES)
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-"
    "\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_CJK = "[[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]&&[^\\s]]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002]+",
    r"\s+\z",
    _DEEPSEEK_CJK,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")

# A number's groups of three count from its end. The first alternative continues a number; the second takes the text
# before a number together with its first group, and is tried only at the start of the piece or after a number.
_DIGITS_FROM_END = r"(?<=\p{N})\p{N}{3}|(?:\A|(?<=\p{N}))\P{N}*+\p{N}{1,3}(?=(?:\p{N}{3})*+(?!\p{N}))"
_AFMOE_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-"
    "\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-"
    "\ufe4f]+|[\u3105-\u312f]+|" + _CJK_KANA
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_LINE_RUNS = r"[^\n]+|\n+"
_CHAMELEON = (
    r"<sentinel:[0-9]+>",
    r"IMGIMG[A-I]{1,4}Z",
    r"[\t\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
_SYMBOLS = r"[\p{P}\$\+<=>\^~\|]+"
_THREE_DIGITS = r"[0-9][0-9][0-9]"

_GPT2_PRE = PreTokenizer((_GPT2,))
_DIGIT_GPT2_PRE = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_PRE = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_LLAMA3_SPLIT_PRE = PreTokenizer((_LLAMA3,))
_QWEN2_PRE = PreTokenizer((_QWEN2,))
_DEEPSEEK_V3_PRE = PreTokenizer(_DEEPSEEK_V3)
_GPT4O_PRE = PreTokenizer((_GPT4O,))
_BLOOM_PRE = PreTokenizer((_BLOOM,))
_BAILING_PRE = PreTokenizer((_BAILING,))
_TINY_AYA_PRE = PreTokenizer((_DIGITS_FROM_END, _uncased(r"\p{N}{1,3}")))
_GEMMA4_PRE = PreTokenizer((_LINE_RUNS,), byte_level=False, escape_space=True, newline_runs_whole=True, add_bos=True)

BYTE_LEVEL_PRE: dict[str, PreTokenizer] = {
    "default": PreTokenizer((_SYMBOLS, _GPT2, r"\p{N}+", _THREE_DIGITS)),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code"), _GPT2_PRE
    ),
    **dict.fromkeys(("roberta-bpe", "gigachat", "a.x-4.0", "mellum", "modern-bert", "mpt", "olmo", "jais"), _GPT2_PRE),
    **dict.fromkeys(("exaone4", "trillion", "granite-docling"), _GPT2_PRE),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGIT_GPT2_PRE
    ),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral"), _LLAMA3_PRE),
    **dict.fromkeys(("midm-2.0", "lfm2", "jina-v5-nano"), _LLAMA3_PRE),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "glm5", "chatglm-bpe"), _LLAMA3_SPLIT_PRE),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2"), _QWEN2_PRE),
    **dict.fromkeys(("hunyuan", "solar-open", "grok-2"), _QWEN2_PRE),
    "qwen35": PreTokenizer((_QWEN35,)),
    "laguna": PreTokenizer((_LINE_RUNS, _QWEN2)),
    "jais-2": PreTokenizer((_JAIS2,)),
    "k2-horizon": PreTokenizer((_K2_HORIZON,)),
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "ufakzeka": PreTokenizer((_UFAKZEKA,)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _words(_PLAIN_WORD, r"\p{N}+")), ignore_merges=True),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING_PRE),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O_PRE),
    "granite-embed-multi-97m": PreTokenizer((_GRANITE_EMBED,), ignore_merges=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _TINY_AYA_PRE),
    "youtu": PreTokenizer((_YOUTU_SCRIPTS, _uncased(r"\p{N}")), ignore_merges=True),
    "kimi-k2": PreTokenizer((_KIMI_K2,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK_V3_PRE),
    "spark2_5": PreTokenizer((r"\p{N}{1,3}", _CJK_KANA, _DEEPSEEK_WORD + r"|[\r\n]|" + _SPACE, r"\p{N}")),
    "deepseek-llm": PreTokenizer(_DEEPSEEK_LLM),
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
    "afmoe": PreTokenizer((_DIGITS_FROM_END, _AFMOE_SCRIPTS, _DEEPSEEK_WORD + r"[\r\n]*|" + _LINES)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, _THREE_DIGITS)),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), _BLOOM_PRE),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "superbpe": PreTokenizer((r"\p{N}+",), digit_groups=True),
    "chameleon": PreTokenizer(_CHAMELEON, add_bos=True),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m"), _GEMMA4_PRE),
    "sarvam-moe": PreTokenizer((_LINE_RUNS,), byte_level=False, escape_space=True),
}


def known_names() -> str:
    """All names, for error messages."""
    return ", ".join(sorted(BYTE_LEVEL_PRE))
