"""Tencent Hy3: GQA with QK norm, one shared expert; a layer has experts iff it has a router.

Routing: sigmoid scores by default; the bias exp_probs_b (without a suffix) takes part in the choice only. Next-token
blocks are not run.
"""

from strata.arch.spec import Arch, Dim, Experts, FeedForward, Gqa, Key, Moe, QkNorm, Rope, Router, SharedExpert

ARCH = Arch(
    name="hy_v3",
    source="llama.cpp src/models/hy-v3.cpp @ 0c1e57098",
    tested_with=("tiny-hy_v3",),
    attention=Gqa(rope=Rope(style="neox"), qk_norm=QkNorm()),
    ffn=FeedForward(),
    moe=Moe(
        by_router=True,
        router=Router(
            scores=Key("expert_gating_func", "sigmoid", unset=(0,)),
            select_bias="if-present",
            select_bias_name="exp_probs_b",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        experts=Experts(
            width=Key("expert_feed_forward_length", Dim("n_ff", over="n_expert_used"), unset=(0,)), fused_gate_up=True
        ),
        shared=SharedExpert(width=Key("expert_shared_feed_forward_length", 0)),
    ),
    scales_applied=(
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_qkv",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
        "ffn_gate_shexp",
        "ffn_up_shexp",
        "ffn_down_shexp",
        "ffn_gate_exps",
        "ffn_up_exps",
        "ffn_down_exps",
    ),
    nextn=True,
)
