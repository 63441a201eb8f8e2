"""Granite with interleaved sliding windows and attention sinks, dense and MoE; layers may go without rotation.

Routing: softmax over all experts; the chosen weights are renormalised. The shared expert's gate and up are one tensor.
"""

from strata.arch.spec import Arch, Block, Experts, FeedForward, Gqa, Head, Key, Moe, Rope, Router, SharedExpert, Window

ARCH = Arch(
    name="granite_swa",
    source="llama.cpp src/models/granite-swa.cpp @ 0c1e57098",
    tested_with=("tiny-granite_swa",),
    attention=Gqa(
        rope=Rope(style="norm", factors=True, switch=Key("attention.rope_pattern", True)),
        output_bias="if-present",
        scale=Key("attention.scale", 0.0),
        window=Window(pattern=Key("attention.sliding_window_pattern"), form="flags"),
        sinks="required",
    ),
    block=Block(residual_scale=Key("residual_scale", 1.0)),
    ffn=FeedForward(bias="if-present"),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(width=Key("feed_forward_length"), fused_gate_up=True),
        shared=SharedExpert(width=Key("expert_shared_feed_forward_length", 0), optional=True, fused=True),
        optional=True,
    ),
    embedding_scale=Key("embedding_scale", 1.0, unset=(0.0,)),
    head=Head(divisor=Key("logit_scale")),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
)
