"""Streaming gives the same text as decoding at once, and never half a character."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_corpus import CASES
from text_vocabularies import byte_level_metadata, sentencepiece_metadata

from strata.errors import RequestError
from strata.text.detokenizer import Detokenizer
from strata.text.tokenizer import Tokenizer

QWEN = Tokenizer.from_metadata(byte_level_metadata() | {"tokenizer.ggml.pre": "qwen2"}, "qwen")
SPM = Tokenizer.from_metadata(sentencepiece_metadata(), "spm")


def _byte_ids(data: bytes) -> list[int]:
    texts = {SPM.token_text(i): i for i in range(SPM.n_vocab)}
    return [texts[f"<0x{byte:02X}>"] for byte in data]


@pytest.mark.parametrize("tokenizer", [QWEN, SPM], ids=["byte-level", "sentencepiece"])
@pytest.mark.parametrize("special", [False, True])
def test_one_by_one_is_the_whole(tokenizer: Tokenizer, special: bool) -> None:
    for text in CASES:
        ids = tokenizer.encode(text, add_special=True, parse_special=True)
        streamed = Detokenizer(tokenizer, special, continues=False)
        pieces = [streamed.feed([token_id]) for token_id in ids]
        assert "".join(pieces) + streamed.flush() == tokenizer.decode(ids, special=special)


@given(data=st.binary(max_size=24), cuts=st.lists(st.integers(0, 24), max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_bytes(data: bytes, cuts: list[int]) -> None:
    ids = _byte_ids(data)
    detokenizer = Detokenizer(SPM)
    borders = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    text = "".join(detokenizer.feed(ids[a:b]) for a, b in itertools.pairwise(borders))
    assert text + detokenizer.flush() == data.decode("utf-8", "replace")


def test_waits_for_the_end_of_a_character() -> None:
    detokenizer = Detokenizer(SPM)
    ids = _byte_ids("\U0001f600".encode())
    assert [detokenizer.feed([token_id]) for token_id in ids] == ["", "", "", "\U0001f600"]
    assert detokenizer.flush() == ""


def test_unfinished_character_at_the_end() -> None:
    detokenizer = Detokenizer(SPM)
    assert detokenizer.feed(_byte_ids("\U0001f600".encode()[:3])) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.feed(_byte_ids(b"ok")) == "ok"


def test_special_tokens_are_hidden_unless_asked_for() -> None:
    ids = QWEN.encode("a<|im_end|>b<user_token>", add_special=False, parse_special=True)
    assert Detokenizer(QWEN).feed(ids) == "ab<user_token>"
    assert Detokenizer(QWEN, special=True).feed(ids) == "a<|im_end|>b<user_token>"


def test_leading_space() -> None:
    ids = SPM.encode("hello", add_special=True, parse_special=False)
    assert Detokenizer(SPM).feed(ids) == " hello"
    assert Detokenizer(SPM, continues=False).feed(ids) == "hello"
    assert Detokenizer(SPM, special=True, continues=False).feed(ids) == "<s>hello"


def test_id_outside_the_vocabulary() -> None:
    with pytest.raises(RequestError, match="outside the vocabulary"):
        Detokenizer(QWEN).feed([QWEN.n_vocab])
