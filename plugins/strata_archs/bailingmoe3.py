"""Ling 3.0: Kimi delta attention with a bounded decay, gated MLA in the other layers, a shared expert.

A layer without KV heads has delta attention; decay and output gate have full rank. MLA's heads each have a gate.
Routing: the file names the scores (sigmoid); a per-expert bias takes part in the choice. Leading layers are dense. The
next-token block is not run.
"""

from strata.arch.spec import (
    Arch,
    Clamp,
    Experts,
    FeedForward,
    Gate,
    Kda,
    Key,
    Mla,
    Moe,
    Recurrent,
    Rope,
    Router,
    Sections,
    SharedExpert,
)

ARCH = Arch(
    name="bailingmoe3",
    source="llama.cpp src/models/bailingmoe3.cpp @ 0c1e57098",
    tested_with=("tiny-bailingmoe3",),
    attention=Mla(
        rope=Rope(style="norm", sections=Sections(form="blocks", style="neox")),
        q_rank=Key("attention.q_lora_rank", 0),
        gate=Gate(width="head"),
    ),
    recurrent=Recurrent(
        mixer=Kda(bound=Key("kda.gate_lower_bound"), bounded=Key("kda.safe_gate", True), full_rank=True, gate="full"),
        layers="no-kv-heads",
    ),
    ffn=FeedForward(clamp=Clamp(form="late", limit=Key("swiglu_clamp_shexp", 0.0))),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count"),
        router=Router(
            scores=Key("expert_gating_func"),
            select_bias="required",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        experts=Experts(clamp=Clamp(form="late", limit=Key("swiglu_clamp_exp", 0.0))),
        shared=SharedExpert(
            count=Key("expert_shared_count", 1, unset=(0,)),
            width=Key("expert_shared_feed_forward_length", 0),
            clamp=Clamp(form="late", limit=Key("swiglu_clamp_shexp", 0.0)),
        ),
    ),
    nextn=True,
)
