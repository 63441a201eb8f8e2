"""Random weight bytes in GGML's block formats, row by row and in any order.

Payload bytes come from one random pool, cut at a place that depends on (seed, tensor, group of 16 rows); the scale
fields of every block are then set so that the dequantised values have about mean 0 and the wanted deviation. So an
18 GB model costs little more than copying 18 GB, and any rows can be made alone.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from strata.gguf.quants import GROUP_ROWS, GgmlType, row_bytes, type_info
from strata.synthetic.blocks import BLOCK_TYPES, FLOAT_TYPES, float_bytes, set_scales

POOL_BYTES = 32 << 20


class WeightSource:
    """All random rows of one model."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._pool: NDArray[np.uint8] | None = None

    def rows(
        self, tensor: str, ggml_type: int, n_cols: int, deviation: float, span: tuple[int, int]
    ) -> NDArray[np.uint8]:
        """Rows span[0] <= r < span[1] in the file's layout: uint8 [n_rows, row_bytes].

        Raises: ValueError for a type that holds no weights.
        """
        first, end = span
        if ggml_type in FLOAT_TYPES:
            return self._float_rows(tensor, ggml_type, n_cols, deviation, span)
        info = type_info(ggml_type)
        if info is None or ggml_type not in BLOCK_TYPES:
            raise ValueError(f"random rows of type {ggml_type} cannot be made; it is no type of weights")
        size = row_bytes(ggml_type, n_cols)
        group_first, group_end = first // GROUP_ROWS, -(-end // GROUP_ROWS)
        made = np.empty((group_end - group_first, GROUP_ROWS * size), np.uint8)
        for i, group in enumerate(range(group_first, group_end)):
            self._copy(tensor, group, made[i])
        set_scales(made.reshape(-1, info.block_bytes), GgmlType(ggml_type), deviation)
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


def _hash(*parts: object) -> int:
    text = "\0".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
