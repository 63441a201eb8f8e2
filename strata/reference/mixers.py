"""Recurrent mixers of the bound architecture over a whole prompt, for `strata.reference.model`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from strata.arch.bound import BoundLinear, BoundTensor
from strata.arch.bound_mixer import BoundConv, BoundMixer, BoundShortConv
from strata.reference import recurrent
from strata.reference.ops import Array
from strata.reference.weights import FileWeights

__all__ = ["Mixers"]


class Mixers:
    """Mixers with the weights of one model. linear: how the model applies a projection."""

    def __init__(self, weights: FileWeights, linear: Callable[[Array, BoundLinear], Array]) -> None:
        self._weights, self._linear = weights, linear

    def run(self, h: Array, mixer: BoundMixer) -> Array:
        """The mixer's result for the normed inputs h of a prompt from its beginning."""
        return self._linear(self._short_conv(h, mixer), mixer.output)

    def _vector(self, tensor: BoundTensor) -> Array:
        return self._weights.bound(tensor)[0][0]

    def _conv(self, x: Array, conv: BoundConv) -> Array:
        weight = self._vector(conv.weight).reshape(conv.width, conv.taps)
        bias = None if conv.bias is None else self._vector(conv.bias)
        return recurrent.short_conv(x, np.zeros((conv.taps - 1, conv.width)), weight, bias)[0]

    def _short_conv(self, h: Array, m: BoundShortConv) -> Array:
        b, c, x = self._linear(h, m.b), self._linear(h, m.c), self._linear(h, m.x)
        return c * self._conv(b * x, m.conv)
