"""Qwen3-VL MoE and the Omni thinker, their text part: Qwen3 MoE whose rotation shares pairs among three positions.

In text the three are equal, and the pairs left over for a fourth stand still. Image features are not taken in.
"""

from strata.arch.spec import Arch, Dim, Experts, Gqa, Key, Moe, QkNorm, Rope, Router, Sections

ARCH = Arch(
    name="qwen3vlmoe",
    source="llama.cpp src/models/qwen3vl-moe.cpp @ 0c1e57098; Qwen3-VL report",
    tested_with=("tiny-qwen3vlmoe",),
    attention=Gqa(
        rope=Rope(style="neox", sections=Sections(key=Key("rope.dimension_sections"), form="interleaved")),
        qk_norm=QkNorm(),
    ),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(width=Key("expert_feed_forward_length", Dim("n_ff", over="n_expert_used"), unset=(0,))),
    ),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "output"),
)
