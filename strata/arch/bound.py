"""What binding gives: an architecture with every number known and every tensor found.

Pure data, made by `bind`, read by `plan`, `report` and the numpy reference. Shapes are those of y = W x: n_rows outputs
of n_cols inputs; n_mats matrices (heads or experts) follow each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from strata.arch.bound_base import Bound, BoundLinear, BoundNorm, BoundTensor, Part
from strata.arch.bound_mixer import BoundMixer
from strata.arch.spec import Act

__all__ = [
    "Bound",
    "BoundAct",
    "BoundArch",
    "BoundBeside",
    "BoundCheckpoints",
    "BoundChunks",
    "BoundExperts",
    "BoundFfn",
    "BoundGate",
    "BoundGqa",
    "BoundIndexer",
    "BoundLayer",
    "BoundLayerInput",
    "BoundLinear",
    "BoundMixer",
    "BoundMla",
    "BoundMoe",
    "BoundNorm",
    "BoundRope",
    "BoundRouter",
    "BoundStreamGates",
    "BoundStreams",
    "BoundTemperature",
    "BoundTensor",
    "BoundTokenInputs",
    "ModelFile",
    "Part",
    "TensorEntry",
]


BoundAct = Act | Literal["silu-early", "silu-late"]


class TensorEntry(Protocol):
    """One tensor of the file's directory. `ne`: fastest dimension first; `offset`: absolute, in its shard's bytes."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> int: ...
    @property
    def ne(self) -> tuple[int, ...]: ...
    @property
    def shard(self) -> int: ...
    @property
    def offset(self) -> int: ...


class ModelFile(Protocol):
    """A model's metadata and tensor directory, all shards together. `kinds`: each key's GGUF type: "u32", "[str]"."""

    @property
    def paths(self) -> Sequence[Any]: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def kinds(self) -> Mapping[str, str]: ...
    @property
    def tensors(self) -> Mapping[str, TensorEntry]: ...


class BoundRope(Bound, frozen=True, kw_only=True):
    """Numbers of one rotary table, before frequencies are computed.

    freq_scale: 1 / rope.scaling.factor.  yarn: the correction range is blended.  magnitude: of cos and sin, complete;
    magnitude_base: the same without YaRN's own factor 1 + 0.1 ln(1 / freq_scale).
    factors, factors_long: divisors of the frequencies; the long ones serve contexts longer than n_ctx_orig.
    still: pairs that do not turn.
    """

    style: Literal["norm", "neox"]
    n_rot: int
    base: float
    freq_scale: float
    yarn: bool
    n_ctx_orig: int
    beta_fast: float
    beta_slow: float
    magnitude: float
    magnitude_base: float
    factors: BoundTensor | None = None
    factors_long: BoundTensor | None = None
    still: tuple[int, ...] = ()


class BoundGate(Bound, frozen=True, kw_only=True):
    """The heads' results are multiplied by act(linear u): one factor a head, or one an element."""

    linear: BoundLinear
    act: Literal["sigmoid", "softplus"]
    by_head: bool


class BoundTemperature(Bound, frozen=True, kw_only=True):
    """Queries are multiplied by 1 + scale * ln(1 + floor((pos + offset) / length))."""

    scale: float
    length: int
    offset: int


class BoundGqa(Bound, frozen=True, kw_only=True, tag="gqa"):
    """Grouped-query attention; window 0, clamp 0, softcap 0: none. rope None: no rotation. output_scale 1: none.

    k None: keys and values are those of layer `cache_of`. v None where k is not: values are the keys before norm and
    rotation. v_norm: of each head's values. query_gate: q gives [query | gate] of each head. chunked: the window is a
    chunk. A QK norm without a gain is x / rms(x).
    """

    n_head: int
    n_head_kv: int
    head_k: int
    head_v: int
    scale: float
    q: BoundLinear
    k: BoundLinear | None
    v: BoundLinear | None
    output: BoundLinear
    rope: BoundRope | None
    qk_norm_over: Literal["head", "row"]
    qk_norm_after_rope: bool = False
    q_norm: BoundNorm | None = None
    k_norm: BoundNorm | None = None
    window: int = 0
    chunked: bool = False
    causal: bool = True
    sinks: BoundTensor | None = None
    clamp: float = 0.0
    softcap: float = 0.0
    temperature: BoundTemperature | None = None
    gate: BoundGate | None = None
    query_gate: bool = False
    output_scale: float = 1.0
    v_norm: BoundNorm | None = None
    cache_of: int = -1


