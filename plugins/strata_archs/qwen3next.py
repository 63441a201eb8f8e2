"""Qwen3 Next: gated delta nets, every fourth layer gated GQA with partial rotation, all layers routed.

Queries of full-attention layers bring a gate for each element of their head's result. Older files have ssm_in instead
of attn_qkv and attn_gate. Routing: softmax over all experts, renormalised; one shared expert behind a sigmoid gate.
"""

from strata.arch.spec import (
    Arch,
    Block,
    Dim,
    Experts,
    GatedDelta,
    Gqa,
    Key,
    Moe,
    QkNorm,
    Recurrent,
    Rope,
    Router,
    SharedExpert,
)

ARCH = Arch(
    name="qwen3next",
    source="llama.cpp src/models/qwen3next.cpp @ 0c1e57098",
    tested_with=("tiny-qwen3next",),
    attention=Gqa(rope=Rope(style="neox"), qk_norm=QkNorm(over="head"), query_gate=True),
    recurrent=Recurrent(mixer=GatedDelta(layout="grouped"), layers=4),
    block=Block(ffn_norm="post_attention_norm"),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(
            width=Key("expert_feed_forward_length", Dim("n_ff", over="n_expert_used"), unset=(0,)), fused_gate_up=True
        ),
        shared=SharedExpert(width=Key("expert_shared_feed_forward_length", Dim("n_ff"), unset=(0,)), gate=True),
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
        "ffn_gate_shexp",
        "ffn_up_shexp",
        "ffn_down_shexp",
        "output",
    ),
    nextn=True,
)
