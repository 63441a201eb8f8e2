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


def delta(
    qkv: Any,
    a: Any,
    b: Any,
    weights: tuple[Any, Any],
    shape: tuple[int, int, int, int],
    *,
    tiled: bool,
    bound: float = 0.0,
    sign: int = 1,
) -> Doubles:
    """Gated delta rule. weights: A [n_v], bias; shape: n_k, n_v, head_k, head_v; a [n, n_v] or [n, n_v * head_k]."""
    n_k, n_v, dk, dv = shape
    n = len(qkv)
    logits, rate = (a + weights[1]).reshape(n, n_v, -1), weights[0][:, None]  # [n, n_v, 1 or head_k]
    g = bound / (1 + np.exp(-sign * rate * logits)) if bound else rate * np.log1p(np.exp(logits))
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


def ssm_heads(x: Any, b: Any, c: Any, dt: Any, weights: tuple[Any, Any, Any]) -> Doubles:
    """One decay a head. x [n, n_head, head], b, c [n, n_group, n_state], dt [n, n_head]; weights: A, D, bias."""
    n, n_head, head = x.shape
    a, d, bias = weights
    steps = np.log1p(np.exp(dt + bias))
    out = np.zeros_like(x)
    for h in range(n_head):
        g = h // (n_head // b.shape[1])
        state = np.zeros((b.shape[2], head))
        for t in range(n):
            state = np.exp(steps[t, h] * a[h]) * state + steps[t, h] * np.outer(b[t, g], x[t, h])
            out[t, h] = c[t, g] @ state + d[h] * x[t, h]
    return out.reshape(n, -1)


def ssm_channels(x: Any, dt: Any, b: Any, c: Any, weights: tuple[Any, Any, Any]) -> Doubles:
    """Decays for each channel and state. x, dt [n, width], b, c [n, n_state]; weights: A [width, n_state], D, bias."""
    a, d, bias = weights
    steps = np.log1p(np.exp(dt + bias))
    state = np.zeros(a.shape)
    out = np.zeros_like(x)
    for t in range(len(x)):
        state = np.exp(steps[t][:, None] * a) * state + (steps[t] * x[t])[:, None] * b[t]
        out[t] = state @ c[t] + d * x[t]
    return out


def lightning(qkv: Any, slope: float) -> Doubles:
    """Linear attention with a fixed decay. qkv [n, n_head, 3, head]."""
    n, n_head, _, head = qkv.shape
    out = np.zeros((n, n_head, head))
    for h in range(n_head):
        state = np.zeros((head, head))
        for t in range(n):
            q, k, v = qkv[t, h]
            state = np.exp(-slope * 2.0 ** (-8 * (h + 1) / n_head)) * state + np.outer(k, v)
            out[t, h] = q @ state
    return out.reshape(n, -1)
