"""Snowflake Arctic: a dense FFN in every layer, and experts beside it that read the layer's input.

Routing: softmax over all experts; the chosen weights are renormalised. The dense FFN is n_embd wide, the experts
feed_forward_length.
"""

from strata.arch.spec import Arch, Beside, Experts, FeedForward, Gqa, Key, Moe, Rope, Router

ARCH = Arch(
    name="arctic",
    source="llama.cpp src/models/arctic.cpp @ 0c1e57098; Snowflake Arctic model card",
    tested_with=("tiny-arctic",),
    attention=Gqa(rope=Rope(style="norm", whole_head=True)),
    ffn=FeedForward(width=Key("embedding_length")),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(width=Key("feed_forward_length")),
        beside=Beside(norm="ffn_norm_exps", input="layer"),
    ),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
)
