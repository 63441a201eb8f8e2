"""DBRX: GQA with fused projections clamped to a range, LayerNorm without bias, every layer routed.

Routing: softmax over all experts; the chosen weights are renormalised. attn_output_norm is the experts' input norm.
"""

from strata.arch.spec import Arch, Block, Experts, Gqa, Head, Key, Moe, Norm, Rope, Router

ARCH = Arch(
    name="dbrx",
    source="llama.cpp src/models/dbrx.cpp @ 0c1e57098; DBRX technical blog",
    tested_with=("tiny-dbrx",),
    attention=Gqa(
        rope=Rope(style="neox"),
        qkv="fused",
        qkv_bias="absent",
        clamp=Key("attention.clamp_kqv"),
    ),
    norm=Norm(kind="layer", eps=Key("attention.layer_norm_epsilon")),
    block=Block(ffn_norm="attn_output_norm"),
    moe=Moe(router=Router(scores="softmax", normalize=True), experts=Experts(width=Key("feed_forward_length"))),
    head=Head(tied=False),
    scales_applied=("attn_qkv", "attn_output"),
)
