"""Ops of a residual that sublayers look back at."""

from __future__ import annotations

from strata.arch.bound import BoundCheckpoints, BoundTensor
from strata.arch.plan_builder import PlanBuilder
from strata.arch.plan_memory import Value

__all__ = ["KeptResidual"]


class KeptResidual:
    """The running residual and the vectors that layers kept, one after the other in one value."""

    def __init__(self, plan: PlanBuilder, x: Value, spec: BoundCheckpoints, n_layer: int) -> None:
        self._plan, self._x, self._spec = plan, x, spec
        self._kept = plan.value(x.width * -(-n_layer // spec.every))
        self._n_kept = 0

    def read(self, weights: BoundTensor | None) -> Value:
        """The mix that a sublayer reads."""
        if self._n_kept == 0:
            return self._x
        assert weights is not None
        out, width = self._plan.value(self._x.width), self._x.width
        self._plan.op(
            "mix", [self._kept, self._x], [out], [weights], n_vec=self._n_kept, width=width, eps=self._spec.eps
        )
        return out

    def keep(self, layer: int) -> bool:
        """Keep the residual if this layer does."""
        if layer % self._spec.every != 0:
            return False
        width = self._x.width
        self._plan.op("copy", [self._x], [self._kept], n_head=1, width=width, out_offset=self._n_kept * width)
        self._n_kept += 1
        return True

    def add(self, y: Value, *, anew: bool = False) -> None:
        """Add a sublayer's result; anew: the residual is this result."""
        if anew:
            self._x = y
        else:
            self._plan.op("add", [self._x, y], [self._x], width=y.width, a=1.0, b=1.0)
