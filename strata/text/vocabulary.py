"""The vocabulary of a GGUF file: token texts, kinds, special ids and the tokens that end a generation.

What lives here: reading and checking `tokenizer.ggml.*`. What does not: cutting text into tokens (`tokenizer.py`).

Kinds and the end-of-generation set follow llama.cpp b11549 (src/llama-vocab.cpp), which goes by token text where the
metadata says nothing. One difference: a `gpt2` vocabulary without `bos_token_id` or `eos_token_id` has none; llama.cpp
takes id 11 then, a number that fits one old model only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

from strata.errors import ModelError
from strata.text.metadata import Metadata, read_array, read_int, read_str

__all__ = ["ALL_NAMES", "DEFAULT_IDS", "TokenKind", "Vocabulary"]


class TokenKind(IntEnum):
    """`tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_KIND_OF = {int(kind): kind for kind in TokenKind}

# Ids that decide what the engine does; a wrong one is refused. The others only announce.
_STRICT_IDS = {"bos": "bos", "eos": "eos", "eot": "eot", "eom": "eom"}
_LENIENT_IDS = {
    "unk": "unknown",
    "sep": "seperator",  # GGUF spells it so
    "pad": "padding",
    "mask": "mask",
    "fim_pad": "fim_pad",
    "fim_rep": "fim_rep",
    "fim_sep": "fim_sep",
    "fim_pre": "fim_pre",
    "fim_suf": "fim_suf",
    "fim_mid": "fim_mid",
}

DEFAULT_IDS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
}

_EOT_NAMES = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
)
_EOM_NAMES = ("<|eom_id|>",)
_FIM_NAMES = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>", "<|plamo:file_separator|>"),
    "fim_pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
        "<|plamo:fim_prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
        "<|plamo:fim_suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
        "<|plamo:fim_middle|>",
    ),
}
_END_NAMES = (
    *_EOT_NAMES,
    *_EOM_NAMES,
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "</s>",
    "[EOS]",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
    "<|ifm|im_end|>",
)
ALL_NAMES = (*_END_NAMES, *(name for names in _FIM_NAMES.values() for name in names))
"""Token texts that mean something here whatever the metadata says."""
# Part of the answer's structure, so they are shown like ordinary text.
_ALWAYS_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


@dataclass(slots=True)
class Vocabulary:
    """Token texts by id, their kinds, and the special ids."""

    source: str
    model: str
    texts: list[str]
    kinds: list[TokenKind]
    scores: list[float]
    special_ids: dict[str, int]
    """Keys: bos eos eot eom unk sep pad mask fim_pad fim_rep fim_sep fim_pre fim_suf fim_mid; only those that exist."""
    ids: dict[str, int]
    end_ids: frozenset[int] = frozenset()
    notes: list[str] = field(default_factory=list[str])
    """What was assumed or ignored, for the start-up log."""

    @classmethod
    def from_metadata(cls, meta: Metadata, source: str) -> Vocabulary:
        """Read `tokenizer.ggml.*`. Raises: ModelError naming source, key and value."""
        model = read_str(meta, source, "tokenizer.ggml.model")
        if model is None:
            raise ModelError(f"{source}: tokenizer.ggml.model is missing: the file has no tokenizer")
        texts = _read_texts(meta, source)
        ids = _unique_ids(texts, source)
        vocabulary = cls(
            source=source,
            model=model,
            texts=texts,
            kinds=_read_kinds(meta, source, len(texts)),
            scores=_read_scores(meta, source, len(texts)),
            special_ids={},
            ids=ids,
        )
        vocabulary._read_special_ids(meta)
        vocabulary._collect_end_ids()
        return vocabulary

    def _read_special_ids(self, meta: Metadata) -> None:
        n_vocab = len(self.texts)
        defaults = DEFAULT_IDS.get(self.model, {})
        for name, key_stem in (_STRICT_IDS | _LENIENT_IDS).items():
            key = f"tokenizer.ggml.{key_stem}_token_id"
            token_id = read_int(meta, self.source, key)
            if token_id is not None and not 0 <= token_id < n_vocab:
                if name in _STRICT_IDS:
                    raise ModelError(f"{self.source}: {key} is {token_id}; accepted: 0 to {n_vocab - 1}")
                self.notes.append(f"{key} is {token_id}, outside 0 to {n_vocab - 1}: ignored")
                token_id = None
            if token_id is None:
                token_id = defaults.get(name)
            if token_id is not None and token_id < n_vocab:
                self.special_ids[name] = token_id

    def _find(self, name: str, texts: tuple[str, ...]) -> None:
        """Set a special id by token text where the metadata has none."""
        if name in self.special_ids:
            return
        for text in texts:
            if text in self.ids:
                self.special_ids[name] = self.ids[text]
                self.kinds[self.ids[text]] = TokenKind.CONTROL
                return

    def _collect_end_ids(self) -> None:
        self._find("eot", _EOT_NAMES)
        self._find("eom", _EOM_NAMES)
        for name, texts in _FIM_NAMES.items():
            self._find(name, texts)
        ends = {self.special_ids[name] for name in ("fim_pad", "fim_rep", "fim_sep") if name in self.special_ids}
        for text in _END_NAMES:
            token_id = self.ids.get(text)
            if token_id is not None:
                ends.add(token_id)
                self.kinds[token_id] = TokenKind.CONTROL
        ends.update(self.special_ids[name] for name in ("eos", "eot", "eom") if name in self.special_ids)
        for text in _ALWAYS_SHOWN:
            if text in self.ids:
                self.kinds[self.ids[text]] = TokenKind.USER_DEFINED
        self._exempt(ends)
        self.end_ids = frozenset(ends)

    def _exempt(self, ends: set[int]) -> None:
        """Names that end a generation elsewhere, but not beside certain other tokens."""
        texts = {self.texts[token_id] for token_id in ends}
        calls = {"<|call|>", "<|calls|>"} & texts
        if "<|end|>" in texts and calls and {"<|return|>", "<|flush|>"} & texts:
            ends.discard(self.ids["<|end|>"])
            self.kinds[self.ids["<|end|>"]] = TokenKind.USER_DEFINED
        if {"<|tool_response>", "</s>"} <= texts:
            ends.discard(self.ids["</s>"])
            self.kinds[self.ids["</s>"]] = TokenKind.NORMAL


def _read_texts(meta: Metadata, source: str) -> list[str]:
    raw = read_array(meta, source, "tokenizer.ggml.tokens")
    if not raw:
        raise ModelError(f"{source}: tokenizer.ggml.tokens is missing or empty")
    texts: list[str] = []
    for token_id, text in enumerate(raw):
        if not isinstance(text, str):
            raise ModelError(f"{source}: tokenizer.ggml.tokens[{token_id}] is {text!r}; accepted: a string")
        texts.append(text or f"[EMPTY_{token_id}]")
    return texts


def _unique_ids(texts: list[str], source: str) -> dict[str, int]:
    ids: dict[str, int] = {}
    for token_id, text in enumerate(texts):
        first = ids.setdefault(text, token_id)
        if first != token_id:
            raise ModelError(f"{source}: tokenizer.ggml.tokens[{token_id}] is {text!r}, which id {first} is already")
    return ids


def _read_kinds(meta: Metadata, source: str, n_vocab: int) -> list[TokenKind]:
    raw = read_array(meta, source, "tokenizer.ggml.token_type", n_vocab)
    if raw is None:
        return [TokenKind.NORMAL] * n_vocab
    try:
        return [_KIND_OF[kind] for kind in raw]
    except (KeyError, TypeError):
        token_id = next(i for i, kind in enumerate(raw) if not isinstance(kind, int) or kind not in _KIND_OF)
        accepted = ", ".join(f"{int(kind)} {kind.name.lower()}" for kind in TokenKind)
        raise ModelError(
            f"{source}: tokenizer.ggml.token_type[{token_id}] is {raw[token_id]!r}; accepted: {accepted}"
        ) from None


def _read_scores(meta: Metadata, source: str, n_vocab: int) -> list[float]:
    raw = read_array(meta, source, "tokenizer.ggml.scores", n_vocab)
    if raw is None:
        return [0.0] * n_vocab
    try:
        scores = [float(score) for score in raw]
    except (TypeError, ValueError):
        raise ModelError(f"{source}: tokenizer.ggml.scores holds a value that is no number") from None
    wrong = next((token_id for token_id, score in enumerate(scores) if math.isnan(score)), None)
    if wrong is not None:
        raise ModelError(f"{source}: tokenizer.ggml.scores[{wrong}] is NaN; accepted: numbers, which order the merges")
    return scores