class BoundIndexer(Bound, frozen=True, kw_only=True):
    """Chooses top_k keys of each query. q: from the query latent; k, weights: from the attention's normed input.

    rotated_first: the first of the n_rot entries of a head that rotate.
    """

    n_head: int
    width: int
    top_k: int
    rope: BoundRope
    rotated_first: int
    q: BoundLinear
    k: BoundLinear
    k_norm: BoundNorm
    weights: BoundLinear


class BoundMla(Bound, frozen=True, kw_only=True, tag="mla"):
    """Latent attention. A head's query is [nope | n_rot]; nope = k_mla - n_rot.

    Either q, or q_a, q_a_norm and q_b. Either k_b and v_b (absorbed form), or kv_b (ordinary attention, n_head heads).
    rope None: no rotation. window 0: none. k_norm: of the rotated key part. indexer: chooses the keys; choice_of: the
    layer whose indexer does, perhaps another one's; -1: all keys count.
    """

    n_head: int
    k_mla: int
    v_mla: int
    n_rot: int
    kv_rank: int
    scale: float
    rope: BoundRope | None
    kv_a: BoundLinear
    kv_a_norm: BoundNorm
    output: BoundLinear
    q: BoundLinear | None = None
    q_a: BoundLinear | None = None
    q_a_norm: BoundNorm | None = None
    q_b: BoundLinear | None = None
    k_b: BoundTensor | None = None
    v_b: BoundTensor | None = None
    kv_b: BoundLinear | None = None
    temperature: BoundTemperature | None = None
    gate: BoundGate | None = None
    indexer: BoundIndexer | None = None
    choice_of: int = -1
    window: int = 0
    chunked: bool = False
    k_norm: BoundNorm | None = None
    sinks: BoundTensor | None = None


class BoundFfn(Bound, frozen=True, kw_only=True, tag="dense"):
    """down(act(gate x, up x)). gate None: down(act(up x)). limit: the bound of the clamped activations.

    limit and limit_up: of situ its two numbers.
    """

    act: BoundAct
    width: int
    gate: BoundLinear | None
    up: BoundLinear
    down: BoundLinear
    limit: float = 0.0
    limit_up: float = 0.0


class BoundRouter(Bound, frozen=True, kw_only=True):
    """n_group 0 or 1: no groups. scale 1: none.

    input residual: the logits are computed from norm(a) * input_scale, a the stream behind the attention.
    """

    scores: Literal["softmax", "sigmoid", "softmax-weight", "sqrt-softplus"]
    n_expert: int
    n_used: int
    n_group: int
    n_group_used: int
    normalize: bool
    scale: float
    logits: BoundLinear
    select_bias: BoundTensor | None = None
    select_logits: bool = False
    input: Literal["ffn", "layer", "residual"] = "ffn"
    norm: BoundNorm | None = None
    input_scale: float = 1.0


class BoundExperts(Bound, frozen=True, kw_only=True):
    """Routed experts: expert matrices; biases [width] or [n_embd] and scales [1] per expert. gate None: act(up)."""

    act: BoundAct
    width: int
    gate: BoundTensor | None
    up: BoundTensor
    down: BoundTensor
    gate_bias: BoundTensor | None = None
    up_bias: BoundTensor | None = None
    down_bias: BoundTensor | None = None
    gate_scale: BoundTensor | None = None
    up_scale: BoundTensor | None = None
    down_scale: BoundTensor | None = None
    limit: float = 0.0
    limit_up: float = 0.0
    weight_on_input: bool = False


class BoundChunks(Bound, frozen=True, kw_only=True):
    """Experts of groups of `group` routed ones, of which n_used are applied to the routed sum and added times scale."""

    group: int
    n_used: int
    scale: float
    experts: BoundExperts


