"""RND1: Qwen3 MoE as a diffusion model; every token sees every other of its sequence.

Routing: softmax over all experts; the chosen weights are renormalised.
"""

from strata.arch.spec import Arch, Dim, Experts, Gqa, Key, Moe, QkNorm, Rope, Router

ARCH = Arch(
    name="rnd1",
    source="llama.cpp src/models/rnd1.cpp @ 0c1e57098; RND1 report",
    tested_with=("tiny-rnd1",),
    attention=Gqa(rope=Rope(style="neox", whole_head=True), qk_norm=QkNorm(), causal=False),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(width=Key("expert_feed_forward_length", Dim("n_ff", over="n_expert_used"), unset=(0,))),
    ),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "output"),
)
