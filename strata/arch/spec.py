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

from strata.arch.spec_attention import (
    Gate,
    Gqa,
    Indexer,
    Mla,
    MlaWindow,
    QkNorm,
    Rope,
    Sections,
    Temperature,
    Unrotated,
    Window,
    Yarn,
)
from strata.arch.spec_base import Case, Dim, DimName, Key, Norm, Power, Presence, Scalar, Word
from strata.arch.spec_ffn import Act, Beside, Chunks, Clamp, Experts, FeedForward, Moe, Router, SharedExpert
from strata.arch.spec_mixer import GatedDelta, Kda, Lightning, Mamba, Mamba2, Mixer, Recurrent, ShortConv

__all__ = [
    "Act",
    "Arch",
    "Beside",
    "Block",
    "Case",
    "Checkpoints",
    "Chunks",
    "Clamp",
    "Dim",
    "DimName",
    "Experts",
    "FeedForward",
    "Gate",
    "GatedDelta",
    "Gqa",
    "Head",
    "Indexer",
    "Kda",
    "Key",
    "LayerInputs",
    "Lightning",
    "Mamba",
    "Mamba2",
    "Mixer",
    "Mla",
    "MlaWindow",
    "Moe",
    "Norm",
    "Power",
    "Presence",
    "QkNorm",
    "Recurrent",
    "Rope",
    "Router",
    "Scalar",
    "Sections",
    "SharedExpert",
    "ShortConv",
    "Streams",
    "Temperature",
    "Unrotated",
    "Window",
    "Word",
    "Yarn",
    "derive",
]


class Block(Word, frozen=True, kw_only=True):
    """Order of a layer, and its norms' tensor names.

    sequential: a = x + post(attention(norm(x))); a + post(ffn(norm(a))).
    normed: n = norm(x), a = attention(n) + c * n; m = ffn_norm(a), then ffn(m) + c * m; c is residual_scale.
    parallel: x + attention(norm(x)) + ffn(norm(x)), with one norm (ffn_norm None).
    single: x + f(attention_norm(x)), f one of FFN - where the layer's feed_forward_length is not 0 -, mixer, attention.
    Post norms act on a sublayer's result before it is added; of several names the first that the file has is meant.
    residual_scale: factor on each sublayer's result before it is added; 0 means 1.
    output_scale: the layer's result is multiplied by the number layer_output_scale.weight, when present.
    """

    residual: Literal["sequential", "parallel", "normed", "single"] = "sequential"
    attention_norm: str = "attn_norm"
    ffn_norm: str | None = "ffn_norm"
    post_attention_norm: str | None = None
    post_ffn_norm: str | tuple[str, ...] | None = None
    residual_scale: Key | None = None
    output_scale: bool = False


class Head(Word, frozen=True, kw_only=True):
    """Logits: softcap(scale / divisor * W x + bias), x behind the norm called `norm`.

    tied: without output.weight the token embedding is W.
    """

    norm: str = "output_norm"
    tied: bool = True
    bias: Presence = "absent"
    scale: Key | None = None
    divisor: Key | None = None
    softcap: Key | None = None


class LayerInputs(Word, frozen=True, kw_only=True):
    """Each layer gets a vector of its own from the token: p, `width` long; width 0: none.

    All of them: (rms(per_layer_model_proj x / sqrt(n_embd)) * per_layer_proj_norm + per_layer_token_embd[token]
    * sqrt(width)) / sqrt(2), x the scaled embedding, the norm over each vector. A layer adds to its result y:
    rms(proj (gelu(inp_gate y) * p)) * post_norm.
    """

    width: Key = Key("embedding_length_per_layer_input")


class Streams(Word, frozen=True, kw_only=True):
    """The residual is `count` vectors of n_embd, at first all of them the embedding (hyper-connections).

    A sublayer s, attn or ffn, reads the sum over h of (sigmoid(p_h) + eps) * stream_h in the place of the residual; its
    result f adds (magnitude * sigmoid(p_(count + d)) + eps) * f to stream_d. p = hc_s_fn(r) * scale + hc_s_base, where
    r is all streams over the root of their mean square (plus the norms' eps); scale is hc_s_scale[0] for the first
    `count` entries, hc_s_scale[1] for the others. The output norm reads such a sum too, with output_hc_*.
    """

    count: Key = Key("hyper_connection.count")
    eps: Key = Key("hyper_connection.epsilon")
    magnitude: Key = Key("hyper_connection.magnitude")


class Checkpoints(Word, frozen=True, kw_only=True):
    """Sublayers look back at the residual P as some layers found it; every 0: an ordinary residual.

    mix(w) is the sum over the kept vectors and P of softmax(s)_x * x, with s = sum of rms(x) * w, without a gain. The
    attention reads mix(attn_res_score) in the place of P, the FFN mix(ffn_res_score), the output norm
    mix(output_res_score). Layers i with i % every == 0 keep P behind their attention's reading; the attention's result
    then is the new P, where others add it.
    """

    every: Key = Key("attn_res.block_size")


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
    layer_inputs: LayerInputs | None = None
    streams: Streams | None = None
    checkpoints: Checkpoints | None = None
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
