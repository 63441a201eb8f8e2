"""DeepSeek V3.2: V3's latent attention over the keys that an indexer chooses, leading dense layers, shared experts.

Routing: the file names the scores (sigmoid); groups; an optional selection bias takes part in the choice only. The
next-token block is not run.
"""

from strata.arch.spec import Arch, FeedForward, Indexer, Key, Mla, Moe, Rope, Router, SharedExpert, Yarn

ARCH = Arch(
    name="deepseek32",
    source="llama.cpp src/models/deepseek32.cpp @ 0c1e57098; DeepSeek-V3.2 report (arXiv 2512.02556)",
    tested_with=("tiny-deepseek32",),
    attention=Mla(
        rope=Rope(
            style="norm",
            yarn=Yarn(log_multiplier=Key("rope.scaling.yarn_log_multiplier", 0.0), log_divisor=0.1, cancels=False),
        ),
        q_rank=Key("attention.q_lora_rank"),
        scale="head-yarn",
        indexer=Indexer(style="neox", eps=1e-6),
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
        shared=SharedExpert(count=Key("expert_shared_count")),
    ),
    scales_applied=(
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
        "ffn_gate_exps",
        "ffn_up_exps",
        "ffn_down_exps",
        "ffn_gate_shexp",
        "ffn_up_shexp",
        "ffn_down_shexp",
    ),
    nextn=True,
)
