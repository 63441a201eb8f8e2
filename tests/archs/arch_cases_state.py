"""Tiny models whose layers carry a state, as in arch_cases.py. Layers with attention and without alternate."""

from __future__ import annotations

from typing import Any

from arch_cases import (
    BASE_KEYS,
    BLOCK_NORMS,
    EXPERT_KEYS,
    HEAD,
    N_EMBD,
    N_EXPERT,
    N_FF,
    N_FF_EXP,
    N_VOCAB,
    Case,
    Tensors,
    _dense,
    _experts,
    _layers,
    _scales,
)


def _by_layer(layers: list[Tensors]) -> Tensors:
    return {f"blk.{i}.{stem}": ne for i, stems in enumerate(layers) for stem, ne in stems.items()}


def _square(n_head: int, n_head_kv: int, fused: bool = False) -> Tensors:
    """Projections of attention whose heads together are n_embd wide."""
    q, kv = n_head * HEAD, n_head_kv * HEAD
    out: Tensors = {"attn_output.weight": [q, N_EMBD]}
    if fused:
        return out | {"attn_qkv.weight": [N_EMBD, q + 2 * kv], "attn_qkv.bias": [q + 2 * kv]}
    return out | {f"attn_{x}.weight": [N_EMBD, n] for x, n in (("q", q), ("k", kv), ("v", kv))}


def _lfm2moe(taps: int = 3, output: bool = False, fused: bool = False, **keys: Any) -> Case:
    conv = {"shortconv.conv.weight": [taps, N_EMBD], "shortconv.in_proj.weight": [N_EMBD, 3 * N_EMBD]}
    conv |= {"shortconv.out_proj.weight": [N_EMBD, N_EMBD]}
    attention = _square(2, 1, fused) | {f"attn_{x}_norm.weight": [HEAD] for x in "qk"}
    attention |= _scales(("attn_qkv",) if fused else ("attn_k", "attn_output"), 1)
    moe = _experts() | {"exp_probs_b.bias": [N_EXPERT]}
    layers = [conv | _dense(), attention | moe, conv | moe, conv | moe]
    ends: Tensors = {"token_embd.weight": [N_EMBD, N_VOCAB], "token_embd_norm.weight": [N_EMBD]}
    ends |= {"output.weight": [N_EMBD, N_VOCAB]} if output else {}
    numbers = {
        "block_count": 4,
        "feed_forward_length": N_FF,
        "expert_feed_forward_length": N_FF_EXP,
        "leading_dense_block_count": 1,
        "expert_gating_func": 2,
        "shortconv.l_cache": taps,
        "attention.head_count": 2,
        "attention.head_count_kv": [0, 1, 0, 0],
    }
    return {
        "arch": "lfm2moe",
        "keys": BASE_KEYS | EXPERT_KEYS | numbers | keys,
        "tensors": ends | _layers(4, BLOCK_NORMS) | _by_layer(layers),
    }


STATE_CASES: dict[str, Case] = {
    "lfm2moe": _lfm2moe(),
    "lfm2moe-output": _lfm2moe(taps=4, output=True, fused=True, expert_gating_func=1),
}
