"""Gemma 4, MoE and dense: windowed layers with heads and rotation of their own, experts beside a dense FFN.

Routing: softmax over all experts of the stream behind the attention, normed and scaled for itself; weights are
renormalised, and each expert's result has a factor. A layer has experts iff it has a router. Last layers may share the
keys and values of earlier ones; layers may get a vector of their own from the token. Images and audio are not taken in.
"""

from strata.arch.spec import (
    Arch,
    Beside,
    Block,
    Experts,
    FeedForward,
    Gqa,
    Head,
    Key,
    LayerInputs,
    Moe,
    QkNorm,
    Rope,
    Router,
    Window,
)

ARCH = Arch(
    name="gemma4",
    source="llama.cpp src/models/gemma4.cpp @ 0c1e57098; Gemma 4 model card",
    tested_with=("tiny-gemma4",),
    attention=Gqa(
        rope=Rope(
            style="neox",
            factors=True,
            full_factors=True,
            window_base=Key("rope.freq_base_swa", 10000.0),
            window_n_rot=Key("rope.dimension_count_swa", 0),
        ),
        qkv_bias="absent",
        heads_by_layer=True,
        qk_norm=QkNorm(),
        window=Window(
            pattern=Key("attention.sliding_window_pattern"),
            form="flags",
            head_k=Key("attention.key_length_swa"),
            head_v=Key("attention.value_length_swa"),
        ),
        scale=1.0,
        values_from_keys=True,
        value_norm=True,
        shared_layers=Key("attention.shared_kv_layers", 0),
    ),
    block=Block(post_attention_norm="post_attention_norm", post_ffn_norm="post_ffw_norm", output_scale=True),
    ffn=FeedForward(act="gelu"),
    moe=Moe(
        by_router=True,
        router=Router(scores="softmax", normalize=True, input="residual"),
        experts=Experts(act="gelu", fused_gate_up=True),
        beside=Beside(
            norm="pre_ffw_norm_2",
            input="residual",
            post_dense_norm="post_ffw_norm_1",
            post_experts_norm="post_ffw_norm_2",
        ),
    ),
    embedding_scale="sqrt-n_embd",
    layer_inputs=LayerInputs(),
    head=Head(softcap=Key("final_logit_softcapping", 30.0)),
    scales_applied=(
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_qkv",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
        "ffn_gate_exps",
        "ffn_up_exps",
        "ffn_down_exps",
    ),
)
