"""Words of attention: rotation, windows, norms and gates of heads, the two kinds. Plugins import `strata.arch.spec`."""

from __future__ import annotations

from typing import Literal

from strata.arch.spec_base import Dim, Key, Presence, Word

__all__ = [
    "Gate",
    "Gqa",
    "Indexer",
    "Mla",
    "MlaWindow",
    "QkNorm",
    "Rope",
    "Sections",
    "Temperature",
    "Unrotated",
    "Window",
    "Yarn",
]


class Yarn(Word, frozen=True, kw_only=True):
    """How YaRN's correction range and magnitude are chosen; it acts only in files whose scaling type is yarn.

    beta_fast, beta_slow: the range's ends, in turns over the original context. Numbers are the architecture's: files
    may state others, which no engine that reads these files honours (docs/decisions/0013).
    ext: a key that overrides whether the range is blended; only values that change nothing are accepted.
    log_multiplier: mscale_all_dim, L; None: the architecture has none. The stored value is divided by `log_divisor`.
    Where L is not 0: cancels: cos and sin keep their magnitude; otherwise it is (1 + 0.1 ln f) / (1 + 0.1 L ln f).
    """

    beta_fast: float | Key = 32.0
    beta_slow: float | Key = 1.0
    ext: Key | None = None
    log_multiplier: Key | None = None
    log_divisor: float = 1.0
    cancels: bool = True


class Unrotated(Word, frozen=True, kw_only=True):
    """Every period-th layer is not rotated: the first or the last of each period.

    windowed_only: only in files with windowed layers. unless_n_layer: layer counts of files whose layers all rotate.
    """

    period: int
    place: Literal["first", "last"]
    windowed_only: bool = False
    unless_n_layer: tuple[int, ...] = ()


class Sections(Word, frozen=True, kw_only=True):
    """Pairs are shared out among the positions in time, height, width and a fourth, which is 0 in text.

    key: four counts of pairs. blocks: one run of pairs each, over and over. interleaved: pairs in turn t, h, w, as far
    as each count goes, the rest by the fourth. Text has one position for the first three; pairs of the fourth stand
    still. Without the key (its default is 0), or with fewer than two counts above 0, all pairs rotate.
    style: of files with sections; None: the same as of others.
    """

    key: Key = Key("rope.dimension_sections", 0)
    form: Literal["blocks", "interleaved"]
    style: Literal["norm", "neox"] | None = None


class Rope(Word, frozen=True, kw_only=True):
    """Rotary position embedding of the first n_rot entries of a head (of the last ones in `Mla`).

    norm: pairs (2p, 2p + 1).  neox: pairs (p, p + n_rot / 2).
    whole_head: n_rot must be the head's width; another value is refused.
    factors: rope_freqs.weight divides the frequencies when present; scaling type longrope takes rope_factors_long or
        rope_factors_short, by the context's length. Without this word longrope is refused. long-short: no rope_freqs;
        the two lists act whatever the scaling type is, when present.
    scaling: False: rope.scaling.* has no effect.
    rotated: which layers rotate; windowed-or-dense: those with a window or a dense FFN.  unrotated: exceptions.
    switch: a flag, or one a layer: false: not rotated.
    Layers with a sliding window: window_base: their base; None, or a value of 0: the same.  window_n_rot: their n_rot;
        None: the same.  window_scaling: none: without scaling and magnitude; unscaled: rope.scaling.attn_factor is
        their magnitude, and nothing else of the scaling acts.
    Layers without: full_n_rot_over: they rotate n_rot // this.  full_factors: only they have factors.
    """

    style: Literal["norm", "neox"]
    n_rot: Key = Key("rope.dimension_count", Dim("head_k"), unset=(0,))
    whole_head: bool = False
    base: Key = Key("rope.freq_base", 10000.0, unset=(0.0,))
    factors: bool | Literal["long-short"] = False
    scaling: bool = True
    yarn: Yarn = Yarn()
    sections: Sections | None = None
    rotated: Literal["all", "none", "windowed", "windowed-or-dense"] = "all"
    unrotated: Unrotated | None = None
    switch: Key | None = None
    window_base: Key | None = None
    window_n_rot: Key | None = None
    window_scaling: Literal["same", "none", "unscaled"] = "same"
    full_n_rot_over: int = 1
    full_factors: bool = False


class Window(Word, frozen=True, kw_only=True):
    """Layers that see a part of the past.

    standard: key j is visible to query p iff p - j < size.  chunked: iff j >= floor(p / size) * size.
    constant: the size is this whenever the key is not 0.
    optional: a size of 0 means that no layer is windowed; the pattern then has no effect.
    pattern: an array of flags, one a layer, or a period n. dense-last: layer i is windowed iff i % n < n - 1;
    dense-first: iff i % n != 0; period 0: every layer. flags: only an array is accepted.
    head_k, head_v: widths of windowed heads; None: the same.
    """

    kind: Literal["standard", "chunked"] = "standard"
    size: Key = Key("attention.sliding_window")
    constant: int = 0
    optional: bool = False
    pattern: Key = Key("attention.sliding_window_pattern", 2)
    form: Literal["dense-last", "dense-first", "flags"] = "dense-last"
    head_k: Key | None = None
    head_v: Key | None = None


class QkNorm(Word, frozen=True, kw_only=True):
    """RMS norm of queries and keys before the rotation: over each head (one gain for all), or over the whole row.

    gain: False: x / rms(x) without tensors.  after_rope: behind the rotation instead.
    rotated_only: layers without rotation have none.  unless_n_expert: expert counts of files that have none.
    """

    over: Literal["head", "row"] = "head"
    presence: Presence = "required"
    gain: bool = True
    after_rope: bool = False
    rotated_only: bool = False
    unless_n_expert: tuple[int, ...] = ()


