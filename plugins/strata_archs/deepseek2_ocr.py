"""DeepSeek-OCR's language part: DeepSeek V2's experts behind ordinary multi-head attention.

Routing: softmax scores by default, groups, a selection bias, renormalisation and scale as the file says. The rotation's
base is 10000, and scaling keys have no effect. Image features are not taken in.
"""

from strata.arch.spec import Arch, Experts, FeedForward, Gqa, Key, Moe, Rope, Router, SharedExpert

ARCH = Arch(
    name="deepseek2-ocr",
    source="llama.cpp src/models/deepseek2ocr.cpp @ 0c1e57098; DeepSeek-OCR (arXiv 2510.18234)",
    tested_with=("tiny-deepseek2-ocr",),
    attention=Gqa(
        rope=Rope(
            style="neox",
            whole_head=True,
            base=Key("rope.freq_base", 10000.0, unset=(0.0,), accepted=(10000.0,)),
            scaling=False,
        )
    ),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        router=Router(
            scores=Key("expert_gating_func", "softmax", unset=(0,)),
            select_bias="if-present",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        experts=Experts(fused_gate_up=True),
        shared=SharedExpert(count=Key("expert_shared_count")),
    ),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
)
