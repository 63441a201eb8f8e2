"""Mellum 2: Qwen3 MoE with three windowed layers to a full one; windowed layers rotate without scaling.

Routing: softmax over all experts; the chosen weights are renormalised.
"""

from strata.arch.spec import Arch, Dim, Experts, Gqa, Head, Key, Moe, QkNorm, Rope, Router, Window

ARCH = Arch(
    name="mellum",
    source="llama.cpp src/models/mellum.cpp @ 0c1e57098",
    tested_with=("tiny-mellum",),
    attention=Gqa(
        rope=Rope(style="neox", whole_head=True, window_scaling="none"),
        qk_norm=QkNorm(),
        window=Window(
            size=Key("attention.sliding_window", 0),
            optional=True,
            pattern=Key("attention.sliding_window_pattern", 4),
        ),
    ),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(width=Key("expert_feed_forward_length", Dim("n_ff", over="n_expert_used"), unset=(0,))),
    ),
    head=Head(tied=False),
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