class Gate(Word, frozen=True, kw_only=True):
    """The heads' results are multiplied by act(attn_gate u), u the attention's normed input, before attn_output.

    width: one factor a head, one an element, or whichever of the two the tensor has.
    """

    act: Literal["sigmoid", "softplus"] = "sigmoid"
    width: Literal["head", "element", "either"]
    presence: Presence = "required"


class Temperature(Word, frozen=True, kw_only=True):
    """Queries are multiplied by 1 + scale * ln(1 + floor((pos + offset) / length)); scale 0: not at all."""

    scale: float | Key = Key("attention.temperature_scale", 0.0)
    length: int | Key = Key("attention.temperature_length", 0)
    offset: int = 0
    layers: Literal["all", "unrotated"] = "all"


class Gqa(Word, frozen=True, kw_only=True, tag="gqa", tag_field="kind"):
    """Grouped-query attention; query head h reads KV head h // (n_head / n_head_kv).

    qkv: which spellings of the projections a file may use; `either` prefers attn_qkv.weight (rows Q, K, V).
    heads_by_layer: head counts may differ from layer to layer.
    sinks: one extra logit a head in the softmax's denominator, attn_sinks.weight.
    clamp: q, k and v are clamped to [-c, c] after their bias.
    scale: factor on the scores; None, or a value of 0: 1 / sqrt(head_k).
    softcap: scores become c * tanh(score / c); 0: not at all.
    causal: False, or a key that says so: every token of a sequence sees every other; a step then needs all of them.
    query_gate: attn_q holds [query | gate] of each head; the heads' results are multiplied by sigmoid(gate).
    output_scale: factor on attn_output's result; 1 where the key is missing.
    values_from_keys: without attn_v the values are the keys before their norm.  value_norm: of each head: x / rms(x).
    shared_layers: so many last layers have no keys and values; a windowed one reads those of the last but one layer
        that has, another those of the last one.
    """

    rope: Rope
    qkv: Literal["either", "fused", "split"] = "either"
    qkv_bias: Presence = "if-present"
    output_bias: Presence = "absent"
    heads_by_layer: bool = False
    qk_norm: QkNorm | None = None
    window: Window | None = None
    sinks: Presence = "absent"
    clamp: Key | None = None
    scale: float | Key | None = None
    softcap: Key | None = None
    causal: bool | Key = True
    temperature: Temperature | None = None
    gate: Gate | None = None
    query_gate: bool = False
    output_scale: Key | None = None
    values_from_keys: bool = False
    value_norm: bool = False
    shared_layers: Key | None = None


class Indexer(Word, frozen=True, kw_only=True):
    """Of the keys that a query sees only the top_k with the largest scores count, of equal ones the first.

    score(p, j) = sum over heads h of w_h(p) * relu(q_h(p) . k(j)), with q = indexer.attn_q_b (the query latent),
    k = layer norm (indexer.attn_k u) with indexer.k_norm's gain and bias, w = indexer.proj u; u the attention's normed
    input. The first or last n_rot entries of q_h and k rotate as the attention's do, in pairs of this style.
    eps: of the layer norm. optional: a top_k of 0 means that no layer has an indexer.
    owners: a number for each layer: 1: it has an indexer, 0: it takes over the choice of the last one that has. Without
        the key all have; in files whose context is `sparse_from` or longer the first three and then each fourth.
    """

    style: Literal["norm", "neox"]
    eps: float | Key
    rotated: Literal["first", "last"] = "first"
    optional: bool = False
    n_head: Key = Key("attention.indexer.head_count")
    width: Key = Key("attention.indexer.key_length")
    top_k: Key = Key("attention.indexer.top_k")
    owners: Key | None = None
    sparse_from: int = 0


class MlaWindow(Word, frozen=True, kw_only=True):
    """Layers of latent attention that see a part of the past, and their widths."""

    window: Window
    kv_rank: Key = Key("attention.kv_lora_rank_swa")
    k_mla: Key = Key("attention.key_length_mla_swa")
    v_mla: Key = Key("attention.value_length_mla_swa")


class Mla(Word, frozen=True, kw_only=True, tag="mla", tag_field="kind"):
    """Multi-head latent attention: one cached row [latent | rotated key part] for all heads.

    q_rank 0 or None: queries come straight from attn_q; q_rank_by_norm: also where there is no attn_q_a_norm.
    scale: head: scores times 1 / sqrt(k_mla); head-yarn: that times M^2, where M is the magnitude that YaRN's log
    multiplier gives.
    heads_by_layer, gate, sinks: as in `Gqa`. key_norm: RMS norm of the rotated key part, before it rotates:
    attn_k_norm.
    indexer: needs the query latent and the factors of attn_kv_b; windowed layers have none.
    legacy_kv_b: files without attention.key_length_mla hold attn_kv_b instead of its two factors; they are computed as
    ordinary attention of n_head heads.
    """

    rope: Rope
    q_rank: Key | None
    q_rank_by_norm: bool = False
    kv_rank: Key = Key("attention.kv_lora_rank")
    k_mla: Key = Key("attention.key_length_mla", 0)
    v_mla: Key = Key("attention.value_length_mla", 0)
    scale: Literal["head", "head-yarn"] = "head"
    temperature: Temperature | None = None
    gate: Gate | None = None
    indexer: Indexer | None = None
    heads_by_layer: bool = False
    sinks: Presence = "absent"
    windowed: MlaWindow | None = None
    key_norm: bool = False
    legacy_kv_b: bool = False
