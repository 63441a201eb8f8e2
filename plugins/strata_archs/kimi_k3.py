"""Kimi K3: Kimi Linear whose sublayers look back at earlier residuals, with experts in a space of their own.

Delta attention with a bounded decay; MLA without positions, its result gated where the file says so, in the other
layers. Routing: a per-expert bias takes part in the choice. Leading layers are dense; a shared expert is added.
"""

from strata.arch.spec import (
    Arch,
    Checkpoints,
    Experts,
    FeedForward,
    Gate,
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
    name="kimi-k3",
    source="llama.cpp src/models/kimi-k3.cpp @ 0c1e57098",
    tested_with=("tiny-kimi-k3",),
    attention=Mla(
        rope=Rope(style="norm", rotated="none"),
        q_rank=Key("attention.q_lora_rank", 0),
        q_rank_by_norm=True,
        gate=Gate(width="element", presence="if-present"),
    ),
    recurrent=Recurrent(
        mixer=Kda(bound=Key("kda.gate_lower_bound", 0.0), negated=True, gate="named-full"), layers="no-kv-heads"
    ),
    checkpoints=Checkpoints(),
    ffn=FeedForward(act="situ"),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        router=Router(
            scores=Key("expert_gating_func"),
            select_bias="required",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        experts=Experts(act="situ"),
        shared=SharedExpert(count=Key("expert_shared_count", 1, unset=(0,)), act="situ"),
        latent=Key("expert_latent_length", 0),
        latent_names="routed",
        latent_norm="if-present",
    ),
    head=Head(tied=False),
)
