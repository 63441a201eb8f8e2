"""Tiny models of architectures with ordinary attention in every layer, as in arch_cases.py."""

from __future__ import annotations

from typing import Any

from arch_cases import (
    HEAD,
    N_EMBD,
    N_EXPERT,
    N_FF,
    N_FF_EXP,
    N_HEAD,
    N_VOCAB,
    V3_ROUTING,
    YARN_KEYS,
    Case,
    Tensors,
    _deepseek2,
    _dense,
    _scales,
    _with_nextn,
    _without,
)
from arch_parts import BLOCK_NORMS, LEAD, MULTI_HEAD, SIGMOID, SQUARE, attention, case, experts, norms, square

BIAS = "exp_probs_b.bias"


def _qwen2moe(fused: bool = False) -> Case:
    stems = BLOCK_NORMS | square(bias=True, fused=fused) | experts(shared=80) | {"ffn_gate_inp_shexp.weight": [N_EMBD]}
    # the experts' width is N_FF / N_USED
    return case("qwen2moe", [stems] * 2, SQUARE, expert_feed_forward_length=None, expert_shared_feed_forward_length=80)


def _deepseek() -> Case:
    layer = BLOCK_NORMS | square(bias=True)
    keys = {"expert_shared_count": 2, "expert_weights_scale": 3.0}
    return case("deepseek", [layer | _dense(), layer | experts(shared=2 * N_FF_EXP)], SQUARE, LEAD, keys, output=False)


def _dots1(select: str = BIAS) -> Case:
    layer = BLOCK_NORMS | attention(n_head_kv=N_HEAD, norms="head")
    layers = [layer | _dense(), layer | experts(select=select, shared=2 * N_FF_EXP)]
    return case(
        "dots1", layers, MULTI_HEAD, LEAD, SIGMOID if select else {"expert_gating_func": 1}, expert_shared_count=2
    )


def _bailingmoe() -> Case:
    stems = BLOCK_NORMS | attention(bias=True) | experts(shared=2 * N_FF_EXP)
    routing = {"expert_shared_count": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5}
    return case("bailingmoe", [stems] * 2, LEAD, routing)


