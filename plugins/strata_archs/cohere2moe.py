"""Cohere North MoE: attention and FFN side by side behind one LayerNorm, one full layer to three windowed ones.

Rotation in windowed and leading dense layers only. Routing: sigmoid scores by default; with a shared expert the FFN is
the mean of routed and shared. Logits are multiplied by the file's scale. The next-token block is not run.
"""

from strata.arch.spec import (
    Arch,
    Block,
    Dim,
    Experts,
    FeedForward,
    Gqa,
    Head,
    Key,
    Moe,
    Norm,
    Rope,
    Router,
    SharedExpert,
    Window,
)

ARCH = Arch(
    name="cohere2moe",
    source="llama.cpp src/models/cohere2moe.cpp @ 0c1e57098",
    tested_with=("tiny-cohere2moe",),
    attention=Gqa(
        rope=Rope(style="norm", rotated="windowed-or-dense"),
        window=Window(pattern=Key("attention.sliding_window_pattern", 4), form="dense-first"),
    ),
    norm=Norm(
        kind="layer",
        eps=Key("attention.layer_norm_epsilon", 1e-5),
        or_rms=Key("attention.layer_norm_rms_epsilon", 0.0),
    ),
    block=Block(residual="parallel", ffn_norm=None),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count"),
        router=Router(
            scores=Key("expert_gating_func", "sigmoid", unset=(0,)),
            select_bias="absent",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        experts=Experts(width=Key("expert_feed_forward_length", Dim("n_ff"), unset=(0,)), fused_gate_up=True),
        shared=SharedExpert(
            count=Key("expert_shared_count", 0),
            width=Key("expert_shared_feed_forward_length", 0),
            optional=True,
            sum_scale=0.5,
        ),
    ),
    head=Head(scale=Key("logit_scale")),
    scales_applied=(
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_qkv",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
        "ffn_gate_shexp",
        "ffn_up_shexp",
        "ffn_down_shexp",
        "ffn_gate_exps",
        "ffn_up_exps",
        "ffn_down_exps",
    ),
    nextn=True,
)
