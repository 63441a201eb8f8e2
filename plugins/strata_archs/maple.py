"""Maple: Qwen3 MoE with windowed layers, which alone rotate, and bounded activations.

Routing: softmax over all experts; the chosen weights are renormalised.
"""

from strata.arch.spec import Arch, Clamp, Experts, Gqa, Head, Key, Moe, QkNorm, Rope, Router, Window

ARCH = Arch(
    name="maple",
    source="llama.cpp src/models/maple.cpp @ 0c1e57098",
    tested_with=("tiny-maple",),
    attention=Gqa(
        rope=Rope(
            style="neox",
            rotated="windowed",
            window_base=Key("rope.freq_base_swa", 0.0),
            window_n_rot=Key("rope.dimension_count_swa", 0),
        ),
        qk_norm=QkNorm(),
        window=Window(pattern=Key("attention.sliding_window_pattern"), form="flags"),
    ),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(clamp=Clamp(form="early", limit=Key("swiglu_clamp_exp"))),
    ),
    head=Head(tied=False),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "output"),
)
