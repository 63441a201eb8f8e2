"""gpt-oss: GQA with attention sinks, every second layer windowed, YaRN on all layers, every layer routed.

Routing: the router's bias is part of the logits; top-k by logits, softmax over the chosen ones.
Experts: biased gate, up and down, clamped SwiGLU with (up + 1).
YaRN's correction range is rounded outwards to whole pairs, as llama.cpp does and the original configuration does not.
"""

from strata.arch.spec import Arch, Block, Experts, Gqa, Head, Key, Moe, Rope, Router, Window

ARCH = Arch(
    name="gpt-oss",
    source="llama.cpp src/models/openai-moe.cpp @ 0c1e57098; gpt-oss model card",
    tested_with=("tiny-gpt-oss",),
    attention=Gqa(
        rope=Rope(style="neox", whole_head=True, window_base=Key("rope.freq_base_swa", 0.0)),
        output_bias="required",
        window=Window(),
        sinks="required",
    ),
    block=Block(ffn_norm="post_attention_norm"),
    moe=Moe(
        router=Router(scores="softmax-weight", bias="required"),
        experts=Experts(act="swiglu-oai", bias="required"),
    ),
    head=Head(tied=False),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
)
