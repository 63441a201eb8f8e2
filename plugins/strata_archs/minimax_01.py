"""MiniMax 01 and M1: lightning attention, every eighth layer GQA with partial rotation, all layers routed.

Sublayers add to their normed inputs, not to the stream. Routing: softmax over all experts, renormalised.
"""

from strata.arch.spec import Arch, Block, Experts, Gqa, Key, Lightning, Moe, Recurrent, Rope, Router

ARCH = Arch(
    name="minimax-01",
    source="llama.cpp src/models/minimax-01.cpp @ 0c1e57098",
    tested_with=("tiny-minimax-01",),
    attention=Gqa(rope=Rope(style="neox")),
    recurrent=Recurrent(mixer=Lightning(), layers=8),
    block=Block(residual="normed", residual_scale=Key("residual_scale")),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(width=Key("feed_forward_length"), gate="if-present"),
    ),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "output"),
)
