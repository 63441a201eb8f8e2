"""Recurrences, slow and obvious, in float64: each takes a state and new tokens, and gives results and the new state.

Arrays are [n_tokens, ...]. A state of zeros is a sequence's beginning.
"""

from __future__ import annotations

import numpy as np

from strata.reference.ops import Array

__all__ = ["delta_rule", "lightning", "short_conv", "softplus", "ssm_channels", "ssm_heads"]


def softplus(x: Array) -> Array:
    """ln(1 + exp(x)), without overflow."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def short_conv(x: Array, state: Array, weight: Array, bias: Array | None = None) -> tuple[Array, Array]:
    """Causal convolution of every channel: out[t, c] = sum over k of weight[c, k] * x[t - (taps - 1) + k, c] + bias[c].

    state: the last taps - 1 inputs, oldest first, [taps - 1, width]. weight [width, taps].
    """
    taps = weight.shape[1]
    seen = np.concatenate([state, x])
    out = sum(weight[:, k] * seen[k : k + len(x)] for k in range(taps))
    assert isinstance(out, np.ndarray)
    return (out if bias is None else out + bias), seen[len(x) :]


def delta_rule(qkv: tuple[Array, Array, Array], log_decay: Array, beta: Array, state: Array) -> tuple[Array, Array]:
    """Gated delta rule: S = exp(g) S; S += k (beta * (v - k S)); out = q S / sqrt(head_k).

    q, k [n, n_head, head_k], v [n, n_head, head_v], log_decay [n, n_head, 1 or head_k] along the keys,
    beta [n, n_head], state [n_head, head_k, head_v]. Source: Gated Delta Networks (arXiv 2412.06464) section 3.
    """
    q, k, v = qkv
    out = np.empty(v.shape)
    s = state
    for t in range(len(q)):
        s = np.exp(log_decay[t])[:, :, None] * s
        change = beta[t][:, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], s))
        s = s + k[t][:, :, None] * change[:, None, :]
        out[t] = np.einsum("hk,hkv->hv", q[t], s) / np.sqrt(q.shape[-1])
    return out, s


def ssm_heads(
    x: Array, bc: tuple[Array, Array], dt: Array, ad: tuple[Array, Array], state: Array
) -> tuple[Array, Array]:
    """State space with one decay a head: h[s] = exp(dt A) h[s] + dt B[s] x; out = sum of C[s] h[s] + D x.

    x [n, n_head, head], B and C [n, n_head, n_state] (of each head's group), dt [n, n_head], A and D [n_head],
    state [n_head, n_state, head]. Source: Mamba-2 (arXiv 2405.21060) section 7.
    """
    (b, c), (a, d) = bc, ad
    out = np.empty(x.shape)
    h = state
    for t in range(len(x)):
        h = np.exp(dt[t] * a)[:, None, None] * h + (dt[t][:, None] * b[t])[:, :, None] * x[t][:, None, :]
        out[t] = np.einsum("hs,hsd->hd", c[t], h) + d[:, None] * x[t]
    return out, h


def ssm_channels(
    x: Array, bc: tuple[Array, Array], dt: Array, ad: tuple[Array, Array], state: Array
) -> tuple[Array, Array]:
    """State space with a decay for each channel and state, otherwise as `ssm_heads`.

    x, dt [n, width], B and C [n, n_state], A [width, n_state], D [width], state [width, n_state].
    Source: Mamba (arXiv 2312.00752) section 3.
    """
    (b, c), (a, d) = bc, ad
    out = np.empty(x.shape)
    h = state
    for t in range(len(x)):
        h = np.exp(dt[t][:, None] * a) * h + (dt[t] * x[t])[:, None] * b[t][None, :]
        out[t] = h @ c[t] + d * x[t]
    return out, h


def lightning(q: Array, k: Array, v: Array, slope: float, state: Array) -> tuple[Array, Array]:
    """Linear attention: S = exp(-slope 2^(-8 (h + 1) / n_head)) S + k v; out = q S. q, k, v [n, n_head, head].

    Source: Lightning Attention-2 (arXiv 2401.04658).
    """
    n_head = q.shape[1]
    decay = np.exp(-slope * 2.0 ** (-8.0 * (np.arange(n_head) + 1) / n_head))
    out = np.empty(v.shape)
    s = state
    for t in range(len(q)):
        s = decay[:, None, None] * s + k[t][:, :, None] * v[t][:, None, :]
        out[t] = np.einsum("hk,hkv->hv", q[t], s)
    return out, s
