"""Random weight bytes in GGML's block formats, row by row and in any order.

Payload bytes come from one random pool, cut at a place that depends on (seed, tensor, group of 16 rows); the scale
fields of every block are then set so that the dequantised values have about mean 0 and the wanted deviation. So an
18 GB model costs little more than copying 18 GB, and any rows can be made alone.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.gguf.quants import GROUP_ROWS, GgmlType, row_bytes, type_info

POOL_BYTES = 32 << 20
_JITTER = 64  # scale fields differ by up to this many steps of their last bit

# Deviation of a dequantised value when the scale field is 1 and the payload is uniformly random.
# Q4_K: sc * q - 7.5 * m with sc, m in 0..63, q in 0..15.  Q6_K: sc * (q - 32) with int8 sc.  MXFP4: codes of kvalues.
_UNIT_DEVIATION = {GgmlType.Q4_K: 258.3, GgmlType.Q6_K: 1365.3, GgmlType.Q8_0: 73.9, GgmlType.MXFP4: 5.852}
SUPPORTED = (*_UNIT_DEVIATION, GgmlType.F32, GgmlType.F16, GgmlType.BF16)


class WeightSource:
    """All random rows of one model."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._pool: NDArray[np.uint8] | None = None

    def rows(
        self, tensor: str, ggml_type: int, n_cols: int, deviation: float, span: tuple[int, int]
    ) -> NDArray[np.uint8]:
        """Rows span[0] <= r < span[1] in the file's layout: uint8 [n_rows, row_bytes].

        Raises: ValueError for a type that is not SUPPORTED.
        """
        first, end = span
        if ggml_type in (GgmlType.F32, GgmlType.F16, GgmlType.BF16):
            return self._float_rows(tensor, ggml_type, n_cols, deviation, span)
        if ggml_type not in _UNIT_DEVIATION:
            raise ValueError(
                f"random rows of type {ggml_type} cannot be made; accepted: {', '.join(t.name for t in SUPPORTED)}"
            )
        size = row_bytes(ggml_type, n_cols)
        group_first, group_end = first // GROUP_ROWS, -(-end // GROUP_ROWS)
        made = np.empty((group_end - group_first, GROUP_ROWS * size), np.uint8)
        for i, group in enumerate(range(group_first, group_end)):
            self._copy(tensor, group, made[i])
        info = type_info(ggml_type)
        assert info is not None
        _set_scales(made.reshape(-1, info.block_bytes), GgmlType(ggml_type), deviation)
        start = first - group_first * GROUP_ROWS
        return made.reshape(-1, size)[start : start + end - first]

    def generator(self, *parts: object) -> np.random.Generator:
        """Random numbers that belong to these parts alone."""
        return np.random.Generator(np.random.Philox(key=_hash(self._seed, *parts)))

    def _copy(self, tensor: str, group: int, out: NDArray[np.uint8]) -> None:
        if self._pool is None:
            self._pool = np.random.Generator(np.random.Philox(key=_hash(self._seed))).integers(
                0, 256, POOL_BYTES, np.uint8
            )
        at, done = _hash(self._seed, tensor, group) % POOL_BYTES, 0
        while done < out.size:
            n = min(out.size - done, POOL_BYTES - at)
            out[done : done + n] = self._pool[at : at + n]
            done, at = done + n, 0

    def _float_rows(
        self, tensor: str, ggml_type: int, n_cols: int, deviation: float, span: tuple[int, int]
    ) -> NDArray[np.uint8]:
        first, end = span
        made = np.empty((end - first, n_cols), np.float32)
        for i in range(end - first):
            made[i] = self.generator(tensor, first + i).standard_normal(n_cols, np.float32) * np.float32(deviation)
        return float_bytes(made, ggml_type)


def float_bytes(values: NDArray[np.float32], ggml_type: int) -> NDArray[np.uint8]:
    """float32 [n, n_cols] as F32, F16 or BF16 bytes [n, row_bytes]."""
    rounded: Any = values
    if ggml_type == GgmlType.F16:
        rounded = values.astype(np.float16)
    elif ggml_type == GgmlType.BF16:
        bits = values.view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.ascontiguousarray(rounded).view(np.uint8).reshape(len(values), -1)


def _set_scales(blocks: NDArray[np.uint8], ggml_type: GgmlType, deviation: float) -> None:
    """Overwrite the scale fields of uint8 [n_blocks, block_bytes], in place."""
    unit = deviation / _UNIT_DEVIATION[ggml_type]
    if ggml_type == GgmlType.MXFP4:
        # value = 2^(e - 128) * code: two neighbouring exponents, equally often
        blocks[:, 0] = np.clip(np.floor(np.log2(unit / 1.5)) + 128, 1, 254).astype(np.uint8) + (blocks[:, 0] & 1)
        return
    at = {GgmlType.Q4_K: 0, GgmlType.Q6_K: 208, GgmlType.Q8_0: 0}[ggml_type]
    jitter = blocks[:, at] % _JITTER
    _put_half(blocks, at, unit, jitter)
    if ggml_type == GgmlType.Q4_K:
        _put_half(blocks, 2, 7.5 * unit, jitter)


def _put_half(blocks: NDArray[np.uint8], at: int, value: float, jitter: NDArray[np.uint8]) -> None:
    bits = int(np.float16(value).view(np.uint16))
    halves = (bits + (jitter.astype(np.uint16) if bits > _JITTER * 16 else 0)) * np.ones(len(blocks), np.uint16)
    blocks[:, at] = halves & 0xFF
    blocks[:, at + 1] = halves >> 8


def _hash(*parts: object) -> int:
    text = "\0".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
