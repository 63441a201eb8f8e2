"""GroveMoE: Qwen3 MoE whose routed sum passes a second set of experts, one for each group of neighbours.

Routing: softmax over all experts; the chosen weights are renormalised. The second choice follows the files' other
readers, which differ from the paper.
"""

from strata.arch.spec import Arch, Chunks, Dim, Experts, Gqa, Key, Moe, QkNorm, Rope, Router

ARCH = Arch(
    name="grovemoe",
    source="llama.cpp src/models/grovemoe.cpp @ 0c1e57098; GroveMoE (arXiv 2508.07785)",
    tested_with=("tiny-grovemoe",),
    attention=Gqa(rope=Rope(style="neox"), qk_norm=QkNorm()),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(width=Key("expert_feed_forward_length", Dim("n_ff", over="n_expert_used"), unset=(0,))),
        chunks=Chunks(width=Key("expert_chunk_feed_forward_length", Dim("head_k"), unset=(0,))),
    ),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
)