def _minimax_m2(n_rot: int = HEAD // 2) -> Case:
    stems = BLOCK_NORMS | attention(norms="row") | experts(N_FF, select=BIAS)
    return case("minimax-m2", [stems] * 2, {"rope.dimension_count": n_rot}, expert_gating_func=2)


def _dbrx() -> Case:
    stems = norms("attn_norm", "attn_output_norm") | square(fused=True) | experts(N_FF)
    return case("dbrx", [stems] * 2, SQUARE, {"attention.clamp_kqv": 0.8}, eps="attention.layer_norm_epsilon")


def _glm4moe(**keys: Any) -> Case:
    """One layer with QK norms, one without."""
    layer = norms("attn_norm", "post_attention_norm") | attention(bias=True)
    gains: Tensors = {f"attn_{x}_norm.weight": [HEAD] for x in "qk"}
    layers = [layer | _dense(), layer | gains | experts(select=BIAS, shared=N_FF_EXP)]
    routing = V3_ROUTING | {"expert_shared_count": 1, "rope.dimension_count": HEAD // 2}
    return case("glm4moe", layers, LEAD, routing, output=False, **keys)


def _ernie(shared: int = 80) -> Case:
    layer = BLOCK_NORMS | attention() | {"attn_output.bias": [N_EMBD]}
    layers = [layer | _dense(), layer | experts(select=BIAS, shared=shared)]
    return case("ernie4_5-moe", layers, LEAD, interleave_moe_layer_step=1, expert_shared_feed_forward_length=shared)


def _qwen3vlmoe(sections: list[int]) -> Case:
    stems = BLOCK_NORMS | attention(norms="head") | experts()
    return case("qwen3vlmoe", [stems] * 2, {"rope.dimension_sections": sections}, output=False)


def _bailingmoe2(shared: int = 48, nextn: bool = False) -> Case:
    layer = BLOCK_NORMS | square(fused=True, norms="head")
    layers = [layer | _dense(), layer | experts(select=BIAS, shared=2 * shared)]
    widths = {"expert_shared_count": 2, "expert_shared_feed_forward_length": None if shared == N_FF_EXP else shared}
    made = case("bailingmoe2", layers, SQUARE, LEAD, V3_ROUTING, widths, {"rope.dimension_count": HEAD // 2})
    made["tensors"] |= norms("blk.1.layer_output_norm") if nextn else {}
    made = _with_nextn(made) if nextn else made
    return _without(made, "blk.1.layer_output_norm")


def _hunyuan_moe() -> Case:
    stems = BLOCK_NORMS | attention(bias=True, norms="head") | experts(N_FF, shared=80)
    return case("hunyuan-moe", [stems] * 2, output=False, expert_shared_feed_forward_length=80)


def _phimoe(factors: bool, **keys: Any) -> Case:
    stems = norms("attn_norm", "ffn_norm") | {f"{x}_norm.bias": [N_EMBD] for x in ("attn", "ffn")}
    stems |= square(bias=True) | {"attn_output.bias": [N_EMBD]} | experts(N_FF)
    extra: Tensors = {"output_norm.bias": [N_EMBD], "output.bias": [N_VOCAB]}
    extra |= {f"rope_factors_{x}.weight": [HEAD // 2] for x in ("long", "short")} if factors else {}
    return case("phimoe", [stems] * 2, SQUARE, keys, extra=extra)


def _mistral3(moe: bool = True, **keys: Any) -> Case:
    parts = experts(N_FF) if moe else _dense()
    stems = BLOCK_NORMS | attention(bias=True) | {"attn_output.bias": [N_EMBD]} | parts
    scaling = {"rope.scaling.original_context_length": 24, "attention.temperature_scale": 0.3}
    none = {} if moe else {"expert_count": None, "expert_used_count": None}
    return case("mistral3", [stems] * 2, scaling, none, keys, output=False)


MISTRAL_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.yarn_beta_fast": 16.0,
    "rope.scaling.yarn_beta_slow": 2.0,
    "rope.scaling.yarn_log_multiplier": 0.5,
}


def _mistral4(**keys: Any) -> Case:
    made = _deepseek2(**V3_ROUTING, **YARN_KEYS, **keys)
    return made | {"arch": "mistral4"}


def _deepseek2_ocr(fused: bool = False) -> Case:
    layer = BLOCK_NORMS | attention(n_head=2, n_head_kv=2, bias=True)
    layers = [layer | _dense(), layer | experts(select=BIAS, shared=2 * N_FF_EXP, fused=fused)]
    heads = {"attention.head_count": 2, "attention.head_count_kv": 2}
    return case("deepseek2-ocr", layers, heads, LEAD, V3_ROUTING if fused else {}, expert_shared_count=2)


def _hy_v3(fused: bool = False) -> Case:
    layer = BLOCK_NORMS | attention(bias=True, norms="head") | _scales(("attn_q",), 1)
    moe = experts(select="exp_probs_b", shared=80, fused=fused) | _scales(("ffn_up_shexp",), 1)
    moe |= _scales(("ffn_down_exps",), N_EXPERT)
    layers = [layer | _dense() | _scales(("ffn_down",), 1), layer | moe]
    return case("hy_v3", layers, SIGMOID, expert_shared_feed_forward_length=80, output=False)


def _grovemoe(chunk: int = 48) -> Case:
    stems = BLOCK_NORMS | attention(norms="head") | experts()
    stems |= {f"ffn_{x}_chexps.weight": [N_EMBD, chunk, 4] for x in ("gate", "up")}
    stems |= {"ffn_down_chexps.weight": [chunk, N_EMBD, 4]}
    keys = {"experts_per_group": 2, "expert_group_scale": 0.3}
    return case("grovemoe", [stems] * 2, keys, expert_chunk_feed_forward_length=None if chunk == HEAD else chunk)


def _diffusion(arch: str, output: bool, **options: Any) -> Case:
    stems = BLOCK_NORMS | attention(norms="head", **options) | experts()
    return case(arch, [stems] * 2, SQUARE if options else {}, output=output)


GQA_CASES: dict[str, Case] = {
    "qwen2moe": _qwen2moe(),
    "qwen2moe-fused-qkv": _qwen2moe(fused=True),
    "deepseek": _deepseek(),
    "dots1": _dots1(),
    "dots1-softmax": _dots1(select=""),
    "bailingmoe": _bailingmoe(),
    "minimax-m2": _minimax_m2(),
    "dbrx": _dbrx(),
    "glm4moe": _glm4moe(),
    "glm4moe-sections": _glm4moe(**{"rope.dimension_sections": [3, 2, 1, 2]}),
    "ernie4_5-moe": _ernie(),
    "ernie4_5-moe-unshared": _ernie(shared=0),
    "qwen3vlmoe": _qwen3vlmoe([6, 5, 5, 0]),
    "qwen3vlmoe-fourth": _qwen3vlmoe([5, 4, 4, 3]),
    "bailingmoe2": _bailingmoe2(),
    "bailingmoe2-nextn": _bailingmoe2(shared=N_FF_EXP, nextn=True),
    "hunyuan-moe": _hunyuan_moe(),
    "phimoe": _phimoe(factors=True, **{"rope.scaling.original_context_length": 128, "rope.scaling.attn_factor": 1.2}),
    "phimoe-short": _phimoe(factors=True, **{"rope.scaling.type": "longrope"}),
    "phimoe-plain": _phimoe(factors=False),
    "mistral3": _mistral3(**MISTRAL_YARN),
    "mistral3-dense": _mistral3(moe=False),
    "mistral4": _mistral4(**{"rope.scaling.yarn_log_multiplier": 0.0707}),
    "mistral4-temperature": _mistral4(**{"attention.temperature_scale": 0.4, "attention.temperature_length": 16}),
    "deepseek2-ocr": _deepseek2_ocr(),
    "deepseek2-ocr-fused": _deepseek2_ocr(fused=True),
    "hy_v3": _hy_v3(),
    "hy_v3-fused": _hy_v3(fused=True),
    "grovemoe": _grovemoe(),
    "grovemoe-head-width": _grovemoe(chunk=HEAD),
    "llada-moe": _diffusion("llada-moe", True, n_head=2, n_head_kv=1),
    "rnd1": _diffusion("rnd1", False),
}
