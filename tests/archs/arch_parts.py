"""Pieces of tiny models: attention and feed-forward tensors of one block, and the case around them."""

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
    N_HEAD,
    N_HEAD_KV,
    N_VOCAB,
    Case,
    Tensors,
)

# head counts of architectures whose attention output is n_embd wide
SQUARE = {"attention.head_count": 2, "attention.head_count_kv": 1}
MULTI_HEAD = {"attention.head_count_kv": N_HEAD}
LEAD = {"leading_dense_block_count": 1}
SIGMOID = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}


def case(
    arch: str,
    layers: list[Tensors],
    *parts: dict[str, Any],
    output: bool = True,
    extra: Tensors | None = None,
    eps: str = "attention.layer_norm_rms_epsilon",
    **keys: Any,
) -> Case:
    """A model of these blocks. `parts` and `keys` are metadata; None leaves a key out."""
    ends: Tensors = {"token_embd.weight": [N_EMBD, N_VOCAB], "output_norm.weight": [N_EMBD]}
    ends |= {"output.weight": [N_EMBD, N_VOCAB]} if output else {}
    blocks = {f"blk.{i}.{stem}": ne for i, stems in enumerate(layers) for stem, ne in stems.items()}
    numbers = BASE_KEYS | EXPERT_KEYS | {"block_count": len(layers), "feed_forward_length": N_FF}
    numbers |= {"expert_feed_forward_length": N_FF_EXP, "rope.dimension_count": HEAD}
    numbers |= {"attention.layer_norm_rms_epsilon": None, eps: 1e-5}
    for part in (*parts, keys):
        numbers |= part
    stored = {name: value for name, value in numbers.items() if value is not None}
    return {"arch": arch, "keys": stored, "tensors": ends | blocks | (extra or {})}


def attention(
    *,
    n_head: int = N_HEAD,
    n_head_kv: int = N_HEAD_KV,
    head: int = HEAD,
    head_v: int = 0,
    bias: bool = False,
    fused: bool = False,
    norms: str = "",
) -> Tensors:
    """Projections; norms "head": one gain for all heads, "row": one for the whole row."""
    sizes = {"q": n_head * head, "k": n_head_kv * head, "v": n_head_kv * (head_v or head)}
    if fused:
        sizes = {"qkv": sum(sizes.values())}
    made: Tensors = {f"attn_{x}.weight": [N_EMBD, n] for x, n in sizes.items()}
    made |= {f"attn_{x}.bias": [n] for x, n in sizes.items()} if bias else {}
    widths = {"q": n_head * head, "k": n_head_kv * head} if norms == "row" else {"q": head, "k": head}
    made |= {f"attn_{x}_norm.weight": [n] for x, n in widths.items()} if norms else {}
    return made | {"attn_output.weight": [n_head * (head_v or head), N_EMBD]}


def square(**options: Any) -> Tensors:
    """Projections whose heads together are n_embd wide."""
    return attention(n_head=2, n_head_kv=1, **options)


def experts(width: int = N_FF_EXP, select: str = "", shared: int = 0, fused: bool = False) -> Tensors:
    """Router, experts, a selection bias of this name, and a shared expert `shared` wide."""
    made: Tensors = {"ffn_gate_inp.weight": [N_EMBD, N_EXPERT], "ffn_down_exps.weight": [width, N_EMBD, N_EXPERT]}
    names = {"gate_up": 2 * width} if fused else {"gate": width, "up": width}
    made |= {f"ffn_{x}_exps.weight": [N_EMBD, n, N_EXPERT] for x, n in names.items()}
    made |= {select: [N_EXPERT]} if select else {}
    if shared:
        made |= {f"ffn_{x}_shexp.weight": [N_EMBD, shared] for x in ("gate", "up")}
        made |= {"ffn_down_shexp.weight": [shared, N_EMBD]}
    return made


def norms(*stems: str) -> Tensors:
    """Gains of n_embd."""
    return {f"{stem}.weight": [N_EMBD] for stem in stems}


__all__ = [
    "BLOCK_NORMS",
    "LEAD",
    "MULTI_HEAD",
    "SIGMOID",
    "SQUARE",
    "attention",
    "case",
    "experts",
    "norms",
    "square",
]
