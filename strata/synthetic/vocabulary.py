"""A vocabulary that any program can tokenize with, without text having been learnt from."""

from __future__ import annotations

from typing import Any

N_MIN = 259  # bytes, the merge, a filler and the end token


def byte_level_vocabulary(n_vocab: int) -> dict[str, tuple[str, Any]]:
    """Tokenizer section of a GGUF file, key -> (kind, value): byte tokens, one merge, unused fillers, an end token.

    Raises: ValueError for fewer than N_MIN tokens.
    """
    if n_vocab < N_MIN:
        raise ValueError(f"a byte-level vocabulary has at least {N_MIN} tokens, not {n_vocab}")
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    tokens = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))] + ["th"]
    tokens += [f"<filler_{i}>" for i in range(len(tokens), n_vocab - 1)] + ["<|end|>"]
    return {
        "tokenizer.ggml.model": ("str", "gpt2"),
        "tokenizer.ggml.pre": ("str", "gpt-2"),
        "tokenizer.ggml.tokens": ("[str]", tokens),
        "tokenizer.ggml.token_type": ("[i32]", [1] * 257 + [5] * (n_vocab - 258) + [3]),
        "tokenizer.ggml.merges": ("[str]", ["t h"]),
        "tokenizer.ggml.bos_token_id": ("u32", n_vocab - 1),
        "tokenizer.ggml.eos_token_id": ("u32", n_vocab - 1),
        "tokenizer.ggml.add_bos_token": ("bool", False),
    }
