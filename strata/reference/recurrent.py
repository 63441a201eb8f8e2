"""Recurrences, slow and obvious, in float64: each takes a state and new tokens, and gives results and the new state.

x: [n_tokens, width]. A state of zeros is a sequence's beginning.
"""

from __future__ import annotations

import numpy as np

from strata.reference.ops import Array

__all__ = ["short_conv"]


def short_conv(x: Array, state: Array, weight: Array, bias: Array | None = None) -> tuple[Array, Array]:
    """Causal convolution of every channel: out[t, c] = sum over k of weight[c, k] * x[t - (taps - 1) + k, c] + bias[c].

    state: the last taps - 1 inputs, oldest first, [taps - 1, width]. weight [width, taps].
    """
    taps = weight.shape[1]
    seen = np.concatenate([state, x])
    out = sum(weight[:, k] * seen[k : k + len(x)] for k in range(taps))
    assert isinstance(out, np.ndarray)
    return (out if bias is None else out + bias), seen[len(x) :]
