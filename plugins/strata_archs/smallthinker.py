"""SmallThinker: the router reads the layer's input before attention; ReLU-gated experts, no shared expert.

With windows, whose size is always 4096, every fourth layer from the first goes without rotation, except in models of
four layers. Routing: the file names the scores; the chosen weights are renormalised.
"""

from strata.arch.spec import Arch, Experts, Gqa, Key, Moe, Rope, Router, Unrotated, Window

ARCH = Arch(
    name="smallthinker",
    source="llama.cpp src/models/smallthinker.cpp @ 0c1e57098; SmallThinker report (arXiv 2507.20984)",
    tested_with=("tiny-smallthinker",),
    attention=Gqa(
        rope=Rope(
            style="neox",
            whole_head=True,
            unrotated=Unrotated(period=4, place="first", windowed_only=True, unless_n_layer=(4,)),
            window_base=Key("rope.freq_base_swa", 0.0),
        ),
        window=Window(
            size=Key("attention.sliding_window", 0),
            constant=4096,
            optional=True,
            pattern=Key("attention.sliding_window_pattern", 4),
            form="dense-first",
        ),
    ),
    moe=Moe(
        router=Router(scores=Key("expert_gating_func"), normalize=True, input="layer"),
        experts=Experts(act="relu"),
    ),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "output"),
)
