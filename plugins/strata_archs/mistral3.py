"""Ministral 3 dense and MoE: Llama's layers with query temperature by position and YaRN of its own range.

Routing: softmax over all experts; the chosen weights are renormalised. Experts are feed_forward_length wide.
"""

from strata.arch.spec import Arch, Dim, Experts, FeedForward, Gqa, Key, Moe, Rope, Router, Temperature, Yarn

ARCH = Arch(
    name="mistral3",
    source="llama.cpp src/models/mistral3.cpp @ 0c1e57098",
    tested_with=("tiny-mistral3",),
    attention=Gqa(
        rope=Rope(
            style="norm",
            whole_head=True,
            factors=True,
            yarn=Yarn(
                beta_fast=Key("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=Key("rope.scaling.yarn_beta_slow", 1.0),
                log_multiplier=Key("rope.scaling.yarn_log_multiplier", 0.0),
                cancels=False,
            ),
        ),
        output_bias="if-present",
        temperature=Temperature(length=Key("rope.scaling.original_context_length", Dim("n_ctx"), unset=(0,))),
    ),
    ffn=FeedForward(bias="if-present"),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(width=Key("feed_forward_length"), gate="if-present"),
        optional=True,
    ),
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
        "output",
    ),
)
