"""Writes small GGUF files for tests: an architecture's name, its keys, its tensors. Random weights of every type.

Authors of plugins use it to try an architecture on a model of a few hundred kilobytes that llama.cpp loads too:

    write_tiny_gguf(
        path,
        "qwen3moe",
        {"block_count": 1, "embedding_length": 256, "expert_count": 8, ...},
        {"token_embd.weight": Random((256, 272)), "blk.0.attn_q.weight": Random((256, 64), GgmlType.IQ3_S), ...},
    )

Random values depend on (seed, tensor name) alone, so adding a tensor changes no other one. Unless told otherwise they
follow the tensor's name: logits spread, routers choose, norms are near 1.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.gguf.quants import GgmlType
from strata.synthetic.blocks import FLOAT_TYPES, float_bytes, random_rows
from strata.synthetic.vocabulary import byte_level_vocabulary

__all__ = ["Given", "Random", "random_values", "write_tiny_gguf"]

OUTPUT_STD, ROUTER_STD, EMBEDDING_STD = 3.0, 2.0, 0.4
_GLOBAL = ("general.", "tokenizer.", "split.", "quantize.")
# made from normal values by the reference's rounding; the other types have no public quantiser: random blocks
_QUANTISED = (
    GgmlType.Q4_0,
    GgmlType.Q4_1,
    GgmlType.Q5_0,
    GgmlType.Q5_1,
    GgmlType.Q8_0,
    GgmlType.TQ1_0,
    GgmlType.TQ2_0,
    GgmlType.MXFP4,
)
_KINDS: dict[str, gguf.GGUFValueType] = {
    "str": gguf.GGUFValueType.STRING,
    "bool": gguf.GGUFValueType.BOOL,
    "int": gguf.GGUFValueType.UINT32,
    "float": gguf.GGUFValueType.FLOAT32,
    "uint8": gguf.GGUFValueType.UINT8,
    "int8": gguf.GGUFValueType.INT8,
    "uint16": gguf.GGUFValueType.UINT16,
    "int16": gguf.GGUFValueType.INT16,
    "uint32": gguf.GGUFValueType.UINT32,
    "int32": gguf.GGUFValueType.INT32,
    "uint64": gguf.GGUFValueType.UINT64,
    "int64": gguf.GGUFValueType.INT64,
    "float32": gguf.GGUFValueType.FLOAT32,
    "float64": gguf.GGUFValueType.FLOAT64,
}


class Random(msgspec.Struct, frozen=True):
    """A tensor of random values. ne: fastest dimension first; deviation None: what the tensor's name asks for."""

    ne: tuple[int, ...]
    type: GgmlType = GgmlType.F32
    deviation: float | None = None


class Given(msgspec.Struct, frozen=True):
    """A tensor of these values: float32, slowest dimension first (numpy's order), rounded to `type`."""

    values: NDArray[np.float32]
    type: GgmlType = GgmlType.F32


