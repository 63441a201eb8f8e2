"""The ops of strata.h in numpy float64, one obvious function each. x: [n_tokens, width] unless stated otherwise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


def sigmoid(x: Any) -> Doubles:
    """1 / (1 + exp(-x)), in a form that does not overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * np.asarray(x, np.float64)))


def softmax(x: Any) -> Doubles:
    """Along the last axis."""
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rms_norm(x: Any, eps: float) -> Doubles:
    """x / sqrt(mean(x^2) + eps), along the last axis."""
    return x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + eps)


def layer_norm(x: Any, eps: float) -> Doubles:
    """(x - mean) / sqrt(variance + eps), along the last axis."""
    off = x - np.mean(x, axis=-1, keepdims=True)
    return off / np.sqrt(np.mean(np.square(off), axis=-1, keepdims=True) + eps)


def l2_norm(x: Any, eps: float) -> Doubles:
    """x / sqrt(sum(x^2) + eps), along the last axis."""
    return x / np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True) + eps)


def gelu(x: Any) -> Doubles:
    """The tanh form."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def glu(kind: int, gate: Any, up: Any, p0: float, p1: float) -> Doubles:
    """STRATA_GLU_* by number."""
    silu = lambda v: v * sigmoid(v)  # noqa: E731
    if kind == 0:
        return silu(gate) * up
    if kind == 1:
        return gelu(gate) * up
    if kind == 2:
        return np.maximum(gate, 0) * up
    if kind == 3:
        g, u = np.minimum(gate, p1), np.clip(up, -p1, p1)
        return g * sigmoid(p0 * g) * (u + 1)
    if kind == 4:
        return silu(np.minimum(gate, p0)) * np.clip(up, -p0, p0)
    if kind == 5:
        return np.minimum(silu(gate), p0) * np.clip(up, -p0, p0)
    if kind == 6:
        return p0 * np.tanh(gate / p0) * sigmoid(gate) * (p1 * np.tanh(up / p1) if p1 > 0 else up)
    if kind == 7:
        return silu(up)
    if kind == 8:
        return np.square(np.maximum(up, 0))
    return gelu(up)


def rope(x: Any, pos: Any, freqs: Any, style: int, magnitude: float) -> Doubles:
    """Rotate the first 2 * len(freqs) entries of x [n_tokens, n_head, head]; style 0: pairs (2p, 2p + 1), 1: halves."""
    half = len(freqs)
    angle = np.asarray(pos, np.float64)[:, None, None] * np.asarray(freqs)
    c, s = np.cos(angle) * magnitude, np.sin(angle) * magnitude
    first = slice(0, 2 * half, 2) if style == 0 else slice(0, half)
    second = slice(1, 2 * half, 2) if style == 0 else slice(half, 2 * half)
    out = np.array(x, np.float64)
    out[..., first] = x[..., first] * c - x[..., second] * s
    out[..., second] = x[..., first] * s + x[..., second] * c
    return out


def visible(p: int, n_keys: int, causal: bool, window: int, kind: int) -> npt.NDArray[np.bool_]:
    """Keys that the query at position p sees, of positions 0 to n_keys - 1."""
    j = np.arange(n_keys)
    seen = j <= p if causal else np.ones(n_keys, bool)
    if window and kind == 0:
        seen &= p - j < window
    if window and kind == 1:
        seen &= j >= p // window * window
    if window and kind == 2:
        seen &= np.abs(p - j) <= window // 2
    return seen


def attention(q: Any, k: Any, v: Any, mask: Any, scale: float, *, softcap: float = 0, sinks: Any = None) -> Doubles:
    """q [n, n_head, dk], k [n, n_head_kv, dk], v [n, n_head_kv, dv], mask [n, n] -> [n, n_head, dv]."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    s = np.einsum("qhd,khd->hqk", q, k) * scale
    s = softcap * np.tanh(s / softcap) if softcap else s
    s = np.where(mask[None], s, -np.inf)
    m = s.max(axis=-1, keepdims=True)
    sink = None if sinks is None else np.asarray(sinks)[:, None, None]
    m = m if sink is None else np.maximum(m, sink)
    p = np.exp(s - m)
    total = p.sum(axis=-1, keepdims=True) + (0 if sink is None else np.exp(sink - m))
    return np.einsum("hqk,khd->qhd", p / total, v)


def router(logits: Any, n_used: int, scores: int, **options: Any) -> tuple[list[int], Doubles]:
    """One row's experts in order of choice and their weights. options: bias, groups (n, used), normalize, norm_min, scale, by_logits, chunk."""
    x = np.asarray(logits, np.float64)
    score = {1: softmax, 2: sigmoid, 3: lambda v: v, 4: lambda v: np.sqrt(np.log1p(np.exp(v)))}[scores](x)
    choice = x if options.get("by_logits") else score
    choice = choice + options.get("bias", 0.0)
    n_group, n_group_used = options.get("groups", (1, 1))
    group_of = np.arange(len(x)) // (len(x) // n_group)
    best_two = [sum(sorted(choice[group_of == g])[-2:]) for g in range(n_group)]
    groups = sorted(range(n_group), key=lambda g: (-best_two[g], g))[:n_group_used]
    allowed = [e for e in range(len(x)) if group_of[e] in groups]
    ids = sorted(allowed, key=lambda e: (-choice[e], e))[:n_used]
    ids = [e // options.get("chunk", 1) for e in ids]
    weights = softmax(x[ids]) if scores == 3 else score[ids]
    if options.get("normalize"):
        weights = weights / max(weights.sum(), options.get("norm_min", 0.0))
    return ids, weights * options.get("scale", 1.0)
