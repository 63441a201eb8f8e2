"""Weights as float64 arrays, straight from the file, dequantised by the gguf package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from strata.arch.bound import BoundTensor
from strata.arch.plan_tables import ModelPlan, PlanTensor
from strata.gguf.quants import row_bytes
from strata.reference.ops import Array

__all__ = ["FileWeights"]


class FileWeights:
    """Reads bound or planned tensors of one model. Matrices come as [n_mats, n_rows, n_cols], kept once read."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._shards = [np.memmap(path, np.uint8, "r") for path in paths]
        self._kept: dict[tuple[Any, ...], Array] = {}

    def bound(self, tensor: BoundTensor) -> Array:
        """All matrices of a bound tensor."""
        places = [(part.shard, part.file_offset) for part in tensor.parts]
        return self._read(tensor, places or _strided(tensor))

    def planned(self, plan: ModelPlan, tensor: PlanTensor) -> Array:
        """All matrices of a planned tensor."""
        if tensor.source_first < 0:
            return self._read(tensor, _strided(tensor))
        sources = plan.sources[tensor.source_first : tensor.source_first + tensor.n_mats]
        return self._read(tensor, [(source.shard, source.file_offset) for source in sources])

    def _read(self, tensor: BoundTensor | PlanTensor, places: list[tuple[int, int]]) -> Array:
        key = (tensor.type, tensor.n_rows, tensor.n_cols, tuple(places))
        if key not in self._kept:
            self._kept[key] = np.stack([self._matrix(tensor, shard, offset) for shard, offset in places])
        return self._kept[key]

    def _matrix(self, tensor: BoundTensor | PlanTensor, shard: int, offset: int) -> Array:
        n_bytes = row_bytes(tensor.type, tensor.n_cols)
        raw = np.array(self._shards[shard][offset : offset + n_bytes * tensor.n_rows])
        rows = gguf.quants.dequantize(raw.reshape(tensor.n_rows, n_bytes), gguf.GGMLQuantizationType(tensor.type))
        return rows.reshape(tensor.n_rows, tensor.n_cols).astype(np.float64)


def _strided(tensor: BoundTensor | PlanTensor) -> list[tuple[int, int]]:
    return [(tensor.shard, tensor.file_offset + m * tensor.file_stride_bytes) for m in range(tensor.n_mats)]
