"""Writes a case to a GGUF file with random weights whose logits spread and whose routers choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from arch_cases import N_VOCAB, Case

from strata.arch.bound import BoundArch, BoundGqa
from strata.gguf.quants import GgmlType
from strata.testing.tiny_gguf import Given, Random, write_tiny_gguf

N_TOKENS = 90  # of the prompts that models are compared on


def write_case(
    case: Case,
    path: Path,
    quantise: dict[str, gguf.GGMLQuantizationType] | None = None,
    given: dict[str, np.ndarray] | None = None,
    seed: int = 0,
) -> Path:
    """Write the case; `quantise` maps parts of tensor names to types, F32 otherwise. `given`: values to use as they are."""
    tensors: dict[str, Random | Given] = {}
    for name, ne in case["tensors"].items():
        kind = next((kind for part, kind in (quantise or {}).items() if part in name), None)
        if kind is None or len(ne) < 2 or ne[0] % gguf.GGML_QUANT_SIZES[kind][0] != 0:
            kind = gguf.GGMLQuantizationType.F32
        spread = next((std for part, std in case.get("deviations", {}).items() if part in name), None)
        drawn = Random(tuple(ne), GgmlType(kind), spread)
        tensors[name] = drawn if given is None else Given(given[name], GgmlType(kind))
    return write_tiny_gguf(path, case["arch"], case["keys"] | _vocabulary(), tensors, seed=seed)


def _vocabulary() -> dict[str, Any]:
    """SentencePiece-style: three special tokens, the bytes, and words that nothing spells."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += [f"w{k}" for k in range(N_VOCAB - len(words))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": [-float(k) for k in range(N_VOCAB)],
        "tokenizer.ggml.token_type": np.array([2, 3, 3, *[6] * 256, *[1] * (N_VOCAB - 259)], np.int32),
    }


def step_tokens(bound: BoundArch, n: int) -> int:
    """n, or the whole prompt where every token sees every other."""
    causal = (layer.attention.causal for layer in bound.layers if isinstance(layer.attention, BoundGqa))
    return n if all(causal) else N_TOKENS


def prompt(n: int) -> list[int]:
    """n token ids; a shorter prompt is the beginning of a longer one."""
    return np.random.default_rng(7).integers(3, N_VOCAB, n).tolist()