def write_tiny_gguf(
    path: str | Path,
    arch: str,
    keys: Mapping[str, Any],
    tensors: Mapping[str, Random | Given],
    *,
    seed: int = 0,
) -> Path:
    """Write the file and return its path.

    keys: without the architecture's prefix, except those of the file itself ("general.", "tokenizer.", "split.",
    "quantize."). int is stored as u32, float as f32; numpy scalars keep their width; list and tuple likewise, by their
    first element. Without any "tokenizer." key a byte-level vocabulary as long as token_embd.weight is added.
    Raises: ValueError for a value or type that cannot be stored.
    """
    writer = gguf.GGUFWriter(path, arch)
    for key, value in _all_keys(keys, tensors).items():
        full = key if key.startswith(_GLOBAL) else f"{arch}.{key}"
        if full != "general.architecture":  # the writer has put it there
            _add(writer, full, value)
    for name, source in tensors.items():
        data, shape = _stored(name, source, seed)
        # for raw bytes the writer derives the number of values from the last dimension's bytes
        raw = data.reshape(*shape[:-1], -1) if data.dtype == np.uint8 else data.reshape(shape)
        writer.add_tensor(name, np.ascontiguousarray(raw), raw_dtype=gguf.GGMLQuantizationType(int(source.type)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def random_values(name: str, ne: tuple[int, ...], seed: int = 0, deviation: float | None = None) -> NDArray[np.float32]:
    """The float32 values of a Random tensor before rounding, slowest dimension first."""
    shape = tuple(reversed(ne))
    rng = _generator(seed, name)
    if deviation is None and (name.endswith((".scale", ".input_scale")) or "rope_f" in name):
        return (0.5 + 2.0 * rng.random(shape)).astype(np.float32)
    normal = rng.standard_normal(shape, np.float32)
    if deviation is None and name.endswith("ssm_a"):
        return np.float32(-0.05) - np.abs(normal)  # rates of decay
    if deviation is None and "norm" in name and name.endswith(".weight"):
        return 1 + np.float32(0.1) * normal
    return normal * np.float32(_deviation(name, ne) if deviation is None else deviation)


def _deviation(name: str, ne: tuple[int, ...]) -> float:
    """Deviation that a tensor of this name has."""
    if name.endswith(".bias"):
        return 0.3
    if name == "token_embd.weight":
        return EMBEDDING_STD
    if "sinks" in name:
        return 1.0
    spread = ROUTER_STD if "ffn_gate_inp" in name else OUTPUT_STD if name == "output.weight" else 1.0
    return spread / math.sqrt(ne[0])


def _stored(name: str, source: Random | Given, seed: int) -> tuple[NDArray[Any], tuple[int, ...]]:
    """Bytes (or float32 values) of a tensor, and its shape in numpy's order."""
    if isinstance(source, Random):
        shape = tuple(reversed(source.ne))
        if source.type not in _QUANTISED and source.type not in FLOAT_TYPES:
            deviation = _deviation(name, source.ne) if source.deviation is None else source.deviation
            rows = math.prod(source.ne[1:])
            return random_rows(_generator(seed, name), source.type, rows, source.ne[0], deviation), shape
        values = random_values(name, source.ne, seed, source.deviation)
    else:
        values, shape = np.ascontiguousarray(source.values, np.float32), source.values.shape
    if source.type == GgmlType.F32:
        return values, shape
    rows = values.reshape(-1, shape[-1])
    if source.type in FLOAT_TYPES:
        return float_bytes(rows, source.type), shape
    return gguf.quants.quantize(rows, gguf.GGMLQuantizationType(int(source.type))), shape


def _generator(seed: int, name: str) -> np.random.Generator:
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def _all_keys(keys: Mapping[str, Any], tensors: Mapping[str, Random | Given]) -> dict[str, Any]:
    embedding = tensors.get("token_embd.weight")
    if embedding is None or any(key.startswith("tokenizer.") for key in keys):
        return dict(keys)
    n_vocab = embedding.ne[1] if isinstance(embedding, Random) else embedding.values.shape[0]
    vocabulary = {key: _sized(kind, value) for key, (kind, value) in byte_level_vocabulary(n_vocab).items()}
    return {**keys, **vocabulary}


def _sized(kind: str, value: Any) -> Any:
    return np.array(value, np.int32) if kind == "[i32]" else value


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    items: list[Any] = list(value) if isinstance(value, np.ndarray | list | tuple) else [value]
    if not items:
        raise ValueError(f"{key} is an empty array, which has no element type")
    kinds = {_kind(key, item) for item in items}
    if kinds == {gguf.GGUFValueType.INT32, gguf.GGUFValueType.UINT32}:
        kinds.remove(gguf.GGUFValueType.UINT32)  # Python's int, and some are negative
    if len(kinds) > 1:
        raise ValueError(f"{key} mixes {', '.join(sorted(kind.name for kind in kinds))}")
    plain = [item.item() if isinstance(item, np.generic) else item for item in items]
    if isinstance(value, np.ndarray | list | tuple):
        writer.add_key_value(key, plain, gguf.GGUFValueType.ARRAY, kinds.pop())
    else:
        writer.add_key_value(key, plain[0], kinds.pop())


def _kind(key: str, value: Any) -> gguf.GGUFValueType:
    if type(value) is int and value < 0:
        return gguf.GGUFValueType.INT32
    kind = _KINDS.get(type(value).__name__.rstrip("_"))
    if kind is None:
        raise ValueError(f"{key} is {value!r}; accepted: bool, int, float, str, numpy scalars, and lists of these")
    return kind
