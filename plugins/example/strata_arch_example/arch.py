"""An invented model: attention with normed heads, sigmoid routing with a shared expert.

Replace it by yours. Everything here is data; strata.arch.spec is the only import.
"""

from strata.arch.spec import Arch, FeedForward, Gqa, Key, Moe, QkNorm, Rope, Router, SharedExpert

ARCH = Arch(
    name="example-moe",
    source="invented for this package",
    tested_with=("tiny-example-moe",),
    attention=Gqa(rope=Rope(style="neox"), qk_norm=QkNorm()),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        router=Router(scores="sigmoid", select_bias="required", normalize=True, scale=Key("expert_weights_scale", 1.0)),
        shared=SharedExpert(count=Key("expert_shared_count", 1)),
    ),
)
