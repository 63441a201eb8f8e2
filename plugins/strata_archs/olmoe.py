"""OLMoE: every layer routed, no shared expert; queries and keys are normed over the whole row, before the heads split.

Routing: softmax over all experts; the chosen weights are taken as they are and do not sum to one.
"""

from strata.arch.spec import Arch, Experts, Gqa, Head, Key, Moe, QkNorm, Rope, Router

ARCH = Arch(
    name="olmoe",
    source="llama.cpp src/models/olmoe.cpp @ 0c1e57098; OLMoE (arXiv 2409.02060)",
    tested_with=("tiny-olmoe",),
    attention=Gqa(rope=Rope(style="neox"), qk_norm=QkNorm(over="row")),
    moe=Moe(
        router=Router(scores="softmax"),
        experts=Experts(width=Key("feed_forward_length")),
    ),
    head=Head(tied=False),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "output"),
)
