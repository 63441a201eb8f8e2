"""Granite 4.0 H and Bamba: Mamba 2 in most layers, GQA in the others, an FFN in each.

A layer without KV heads has Mamba 2. Attention rotates only where rope.scaling.finetuned says so, or is missing.
Routing: softmax over all experts; the chosen weights are renormalised. Files without experts are dense.
"""

from strata.arch.spec import (
    Arch,
    Block,
    Experts,
    FeedForward,
    Gqa,
    Head,
    Key,
    Mamba2,
    Moe,
    Recurrent,
    Rope,
    Router,
    SharedExpert,
)

ARCH = Arch(
    name="granitehybrid",
    source="llama.cpp src/models/granite-hybrid.cpp @ 0c1e57098",
    tested_with=("tiny-granitehybrid",),
    attention=Gqa(
        rope=Rope(style="norm", factors=True, switch=Key("rope.scaling.finetuned", True)),
        output_bias="if-present",
        scale=Key("attention.scale", 0.0),
    ),
    recurrent=Recurrent(mixer=Mamba2(), layers="no-kv-heads"),
    block=Block(residual_scale=Key("residual_scale", 0.0)),
    ffn=FeedForward(bias="if-present"),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(width=Key("feed_forward_length"), gate="if-present"),
        shared=SharedExpert(width=Key("expert_shared_feed_forward_length", 0), optional=True),
        optional=True,
    ),
    embedding_scale=Key("embedding_scale", 1.0, unset=(0.0,)),
    head=Head(divisor=Key("logit_scale", 1.0, unset=(0.0,))),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ssm_in", "ssm_out", "output"),
)
