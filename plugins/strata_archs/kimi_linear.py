"""Kimi Linear: Kimi delta attention, MLA without positions in the other layers, a shared expert.

A layer without KV heads has delta attention. Routing: a per-expert bias takes part in the choice; the chosen weights
are renormalised and scaled. Leading layers are dense.
"""

from strata.arch.spec import (
    Arch,
    Experts,
    FeedForward,
    Head,
    Kda,
    Key,
    Mla,
    Moe,
    Recurrent,
    Rope,
    Router,
    SharedExpert,
)

ARCH = Arch(
    name="kimi-linear",
    source="llama.cpp src/models/kimi-linear.cpp @ 0c1e57098",
    tested_with=("tiny-kimi-linear",),
    attention=Mla(rope=Rope(style="norm", rotated="none"), q_rank=None),
    recurrent=Recurrent(mixer=Kda(), layers="no-kv-heads"),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        router=Router(
            scores=Key("expert_gating_func"),
            select_bias="required",
            normalize=True,
            scale=Key("expert_weights_scale", 0.0),
        ),
        experts=Experts(),
        shared=SharedExpert(count=Key("expert_shared_count", 1, unset=(0,))),
    ),
    head=Head(tied=False),
    scales_applied=("attn_output", "output"),
)
