"""Declarations for tests only: architectures whose words the shipped plugins do not use yet.

They keep every word of the vocabulary under llama.cpp's judgement.
"""

from __future__ import annotations

from arch_cases import (
    BASE_KEYS,
    BLOCK_NORMS,
    EXPERT_KEYS,
    HEAD,
    N_EMBD,
    N_FF,
    N_FF_EXP,
    V3_ROUTING,
    Case,
    Tensors,
    _dense,
    _ends,
    _experts,
    _layers,
    _output,
    _qkv,
)

from strata.arch.spec import (
    Arch,
    Block,
    Dim,
    Experts,
    FeedForward,
    Gqa,
    Head,
    Key,
    Moe,
    Norm,
    QkNorm,
    Rope,
    Router,
    SharedExpert,
    Window,
    Yarn,
)

COHERE2MOE = Arch(
    name="cohere2moe",
    source="test",
    tested_with=(),
    attention=Gqa(
        rope=Rope(style="norm"),
        window=Window(pattern=Key("attention.sliding_window_pattern", 4), form="dense-first"),
    ),
    norm=Norm(kind="layer", eps=Key("attention.layer_norm_epsilon")),
    block=Block(residual="parallel", ffn_norm=None),
    ffn=FeedForward(),
    moe=Moe(dense_layers=Key("leading_dense_block_count"), router=Router(scores="sigmoid")),
    head=Head(scale=Key("logit_scale")),
)

GROK = Arch(
    name="grok",
    source="test",
    tested_with=(),
    attention=Gqa(
        rope=Rope(style="neox", yarn=Yarn(beta_fast=8.0)),
        scale=Key("attention.output_scale", 0.08838834764831845),
        softcap=Key("attn_logit_softcapping", 30.0),
    ),
    block=Block(post_attention_norm="attn_output_norm", post_ffn_norm="layer_output_norm"),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(act="gelu", width=Key("expert_feed_forward_length", Dim("n_ff")), gate="if-present"),
    ),
    embedding_scale=Key("embedding_scale", 78.38367176906169),
    head=Head(scale=Key("logit_scale", 0.5773502691896257), softcap=Key("final_logit_softcapping", 0.0)),
)

GLM4MOE = Arch(
    name="glm4moe",
    source="test",
    tested_with=(),
    attention=Gqa(rope=Rope(style="neox"), qk_norm=QkNorm(presence="if-present")),
    block=Block(ffn_norm="post_attention_norm"),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        router=Router(
            scores=Key("expert_gating_func", "sigmoid", unset=(0,)),
            select_bias="required",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        shared=SharedExpert(count=Key("expert_shared_count")),
    ),
    nextn=True,
)

WORDS = {arch.name: arch for arch in (COHERE2MOE, GROK, GLM4MOE)}

# dimensions for architectures whose attention output is n_embd wide
SQUARE = {"attention.head_count": 2, "attention.key_length": HEAD, "attention.value_length": HEAD}
Q, KV = 2 * HEAD, HEAD
N_ROT = {"rope.dimension_count": HEAD}
LAYER_EPS = {key: value for key, value in BASE_KEYS.items() if "rms" not in key} | {
    "attention.layer_norm_epsilon": 1e-5
}


def _square_qkv() -> Tensors:
    return {"attn_q.weight": [N_EMBD, Q], "attn_k.weight": [N_EMBD, KV], "attn_v.weight": [N_EMBD, KV]}


def _cohere2moe() -> Case:
    attention = {"attn_norm.weight": [N_EMBD]} | _qkv() | _output()
    numbers = {"block_count": 2, "feed_forward_length": N_FF, "expert_feed_forward_length": N_FF_EXP}
    numbers |= {"leading_dense_block_count": 1, "attention.sliding_window": 20, "logit_scale": 0.8}
    tensors = _ends(False) | _layers(2, attention) | _layers(1, _dense()) | _layers(2, _experts(), first=1)
    return {"arch": "cohere2moe", "keys": LAYER_EPS | EXPERT_KEYS | N_ROT | numbers, "tensors": tensors}


def _grok() -> Case:
    stems = BLOCK_NORMS | {f"{x}_output_norm.weight": [N_EMBD] for x in ("attn", "layer")} | _square_qkv()
    stems |= {"attn_output.weight": [Q, N_EMBD]} | _experts(N_FF)
    numbers = {
        "block_count": 2,
        "feed_forward_length": N_FF,
        "attention.head_count_kv": 1,
        "attn_logit_softcapping": 5.0,
    }
    numbers |= {"final_logit_softcapping": 8.0, "embedding_scale": 20.0, "attention.output_scale": 0.3}
    keys = BASE_KEYS | EXPERT_KEYS | SQUARE | N_ROT | numbers
    return {"arch": "grok", "keys": keys, "tensors": _ends(False) | _layers(2, stems)}


def _glm4moe() -> Case:
    attention: Tensors = {"attn_norm.weight": [N_EMBD], "post_attention_norm.weight": [N_EMBD]}
    attention |= _qkv(bias=True) | _output()
    moe = _experts() | {"exp_probs_b.bias": [8], "ffn_down_shexp.weight": [N_FF_EXP, N_EMBD]}
    moe |= {f"ffn_{x}_shexp.weight": [N_EMBD, N_FF_EXP] for x in ("gate", "up")}
    norms = {f"blk.1.attn_{x}_norm.weight": [HEAD] for x in "qk"}  # one layer with, one without
    numbers = {"block_count": 2, "feed_forward_length": N_FF, "expert_feed_forward_length": N_FF_EXP}
    numbers |= {"leading_dense_block_count": 1, "expert_shared_count": 1, "rope.dimension_count": HEAD // 2}
    tensors = _ends(True) | _layers(2, attention) | _layers(1, _dense()) | _layers(2, moe, first=1) | norms
    return {"arch": "glm4moe", "keys": BASE_KEYS | EXPERT_KEYS | V3_ROUTING | numbers, "tensors": tensors}


WORD_CASES: dict[str, Case] = {
    "word-cohere2moe": _cohere2moe(),
    "word-grok": _grok(),
    "word-glm4moe": _glm4moe(),
}
