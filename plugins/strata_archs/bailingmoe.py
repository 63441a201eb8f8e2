"""Ling lite and plus: GQA, every layer routed, shared experts.

Routing: softmax over all experts. The leading dense count of the files has no effect.
"""

from strata.arch.spec import Arch, Gqa, Head, Key, Moe, Rope, Router, SharedExpert

ARCH = Arch(
    name="bailingmoe",
    source="llama.cpp src/models/bailingmoe.cpp @ 0c1e57098; Ling report (arXiv 2503.05139)",
    tested_with=("tiny-bailingmoe",),
    attention=Gqa(rope=Rope(style="norm", whole_head=True)),
    moe=Moe(
        router=Router(
            scores="softmax",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        shared=SharedExpert(count=Key("expert_shared_count")),
    ),
    head=Head(tied=False),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
)
