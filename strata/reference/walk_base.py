"""What every op of the plan interpreter stands on: the arena with its buffers, the weights, the caches and states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from strata.arch.plan_tables import ModelPlan, PlanOp, Rows
from strata.reference.ops import Array
from strata.reference.weights import FileWeights

__all__ = ["WalkBase"]


class WalkBase:
    """One plan with one sequence's caches and states."""

    def __init__(self, plan: ModelPlan, weights: FileWeights, rounded: bool = False) -> None:
        self._plan, self._weights, self._rounded = plan, weights, rounded
        self._arena = np.empty(plan.activations_bytes // 4)
        self._keys: list[list[Array]] = [[] for _ in plan.kv_layers]
        self._values: list[list[Array]] = [[] for _ in plan.kv_layers]
        self._states = [np.zeros(state.n_floats) for state in plan.states]
        self._n_past = 0
        self._positions: NDArray[np.int64] = np.empty(0, np.int64)
        self._tokens: Sequence[int] = ()
        self._outputs: Sequence[int] = ()

    def _rows(self, buffer_id: int) -> Array:
        """A view of a buffer's rows in use, [n_rows, width]."""
        buffer = self._plan.buffers[buffer_id]
        n_rows = len(self._tokens) if buffer.rows == Rows.TOKENS else len(self._outputs)
        first = self._arena[buffer.offset // 4 :]
        stride = buffer.row_stride * self._arena.itemsize
        return np.lib.stride_tricks.as_strided(first, (n_rows, buffer.width), (stride, self._arena.itemsize))

    def _heads(self, buffer_id: int, n: int, width: int, stride: int, offset: int) -> Array:
        """A view of n strided vectors of each row, [n_rows, n, width]."""
        rows = self._rows(buffer_id)
        step = self._arena.itemsize
        return np.lib.stride_tricks.as_strided(
            rows[:, offset:], (len(rows), n, width), (rows.strides[0], stride * step, step)
        )

    def _read(self, op: PlanOp, k: int) -> Array:
        rows = self._rows(op.ins[k])
        self._check(op, rows)
        return rows.copy()

    def _check(self, op: PlanOp, values: Array) -> None:
        if np.isnan(values).any():
            raise FloatingPointError(f"layer {op.layer}: {op.kind} meets NaN")

    def _write(self, op: PlanOp, k: int, values: Array) -> None:
        self._check(op, values)
        self._rows(op.outs[k])[:] = values

    def _weight(self, op: PlanOp, k: int) -> Array | None:
        """Weight k of an op, [n_mats, n_rows, n_cols], or None."""
        if k >= len(op.weights) or op.weights[k] < 0:
            return None
        return self._weights.planned(self._plan, self._plan.tensors[op.weights[k]])

    def _vector(self, op: PlanOp, k: int) -> Array | None:
        weight = self._weight(op, k)
        return None if weight is None else weight[0, 0]
