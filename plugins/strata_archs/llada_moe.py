"""LLaDA-MoE: a diffusion model; every token sees every other of its sequence, and nothing is kept between steps.

Routing: softmax over all experts; the chosen weights are taken as they are.
"""

from strata.arch.spec import Arch, Dim, Experts, Gqa, Head, Key, Moe, QkNorm, Rope, Router

ARCH = Arch(
    name="llada-moe",
    source="llama.cpp src/models/llada-moe.cpp @ 0c1e57098; LLaDA-MoE report",
    tested_with=("tiny-llada-moe",),
    attention=Gqa(rope=Rope(style="neox", whole_head=True), qk_norm=QkNorm(), causal=False),
    moe=Moe(
        router=Router(scores="softmax"),
        experts=Experts(width=Key("expert_feed_forward_length", Dim("n_ff", over="n_expert_used"), unset=(0,))),
    ),
    head=Head(tied=False),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "output"),
)
