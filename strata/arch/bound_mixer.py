"""Bound forms of the recurrent mixers: numbers known, tensors found. Made by `bind_mixer`."""

from __future__ import annotations

from strata.arch.bound_base import Bound, BoundLinear, BoundNorm, BoundTensor

__all__ = [
    "BoundConv",
    "BoundGatedDelta",
    "BoundKda",
    "BoundLightning",
    "BoundMamba",
    "BoundMamba2",
    "BoundMixer",
    "BoundShortConv",
]


class BoundConv(Bound, frozen=True, kw_only=True):
    """Causal convolution of `width` channels. weight: a vector, one channel's taps together, the latest input last."""

    width: int
    taps: int
    weight: BoundTensor
    bias: BoundTensor | None = None


class BoundShortConv(Bound, frozen=True, kw_only=True, tag="short-conv"):
    """output (c * conv(b * x))."""

    b: BoundLinear
    c: BoundLinear
    x: BoundLinear
    conv: BoundConv
    output: BoundLinear


class BoundGatedDelta(Bound, frozen=True, kw_only=True, tag="gated-delta"):
    """Either qkv and z, or mixed: q | k | v | z of each key head. Either b and a, or ba: b | a of each key head."""

    n_k: int
    n_v: int
    head: int
    tiled: bool
    l2_eps: float
    conv: BoundConv
    decay: BoundTensor
    decay_bias: BoundTensor
    norm: BoundNorm
    output: BoundLinear
    qkv: BoundLinear | None = None
    z: BoundLinear | None = None
    mixed: BoundLinear | None = None
    a: BoundLinear | None = None
    b: BoundLinear | None = None
    ba: BoundLinear | None = None


class BoundKda(Bound, frozen=True, kw_only=True, tag="kda"):
    """Decay logits f_b f_a u; the result's gate g_b g_a u; f_b, g_b None: f_a u and g_a u.

    bound 0: log decay = decay * softplus(logit + bias); below 0: bound * sigmoid(decay * (logit + bias)),
    negated: with -decay.
    """

    n_head: int
    head: int
    l2_eps: float
    q: BoundLinear
    k: BoundLinear
    v: BoundLinear
    convs: tuple[BoundConv, BoundConv, BoundConv]
    f_a: BoundLinear
    f_b: BoundLinear | None
    beta: BoundLinear
    decay: BoundTensor
    decay_bias: BoundTensor
    g_a: BoundLinear
    g_b: BoundLinear | None
    norm: BoundNorm
    output: BoundLinear
    bound: float = 0.0
    negated: bool = False


class BoundMamba(Bound, frozen=True, kw_only=True, tag="mamba"):
    """decay: a vector, the n_state values of one channel together."""

    n_state: int
    x: BoundLinear
    z: BoundLinear
    conv: BoundConv
    low: BoundLinear
    b: BoundLinear
    c: BoundLinear
    low_norm: BoundNorm
    b_norm: BoundNorm
    c_norm: BoundNorm
    dt: BoundLinear
    dt_bias: BoundTensor
    decay: BoundTensor
    skip: BoundTensor
    output: BoundLinear


class BoundMamba2(Bound, frozen=True, kw_only=True, tag="mamba2"):
    """norm: gains of all n_group groups, one after the other."""

    n_head: int
    head: int
    n_group: int
    n_state: int
    z: BoundLinear
    xbc: BoundLinear
    dt: BoundLinear
    conv: BoundConv
    dt_bias: BoundTensor
    decay: BoundTensor
    skip: BoundTensor
    norm: BoundNorm
    output: BoundLinear


class BoundLightning(Bound, frozen=True, kw_only=True, tag="lightning"):
    """slope: of this layer; head h decays by exp(-slope * 2^(-8 (h + 1) / n_head))."""

    n_head: int
    head: int
    slope: float
    qkv: BoundLinear
    gate: BoundLinear
    norm: BoundNorm
    output: BoundLinear


BoundMixer = BoundShortConv | BoundGatedDelta | BoundKda | BoundMamba | BoundMamba2 | BoundLightning
