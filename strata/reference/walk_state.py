"""Ops with a state of the plan interpreter."""

from __future__ import annotations

from strata.arch.plan_tables import Act, PlanOp
from strata.reference import ops, recurrent
from strata.reference.ops import Array
from strata.reference.walk_base import WalkBase

__all__ = ["StateWalk"]


class StateWalk(WalkBase):
    """Each op reads its state, takes in the step's tokens, and leaves the new state."""

    def _conv(self, op: PlanOp) -> None:
        i, index = op.i, op.i.get("state", 0)
        weight, offset = self._vector(op, 0), i.get("out_offset", 0)
        assert weight is not None
        state = self._states[index].reshape(i["taps"] - 1, i["width"])
        out, state = recurrent.short_conv(
            self._read(op, 0), state, weight.reshape(i["width"], i["taps"]), self._vector(op, 1)
        )
        self._states[index] = state.ravel()
        self._write_part(op, offset, ops.silu(out) if i.get("act", 0) == Act.SILU else out)

    def _write_part(self, op: PlanOp, offset: int, values: Array) -> None:
        self._check(op, values)
        self._rows(op.outs[0])[:, offset : offset + values.shape[1]] = values
