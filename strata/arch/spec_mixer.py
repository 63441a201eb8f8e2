"""Words for layers that carry a state from token to token instead of looking back. Plugins import `strata.arch.spec`.

u is the layer's normed input. conv(x) is the causal convolution of each channel: the sum over k of weight[k, c] times
channel c's input of taps - 1 - k tokens ago, zeros before the sequence.
"""

from __future__ import annotations

from typing import Literal

from strata.arch.spec_base import Key, Word

__all__ = ["Mixer", "Recurrent", "ShortConv"]


class ShortConv(Word, frozen=True, kw_only=True, tag="short-conv", tag_field="kind"):
    """[b | c | x] = shortconv.in_proj u; the result is shortconv.out_proj (c * conv(b * x))."""

    taps: Key = Key("shortconv.l_cache")


Mixer = ShortConv


class Recurrent(Word, frozen=True, kw_only=True):
    """Which layers have the mixer instead of attention.

    no-kv-heads: those whose attention.head_count_kv is 0. A number n: those that attention.recurrent_layers marks;
    without that key all layers but each m-th, where m is full_attention_interval, n by default.
    """

    mixer: Mixer
    layers: Literal["no-kv-heads"] | int
