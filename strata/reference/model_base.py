"""What every part of the reference stands on: the weights, norms, projections and rotations of a bound model."""

from __future__ import annotations

import math

import numpy as np

from strata.arch.bound import BoundArch, BoundLinear, BoundNorm, BoundRope, BoundTensor
from strata.reference import ops
from strata.reference.ops import Array
from strata.reference.weights import FileWeights

__all__ = ["ModelBase"]


class ModelBase:
    """One model. n_ctx: the longest context, default the model's own."""

    def __init__(self, bound: BoundArch, weights: FileWeights, n_ctx: int | None = None) -> None:
        self.bound, self._weights = bound, weights
        self._n_ctx = bound.n_ctx_train if n_ctx is None else n_ctx

    def _vector(self, tensor: BoundTensor | None) -> Array | None:
        return None if tensor is None else self._weights.bound(tensor)[0][0]

    def _matrix(self, tensor: BoundTensor) -> Array:
        return self._weights.bound(tensor)[0]

    def _norm(self, x: Array, norm: BoundNorm) -> Array:
        function = ops.rms_norm if norm.kind == "rms" else ops.layer_norm
        return function(x, norm.eps, self._vector(norm.gain), self._vector(norm.bias))

    def _linear(self, x: Array, linear: BoundLinear, factor: float = 1.0) -> Array:
        scale = self._vector(linear.scale)
        factor = factor if scale is None else factor * float(scale[0])
        return ops.linear(x, self._matrix(linear.weight), self._vector(linear.bias), factor)

    def _rotate(self, x: Array, rope: BoundRope, positions: np.ndarray) -> Array:
        """Rotate vectors [n_tokens, n_head, n_rot]."""
        base = rope.base ** (-2.0 * np.arange(rope.n_rot // 2) / rope.n_rot)
        factors = self._vector(rope.factors_long if self._n_ctx > rope.n_ctx_orig else rope.factors)
        base = base if factors is None else base / factors
        full = positions[:, None] * base[None, :]
        angles = full * rope.freq_scale
        if rope.yarn:
            angles = _yarn_blend(full, angles, rope)
        angles[:, list(rope.still)] = 0.0
        return ops.rotate(x, angles, rope.style, rope.magnitude)


def _yarn_blend(full: Array, slowed: Array, rope: BoundRope) -> Array:
    """Between the full and the slowed angle by how often a pair turns over the original context.

    Source: YaRN (arXiv 2309.00071) section 3.2, with the range rounded outwards to whole pairs.
    """

    def pair(turns: float) -> float:
        return rope.n_rot * math.log(rope.n_ctx_orig / (2 * math.pi * turns)) / (2 * math.log(rope.base))

    low = max(math.floor(pair(rope.beta_fast)), 0)
    high = min(math.ceil(pair(rope.beta_slow)), rope.n_rot - 1)
    slow_share = np.clip((np.arange(rope.n_rot // 2) - low) / max(high - low, 1e-3), 0, 1)
    return slowed * slow_share + full * (1 - slow_share)
