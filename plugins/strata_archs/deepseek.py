"""DeepSeekMoE (the first one): plain GQA, leading dense layers, fine-grained and shared experts.

Routing: softmax over all experts; the chosen weights are never renormalised.
"""

from strata.arch.spec import Arch, Experts, FeedForward, Gqa, Key, Moe, Rope, Router, SharedExpert

ARCH = Arch(
    name="deepseek",
    source="llama.cpp src/models/deepseek.cpp @ 0c1e57098; DeepSeekMoE (arXiv 2401.06066)",
    tested_with=("tiny-deepseek",),
    attention=Gqa(rope=Rope(style="norm")),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        router=Router(scores="softmax", scale=Key("expert_weights_scale", 0.0)),
        experts=Experts(),
        shared=SharedExpert(count=Key("expert_shared_count")),
    ),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
)
