"""Token ids, bytes of tokens and end-of-generation sets are llama.cpp's, on strings that break tokenizers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest
from text_corpus import CASES
from text_peer import PeerVocabulary
from text_vocabularies import byte_level_metadata, raw_metadata, sentencepiece_metadata, write_gguf
from tokenizers.pre_tokenizers import ByteLevel

from strata.models import demo_model_path
from strata.text.pretokenizers import BYTE_LEVEL_PRE
from strata.text.tokenizer import Tokenizer
from strata.text.vocabulary import ALL_NAMES

pytestmark = pytest.mark.peer


def _random_texts(count: int) -> list[str]:
    """Runs of characters that pre-tokenizers tell apart, and pieces of the corpus, put together."""
    rng = random.Random(20261201)
    pools = [
        " \t\n\r\v\f\u00a0\u2003\u3000\u0085\u2028\x1c",
        "0123456789",
        "abcdeXYZ\u00e9\u00c9",
        "'sStTrReElLdDmMvV",
        '.,!?;:-_/\\()[]{}<>|$#@&*+=~^`"%',
        "".join(sorted(set("".join(CASES)))),
    ]
    runs = ["".join(rng.choices(rng.choice(pools), k=rng.randint(2, 40))) for _ in range(count)]
    mixes = ["".join(rng.choice(CASES)[: rng.randint(1, 12)] for _ in range(5)) for _ in range(count)]
    return runs + mixes


RANDOM_TEXTS = _random_texts(60)


def _differences(tokenizer: Tokenizer, peer: PeerVocabulary, texts: Sequence[str]) -> list[str]:
    found: list[str] = []
    for text in texts:
        for flags in ({"add_special": True, "parse_special": False}, {"add_special": False, "parse_special": True}):
            ours, theirs = tokenizer.encode(text, **flags), peer.encode(text, **flags)
            if ours != theirs:
                found.append(f"{text!r} {flags}: {ours} instead of {theirs}")
    return found


def _compare(metadata: dict[str, Any], path: Path, texts: Sequence[str]) -> None:
    tokenizer = Tokenizer.from_metadata(metadata, "test")
    with PeerVocabulary(write_gguf(path, metadata)) as peer:
        assert not _differences(tokenizer, peer, texts)


def test_corpus_is_large_enough() -> None:
    assert len(set(CASES)) >= 200


def test_embedded_model() -> None:
    with demo_model_path() as path:
        reader = gguf.GGUFReader(path)
        tokenizer = Tokenizer.from_metadata({k: f.contents() for k, f in reader.fields.items()}, path.name)
        with PeerVocabulary(path) as peer:
            assert not _differences(tokenizer, peer, [*CASES, *RANDOM_TEXTS])
            assert tokenizer.n_vocab == peer.n_vocab
            assert tokenizer.eog_ids == peer.eog_ids()
            for token_id in range(peer.n_vocab):
                assert tokenizer.token_bytes(token_id) == peer.token_bytes(token_id)
    for text in CASES:
        for parse_special in (False, True):
            ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
            assert tokenizer.decode(ids, special=True).removeprefix("<|endoftext|>") == text.removeprefix(
                "<|endoftext|>"
            )


@pytest.mark.parametrize("name", sorted(BYTE_LEVEL_PRE))
def test_pre_tokenizer(name: str, tmp_path: Path) -> None:
    pre = BYTE_LEVEL_PRE[name]
    base = byte_level_metadata() if pre.byte_level else raw_metadata()
    is_first_of_its_kind = next(other for other, same in BYTE_LEVEL_PRE.items() if same == pre) == name
    texts = [*CASES, *RANDOM_TEXTS] if is_first_of_its_kind else CASES[::7]
    _compare(base | {"tokenizer.ggml.pre": name}, tmp_path / "vocabulary.gguf", texts)


def test_missing_pre_means_default(tmp_path: Path) -> None:
    metadata = byte_level_metadata()
    assert "tokenizer.ggml.pre" not in metadata
    _compare(metadata, tmp_path / "vocabulary.gguf", CASES)
    assert any("tokenizer.ggml.pre is missing" in note for note in Tokenizer.from_metadata(metadata, "test").notes)


def test_gemma4_model(tmp_path: Path) -> None:
    metadata = raw_metadata() | {"tokenizer.ggml.model": "gemma4"}
    _compare(metadata, tmp_path / "vocabulary.gguf", [*CASES, *RANDOM_TEXTS])


@pytest.mark.parametrize("across_words", [False, True])
@pytest.mark.parametrize("equal_scores", [False, True])
def test_sentencepiece(across_words: bool, equal_scores: bool, tmp_path: Path) -> None:
    metadata = sentencepiece_metadata(across_words=across_words, equal_scores=equal_scores)
    spaces = [" " * n + "aa" * (n % 4) + " " * (n // 3) for n in range(1, 60)]
    # Thai letters that are no tokens, with tokens made of them.
    tokenless = ["\u0e01\u0e02", "\u0e01\u0e02\u0e03", "x\u0e01\u0e02\u0e03\u0e02\u0e01\u0e02"]
    _compare(metadata, tmp_path / "vocabulary.gguf", [*CASES, *RANDOM_TEXTS, *spaces, *tokenless])


@pytest.mark.parametrize(
    "changes",
    [
        {"tokenizer.ggml.add_space_prefix": False},
        {"tokenizer.ggml.add_bos_token": False},
        {"tokenizer.ggml.add_eos_token": True},
        {"general.name": "Phi-3 mini"},
    ],
)
def test_sentencepiece_options(changes: dict[str, Any], tmp_path: Path) -> None:
    metadata = sentencepiece_metadata() | changes
    _compare(metadata, tmp_path / "vocabulary.gguf", CASES)
    tokenizer = Tokenizer.from_metadata(metadata, "test")
    with PeerVocabulary(tmp_path / "vocabulary.gguf") as peer:
        for token_id in range(peer.n_vocab):
            assert tokenizer.token_bytes(token_id) == peer.token_bytes(token_id)


_PAIRS = [("</s>", "<|tool_response>"), ("</s>", "<eos>"), ("<|end|>", "<|call|>")]
_TRIPLES = [("<|end|>", "<|call|>", "<|return|>"), ("<|end|>", "<|calls|>", "<|flush|>")]
_TOGETHER = ("<|eot_id|>", "<|im_end|>", "<|endoftext|>", "</s>", "<eos>", "<|return|>", "<|eom_id|>", "<|file_sep|>")
_UNMARKED = [("<|user|>",), ("<|observation|>",), ("<unused1>",), ("<|end_of_turn|>",)]


@pytest.mark.parametrize("kind", [1, 3, 4], ids=["normal", "control", "user-defined"])
def test_names_that_end_a_generation(kind: int, tmp_path: Path) -> None:
    tokens = [*sorted(ByteLevel.alphabet()), "ab"]
    kinds = [1] * len(tokens)
    singles = [(name,) for name in dict.fromkeys(ALL_NAMES)]
    for names in [*singles, *_PAIRS, *_TRIPLES, *_UNMARKED, _TOGETHER]:
        metadata = {
            "general.architecture": "llama",
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.merges": ["a b"],
            "tokenizer.ggml.tokens": [*tokens, *names],
            "tokenizer.ggml.token_type": kinds + [kind] * len(names),
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.bos_token_id": 11,
            "tokenizer.ggml.eos_token_id": 11,
        }
        tokenizer = Tokenizer.from_metadata(metadata, "test")
        with PeerVocabulary(write_gguf(tmp_path / "vocabulary.gguf", metadata)) as peer:
            assert tokenizer.eog_ids == peer.eog_ids(), names
            for token_id in range(len(tokens), tokenizer.n_vocab):
                hidden = tokenizer.is_hidden(token_id)
                assert (b"" if hidden else tokenizer.token_bytes(token_id)) == peer.token_bytes(
                    token_id, special=False
                ), names
