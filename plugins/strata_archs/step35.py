"""Step-3.5-Flash: a sigmoid gate for each head, windowed layers with rotation and head counts of their own.

Full layers rotate half of what the file says. A layer has experts iff it has a router. Routing: sigmoid scores by
default. Some layers bound their activations, behind the SiLU. Next-token blocks are not run.
"""

from strata.arch.spec import (
    Arch,
    Clamp,
    Experts,
    FeedForward,
    Gate,
    Gqa,
    Head,
    Key,
    Moe,
    QkNorm,
    Rope,
    Router,
    SharedExpert,
    Window,
)

ARCH = Arch(
    name="step35",
    source="llama.cpp src/models/step35.cpp @ 0c1e57098; Step-3.5-Flash report",
    tested_with=("tiny-step35",),
    attention=Gqa(
        rope=Rope(
            style="neox",
            factors=True,
            full_factors=True,
            full_n_rot_over=2,
            window_base=Key("rope.freq_base_swa", 10000.0),
            window_n_rot=Key("rope.dimension_count_swa", 0),
            window_scaling="unscaled",
        ),
        heads_by_layer=True,
        qk_norm=QkNorm(presence="if-present"),
        window=Window(pattern=Key("attention.sliding_window_pattern"), form="flags"),
        gate=Gate(width="head", presence="if-present"),
    ),
    ffn=FeedForward(clamp=Clamp(form="late", limit=Key("swiglu_clamp_shexp", 0.0))),
    moe=Moe(
        by_router=True,
        router=Router(
            scores=Key("expert_gating_func", "sigmoid", unset=(0,)),
            select_bias="if-present",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        experts=Experts(clamp=Clamp(form="late", limit=Key("swiglu_clamp_exp", 0.0))),
        shared=SharedExpert(
            width=Key("expert_shared_feed_forward_length"),
            clamp=Clamp(form="late", limit=Key("swiglu_clamp_shexp", 0.0)),
        ),
    ),
    head=Head(tied=False),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "output"),
    nextn=True,
)
