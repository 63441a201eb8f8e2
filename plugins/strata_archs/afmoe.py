"""Arcee Trinity: gated attention, three windowed layers to a full one, norms before and behind both sublayers.

Every fourth layer goes without rotation, whatever the windows. Routing: sigmoid scores by default; a per-expert bias
takes part in the choice only. Embeddings are multiplied by the root of n_embd.
"""

from strata.arch.spec import (
    Arch,
    Block,
    FeedForward,
    Gate,
    Gqa,
    Key,
    Moe,
    QkNorm,
    Rope,
    Router,
    SharedExpert,
    Unrotated,
    Window,
)

ARCH = Arch(
    name="afmoe",
    source="llama.cpp src/models/afmoe.cpp @ 0c1e57098; Trinity report",
    tested_with=("tiny-afmoe",),
    attention=Gqa(
        rope=Rope(
            style="neox",
            unrotated=Unrotated(period=4, place="last"),
            window_base=Key("rope.freq_base_swa", 0.0),
        ),
        qk_norm=QkNorm(),
        window=Window(
            size=Key("attention.sliding_window", 0),
            optional=True,
            pattern=Key("attention.sliding_window_pattern", 4),
        ),
        gate=Gate(width="element"),
    ),
    block=Block(post_attention_norm="post_attention_norm", post_ffn_norm="post_ffw_norm"),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count", 0),
        router=Router(
            scores=Key("expert_gating_func", "sigmoid", unset=(0,)),
            select_bias="required",
            normalize=Key("expert_weights_norm", False),
            scale=Key("expert_weights_scale", 0.0),
        ),
        shared=SharedExpert(count=Key("expert_shared_count"), optional=True),
    ),
    embedding_scale="sqrt-n_embd",
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
)
