"""LFM2 MoE: gated short convolutions in most layers, GQA with per-head QK norm in the others.

A layer without KV heads has the convolution. The last norm carries the name token_embd_norm.
Routing: a per-expert bias takes part in the choice; the chosen weights are renormalised. Leading layers are dense.
"""

from strata.arch.spec import (
    Arch,
    Experts,
    FeedForward,
    Gqa,
    Head,
    Key,
    Moe,
    QkNorm,
    Recurrent,
    Rope,
    Router,
    ShortConv,
)

ARCH = Arch(
    name="lfm2moe",
    source="llama.cpp src/models/lfm2.cpp @ 0c1e57098",
    tested_with=("tiny-lfm2moe",),
    attention=Gqa(rope=Rope(style="neox"), qk_norm=QkNorm(over="head")),
    recurrent=Recurrent(mixer=ShortConv(), layers="no-kv-heads"),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        router=Router(scores=Key("expert_gating_func"), select_bias="required", normalize=True),
        experts=Experts(),
    ),
    head=Head(norm="token_embd_norm"),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "output"),
)
