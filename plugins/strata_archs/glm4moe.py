"""GLM-4.5, 4.6 and 4.7: GQA with biased projections and partial rotation, leading dense layers, a shared expert.

Routing: sigmoid scores by default; a per-expert bias takes part in the choice only; the chosen weights are renormalised
and scaled as the file says. post_attention_norm is the FFN's input norm. The next-token block is not run.
"""

from strata.arch.spec import (
    Arch,
    Block,
    Dim,
    Experts,
    FeedForward,
    Gqa,
    Key,
    Moe,
    QkNorm,
    Rope,
    Router,
    Sections,
    SharedExpert,
)

ARCH = Arch(
    name="glm4moe",
    source="llama.cpp src/models/glm4-moe.cpp @ 0c1e57098; GLM-4.5 report (arXiv 2508.06471)",
    tested_with=("tiny-glm4moe",),
    attention=Gqa(rope=Rope(style="neox", sections=Sections(form="blocks")), qk_norm=QkNorm(presence="if-present")),
    block=Block(ffn_norm="post_attention_norm"),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        router=Router(
            scores=Key("expert_gating_func", "sigmoid", unset=(0,)),
            select_bias="required",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        experts=Experts(width=Key("expert_feed_forward_length", Dim("n_ff", over="n_expert_used"), unset=(0,))),
        shared=SharedExpert(count=Key("expert_shared_count")),
    ),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
    nextn=True,
)
