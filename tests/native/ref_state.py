"""The ops with a state in numpy float64, token by token, one obvious function each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


def conv(x: Any, weight: Any, bias: Any = None) -> Doubles:
    """Causal convolution of every channel. x [n, width], weight [width, taps], zeros before the first token."""
    n, (width, taps) = len(x), weight.shape
    padded = np.vstack([np.zeros((taps - 1, width)), x])
    out = np.array([sum(weight[:, k] * padded[t + k] for k in range(taps)) for t in range(n)])
    return out if bias is None else out + bias


def delta(qkv: Any, a: Any, b: Any, weights: tuple[Any, Any], shape: tuple[int, int, int, int], tiled: bool) -> Doubles:
    """Gated delta rule. weights: A [n_v], bias; shape: n_k, n_v, head_k, head_v; a [n, n_v] or [n, n_v * head_k]."""
    n_k, n_v, dk, dv = shape
    n = len(qkv)
    g = weights[0][:, None] * np.log1p(np.exp(a + weights[1])).reshape(n, n_v, -1)  # [n, n_v, 1 or head_k]
    beta = 1 / (1 + np.exp(-b))
    q = qkv[:, : n_k * dk].reshape(n, n_k, dk)
    k = qkv[:, n_k * dk : 2 * n_k * dk].reshape(n, n_k, dk)
    v = qkv[:, 2 * n_k * dk :].reshape(n, n_v, dv)
    out = np.zeros((n, n_v, dv))
    for h in range(n_v):
        kh = h % n_k if tiled else h // (n_v // n_k)
        state = np.zeros((dk, dv))
        for t in range(n):
            state = np.exp(g[t, h])[:, None] * state
            state = state + np.outer(k[t, kh], beta[t, h] * (v[t, h] - k[t, kh] @ state))
            out[t, h] = q[t, kh] @ state / np.sqrt(dk)
    return out.reshape(n, -1)
