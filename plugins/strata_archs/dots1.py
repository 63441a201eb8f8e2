"""dots.llm1: multi-head attention with per-head QK norm, leading dense layers, shared experts.

Routing: the file names the scores (sigmoid in releases); a per-expert bias takes part in the choice only.
"""

from strata.arch.spec import Arch, FeedForward, Gqa, Head, Key, Moe, QkNorm, Rope, Router, SharedExpert

ARCH = Arch(
    name="dots1",
    source="llama.cpp src/models/dots1.cpp @ 0c1e57098; dots.llm1 report (arXiv 2506.05767)",
    tested_with=("tiny-dots1",),
    attention=Gqa(rope=Rope(style="neox"), qk_norm=QkNorm()),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        router=Router(
            scores=Key("expert_gating_func"),
            select_bias="if-present",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        shared=SharedExpert(count=Key("expert_shared_count")),
    ),
    head=Head(tied=False),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
)
