"""Every op of the vocabulary, slow and obvious, in float64.

Arrays are [n_tokens, ...], row-major. `positions`: int [n_tokens]. Weights are float arrays in the orientation of
y = W x: W [n_rows, n_cols]. Nothing here is fast, and the server imports none of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Array",
    "Mask",
    "Score",
    "attention",
    "glu",
    "hidden_keys",
    "l2_norm",
    "layer_norm",
    "linear",
    "rms_norm",
    "rotate",
    "round_activations",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "temperature",
]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def gelu_tanh(x: Array) -> Array:
    """Gaussian error linear unit, tanh form. Source: arXiv 1606.08415."""
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def relu_sqr(x: Array) -> Array:
    """max(x, 0)^2."""
    return relu(x) ** 2


def softmax(x: Array) -> Array:
    """Over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms_norm(x: Array, eps: float, gain: Array | None, bias: Array | None = None) -> Array:
    """x / sqrt(mean(x^2) + eps) * gain + bias over the last axis."""
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    y = y if gain is None else y * gain
    return y if bias is None else y + bias


def layer_norm(x: Array, eps: float, gain: Array | None, bias: Array | None = None) -> Array:
    """(x - mean) / sqrt(variance + eps) * gain + bias over the last axis; biased variance."""
    centred = x - x.mean(-1, keepdims=True)
    return rms_norm(centred, eps, gain, bias)


def l2_norm(x: Array, eps: float, gain: Array | None = None, bias: Array | None = None) -> Array:
    """x / sqrt(sum(x^2) + eps) * gain + bias over the last axis."""
    y = x / np.sqrt((x * x).sum(-1, keepdims=True) + eps)
    y = y if gain is None else y * gain
    return y if bias is None else y + bias


def linear(x: Array, weight: Array, bias: Array | None = None, scale: float = 1.0) -> Array:
    """(W x) * scale + bias. x [..., n_cols], weight [n_rows, n_cols] -> [..., n_rows]."""
    y = (x @ weight.T) * scale
    return y if bias is None else y + bias


def round_activations(x: Array, act: str) -> Array:
    """What an integer product sees of x: int8 per group of 32 (a32) or 256 (a256) values times a float32 scale; f32: x.

    d = amax / 127, q = round half to even of x / d, both in float32. x [..., n_cols].
    """
    if act == "f32":
        return x.astype(np.float32).astype(np.float64)
    group = {"a32": 32, "a256": 256}[act]
    rows = x.astype(np.float32).reshape(*x.shape[:-1], -1, group)
    d = np.abs(rows).max(-1, keepdims=True) / np.float32(127)
    q = np.rint(np.divide(rows, d, out=np.zeros_like(rows), where=d != 0))
    return (q.astype(np.float64) * d.astype(np.float64)).reshape(x.shape)


def rotate(x: Array, angles: Array, style: str, magnitude: float) -> Array:
    """Rotary embedding of vectors x [n_tokens, n_head, n_rot] by angles [n_tokens, n_rot / 2].

    norm: pairs (2p, 2p + 1).  neox: pairs (p, p + n_rot / 2).
    """
    half = x.shape[-1] // 2
    cos, sin = np.cos(angles)[:, None, :] * magnitude, np.sin(angles)[:, None, :] * magnitude
    first = slice(0, None, 2) if style == "norm" else slice(0, half)
    second = slice(1, None, 2) if style == "norm" else slice(half, None)
    out = np.empty_like(x)
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def temperature(positions: Ints, scale: float, length: int, offset: int = 0) -> Array:
    """1 + scale * ln(1 + floor((pos + offset) / length)) for each token."""
    return 1.0 + scale * np.log(1.0 + (positions + offset) // length)


class Score(NamedTuple):
    """What happens to q . k before the mask: times scale, then softcap * tanh(s / softcap) unless that is 0."""

    scale: float
    softcap: float = 0.0


class Mask(NamedTuple):
    """Which keys a query sees. window w > 0: p - j < w; chunked: j >= floor(p / w) * w."""

    window: int = 0
    chunked: bool = False
    causal: bool = True


def hidden_keys(positions: Ints, n_keys: int, mask: Mask) -> NDArray[np.bool_]:
    """Which keys a query may not see, [n_tokens, n_keys]; key j has position j. Causal: j > p is hidden."""
    keys, queries = np.arange(n_keys)[None, :], positions[:, None]
    hidden = (keys > queries) & mask.causal
    if mask.window == 0:
        return hidden
    first = queries // mask.window * mask.window if mask.chunked else queries - mask.window + 1
    return hidden | (keys < first)


def mix(vectors: Array, weights: Array | None, eps: float) -> Array:
    """Softmax-weighted sum of vectors [n_tokens, n, width] by the scores sum(rms(x) * weights)."""
    scores = rms_norm(vectors, eps, weights).sum(-1)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("tn,tnw->tw", shares / shares.sum(-1, keepdims=True), vectors)


def unchosen_keys(q: Array, k: Array, weights: Array, positions: Ints, top_k: int) -> NDArray[np.bool_]:
    """Which keys an indexer leaves out, [n_tokens, n_keys]; those behind the query are left out too.

    q [n_tokens, n_head, width], k [n_keys, width], weights [n_tokens, n_head].
    """
    left_out = np.ones((len(q), len(k)), np.bool_)
    for t, p in enumerate(positions):
        scores = weights[t] @ np.maximum(q[t] @ k[: p + 1].T, 0.0)
        left_out[t, np.argsort(-scores, kind="stable")[:top_k]] = False
    return left_out


def attention(q: Array, k: Array, v: Array, score: Score, hidden: NDArray[np.bool_], sinks: Array | None) -> Array:
    """Attention of queries over all keys of one sequence.

    q [n_tokens, n_head, head_k], k [n_keys, n_head_kv, head_k], v [n_keys, n_head_kv, head_v] ->
    [n_tokens, n_head, head_v]. sinks [n_head]: one more logit a head, without a value.
    """
    n_head, n_head_kv = q.shape[1], k.shape[1]
    keys, values = (np.repeat(x, n_head // n_head_kv, axis=1) for x in (k, v))
    scores = np.einsum("thd,jhd->htj", q, keys) * score.scale
    if score.softcap > 0.0:
        scores = score.softcap * np.tanh(scores / score.softcap)
    scores = np.where(hidden[None], -np.inf, scores)
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
        weights = softmax(np.concatenate([scores, column], -1))[..., :-1]
    else:
        weights = softmax(scores)
    return np.einsum("htj,jhd->thd", weights, values)


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, 0.0)


def softplus(x: Array) -> Array:
    """ln(1 + e^x)."""
    return np.logaddexp(0.0, x)


def glu(act: str, gate: Array | None, up: Array, limit: float = 0.0, limit_up: float = 0.0) -> Array:
    """h = act(gate) * up; without a gate act(up). limit: the bound of the clamped kinds; of situ both limits."""
    plain = {"silu": silu, "gelu": gelu_tanh, "relu": relu, "relu-sqr": relu_sqr}
    if gate is None:
        return plain[act](up)
    if act == "swiglu-oai":
        g, u = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
        return g * sigmoid(1.702 * g) * (u + 1.0)
    if act == "situ":
        value = limit_up * np.tanh(up / limit_up) if limit_up > 0.0 else up
        return limit * np.tanh(gate / limit) * sigmoid(gate) * value
    if act == "silu-early":
        return silu(np.minimum(gate, limit)) * np.clip(up, -limit, limit)
    if act == "silu-late":
        return np.minimum(silu(gate), limit) * np.clip(up, -limit, limit)
    return plain[act](gate) * up
