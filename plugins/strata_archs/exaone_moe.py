"""K-EXAONE: GQA with QK norm, three windowed layers to a full one, rotation in windowed layers only, shared expert.

Routing: the file names the scores (sigmoid); a per-expert bias takes part in the choice only. The next-token block,
which has a dense FFN, is not run.
"""

from strata.arch.spec import Arch, FeedForward, Gqa, Head, Key, Moe, QkNorm, Rope, Router, SharedExpert, Window

ARCH = Arch(
    name="exaone-moe",
    source="llama.cpp src/models/exaone-moe.cpp @ 0c1e57098; K-EXAONE report",
    tested_with=("tiny-exaone-moe",),
    attention=Gqa(
        rope=Rope(style="neox", factors=True, rotated="windowed"),
        qk_norm=QkNorm(),
        window=Window(pattern=Key("attention.sliding_window_pattern", 4)),
    ),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        router=Router(
            scores=Key("expert_gating_func"),
            select_bias="if-present",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        shared=SharedExpert(width=Key("expert_shared_feed_forward_length", 0)),
    ),
    head=Head(tied=False),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
    nextn=True,
)
