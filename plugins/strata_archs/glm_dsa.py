"""GLM-5: latent attention over the keys that an indexer chooses, perhaps one for several layers; shared experts.

Routing: sigmoid scores by default; an optional selection bias takes part in the choice only. Leading layers are dense.
The next-token block is not run.
"""

from strata.arch.spec import Arch, FeedForward, Indexer, Key, Mla, Moe, Rope, Router, SharedExpert

ARCH = Arch(
    name="glm-dsa",
    source="llama.cpp src/models/glm-dsa.cpp @ 0c1e57098; GLM-5 model card",
    tested_with=("tiny-glm-dsa",),
    attention=Mla(
        rope=Rope(style="norm"),
        q_rank=Key("attention.q_lora_rank"),
        scale="head-yarn",
        indexer=Indexer(style="norm", eps=0.0, owners=Key("attention.indexer.types"), sparse_from=1048576),
    ),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        router=Router(
            scores=Key("expert_gating_func", "sigmoid", unset=(0,)),
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
