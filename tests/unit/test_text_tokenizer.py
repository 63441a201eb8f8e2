"""The tokenizer by itself: special tokens in text, begin and end tokens, bytes, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_corpus import CASES
from text_vocabularies import byte_level_metadata, raw_metadata, sentencepiece_metadata

from strata.errors import ModelError, RequestError
from strata.text.pretokenizers import BYTE_LEVEL_PRE
from strata.text.tokenizer import Tokenizer

BYTE_LEVEL = byte_level_metadata() | {"tokenizer.ggml.pre": "qwen2"}
SENTENCEPIECE = sentencepiece_metadata()


def _tokenizer(changes: dict[str, Any] | None = None, base: dict[str, Any] = BYTE_LEVEL) -> Tokenizer:
    return Tokenizer.from_metadata(base | (changes or {}), "file.gguf")


QWEN = _tokenizer()
SPM = _tokenizer(base=SENTENCEPIECE)
RAW = _tokenizer({"tokenizer.ggml.model": "gemma4"}, raw_metadata())


@pytest.mark.parametrize("tokenizer", [QWEN, SPM, RAW], ids=["byte-level", "sentencepiece", "raw"])
@given(text=st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_text_survives(tokenizer: Tokenizer, text: str) -> None:
    if tokenizer is not QWEN:
        text = text.replace("\u2581", "_")  # such a vocabulary cannot tell this character from a space
    ids = tokenizer.encode(text, add_special=True, parse_special=False)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", sorted(BYTE_LEVEL_PRE))
def test_every_split_keeps_the_text(name: str) -> None:
    base = byte_level_metadata() if BYTE_LEVEL_PRE[name].byte_level else raw_metadata()
    tokenizer = _tokenizer({"tokenizer.ggml.pre": name}, base)
    marked = not BYTE_LEVEL_PRE[name].byte_level
    for text in CASES:
        expected = text.replace("\u2581", " ") if marked else text
        assert tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False)) == expected


def test_control_tokens_only_when_asked() -> None:
    end = QWEN.encode("<|im_end|>", add_special=False, parse_special=True)
    assert [QWEN.token_text(i) for i in end] == ["<|im_end|>"]
    literal = QWEN.encode("a<|im_end|>b", add_special=False, parse_special=False)
    assert not set(literal) & QWEN.eog_ids
    assert QWEN.decode(literal) == "a<|im_end|>b"


def test_user_defined_tokens_always() -> None:
    for parse_special in (False, True):
        ids = QWEN.encode("x<user_token>y", add_special=False, parse_special=parse_special)
        assert "<user_token>" in [QWEN.token_text(i) for i in ids]


def test_literal_spans_disarm_control_tokens() -> None:
    text = "<|im_start|>user\nsay <|im_end|> now<|im_end|>\n"
    start = text.index("<|im_end|>")
    armed = QWEN.encode(text, add_special=False, parse_special=True)
    disarmed = QWEN.encode(text, add_special=False, parse_special=True, literal_spans=[(start, start + 10)])
    end_id = QWEN.encode("<|im_end|>", add_special=False, parse_special=True)[0]
    assert (armed.count(end_id), disarmed.count(end_id)) == (2, 1)
    assert QWEN.decode(disarmed, special=True) == text


@pytest.mark.parametrize("span", [(4, 5), (0, 5), (13, 14), (0, 14)])
def test_literal_span_that_touches_a_token_disarms_it(span: tuple[int, int]) -> None:
    text = "abcd<|im_end|>"
    ids = QWEN.encode(text, add_special=False, parse_special=True, literal_spans=[span])
    assert not set(ids) & QWEN.eog_ids
    free = QWEN.encode(text, add_special=False, parse_special=True, literal_spans=[(0, 4)])
    assert set(free) & QWEN.eog_ids


def test_begin_and_end_tokens() -> None:
    both = _tokenizer({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True})
    plain = both.encode("hello", add_special=False, parse_special=False)
    assert both.encode("hello", add_special=True, parse_special=False) == [both.bos_id, *plain, both.eos_id]
    assert QWEN.encode("hello", add_special=True, parse_special=False) == plain


def test_prompt_has_one_begin_token() -> None:
    tokenizer = _tokenizer({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True})
    assert tokenizer.bos_id is not None
    begin = tokenizer.token_text(tokenizer.bos_id)
    assert tokenizer.encode_prompt("hello") == tokenizer.encode_prompt(begin + "hello")
    assert tokenizer.encode_prompt("hello").count(tokenizer.bos_id) == 1
    assert tokenizer.eos_id not in tokenizer.encode_prompt("hello")


def test_special_ids_and_bytes() -> None:
    assert QWEN.bos_id == BYTE_LEVEL["tokenizer.ggml.bos_token_id"]
    assert QWEN.eos_id in QWEN.eog_ids
    assert QWEN.eot_id in QWEN.eog_ids
    assert QWEN.eom_id is None
    assert QWEN.n_vocab == len(BYTE_LEVEL["tokenizer.ggml.tokens"])
    assert SPM.token_bytes(SENTENCEPIECE["tokenizer.ggml.tokens"].index("<0xE4>")) == b"\xe4"
    joined = b"".join(QWEN.token_bytes(i) for i in QWEN.encode("日本 語", add_special=False, parse_special=False))
    assert joined.decode() == "日本 語"
    assert set(QWEN.control_texts) == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}


def test_arrays_may_be_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    changes = {
        "tokenizer.ggml.scores": numpy.array(SENTENCEPIECE["tokenizer.ggml.scores"], dtype=numpy.float32),
        "tokenizer.ggml.token_type": numpy.array(SENTENCEPIECE["tokenizer.ggml.token_type"], dtype=numpy.int32),
        "tokenizer.ggml.bos_token_id": numpy.uint32(1),
        "tokenizer.ggml.add_bos_token": numpy.bool_(True),
    }
    tokenizer = _tokenizer(changes, SENTENCEPIECE)
    for text in CASES:
        assert tokenizer.encode(text, add_special=True, parse_special=True) == SPM.encode(
            text, add_special=True, parse_special=True
        )


def test_override_replaces_an_unknown_name() -> None:
    metadata = BYTE_LEVEL | {"tokenizer.ggml.pre": "brand-new"}
    with pytest.raises(ModelError, match=r"file\.gguf: tokenizer\.ggml\.pre is 'brand-new'; accepted: .*qwen2"):
        Tokenizer.from_metadata(metadata, "file.gguf")
    tokenizer = Tokenizer.from_metadata(metadata, "file.gguf", pre="qwen2")
    assert tokenizer.encode("x 123", add_special=False, parse_special=False) == QWEN.encode(
        "x 123", add_special=False, parse_special=False
    )
    with pytest.raises(ModelError, match="override is 'nonsense'"):
        Tokenizer.from_metadata(metadata, "file.gguf", pre="nonsense")


_TOKENS = BYTE_LEVEL["tokenizer.ggml.tokens"]
_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tokenizer.ggml.model": "rwkv"}, "tokenizer.ggml.model is 'rwkv'; accepted: gpt2"),
    ({"tokenizer.ggml.model": 7}, "tokenizer.ggml.model is 7; accepted: a string"),
    ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model is missing"),
    ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
    ({"tokenizer.ggml.tokens": "abc"}, "tokenizer.ggml.tokens is 'abc'; accepted: an array"),
    ({"tokenizer.ggml.tokens": [1, 2]}, r"tokens\[0\] is 1; accepted: a string"),
    ({"tokenizer.ggml.tokens": [*_TOKENS[:-1], _TOKENS[0]]}, "which id 0 is already"),
    ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges is missing"),
    ({"tokenizer.ggml.merges": ["ab"]}, r"merges\[0\] is 'ab'; accepted: two tokens"),
    ({"tokenizer.ggml.merges": [5]}, r"merges\[0\] is 5; accepted: two tokens"),
    ({"tokenizer.ggml.merges": ["a nosuchtoken"]}, "'nosuchtoken' is not in tokenizer.ggml.tokens"),
    ({"tokenizer.ggml.token_type": [1, 2]}, "token_type has 2 entries"),
    ({"tokenizer.ggml.token_type": [9] * len(_TOKENS)}, r"token_type\[0\] is 9; accepted: 0 undefined, 1 normal"),
    ({"tokenizer.ggml.token_type": [6] * len(_TOKENS)}, "of type byte; accepted: <0x00>"),
    ({"tokenizer.ggml.scores": ["x"] * len(_TOKENS)}, "scores holds a value that is no number"),
    ({"tokenizer.ggml.scores": [float("nan")] * len(_TOKENS)}, "scores\\[0\\] is NaN"),
    ({"tokenizer.ggml.bos_token_id": len(_TOKENS)}, f"bos_token_id is {len(_TOKENS)}; accepted: 0 to"),
    ({"tokenizer.ggml.eos_token_id": "x"}, "eos_token_id is 'x'; accepted: an integer"),
    ({"tokenizer.ggml.add_bos_token": 3}, "add_bos_token is 3; accepted: true or false"),
    ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}, "bos_token_id is missing"),
]


@pytest.mark.parametrize(("changes", "message"), _REFUSED, ids=[message[:30] for _, message in _REFUSED])
def test_refusals_name_key_and_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        _tokenizer(changes)
    assert str(caught.value).startswith("file.gguf: ")


def test_useless_padding_id_is_announced() -> None:
    tokenizer = _tokenizer({"tokenizer.ggml.padding_token_id": 4294967295})
    assert tokenizer.pad_id is None
    assert any("padding_token_id is 4294967295" in note for note in tokenizer.notes)


def test_text_that_cannot_be_expressed() -> None:
    with pytest.raises(RequestError, match=r"lone surrogate U\+D800 at character 1"):
        QWEN.encode("a\ud800", add_special=False, parse_special=False)
    tokens, kinds = SENTENCEPIECE["tokenizer.ggml.tokens"], SENTENCEPIECE["tokenizer.ggml.token_type"]
    keep = [i for i, text in enumerate(tokens) if text != "<0xE9>"]
    fewer = {
        "tokenizer.ggml.tokens": [tokens[i] for i in keep],
        "tokenizer.ggml.token_type": [kinds[i] for i in keep],
    }
    lacking = _tokenizer(fewer, SENTENCEPIECE)
    with pytest.raises(RequestError, match="no token for byte 0xE9"):
        lacking.encode("\u9999", add_special=False, parse_special=False)
    letters = [text for text in BYTE_LEVEL["tokenizer.ggml.tokens"] if len(text) == 1 and text != "z"]
    small = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": letters,
        "tokenizer.ggml.merges": [],
    }
    tokenizer = Tokenizer.from_metadata(small, "small")
    assert tokenizer.decode(tokenizer.encode("azb", add_special=False, parse_special=False)) == "ab"
    assert any("no token for 1 bytes, text loses them: 7A" in note for note in tokenizer.notes)


@pytest.mark.parametrize("token_id", [-1, QWEN.n_vocab])
def test_ids_outside_the_vocabulary(token_id: int) -> None:
    for call in (QWEN.token_bytes, QWEN.token_text, QWEN.is_hidden, lambda i: QWEN.decode([i])):
        with pytest.raises(RequestError, match="outside the vocabulary"):
            call(token_id)


def test_token_texts_that_are_no_utf8() -> None:
    tokens = [*BYTE_LEVEL["tokenizer.ggml.tokens"], "\udcff\udcfe"]
    kinds = [*BYTE_LEVEL["tokenizer.ggml.token_type"], 4]
    tokenizer = _tokenizer({"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds})
    assert tokenizer.token_bytes(len(tokens) - 1) == b"\xff\xfe"
    assert tokenizer.encode("abc", add_special=False, parse_special=True)


def test_long_runs_take_linear_time() -> None:
    """Each would take minutes with a quadratic split; the pytest timeout of CI is the judge, not a clock here."""
    for name, pre in BYTE_LEVEL_PRE.items():
        base = byte_level_metadata() if pre.byte_level else raw_metadata()
        if next(other for other, same in BYTE_LEVEL_PRE.items() if same == pre) != name:
            continue
        tokenizer = _tokenizer({"tokenizer.ggml.pre": name}, base)
        for run in ("1", "a", " ", "\n", "!"):
            text = run * 20_000
            assert tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False)) == text
