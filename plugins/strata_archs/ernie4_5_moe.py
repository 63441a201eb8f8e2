"""ERNIE 4.5 MoE: GQA, leading dense layers, perhaps a shared expert.

Routing: softmax over all experts; a per-expert bias takes part in the choice only; the chosen weights are renormalised.
An output bias may be stored and is not added.
"""

from strata.arch.spec import Arch, Experts, FeedForward, Gqa, Key, Moe, Rope, Router, SharedExpert

ARCH = Arch(
    name="ernie4_5-moe",
    source="llama.cpp src/models/ernie4-5-moe.cpp @ 0c1e57098; ERNIE 4.5 report",
    tested_with=("tiny-ernie4_5-moe",),
    attention=Gqa(rope=Rope(style="norm")),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        every=Key("interleave_moe_layer_step"),
        router=Router(scores="softmax", select_bias="if-present", normalize=True),
        experts=Experts(gate="if-present"),
        shared=SharedExpert(width=Key("expert_shared_feed_forward_length", 0), optional=True),
    ),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
    ignore=("blk.*.attn_output.bias",),
)
