"""Llama-shaped models: Mixtral with experts, dense Llama and Mistral without.

Routing: softmax over all experts; the chosen weights are renormalised. Experts are feed_forward_length wide.
Old Mixtral files hold one tensor per expert and matrix.
"""

from strata.arch.spec import Arch, Experts, FeedForward, Gqa, Key, Moe, Rope, Router

ARCH = Arch(
    name="llama",
    source="llama.cpp src/models/llama.cpp @ 0c1e57098; Mixtral of Experts (arXiv 2401.04088)",
    tested_with=("tiny-llama",),
    attention=Gqa(
        rope=Rope(style="norm", whole_head=True, factors=True),
        output_bias="if-present",
    ),
    ffn=FeedForward(bias="if-present"),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(width=Key("feed_forward_length"), gate="if-present", per_expert_tensors=True),
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
