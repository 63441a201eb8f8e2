"""Shapes of public models, and small ones of the same kinds for tests. Names of dimensions are GGUF's.

Sources: the models' published config.json files; files of GGUF conversions for what only those say.
"""

from __future__ import annotations

import msgspec


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the tensor list and the metadata of a model follow from. 0 and "" mean: not there."""

    arch: str
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head: int  # key and value length of one head; latent attention: see below
    n_ff_exp: int
    n_expert: int
    n_used: int
    n_vocab: int
    n_ctx: int
    eps: float
    rope_base: float
    quant: str  # the mix of types that its published files use
    n_ff: int = 0  # dense layers
    n_dense: int = 0  # leading dense layers
    n_shared: int = 0
    window: int = 0
    yarn_factor: float = 0.0
    yarn_ctx: int = 0
    yarn_log: float = 0.0
    q_rank: int = 0
    kv_rank: int = 0  # latent attention where not 0: head = nope + n_rot, v_head = value length
    n_rot: int = 0
    v_head: int = 0
    n_group: int = 0
    n_group_used: int = 0
    scores: int = 0  # expert_gating_func
    weights_norm: bool = False
    weights_scale: float = 0.0
    select_bias: bool = False
    tied: bool = False
    not_layers: tuple[int, ...] = ()  # numbers of layers by which readers recognise another model
    skew: str = ""  # "bias": router bias -0.47 ln(rank); "rows": router rows times rank^-0.3


def _gpt_oss(n_layer: int, n_expert: int) -> Shape:
    return Shape(
        arch="gpt-oss",
        n_layer=n_layer,
        n_embd=2880,
        n_head=64,
        n_head_kv=8,
        head=64,
        n_ff_exp=2880,
        n_expert=n_expert,
        n_used=4,
        n_vocab=201088,
        n_ctx=131072,
        eps=1e-5,
        rope_base=150000.0,
        quant="mxfp4",
        window=128,
        yarn_factor=32.0,
        yarn_ctx=4096,
        skew="bias",
    )


def _qwen3(n_layer: int, n_embd: int, n_head: int, n_ff_exp: int, n_ff: int) -> Shape:
    return Shape(
        arch="qwen3moe",
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=4,
        head=128,
        n_ff_exp=n_ff_exp,
        n_expert=128,
        n_used=8,
        n_vocab=151936,
        n_ctx=40960,
        eps=1e-6,
        rope_base=1e6,
        quant="q4_k_m",
        n_ff=n_ff,
        skew="rows",
    )


_PUBLIC: dict[str, Shape] = {
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "qwen3-30b-a3b": _qwen3(48, 2048, 32, 768, 6144),
    "qwen3-235b-a22b": _qwen3(94, 4096, 64, 1536, 12288),
    "mixtral-8x7b": Shape(
        arch="llama",
        n_layer=32,
        n_embd=4096,
        n_head=32,
        n_head_kv=8,
        head=128,
        n_ff_exp=14336,
        n_expert=8,
        n_used=2,
        n_vocab=32000,
        n_ctx=32768,
        eps=1e-5,
        rope_base=1e6,
        quant="q4_k_m",
        n_ff=14336,
    ),
    "olmoe-1b-7b": Shape(
        arch="olmoe",
        n_layer=16,
        n_embd=2048,
        n_head=16,
        n_head_kv=16,
        head=128,
        n_ff_exp=1024,
        n_expert=64,
        n_used=8,
        n_vocab=50304,
        n_ctx=4096,
        eps=1e-5,
        rope_base=1e4,
        quant="q4_k_m",
        n_ff=1024,
        skew="rows",
    ),
    "deepseek-v2-lite": Shape(
        arch="deepseek2",
        n_layer=27,
        n_embd=2048,
        n_head=16,
        n_head_kv=16,
        head=192,
        n_ff_exp=1408,
        n_expert=64,
        n_used=6,
        n_vocab=102400,
        n_ctx=163840,
        eps=1e-6,
        rope_base=1e4,
        quant="q8_0",
        n_ff=10944,
        n_dense=1,
        n_shared=2,
        yarn_factor=40.0,
        yarn_ctx=4096,
        yarn_log=0.0707,
        kv_rank=512,
        n_rot=64,
        v_head=128,
        scores=1,
        weights_scale=1.0,
        not_layers=tuple(range(1, 26)),  # without a query latent only as 26 or 27 layers
    ),
    "deepseek-v3": Shape(
        arch="deepseek2",
        n_layer=61,
        n_embd=7168,
        n_head=128,
        n_head_kv=128,
        head=192,
        n_ff_exp=2048,
        n_expert=256,
        n_used=8,
        n_vocab=129280,
        n_ctx=163840,
        eps=1e-6,
        rope_base=1e4,
        quant="q4_k_m",
        n_ff=18432,
        n_dense=3,
        n_shared=1,
        yarn_factor=40.0,
        yarn_ctx=4096,
        yarn_log=0.1,
        q_rank=1536,
        kv_rank=512,
        n_rot=64,
        v_head=128,
        n_group=8,
        n_group_used=4,
        scores=2,
        weights_norm=True,
        weights_scale=2.5,
        select_bias=True,
        not_layers=(26, 27),  # the lite models
    ),
}


def _tiny(name: str, **changes: object) -> Shape:
    """The same kind of model, small: one super-block wide, eight experts, a short window."""
    base = {
        "n_layer": 3,
        "n_embd": 256,
        "n_head": 4,
        "n_head_kv": 2,
        "head": 64,
        "n_ff_exp": 256,
        "n_ff": 512,
        "n_expert": 8,
        "n_used": 3,
        "n_vocab": 512,
        "n_ctx": 2048,
        "rope_base": 1e4,
    }
    return msgspec.structs.replace(_PUBLIC[name], **{**base, **changes})


_TINY: dict[str, Shape] = {
    "tiny-qwen3moe": _tiny("qwen3-30b-a3b"),
    "tiny-gpt-oss": _tiny("gpt-oss-20b", window=16, yarn_ctx=32, quant="mxfp4"),
    "tiny-llama": _tiny("mixtral-8x7b", n_ff=256),
    "tiny-olmoe": _tiny("olmoe-1b-7b", n_head_kv=4, n_ff=256),
    "tiny-deepseek2": _tiny(
        "deepseek-v3",
        n_head_kv=4,
        head=96,
        n_rot=32,
        v_head=64,
        q_rank=256,
        kv_rank=256,
        n_group=4,
        n_group_used=2,
        n_dense=1,
    ),
}

SHAPES: dict[str, Shape] = {**_PUBLIC, **_TINY}
