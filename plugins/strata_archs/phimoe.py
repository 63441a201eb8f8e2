"""Phi-3.5-MoE: GQA with all biases, every layer routed, longrope factors.

Routing: softmax over all experts; the chosen weights are renormalised. Norms are RMS with a bias and routing is plain
top-k, as in the GGUF files' other readers; the original uses LayerNorm and another sampling of experts.
"""

from strata.arch.spec import Arch, Experts, Gqa, Head, Key, Moe, Norm, Rope, Router

ARCH = Arch(
    name="phimoe",
    source="llama.cpp src/models/phi3.cpp @ 0c1e57098; Phi-3 report (arXiv 2404.14219)",
    tested_with=("tiny-phimoe",),
    attention=Gqa(rope=Rope(style="neox", factors="long-short"), output_bias="required"),
    norm=Norm(bias="required"),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(width=Key("feed_forward_length")),
    ),
    head=Head(tied=False, bias="required"),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "output"),
)
