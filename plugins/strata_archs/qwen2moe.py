"""Qwen2 MoE: GQA with biased projections, every layer routed, one shared expert behind a sigmoid gate.

Routing: softmax over all experts; the chosen weights are taken as they are.
"""

from strata.arch.spec import Arch, Dim, Experts, Gqa, Head, Key, Moe, Rope, Router, SharedExpert

ARCH = Arch(
    name="qwen2moe",
    source="llama.cpp src/models/qwen2moe.cpp @ 0c1e57098; Qwen1.5-MoE and Qwen2 reports",
    tested_with=("tiny-qwen2moe",),
    attention=Gqa(rope=Rope(style="neox")),
    moe=Moe(
        router=Router(scores="softmax"),
        experts=Experts(width=Key("expert_feed_forward_length", Dim("n_ff", over="n_expert_used"), unset=(0,))),
        shared=SharedExpert(width=Key("expert_shared_feed_forward_length", Dim("n_ff"), unset=(0,)), gate=True),
    ),
    head=Head(tied=False),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "output"),
)