class BoundMoe(Bound, frozen=True, kw_only=True, tag="moe"):
    """Router, routed experts, and perhaps a shared expert, whose result sigmoid(shared_gate x) multiplies if given.

    sum_scale: factor on routed plus shared. latent_down goes before the experts, latent_up behind their sum, which
    latent_norm norms.
    """

    router: BoundRouter
    experts: BoundExperts
    shared: BoundFfn | None = None
    shared_gate: BoundLinear | None = None
    sum_scale: float = 1.0
    chunks: BoundChunks | None = None
    latent_down: BoundLinear | None = None
    latent_up: BoundLinear | None = None
    latent_norm: BoundNorm | None = None


class BoundBeside(Bound, frozen=True, kw_only=True):
    """Routed experts beside a layer's dense FFN: post_dense(ffn(...)) + post_experts(moe(norm(input)))."""

    moe: BoundMoe
    norm: BoundNorm
    input: Literal["layer", "residual"]
    post_dense_norm: BoundNorm | None = None
    post_experts_norm: BoundNorm | None = None


class BoundTokenInputs(Bound, frozen=True, kw_only=True):
    """What makes a vector for each layer from the token: `width` floats each, in order of the layers."""

    width: int
    embedding: BoundTensor
    projection: BoundLinear
    norm: BoundNorm


class BoundLayerInput(Bound, frozen=True, kw_only=True):
    """norm(output (gelu(gate y) * p)) is added to the layer's result y, p the layer's vector."""

    gate: BoundLinear
    output: BoundLinear
    norm: BoundNorm


class BoundStreams(Bound, frozen=True, kw_only=True):
    """The residual is `count` vectors. head: gate logits of the sum that the output norm reads. norm has no gain."""

    count: int
    eps: float
    magnitude: float
    norm: BoundNorm
    head: BoundLinear


class BoundStreamGates(Bound, frozen=True, kw_only=True):
    """Logits of the factors with which a sublayer reads each stream, and adds its result to each."""

    read: BoundLinear
    write: BoundLinear


class BoundCheckpoints(Bound, frozen=True, kw_only=True):
    """Layers i with i % every == 0 keep the residual. head: weights of the mix that the output norm reads."""

    every: int
    eps: float
    head: BoundTensor


class BoundLayer(Bound, frozen=True, kw_only=True):
    """One block; a recurrent layer has its mixer as `attention`. One of attention and ffn may be None.

    ffn_norm None: the FFN reads the attention's normed input (parallel residual). beside: experts next to the dense
    `ffn`. output_scale: one number that multiplies the layer's result. attention_gates, ffn_gates: with streams;
    attention_mix, ffn_mix: with checkpoints.
    """

    index: int
    attention_norm: BoundNorm
    attention: BoundGqa | BoundMla | BoundMixer | None
    ffn: BoundFfn | BoundMoe | None
    ffn_norm: BoundNorm | None = None
    post_attention_norm: BoundNorm | None = None
    post_ffn_norm: BoundNorm | None = None
    beside: BoundBeside | None = None
    token_input: BoundLayerInput | None = None
    output_scale: BoundTensor | None = None
    attention_gates: BoundStreamGates | None = None
    ffn_gates: BoundStreamGates | None = None
    attention_mix: BoundTensor | None = None
    ffn_mix: BoundTensor | None = None


class BoundArch(Bound, frozen=True, kw_only=True):
    """A whole model: the only input of `plan`.

    head: the output matrix; `tied` when it is the token embedding. embedding_scale, residual_scale (of each sublayer's
    result) and head_scale 1, softcap 0: none.
    ignored: tensor name -> why. unread_keys: metadata of this architecture that nothing reads.
    """

    name: str
    file: str
    paths: tuple[str, ...]
    n_layer: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    embedding: BoundTensor
    layers: tuple[BoundLayer, ...]
    output_norm: BoundNorm
    head: BoundLinear
    tied: bool
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    head_scale: float = 1.0
    softcap: float = 0.0
    parallel_residual: bool = False
    normed_residual: bool = False
    token_inputs: BoundTokenInputs | None = None
    streams: BoundStreams | None = None
    checkpoints: BoundCheckpoints | None = None
    ignored: dict[str, str] = msgspec.field(default_factory=dict)
    unread_keys: tuple[str, ...] = ()
