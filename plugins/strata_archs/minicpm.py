"""MiniCPM dense and MoE: Llama's layers with multipliers on embedding, residuals and logits.

Routing: softmax over all experts; the chosen weights are renormalised. Files without the multipliers get the first
model's.
"""

from strata.arch.spec import Arch, Block, Experts, FeedForward, Gqa, Head, Key, Moe, Power, Rope, Router

ARCH = Arch(
    name="minicpm",
    source="llama.cpp src/models/minicpm.cpp @ 0c1e57098; MiniCPM report (arXiv 2404.06395)",
    tested_with=("tiny-minicpm",),
    attention=Gqa(rope=Rope(style="norm", whole_head=True, factors=True), output_bias="if-present"),
    block=Block(residual_scale=Key("residual_scale", Power(1.4, "n_layer", -0.5))),
    ffn=FeedForward(bias="if-present"),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(width=Key("feed_forward_length"), gate="if-present"),
        optional=True,
    ),
    embedding_scale=Key("embedding_scale", 12.0),
    head=Head(divisor=Key("logit_scale", Power(256.0, "n_embd", -1.0))),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "output"),
)
