"""Words of feed-forward parts: dense, routed, shared, and how they stand together. For `strata.arch.spec`."""

from __future__ import annotations

from typing import Literal

from strata.arch.spec_base import Key, Presence, Word

__all__ = ["Act", "Beside", "Chunks", "Clamp", "Experts", "FeedForward", "Moe", "Router", "SharedExpert"]

Act = Literal["silu", "gelu", "relu", "relu-sqr", "swiglu-oai", "situ"]


class Clamp(Word, frozen=True, kw_only=True):
    """Bounds of silu(gate) * up. early: silu(min(gate, c)) * clamp(up, -c, c).  late: min(silu(gate), c) * the same.

    limit: c, one or one a layer; up to 1e-6: no bounds.
    """

    form: Literal["early", "late"]
    limit: Key


class FeedForward(Word, frozen=True, kw_only=True):
    """A dense gated FFN: down(act(gate x, up x)). relu-sqr has no gate matrix: down(relu(up x)^2).

    situ: b tanh(g / b) * sigmoid(g) * v, v = c tanh(u / c), or u where c is 0 or less; b and c are activation.situ_beta
    and activation.situ_linear_beta.
    """

    act: Act = "silu"
    clamp: Clamp | None = None
    width: Key = Key("feed_forward_length")
    bias: Presence = "absent"


class Router(Word, frozen=True, kw_only=True):
    """Choice and weights of the experts.

    scores: softmax or sigmoid over all experts; softmax-weight: choose by logits, softmax over the chosen;
        sqrt-softplus. A Key reads expert_gating_func (1 softmax, 2 sigmoid, 3 softmax-weight, 4 sqrt-softplus).
    select: by scores, or by the logits themselves.
    select_bias: the tensor select_bias_name takes part in the choice only.  bias: ffn_gate_inp.bias is added to logits.
    normalize: weights are divided by their sum (at least 2^-14).  scale: factor on the weights; 0 means 1.
    input: what the logits are computed from. ffn: the experts' input.  layer: the layer's input, before any norm.
        residual: rms(a) * ffn_gate_inp.scale / sqrt(n_embd), a the stream behind the attention.
    Groups (expert_group_count, expert_group_used_count) are honoured in every architecture.
    """

    scores: Literal["softmax", "sigmoid", "softmax-weight", "sqrt-softplus"] | Key
    select: Literal["scores", "logits"] = "scores"
    select_bias: Presence = "absent"
    select_bias_name: str = "exp_probs_b.bias"
    bias: Presence = "absent"
    normalize: bool | Key = False
    scale: float | Key = 1.0
    input: Literal["ffn", "layer", "residual"] = "ffn"


class Experts(Word, frozen=True, kw_only=True):
    """The routed experts' FFN.

    swiglu-oai: g = min(gate, 7), u = clamp(up, -7, 7): g * sigmoid(1.702 g) * (u + 1).
    gate if-present: without gate matrices h = act(up).  relu-sqr: relu(up)^2, never with gate matrices.
    bias: of gate, up and down.
    fused_gate_up: ffn_gate_up_exps (gate rows first) is accepted instead of the two; a clamp then has no effect.
    per_expert_tensors: one file tensor per expert and matrix is accepted (ffn_gate.{e}.weight).
    weight_on_input: the router's weight multiplies an expert's input instead of its result.
    """

    act: Act = "silu"
    clamp: Clamp | None = None
    width: Key = Key("expert_feed_forward_length")
    bias: Presence = "absent"
    gate: Literal["required", "if-present"] = "required"
    fused_gate_up: bool = False
    per_expert_tensors: bool = False
    weight_on_input: bool = False


class SharedExpert(Word, frozen=True, kw_only=True):
    """One FFN that every token passes beside the routed experts; the results are added.

    Its width is `width`, a total; where that is not declared, or 0 in the file, `count` times `each` (the routed width
    by default; count 1 by default).
    optional: a count of 0, or a width of 0 without a declared count, means that there is none.
    gate: its result is multiplied by sigmoid(ffn_gate_inp_shexp . x).
    names: shexp: ffn_{gate,up,down}_shexp; dense: ffn_{gate,up,down}, of which files have all or none.
    fused: ffn_up_shexp holds gate and up (gate rows first).
    sum_scale: factor on routed plus shared, in layers that have both.
    """

    count: Key | None = None
    width: Key | None = None
    each: Key | None = None
    optional: bool = False
    act: Act = "silu"
    clamp: Clamp | None = None
    gate: bool = False
    names: Literal["shexp", "dense"] = "shexp"
    fused: bool = False
    sum_scale: float = 1.0


class Beside(Word, frozen=True, kw_only=True):
    """Routed layers have the dense FFN too: x + dense(ffn_norm(x)) + routed(norm(input)), each behind its post norm.

    input: the stream behind the attention, or the layer's input.
    """

    norm: str
    input: Literal["layer", "residual"]
    post_dense_norm: str | None = None
    post_experts_norm: str | None = None


class Chunks(Word, frozen=True, kw_only=True):
    """A second set of smaller experts, one for each group of G neighbouring routed ones, applied to the routed sum m.

    Its result c(m) times `scale` is added to m. Chosen are the min(n_used, n_expert / G) experts with the largest
    logits, without regard to the bias and groups of the first choice; expert e leads to chunk j = floor(e / G), perhaps
    more than once. Chunk j's weight is the softmax over all n_expert logits at place j - not e -, divided by the chosen
    weights' sum.
    """

    group: Key = Key("experts_per_group")
    width: Key
    scale: Key = Key("expert_group_scale")


class Moe(Word, frozen=True, kw_only=True):
    """Layers dense_layers and up have routed experts, the first ones a dense FFN.

    every: a key n: of these layers i only those with (i + 1) % n == 0.
    by_router: a layer has experts iff the file holds its ffn_gate_inp; dense_layers then has no effect.
    latent: width of the routed experts' inputs and outputs, 0: n_embd: ffn_latent_down goes before them, ffn_latent_up
        behind their weighted sum, each where the file has it. The router and the shared expert see neither.
        latent_names: routed: they are called ffn_routed_down and ffn_routed_up. latent_norm: RMS norm of the weighted
        sum before the latter, ffn_routed_norm.
    by_layer: expert_used_count and the experts' width may differ from layer to layer; without a width it is
        feed_forward_length / expert_used_count.
    optional: a file with expert_count 0 is dense throughout; otherwise such a file is refused.
    """

    router: Router
    experts: Experts = Experts()
    dense_layers: int | Key = 0
    every: Key | None = None
    by_router: bool = False
    shared: SharedExpert | None = None
    beside: Beside | None = None
    chunks: Chunks | None = None
    latent: Key | None = None
    latent_names: Literal["latent", "routed"] = "latent"
    latent_norm: Presence = "absent"
    by_layer: bool = False
    optional: bool = False
