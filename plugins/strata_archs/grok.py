"""Grok-1 and Grok-2: capped attention scores, norms before and behind both sublayers, GELU experts.

Routing: softmax over all experts; the chosen weights are renormalised. Grok-2 has a dense branch beside the experts;
their sum is divided by the root of two.
"""

from strata.arch.spec import Arch, Block, Dim, Experts, Gqa, Head, Key, Moe, Rope, Router, SharedExpert, Yarn

ARCH = Arch(
    name="grok",
    source="llama.cpp src/models/grok.cpp @ 0c1e57098; grok-1 release",
    tested_with=("tiny-grok",),
    attention=Gqa(
        rope=Rope(
            style="neox",
            yarn=Yarn(
                beta_fast=Key("rope.scaling.yarn_beta_fast", 8.0),
                beta_slow=Key("rope.scaling.yarn_beta_slow", 1.0),
                ext=Key("rope.scaling.yarn_ext_factor", -1.0),
            ),
        ),
        scale=Key("attention.output_scale", 0.08838834764831845),
        softcap=Key("attn_logit_softcapping", 30.0),
    ),
    block=Block(post_attention_norm="attn_output_norm", post_ffn_norm=("layer_output_norm", "post_ffw_norm")),
    moe=Moe(
        router=Router(scores="softmax", normalize=True),
        experts=Experts(
            act="gelu", width=Key("expert_feed_forward_length", Dim("n_ff"), unset=(0,)), gate="if-present"
        ),
        shared=SharedExpert(names="dense", width=Key("feed_forward_length"), act="gelu", sum_scale=0.7071067811865476),
    ),
    embedding_scale=Key("embedding_scale", 78.38367176906169),
    head=Head(scale=Key("logit_scale", 0.5773502691896257), softcap=Key("final_logit_softcapping", 0.0)),
    scales_applied=("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
)
