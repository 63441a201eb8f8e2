"""Granite dense, and files of its name with experts: GQA with multipliers on embedding, residuals, scores and logits.

rope.scaling.finetuned false switches the rotation off in all layers.
"""

from strata.arch.spec import Arch, Block, Experts, FeedForward, Gqa, Head, Key, Moe, Rope, Router, SharedExpert

ARCH = Arch(
    name="granite",
    source="llama.cpp src/models/granite.cpp @ 0c1e57098; Granite 3.0 report",
    tested_with=("tiny-granite",),
    attention=Gqa(
        rope=Rope(style="norm", factors=True, switch=Key("rope.scaling.finetuned", True)),
        output_bias="if-present",
        scale=Key("attention.scale", 0.0),
    ),
    block=Block(residual_scale=Key("residual_scale", 1.0)),
    ffn=FeedForward(bias="if-present"),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(width=Key("feed_forward_length"), gate="if-present"),
        shared=SharedExpert(width=Key("expert_shared_feed_forward_length", 0), optional=True),
        optional=True,
    ),
    embedding_scale=Key("embedding_scale", 1.0, unset=(0.0,)),
    head=Head(divisor=Key("logit_scale")),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
)
