"""Bound forms of the recurrent mixers: numbers known, tensors found. Made by `bind_mixer`."""

from __future__ import annotations

from strata.arch.bound_base import Bound, BoundLinear, BoundTensor

__all__ = ["BoundConv", "BoundMixer", "BoundShortConv"]


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


BoundMixer = BoundShortConv
