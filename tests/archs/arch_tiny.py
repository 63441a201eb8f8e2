"""Writes a case to a GGUF file with random weights whose logits spread and whose routers choose."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from arch_cases import N_VOCAB, Case

OUTPUT_STD, ROUTER_STD = 3.0, 2.0
N_TOKENS = 90  # of the prompts that models are compared on


def values(name: str, ne: list[int]) -> np.ndarray:
    """Float32 values of a tensor, fixed by its name, in numpy order (slowest dimension first)."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    shape = tuple(reversed(ne))
    normal = rng.standard_normal(shape).astype(np.float32)
    if name.endswith((".scale", ".input_scale")) or "rope_f" in name:
        return (0.5 + 2.0 * rng.random(shape)).astype(np.float32)
    if "norm" in name and name.endswith(".weight"):
        return 1 + 0.1 * normal
    if name.endswith(".bias"):
        return 0.3 * normal
    if name == "token_embd.weight":
        return 0.4 * normal  # serves as the output of tied models, where it gives the same spread
    if "sinks" in name:
        return normal
    std = ROUTER_STD if "ffn_gate_inp" in name else OUTPUT_STD if name == "output.weight" else 1.0
    return normal * np.float32(std / np.sqrt(ne[0]))


def write_case(
    case: Case,
    path: Path,
    quantise: dict[str, gguf.GGMLQuantizationType] | None = None,
    given: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write the case; `quantise` maps parts of tensor names to types, F32 otherwise. `given`: values to use as they are."""
    writer = gguf.GGUFWriter(path, case["arch"])
    for key, value in case["keys"].items():
        _add(writer, f"{case['arch']}.{key}", value)
    _add_vocabulary(writer)
    for name, ne in case["tensors"].items():
        kind = next((kind for part, kind in (quantise or {}).items() if part in name), None)
        data = given[name] if given is not None else values(name, ne)
        if kind is None or len(ne) < 2 or ne[0] % gguf.GGML_QUANT_SIZES[kind][0] != 0:
            writer.add_tensor(name, data)
        else:
            writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """SentencePiece-style: three special tokens, the bytes, and words that nothing spells."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += [f"w{k}" for k in range(N_VOCAB - len(words))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([-float(k) for k in range(N_VOCAB)])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (N_VOCAB - 259)])


def prompt(n: int) -> list[int]:
    """n token ids; a shorter prompt is the beginning of a longer one."""
    return np.random.default_rng(7).integers(3, N_VOCAB, n).tolist()
