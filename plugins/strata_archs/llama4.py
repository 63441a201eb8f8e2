"""Llama 4 Scout and Maverick: chunked local attention, every fourth layer full and without rotation, one shared expert.

Routing: sigmoid scores, choice by logits; the weight multiplies an expert's input. Layers without rotation warm their
queries by position. Chunk, step and temperature are not in the files; Maverick (128 experts) has no QK norm.
"""

from strata.arch.spec import (
    Arch,
    Experts,
    FeedForward,
    Gqa,
    Key,
    Moe,
    QkNorm,
    Rope,
    Router,
    SharedExpert,
    Temperature,
    Unrotated,
    Window,
)

ARCH = Arch(
    name="llama4",
    source="llama.cpp src/models/llama4.cpp @ 0c1e57098; Llama 4 model card",
    tested_with=("tiny-llama4",),
    attention=Gqa(
        rope=Rope(
            style="norm",
            factors=True,
            unrotated=Unrotated(period=4, place="last"),
            window_base=Key("rope.freq_base_swa", 0.0),
        ),
        qk_norm=QkNorm(gain=False, after_rope=True, rotated_only=True, unless_n_expert=(128,)),
        window=Window(
            kind="chunked",
            size=Key("attention.sliding_window", 8192),
            constant=8192,
            pattern=Key("attention.sliding_window_pattern", 4),
        ),
        temperature=Temperature(scale=0.1, length=8192, offset=1, layers="unrotated"),
    ),
    ffn=FeedForward(),
    moe=Moe(
        every=Key("interleave_moe_layer_step"),
        router=Router(scores="sigmoid", select="logits"),
        experts=Experts(weight_on_input=True),
        shared=SharedExpert(),
    ),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "output"),
)
