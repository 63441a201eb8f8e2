"""Words for layers that carry a state from token to token instead of looking back. Plugins import `strata.arch.spec`.

u is the layer's normed input. conv(x) is the causal convolution of each channel: the sum over k of weight[k, c] times
channel c's input of taps - 1 - k tokens ago, zeros before the sequence. States are zero at a sequence's beginning.
taps is ssm.conv_kernel, except in `ShortConv`.
"""

from __future__ import annotations

from typing import Literal

from strata.arch.spec_base import Key, Word

__all__ = ["GatedDelta", "Kda", "Lightning", "Mamba", "Mamba2", "Mixer", "Recurrent", "ShortConv"]


class ShortConv(Word, frozen=True, kw_only=True, tag="short-conv", tag_field="kind"):
    """[b | c | x] = shortconv.in_proj u; the result is shortconv.out_proj (c * conv(b * x))."""

    taps: Key = Key("shortconv.l_cache")


class GatedDelta(Word, frozen=True, kw_only=True, tag="gated-delta", tag_field="kind"):
    """Gated delta net: n_v = ssm.time_step_rank value heads, n_k = ssm.group_count key heads, all ssm.state_size wide.

    [q | k | v] = silu(conv(attn_qkv u)); q and k by head over sqrt(sum of squares + eps); per value head, with S [key,
    value]: S *= exp(ssm_a * softplus(a + ssm_dt.bias)); S += k (sigmoid(b) * (v - k S)); o = q S / sqrt(state_size).
    The result is ssm_out (rms(o) * ssm_norm * silu(attn_gate u)).

    grouped: value heads of one key head are neighbours; ssm_ba u holds b and a of each key head's value heads. Instead
    of attn_qkv and attn_gate a file may have ssm_in: q, k, v and z of one key head after the other.
    tiled: value head h reads key head h mod n_k; b = ssm_beta u, a = ssm_alpha u.
    scaled: the mixer's projections take part in `scales_applied`.
    """

    layout: Literal["grouped", "tiled"]
    scaled: bool = False


class Kda(Word, frozen=True, kw_only=True, tag="kda", tag_field="kind"):
    """Kimi delta attention: head_count heads of kda.head_dim, one decay for each row of a head's S.

    q, k, v = silu(conv(attn_{q,k,v} u)), each with its own weights; q and k normed as in `GatedDelta`;
    S[i] *= exp(ssm_a * softplus(a[i] + ssm_dt.bias[i])) with a = ssm_f_b ssm_f_a u;
    S += k (sigmoid(ssm_beta u) * (v - k S)); o = q S / sqrt(head_dim).
    The result is attn_output (rms(o) * ssm_norm * sigmoid(ssm_g_b ssm_g_a u)).
    Biases of attn_{q,k,v} are accepted and have no effect; scales neither.
    bound: a number c below 0 and the decay exp(c * sigmoid(ssm_a * (a[i] + ssm_dt.bias[i]))), which never falls below
        exp(c); without the key, where its default is 0, the form above.  negated: there -ssm_a stands for ssm_a.
    bounded: a flag which says so; only true is accepted.
    full_rank: there is no ssm_f_b: ssm_f_a gives all heads' rows.
    gate: full: there is no ssm_g_b: ssm_g_a gives all heads' rows; named-full: so does ssm_g.
    """

    bound: Key | None = None
    negated: bool = False
    bounded: Key | None = None
    full_rank: bool = False
    gate: Literal["low-rank", "full", "named-full"] = "low-rank"


class Mamba(Word, frozen=True, kw_only=True, tag="mamba", tag_field="kind"):
    """Selective state space: ssm.inner_size channels of ssm.state_size states, a decay for each state of each channel.

    [x | z] = ssm_in u; x = silu(conv(x) + bias); [t | B | C] = ssm_x x, each normed (ssm_dt_norm,
    ssm_b_norm, ssm_c_norm);
    dt = softplus(ssm_dt t + bias); h[s] = exp(dt * ssm_a[s]) * h[s] + dt * B[s] * x; y = sum of C[s] h[s] + ssm_d x.
    The result is ssm_out (y * silu(z)).
    """


class Mamba2(Word, frozen=True, kw_only=True, tag="mamba2", tag_field="kind"):
    """Selective state space with one decay a head: ssm.time_step_rank heads share ssm.inner_size channels.

    [z | xBC | dt] = ssm_in u; [x | B | C] = silu(conv(xBC) + bias), B and C of ssm.group_count groups of
    ssm.state_size;
    dt = softplus(dt + ssm_dt.bias); h[s] = exp(dt * ssm_a) * h[s] + dt * B[s] * x; y = sum of C[s] * h[s] + ssm_d * x.
    The result is ssm_out (rms(y * silu(z)) * ssm_norm), normed group by group.
    """


class Lightning(Word, frozen=True, kw_only=True, tag="lightning", tag_field="kind"):
    """Linear attention with a fixed decay for each head.

    [q | k | v] of each head = silu(attn_qkv u); S = exp(-s) * S + k v; o = q S, where head h (from 0) of layer i has
    s = 2^(-8 (h + 1) / n_head) * (1 - i / (n_layer - 1) + 1e-5).
    The result is attn_output (sigmoid(attn_gate u) * rms(o) * attn_norm_2), normed over all heads together.
    """


Mixer = ShortConv | GatedDelta | Kda | Mamba | Mamba2 | Lightning


class Recurrent(Word, frozen=True, kw_only=True):
    """Which layers have the mixer instead of attention.

    no-kv-heads: those whose attention.head_count_kv is 0. A number n: those that attention.recurrent_layers marks;
    without that key all layers but each m-th, where m is full_attention_interval, n by default.
    """

    mixer: Mixer
    layers: Literal["no-kv-heads"] | int
