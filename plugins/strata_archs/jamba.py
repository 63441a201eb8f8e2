"""Jamba: Mamba in most layers, GQA without positions in the others.

A layer without KV heads has Mamba. A layer with ffn_gate_inp has experts, another one a dense FFN.
Routing: softmax over all experts; the chosen weights stay as they are.
"""

from strata.arch.spec import Arch, Experts, FeedForward, Gqa, Key, Mamba, Moe, Recurrent, Rope, Router

ARCH = Arch(
    name="jamba",
    source="llama.cpp src/models/jamba.cpp @ 0c1e57098",
    tested_with=("tiny-jamba",),
    attention=Gqa(rope=Rope(style="neox", rotated="none")),
    recurrent=Recurrent(mixer=Mamba(), layers="no-kv-heads"),
    ffn=FeedForward(),
    moe=Moe(
        router=Router(scores="softmax"),
        experts=Experts(width=Key("feed_forward_length")),
        by_router=True,
        optional=True,
    ),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ssm_in", "ssm_out", "output"),
)
