"""dots3-note: latent attention of two geometries, windowed or over the keys that an indexer chooses; gated heads.

The rotated key part is normed before it rotates. Routing: the file names the scores (sigmoid); a per-expert bias takes
part in the choice. Leading layers are dense. The next-token block is not run.
"""

from strata.arch.spec import (
    Arch,
    FeedForward,
    Gate,
    Indexer,
    Key,
    Mla,
    MlaWindow,
    Moe,
    Rope,
    Router,
    SharedExpert,
    Window,
)

ARCH = Arch(
    name="dots3note",
    source="llama.cpp src/models/dots3note.cpp @ 0c1e57098",
    tested_with=("tiny-dots3note",),
    attention=Mla(
        rope=Rope(style="norm", window_base=Key("rope.freq_base_swa")),
        q_rank=Key("attention.q_lora_rank"),
        gate=Gate(width="head"),
        indexer=Indexer(style="neox", eps=1e-6, owners=Key("attention.indexer.types")),
        heads_by_layer=True,
        windowed=MlaWindow(window=Window(form="flags")),
        key_norm=True,
    ),
    ffn=FeedForward(),
    moe=Moe(
        dense_layers=Key("leading_dense_block_count"),
        router=Router(
            scores=Key("expert_gating_func"),
            select_bias="required",
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
