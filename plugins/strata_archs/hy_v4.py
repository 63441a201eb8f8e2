"""Hy4-preview: a residual of several streams, gated latent attention with sinks, perhaps over chosen keys.

The choice of one layer's indexer may serve several. Routing: the file names the scores (sigmoid); an optional selection
bias takes part in the choice only; the routed experts' activations are clamped. Leading layers are dense.
"""

from strata.arch.spec import (
    Arch,
    Clamp,
    Experts,
    FeedForward,
    Gate,
    Head,
    Indexer,
    Key,
    Mla,
    Moe,
    Rope,
    Router,
    SharedExpert,
    Streams,
)

ARCH = Arch(
    name="hy_v4",
    source="llama.cpp src/models/hy-v4.cpp @ 0c1e57098",
    tested_with=("tiny-hy_v4",),
    attention=Mla(
        rope=Rope(style="norm"),
        q_rank=Key("attention.q_lora_rank"),
        gate=Gate(width="element"),
        sinks="required",
        indexer=Indexer(
            style="norm",
            rotated="last",
            eps=Key("attention.layer_norm_rms_epsilon"),
            optional=True,
            top_k=Key("attention.indexer.top_k", 0),
            owners=Key("attention.indexer.types", 0),
        ),
    ),
    streams=Streams(),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        router=Router(
            scores=Key("expert_gating_func"),
            select_bias="if-present",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        experts=Experts(clamp=Clamp(form="early", limit=Key("swiglu_clamp_exp", 0.0))),
        shared=SharedExpert(count=Key("expert_shared_count")),
    ),
    head=Head(tied=False),
)
