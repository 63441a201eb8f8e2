"""MiMo-V2-Flash: windowed and full layers with head counts of their own, sinks, values narrower than keys.

A layer has experts iff it has a router. Routing: sigmoid scores; a per-expert bias takes part in the choice only; the
chosen weights are renormalised. Stored biases of the projections are not added. Next-token blocks are not run.
"""

from strata.arch.spec import Arch, FeedForward, Gqa, Head, Key, Moe, Rope, Router, Window

ARCH = Arch(
    name="mimo2",
    source="llama.cpp src/models/mimo2.cpp @ 0c1e57098; MiMo-V2-Flash report",
    tested_with=("tiny-mimo2",),
    attention=Gqa(
        rope=Rope(style="neox", window_base=Key("rope.freq_base_swa", 10000.0), window_scaling="unscaled"),
        qkv_bias="absent",
        heads_by_layer=True,
        window=Window(pattern=Key("attention.sliding_window_pattern"), form="flags"),
        sinks="if-present",
        output_scale=Key("attention.value_scale", 1.0, unset=(0.0,)),
    ),
    ffn=FeedForward(),
    moe=Moe(
        by_router=True,
        router=Router(scores="sigmoid", select_bias="if-present", normalize=True),
    ),
    head=Head(tied=False),
    scales_applied=("attn_output", "output"),
    ignore=("blk.*.attn_q.bias", "blk.*.attn_k.bias", "blk.*.attn_v.bias", "blk.*.attn_qkv.bias"),
    nextn=True,
)
