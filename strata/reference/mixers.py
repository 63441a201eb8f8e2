"""Recurrent mixers of the bound architecture over a whole prompt, for `strata.reference.model`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from strata.arch.bound import BoundLinear, BoundNorm, BoundTensor
from strata.arch.bound_mixer import (
    BoundConv,
    BoundGatedDelta,
    BoundKda,
    BoundLightning,
    BoundMamba,
    BoundMamba2,
    BoundMixer,
    BoundShortConv,
)
from strata.reference import ops, recurrent
from strata.reference.ops import Array
from strata.reference.weights import FileWeights

__all__ = ["Mixers"]


class Mixers:
    """Mixers with the weights of one model. linear: how the model applies a projection."""

    def __init__(self, weights: FileWeights, linear: Callable[[Array, BoundLinear], Array]) -> None:
        self._weights, self._linear = weights, linear

    def run(self, h: Array, mixer: BoundMixer) -> Array:
        """The mixer's result for the normed inputs h of a prompt from its beginning."""
        if isinstance(mixer, BoundShortConv):
            inner = self._short_conv(h, mixer)
        elif isinstance(mixer, BoundGatedDelta):
            inner = self._gated_delta(h, mixer)
        elif isinstance(mixer, BoundKda):
            inner = self._kda(h, mixer)
        elif isinstance(mixer, BoundMamba):
            inner = self._mamba(h, mixer)
        else:
            inner = self._mamba2(h, mixer) if isinstance(mixer, BoundMamba2) else self._lightning(h, mixer)
        return self._linear(inner, mixer.output)

    def _vector(self, tensor: BoundTensor | None) -> Array:
        assert tensor is not None
        return self._weights.bound(tensor)[0][0]

    def _norm(self, x: Array, norm: BoundNorm) -> Array:
        return ops.rms_norm(x, norm.eps, self._vector(norm.gain))

    def _conv(self, x: Array, conv: BoundConv) -> Array:
        weight = self._vector(conv.weight).reshape(conv.width, conv.taps)
        bias = None if conv.bias is None else self._vector(conv.bias)
        return recurrent.short_conv(x, np.zeros((conv.taps - 1, conv.width)), weight, bias)[0]

    def _short_conv(self, h: Array, m: BoundShortConv) -> Array:
        b, c, x = self._linear(h, m.b), self._linear(h, m.c), self._linear(h, m.x)
        return c * self._conv(b * x, m.conv)

    def _gated_delta(self, h: Array, m: BoundGatedDelta) -> Array:
        n, ratio = len(h), m.n_v // m.n_k
        if m.qkv is not None and m.z is not None:
            qkv, z = self._linear(h, m.qkv), self._linear(h, m.z)
        else:
            assert m.mixed is not None
            rows = self._linear(h, m.mixed).reshape(n, m.n_k, -1)
            cuts = np.split(rows, np.cumsum([m.head, m.head, ratio * m.head]), axis=2)
            qkv, z = np.concatenate([part.reshape(n, -1) for part in cuts[:3]], 1), cuts[3].reshape(n, -1)
        if m.a is not None and m.b is not None:
            a, b = self._linear(h, m.a), self._linear(h, m.b)
        else:
            assert m.ba is not None
            pairs = self._linear(h, m.ba).reshape(n, m.n_k, 2, ratio)
            a, b = pairs[:, :, 1].reshape(n, -1), pairs[:, :, 0].reshape(n, -1)
        qkv = ops.silu(self._conv(qkv, m.conv))
        q, k = (
            ops.l2_norm(qkv[:, m.n_k * m.head * part :][:, : m.n_k * m.head].reshape(n, m.n_k, -1), m.l2_eps)
            for part in (0, 1)
        )
        reads = np.arange(m.n_v) % m.n_k if m.tiled else np.arange(m.n_v) // ratio
        v = qkv[:, 2 * m.n_k * m.head :].reshape(n, m.n_v, m.head)
        g = self._vector(m.decay) * recurrent.softplus(a + self._vector(m.decay_bias))
        state = np.zeros((m.n_v, m.head, m.head))
        o = recurrent.delta_rule((q[:, reads], k[:, reads], v), g[:, :, None], ops.sigmoid(b), state)[0]
        return self._norm(o, m.norm).reshape(n, -1) * ops.silu(z)

    def _kda(self, h: Array, m: BoundKda) -> Array:
        n = len(h)
        shape = (n, m.n_head, m.head)
        q, k, v = (
            ops.silu(self._conv(self._linear(h, linear), conv)).reshape(shape)
            for linear, conv in zip((m.q, m.k, m.v), m.convs, strict=True)
        )
        logits = (self._low_rank(h, m.f_a, m.f_b) + self._vector(m.decay_bias)).reshape(shape)
        decay = self._vector(m.decay)[None, :, None]
        g = (
            m.bound * ops.sigmoid((-decay if m.negated else decay) * logits)
            if m.bound
            else decay * recurrent.softplus(logits)
        )
        beta = ops.sigmoid(self._linear(h, m.beta))
        state = np.zeros((m.n_head, m.head, m.head))
        o = recurrent.delta_rule((ops.l2_norm(q, m.l2_eps), ops.l2_norm(k, m.l2_eps), v), g, beta, state)[0]
        return self._norm(o, m.norm).reshape(n, -1) * ops.sigmoid(self._low_rank(h, m.g_a, m.g_b))

    def _low_rank(self, h: Array, first: BoundLinear, second: BoundLinear | None) -> Array:
        return self._linear(h, first) if second is None else self._linear(self._linear(h, first), second)

    def _mamba(self, h: Array, m: BoundMamba) -> Array:
        x = ops.silu(self._conv(self._linear(h, m.x), m.conv))
        low, b, c = (
            self._norm(self._linear(x, linear), norm)
            for linear, norm in ((m.low, m.low_norm), (m.b, m.b_norm), (m.c, m.c_norm))
        )
        dt = recurrent.softplus(self._linear(low, m.dt) + self._vector(m.dt_bias))
        a = self._vector(m.decay).reshape(x.shape[1], m.n_state)
        y = recurrent.ssm_channels(x, (b, c), dt, (a, self._vector(m.skip)), np.zeros(a.shape))[0]
        return y * ops.silu(self._linear(h, m.z))

    def _mamba2(self, h: Array, m: BoundMamba2) -> Array:
        n, inner = len(h), m.n_head * m.head
        rows = ops.silu(self._conv(self._linear(h, m.xbc), m.conv))
        dt = recurrent.softplus(self._linear(h, m.dt) + self._vector(m.dt_bias))
        group = np.arange(m.n_head) // (m.n_head // m.n_group)
        b, c = rows[:, inner:].reshape(n, 2, m.n_group, m.n_state)[:, :, group].swapaxes(0, 1)
        ad = (self._vector(m.decay), self._vector(m.skip))
        state = np.zeros((m.n_head, m.n_state, m.head))
        y = recurrent.ssm_heads(rows[:, :inner].reshape(n, m.n_head, m.head), (b, c), dt, ad, state)[0]
        gated = (y.reshape(n, inner) * ops.silu(self._linear(h, m.z))).reshape(n, m.n_group, -1)
        gain = self._vector(m.norm.gain).reshape(m.n_group, -1)
        return (ops.rms_norm(gated, m.norm.eps, None) * gain).reshape(n, inner)

    def _lightning(self, h: Array, m: BoundLightning) -> Array:
        n = len(h)
        qkv = ops.silu(self._linear(h, m.qkv)).reshape(n, m.n_head, 3, m.head)
        state = np.zeros((m.n_head, m.head, m.head))
        o = recurrent.lightning(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], m.slope, state)[0]
        return ops.sigmoid(self._linear(h, m.gate)) * self._norm(o.reshape(n, -1), m.norm)
