"""Tiny models of architectures with ordinary attention in every layer, as in arch_cases.py."""

from __future__ import annotations

from arch_cases import HEAD, N_EMBD, N_FF, N_FF_EXP, N_HEAD, Case, _dense
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


GQA_CASES: dict[str, Case] = {
    "qwen2moe": _qwen2moe(),
    "qwen2moe-fused-qkv": _qwen2moe(fused=True),
    "deepseek": _deepseek(),
    "dots1": _dots1(),
    "dots1-softmax": _dots1(select=""),
    "bailingmoe": _bailingmoe(),
    "minimax-m2": _minimax_m2(),
    "dbrx": _dbrx(),
}
