"""Hunyuan-A13B: GQA whose QK norm follows the rotation, every layer routed, one shared expert.

Routing: softmax over all experts; the chosen weights are renormalised. Experts are feed_forward_length wide.
"""

from strata.arch.spec import Arch, Dim, Experts, Gqa, Key, Moe, QkNorm, Rope, Router, SharedExpert

ARCH = Arch(
    name="hunyuan-moe",
    source="llama.cpp src/models/hunyuan-moe.cpp @ 0c1e57098; Hunyuan-A13B report",
    tested_with=("tiny-hunyuan-moe",),
    attention=Gqa(rope=Rope(style="neox"), qk_norm=QkNorm(after_rope=True)),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(width=Key("feed_forward_length")),
        shared=SharedExpert(width=Key("expert_shared_feed_forward_length", Dim("n_ff"), unset=(0,))),
    ),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
)
