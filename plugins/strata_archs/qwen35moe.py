"""Qwen3.5 MoE: as Qwen3 Next, with pairs of the rotation shared out among three positions, and delta nets whose value
heads go round the key heads.
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
    Sections,
    SharedExpert,
)

ARCH = Arch(
    name="qwen35moe",
    source="llama.cpp src/models/qwen35moe.cpp @ 0c1e57098",
    tested_with=("tiny-qwen35moe",),
    attention=Gqa(
        rope=Rope(style="neox", sections=Sections(key=Key("rope.dimension_sections"), form="interleaved")),
        qk_norm=QkNorm(over="head"),
        query_gate=True,
    ),
    recurrent=Recurrent(mixer=GatedDelta(layout="tiled", scaled=True), layers=4),
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
        "attn_gate",
        "ssm_alpha",
        "ssm_beta",
        "ssm_out",
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
