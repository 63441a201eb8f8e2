"""Ling 2.0 and Ring 2.0: GQA with fused projections, QK norm, partial rotation; leading dense layers, shared experts.

Routing: the file names the scores (sigmoid); groups of experts; a per-expert bias takes part in the choice only. The
next-token blocks are not run.
"""

from strata.arch.spec import Arch, FeedForward, Gqa, Head, Key, Moe, QkNorm, Rope, Router, SharedExpert

ARCH = Arch(
    name="bailingmoe2",
    source="llama.cpp src/models/bailingmoe2.cpp @ 0c1e57098; Ling 2.0 report",
    tested_with=("tiny-bailingmoe2",),
    attention=Gqa(rope=Rope(style="neox"), qkv="fused", qkv_bias="absent", qk_norm=QkNorm()),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        router=Router(
            scores=Key("expert_gating_func"),
            select_bias="if-present",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        shared=SharedExpert(count=Key("expert_shared_count"), each=Key("expert_shared_feed_forward_length", 0)),
    ),
    head=Head(tied=False),
    scales_applied=("attn_qkv", "attn_output"),
    nextn=True,
)
