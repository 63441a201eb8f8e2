"""MiniMax-M2: GQA with QK norm over the whole row and partial rotation, every layer routed, no shared expert.

Routing: the file names the scores (sigmoid); a per-expert bias takes part in the choice only. Experts are
feed_forward_length wide, whatever expert_feed_forward_length says.
"""

from strata.arch.spec import Arch, Experts, Gqa, Head, Key, Moe, QkNorm, Rope, Router

ARCH = Arch(
    name="minimax-m2",
    source="llama.cpp src/models/minimax-m2.cpp @ 0c1e57098; MiniMax-M2 model card",
    tested_with=("tiny-minimax-m2",),
    attention=Gqa(rope=Rope(style="neox"), qk_norm=QkNorm(over="row")),
    moe=Moe(
        router=Router(scores=Key("expert_gating_func"), select_bias="required", normalize=True),
        experts=Experts(width=Key("feed_forward_length")),
    ),
    head=Head(tied=False),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "output"),
)
