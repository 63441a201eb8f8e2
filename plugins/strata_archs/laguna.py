"""Laguna: softplus gates on the heads, windowed layers with head counts, rotation and base of their own.

Windowed layers rotate without scaling. Routing: sigmoid scores by default; a per-expert bias takes part in the choice
only. Leading dense layers, a shared expert.
"""

from strata.arch.spec import Arch, FeedForward, Gate, Gqa, Key, Moe, QkNorm, Rope, Router, SharedExpert, Window

ARCH = Arch(
    name="laguna",
    source="llama.cpp src/models/laguna.cpp @ 0c1e57098",
    tested_with=("tiny-laguna",),
    attention=Gqa(
        rope=Rope(
            style="neox",
            window_base=Key("rope.freq_base_swa", 0.0),
            window_n_rot=Key("rope.dimension_count_swa", 0),
            window_scaling="none",
        ),
        heads_by_layer=True,
        qk_norm=QkNorm(),
        window=Window(
            size=Key("attention.sliding_window", 0),
            optional=True,
            pattern=Key("attention.sliding_window_pattern", 4),
            form="dense-first",
        ),
        gate=Gate(act="softplus", width="either"),
    ),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count"),
        router=Router(
            scores=Key("expert_gating_func", "sigmoid", unset=(0,)),
            select_bias="required",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        shared=SharedExpert(count=Key("expert_shared_count", 1), width=Key("expert_shared_feed_forward_length", 0)),
    ),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
)
