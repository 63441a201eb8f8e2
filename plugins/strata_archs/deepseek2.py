"""DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash: latent attention, leading dense layers, shared experts.

Routing: softmax (V2) or sigmoid (V3) scores, an optional selection bias, groups, optional renormalisation and scale.
Shapes of the lite models have no query latent, whatever the file says; GLM-4.7-Flash's default to sigmoid scores.
"""

from strata.arch.spec import (
    Arch,
    Case,
    Experts,
    FeedForward,
    Key,
    Mla,
    Moe,
    Rope,
    Router,
    SharedExpert,
    Temperature,
    Yarn,
)

ARCH = Arch(
    name="deepseek2",
    source="llama.cpp src/models/deepseek2.cpp @ 0c1e57098; DeepSeek-V2 and V3 reports",
    tested_with=("tiny-deepseek2",),
    attention=Mla(
        rope=Rope(
            style="norm",
            yarn=Yarn(log_multiplier=Key("rope.scaling.yarn_log_multiplier", 0.0), log_divisor=0.1),
        ),
        q_rank=Key(
            "attention.q_lora_rank",
            fixed=(Case(value=0, n_layer=(26, 27)), Case(value=0, n_layer=(48,), n_vocab=(128256,))),
        ),
        scale="head-yarn",
        temperature=Temperature(),
        legacy_kv_b=True,
    ),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        router=Router(
            scores=Key(
                "expert_gating_func",
                "softmax",
                unset=(0,),
                cases=(Case(value="sigmoid", n_layer=(47, 48), n_vocab=(154880,)),),
            ),
            select_bias="if-present",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        experts=Experts(fused_gate_up=True),
        shared=SharedExpert(count=Key("expert_shared_count")),
    ),
    scales_applied=("attn_output",),
    nextn=True,
)
