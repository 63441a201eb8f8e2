"""Small vocabularies for tokenizer tests, and GGUF files that hold nothing else."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
from text_corpus import CASES, LOOKALIKES
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.trainers import BpeTrainer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPECIALS = {"<|endoftext|>": CONTROL, "<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<user_token>": USER_DEFINED}
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
_MAX_PIECE_CHARS = 80


def _ordinary_cases() -> list[str]:
    """Training text without the spelling of any special token."""
    return [case for case in CASES if case not in LOOKALIKES]


def _train(engine: Tokenizer, texts: Iterable[str], **options: Any) -> tuple[list[str], list[str]]:
    """Tokens by id and merges of a BPE that merges every pair it sees."""
    engine.train_from_iterator(texts, BpeTrainer(min_frequency=1, show_progress=False, **options))
    tokens = sorted(engine.get_vocab(), key=engine.get_vocab().__getitem__)
    return tokens, [" ".join(pair) for pair in json.loads(engine.to_str())["model"]["merges"]]


@functools.cache
def byte_level_metadata() -> dict[str, Any]:
    """A byte-level BPE vocabulary, trained without any split, so that its tokens cross every border.

    What a pre-tokenizer keeps together becomes one token here; so a wrong split changes the ids.
    """
    engine = Tokenizer(BPE())
    engine.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    texts = (case[:_MAX_PIECE_CHARS] for case in _ordinary_cases())
    tokens, merges = _train(engine, texts, vocab_size=9000, initial_alphabet=ByteLevel.alphabet())
    return _bpe_metadata(tokens, [NORMAL] * len(tokens), merges)


@functools.cache
def raw_metadata() -> dict[str, Any]:
    """BPE on raw UTF-8 with U+2581 for spaces and byte tokens, as in `gemma4` and `sarvam-moe` files."""
    lines = (line for case in _marked_cases() for line in case.split("\n"))
    tokens, merges = _train(Tokenizer(BPE()), lines, vocab_size=6000, limit_alphabet=300)
    tokens = [*BYTE_TOKENS, *tokens, "\n", "\n\n"]
    return _bpe_metadata(tokens, [BYTE] * 256 + [NORMAL] * (len(tokens) - 256), merges)


def _marked_cases() -> list[str]:
    marks = {ord(" "): "\u2581", 0: None}  # the reference reads token texts up to a NUL
    return [case[:_MAX_PIECE_CHARS].translate(marks) for case in _ordinary_cases()]


def _bpe_metadata(tokens: list[str], kinds: list[int], merges: list[str]) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*tokens, *SPECIALS],
        "tokenizer.ggml.token_type": kinds + list(SPECIALS.values()),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 2,
    }


@functools.cache
def sentencepiece_metadata(*, across_words: bool = False, equal_scores: bool = False) -> dict[str, Any]:
    """A SentencePiece-style vocabulary with byte tokens and runs of spaces.

    Args:
        across_words: tokens may hold a space inside.
        equal_scores: every score is 0, so that only position decides.
    """
    engine = Tokenizer(BPE())
    if not across_words:
        engine.pre_tokenizer = Split(Regex("\u2581*[^\u2581]+|\u2581+"), "isolated")
    learnt, _ = _train(engine, ["\u2581" + case for case in _marked_cases()], vocab_size=6000, limit_alphabet=300)
    runs = ["\u2581" * length for length in (2, 3, 4, 8, 16)]
    ordinary = list(dict.fromkeys([*runs, *(text for text in learnt if text not in ("<s>", "</s>", "<unk>"))]))
    # A token whose characters are no tokens themselves: merging must still find it.
    ordinary += ["\u0e01\u0e02", "\u0e01\u0e02\u0e03"]
    head = ["<unk>", "<s>", "</s>", *BYTE_TOKENS]
    scores = [0.0] * len(head) + [0.0 if equal_scores else -float(rank) for rank in range(len(ordinary))]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*head, *ordinary, *SPECIALS],
        "tokenizer.ggml.scores": scores + [0.0] * len(SPECIALS),
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL]
        + [BYTE] * 256
        + [NORMAL] * len(ordinary)
        + list(SPECIALS.values()),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def write_gguf(path: Path, metadata: dict[str, Any]) -> Path:
    """A GGUF file of metadata alone."""
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
