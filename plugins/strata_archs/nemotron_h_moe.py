"""Nemotron 3: each layer is one of Mamba 2, GQA without positions, and routed experts with a shared one.

A layer with a feed_forward_length is an FFN; of the others those without KV heads have Mamba 2. Experts are squared
ReLUs without gates, in files with a latent width behind a projection. Routing: sigmoid; a per-expert bias takes part in
the choice. Files without experts are dense.
"""

from strata.arch.spec import (
    Arch,
    Block,
    Experts,
    FeedForward,
    Gqa,
    Key,
    Mamba2,
    Moe,
    Norm,
    Recurrent,
    Rope,
    Router,
    SharedExpert,
)

ARCH = Arch(
    name="nemotron_h_moe",
    source="llama.cpp src/models/nemotron-h.cpp @ 0c1e57098",
    tested_with=("tiny-nemotron_h_moe",),
    attention=Gqa(rope=Rope(style="norm", rotated="none"), output_bias="if-present"),
    recurrent=Recurrent(mixer=Mamba2(), layers="no-kv-heads"),
    norm=Norm(eps=Key("attention.layer_norm_rms_epsilon", Key("attention.layer_norm_epsilon"), unset=(0.0,))),
    block=Block(residual="single", ffn_norm=None),
    ffn=FeedForward(act="relu-sqr", bias="if-present"),
    moe=Moe(
        router=Router(
            scores="sigmoid",
            select_bias="required",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        experts=Experts(act="relu-sqr"),
        shared=SharedExpert(width=Key("expert_shared_feed_forward_length"), act="relu-sqr"),
        latent=Key("moe_latent_size", 0),
        by_layer=True,
        optional=True,
    ),
    scales_applied=(
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_qkv",
        "attn_output",
        "ffn_up",
        "ffn_down",
        "ffn_up_exps",
        "ffn_down_exps",
        "ffn_up_shexp",
        "ffn_down_shexp",
        "ssm_in",
        "ssm_out",
        "output",
    ),
    nextn=True,
)
