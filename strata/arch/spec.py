"""The vocabulary: the words in which an architecture is declared.

A plugin is one `Arch` value. Every word here has a meaning that `plan` and `strata.reference` implement; a word that
nothing implements does not exist, so that a declaration cannot ask for it. Adding one takes this file, the bound form
(`bound`), the binder, the plan, the reference and a test against llama.cpp in one change.

Dimensions use GGUF's words: n_embd n_layer n_vocab n_head n_head_kv head_k head_v n_ff n_expert n_expert_used.
Metadata keys are written without the leading "<architecture>.".
Plugins import this module only.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from strata.arch.spec_base import Case, Dim, DimName, Key, Norm, Presence, Scalar, Word
from strata.arch.spec_mixer import Mixer, Recurrent, ShortConv

__all__ = [
    "Act",
    "Arch",
    "Block",
    "Case",
    "Dim",
    "DimName",
    "Experts",
    "FeedForward",
    "Gqa",
    "Head",
    "Key",
    "Mixer",
    "Mla",
    "Moe",
    "Norm",
    "Presence",
    "QkNorm",
    "Recurrent",
    "Rope",
    "Router",
    "Scalar",
    "SharedExpert",
    "ShortConv",
    "Temperature",
    "Window",
    "Word",
    "Yarn",
    "derive",
]


class Yarn(Word, frozen=True, kw_only=True):
    """How YaRN's correction range and magnitude are chosen; it acts only in files whose scaling type is yarn.

    beta_fast, beta_slow: the range's ends, in turns over the original context. They are the architecture's: files may
    state others, which no engine that reads these files honours (docs/decisions/0013).

    log_multiplier: mscale_all_dim; None: the architecture has none. The stored value is divided by `log_divisor`.
    """

    beta_fast: float = 32.0
    beta_slow: float = 1.0
    log_multiplier: Key | None = None
    log_divisor: float = 1.0


class Rope(Word, frozen=True, kw_only=True):
    """Rotary position embedding of the first n_rot entries of a head (of the last ones in `Mla`).

    norm: pairs (2p, 2p + 1).  neox: pairs (p, p + n_rot / 2).
    whole_head: n_rot must be the head's width; another value is refused.
    window_base: base of sliding-window layers; None, or a value of 0: the same.
    factors: rope_freqs.weight divides the frequencies when present; scaling type longrope takes rope_factors_long or
        rope_factors_short, by the context's length. Without this word longrope is refused.
    """

    style: Literal["norm", "neox"]
    n_rot: Key = Key("rope.dimension_count", Dim("head_k"), unset=(0,))
    whole_head: bool = False
    base: Key = Key("rope.freq_base", 10000.0, unset=(0.0,))
    window_base: Key | None = None
    factors: bool = False
    yarn: Yarn = Yarn()


class Window(Word, frozen=True, kw_only=True):
    """Sliding-window layers: key j is visible to query p iff p - j < size.

    pattern: an array of flags, one a layer, or a period n. dense-last: layer i is windowed iff i % n < n - 1;
    dense-first: iff i % n != 0; period 0: every layer.
    """

    size: Key = Key("attention.sliding_window")
    pattern: Key = Key("attention.sliding_window_pattern", 2)
    form: Literal["dense-last", "dense-first"] = "dense-last"


class QkNorm(Word, frozen=True, kw_only=True):
    """RMS norm of queries and keys before the rotation: over each head (one gain for all), or over the whole row."""

    over: Literal["head", "row"] = "head"
    presence: Presence = "required"


class Gqa(Word, frozen=True, kw_only=True, tag="gqa", tag_field="kind"):
    """Grouped-query attention; query head h reads KV head h // (n_head / n_head_kv).

    qkv: which spellings of the projections a file may use; `either` prefers attn_qkv.weight (rows Q, K, V).
    sinks: one extra logit a head in the softmax's denominator, attn_sinks.weight.
    clamp: q, k and v are clamped to [-c, c] after their bias.
    scale: factor on the scores; None: 1 / sqrt(head_k).  softcap: scores become c * tanh(score / c); 0: not at all.
    """

    rope: Rope
    qkv: Literal["either", "fused", "split"] = "either"
    qkv_bias: Presence = "if-present"
    output_bias: Presence = "absent"
    qk_norm: QkNorm | None = None
    window: Window | None = None
    sinks: bool = False
    clamp: Key | None = None
    scale: Key | None = None
    softcap: Key | None = None


class Temperature(Word, frozen=True, kw_only=True):
    """Queries are multiplied by 1 + scale * ln(1 + floor(pos / length)); scale 0: not at all."""

    scale: Key = Key("attention.temperature_scale", 0.0)
    length: Key = Key("attention.temperature_length", 0)


class Mla(Word, frozen=True, kw_only=True, tag="mla", tag_field="kind"):
    """Multi-head latent attention: one cached row [latent | rotated key part] for all heads.

    q_rank 0: queries come straight from attn_q. head: scores times 1 / sqrt(k_mla); head-yarn: that times M^2, where M
    is the magnitude that YaRN's log multiplier gives.
    legacy_kv_b: files without attention.key_length_mla hold attn_kv_b instead of its two factors; they are computed as
    ordinary attention of n_head heads.
    """

    rope: Rope
    q_rank: Key
    kv_rank: Key = Key("attention.kv_lora_rank")
    k_mla: Key = Key("attention.key_length_mla", 0)
    v_mla: Key = Key("attention.value_length_mla", 0)
    scale: Literal["head", "head-yarn"] = "head"
    temperature: Temperature | None = None
    legacy_kv_b: bool = False


Act = Literal["silu", "gelu", "swiglu-oai"]


class FeedForward(Word, frozen=True, kw_only=True):
    """A dense gated FFN: down(act(gate x, up x))."""

    act: Act = "silu"
    width: Key = Key("feed_forward_length")
    bias: Presence = "absent"


class Router(Word, frozen=True, kw_only=True):
    """Choice and weights of the experts.

    scores: softmax or sigmoid over all experts; softmax-weight: choose by logits, softmax over the chosen;
        sqrt-softplus. A Key reads expert_gating_func (1 softmax, 2 sigmoid, 3 softmax-weight, 4 sqrt-softplus).
    select_bias: exp_probs_b.bias takes part in the choice only.  bias: ffn_gate_inp.bias is part of the logits.
    normalize: weights are divided by their sum (at least 2^-14).  scale: factor on the weights; 0 means 1.
    Groups (expert_group_count, expert_group_used_count) are honoured in every architecture.
    """

    scores: Literal["softmax", "sigmoid", "softmax-weight", "sqrt-softplus"] | Key
    select_bias: Presence = "absent"
    bias: Presence = "absent"
    normalize: bool | Key = False
    scale: float | Key = 1.0


class Experts(Word, frozen=True, kw_only=True):
    """The routed experts' FFN.

    swiglu-oai: g = min(gate, 7), u = clamp(up, -7, 7): g * sigmoid(1.702 g) * (u + 1).
    gate if-present: without gate matrices h = act(up).  bias: of gate, up and down.
    fused_gate_up: ffn_gate_up_exps (gate rows first) is accepted instead of the two.
    per_expert_tensors: one file tensor per expert and matrix is accepted (ffn_gate.{e}.weight).
    """

    act: Act = "silu"
    width: Key = Key("expert_feed_forward_length")
    bias: Presence = "absent"
    gate: Literal["required", "if-present"] = "required"
    fused_gate_up: bool = False
    per_expert_tensors: bool = False


class SharedExpert(Word, frozen=True, kw_only=True):
    """One FFN that every token passes, of width `width` (total), or `count` times the routed width.

    gate: its result is multiplied by sigmoid(ffn_gate_inp_shexp . x).
    """

    count: Key | None = None
    width: Key | None = None
    act: Act = "silu"
    gate: bool = False


class Moe(Word, frozen=True, kw_only=True):
    """Layers dense_layers and up have routed experts, the first ones a dense FFN.

    optional: a file with expert_count 0 is dense throughout; otherwise such a file is refused.
    """

    router: Router
    experts: Experts = Experts()
    dense_layers: int | Key = 0
    shared: SharedExpert | None = None
    optional: bool = False


class Block(Word, frozen=True, kw_only=True):
    """Order of a layer, and its norms' tensor names.

    sequential: a = x + post(attention(norm(x))); a + post(ffn(norm(a))).
    parallel: x + attention(norm(x)) + ffn(norm(x)), with one norm (ffn_norm None).
    Post norms act on a sublayer's result before it is added.
    """

    residual: Literal["sequential", "parallel"] = "sequential"
    attention_norm: str = "attn_norm"
    ffn_norm: str | None = "ffn_norm"
    post_attention_norm: str | None = None
    post_ffn_norm: str | None = None


class Head(Word, frozen=True, kw_only=True):
    """Logits: softcap(scale * W x), x behind the norm called `norm`.

    tied: without output.weight the token embedding is W.
    """

    norm: str = "output_norm"
    tied: bool = True
    scale: Key | None = None
    softcap: Key | None = None


class Arch(Word, frozen=True, kw_only=True):
    """One architecture. `name` is GGUF's general.architecture; `source` says where the facts come from.

    recurrent: what some layers have in the place of attention.
    embedding_scale: factor on the token embeddings.
    scales_applied: stems of the weights whose `.scale` tensor multiplies the product; other `.scale` tensors that the
        format knows, and every `.input_scale`, are ignored, and listed as such.
    ignore: glob patterns of tensors that the forward pass does not use.
    nextn: trailing next-token-prediction blocks (nextn_predict_layers of block_count) are accepted; they are not run.
    """

    name: str
    source: str
    tested_with: tuple[str, ...]
    attention: Gqa | Mla
    recurrent: Recurrent | None = None
    norm: Norm = Norm()
    block: Block = Block()
    ffn: FeedForward | None = None
    moe: Moe | None = None
    embedding_scale: Key | Literal["sqrt-n_embd"] | None = None
    head: Head = Head()
    scales_applied: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    nextn: bool = False
    derived_from: str | None = None


def derive(parent: Arch, **changes: Any) -> Arch:
    """A sibling of `parent` with some fields replaced; one level deep, so that a reader follows one link at most.

    Raises: ValueError when the parent is derived itself, TypeError for an unknown field or a missing name.
    """
    if parent.derived_from is not None:
        raise ValueError(f"{parent.name} is derived from {parent.derived_from}: derive from that one instead")
    if "name" not in changes:
        raise TypeError("a derived architecture needs its own name")
    return msgspec.structs.replace(parent, derived_from=parent.name, **changes)
