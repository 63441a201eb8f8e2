"""Qwen3 MoE: GQA with per-head QK norm, every layer routed, no shared expert.

Routing: softmax over all experts; the chosen weights are renormalised.
"""

from strata.arch.spec import Arch, Dim, Experts, Gqa, Key, Moe, QkNorm, Rope, Router

ARCH = Arch(
    name="qwen3moe",
    source="llama.cpp src/models/qwen3moe.cpp @ 0c1e57098",
    tested_with=("tiny-qwen3moe", "strata-demo"),
    attention=Gqa(
        rope=Rope(style="neox", whole_head=True),
        qk_norm=QkNorm(over="head"),
    ),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(width=Key("expert_feed_forward_length", Dim("n_ff", over="n_expert_used"), unset=(0,))),
    ),
    scales_applied=(
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_qkv",
        "attn_output",
        "ffn_gate_exps",
        "ffn_up_exps",
        "ffn_down_exps",
        "output",
    ),
)
