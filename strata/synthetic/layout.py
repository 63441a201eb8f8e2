"""Which tensors a synthetic model has, and its metadata: one function per kind of part, by the shape's words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from strata.gguf.quants import GgmlType, type_info
from strata.synthetic.blocks import BLOCK_TYPES, FLOAT_TYPES
from strata.synthetic.shapes import Shape
from strata.synthetic.vocabulary import byte_level_vocabulary

_TYPES = {t.name.lower(): t for t in (*FLOAT_TYPES, *BLOCK_TYPES) if t is not GgmlType.MXFP4}
# mixes: "mxfp4" for experts and Q8_0 for the rest; "q4_k_m" Q4_K and in places Q6_K; else one type for all matrices
QUANTS = ("mxfp4", "q4_k_m", *_TYPES)
_FALLBACK = GgmlType.Q8_0  # for rows that do not divide into super-blocks


class Entry(msgspec.Struct, frozen=True):
    """One tensor: ne fastest first. `fill`: "random" of `deviation`, "ones", or a router's special rules."""

    name: str
    ne: tuple[int, ...]
    type: GgmlType
    deviation: float
    fill: str = "random"


def entries(shape: Shape, quant: str) -> list[Entry]:
    """All tensors in file order. Raises: ValueError for an unknown mix."""
    if quant not in QUANTS:
        raise ValueError(f"quantisation {quant!r} is unknown; accepted: {', '.join(QUANTS)}")
    made = [_matrix("token_embd.weight", (shape.n_embd, shape.n_vocab), quant, "embedding", 1.0)]
    for i in range(shape.n_layer):
        made.extend(_attention(shape, quant, i))
        made.extend(_ffn(shape, quant, i))
    made.append(_gain("output_norm.weight", shape.n_embd))
    if not shape.tied:
        made.append(_matrix("output.weight", (shape.n_embd, shape.n_vocab), quant, "output", 3.0 / shape.n_embd**0.5))
    return made


def metadata(shape: Shape, name: str) -> dict[str, tuple[str, Any]]:
    """GGUF key -> (kind, value), the tokenizer's section included."""
    head_k = shape.kv_rank + shape.n_rot if shape.kv_rank else shape.head
    own: dict[str, tuple[str, Any]] = {
        "block_count": ("u32", shape.n_layer),
        "context_length": ("u32", shape.n_ctx),
        "embedding_length": ("u32", shape.n_embd),
        "feed_forward_length": ("u32", shape.n_ff or shape.n_ff_exp),
        "attention.head_count": ("u32", shape.n_head),
        "attention.head_count_kv": ("u32", 1 if shape.kv_rank else shape.n_head_kv),
        "attention.key_length": ("u32", head_k),
        "attention.value_length": ("u32", shape.kv_rank or shape.head),
        "attention.layer_norm_rms_epsilon": ("f32", shape.eps),
        "rope.freq_base": ("f32", shape.rope_base),
        "rope.dimension_count": ("u32", shape.n_rot or shape.head),
        "expert_count": ("u32", shape.n_expert),
        "expert_used_count": ("u32", shape.n_used),
        "expert_feed_forward_length": ("u32", shape.n_ff_exp),
    }
    own |= _optional_keys(shape)
    return {
        "general.architecture": ("str", shape.arch),
        "general.name": ("str", f"{name} (random weights)"),
        **{f"{shape.arch}.{key}": value for key, value in own.items()},
        **byte_level_vocabulary(shape.n_vocab),
    }


def _optional_keys(shape: Shape) -> dict[str, tuple[str, Any]]:
    keys: dict[str, tuple[str, Any]] = {}
    if shape.window:
        keys["attention.sliding_window"] = ("u32", shape.window)
    if shape.yarn_factor:
        keys["rope.scaling.type"] = ("str", "yarn")
        keys["rope.scaling.factor"] = ("f32", shape.yarn_factor)
        keys["rope.scaling.original_context_length"] = ("u32", shape.yarn_ctx)
    if shape.yarn_log:
        keys["rope.scaling.yarn_log_multiplier"] = ("f32", shape.yarn_log)
    if shape.kv_rank:
        keys["attention.kv_lora_rank"] = ("u32", shape.kv_rank)
        keys["attention.key_length_mla"] = ("u32", shape.head)
        keys["attention.value_length_mla"] = ("u32", shape.v_head)
        keys["leading_dense_block_count"] = ("u32", shape.n_dense)
        keys["expert_shared_count"] = ("u32", shape.n_shared)
        keys["expert_weights_norm"] = ("bool", shape.weights_norm)
        keys["expert_weights_scale"] = ("f32", shape.weights_scale)
        keys["expert_gating_func"] = ("u32", shape.scores)
    if shape.q_rank:
        keys["attention.q_lora_rank"] = ("u32", shape.q_rank)
    if shape.n_group:
        keys["expert_group_count"] = ("u32", shape.n_group)
        keys["expert_group_used_count"] = ("u32", shape.n_group_used)
    return keys


def _type(quant: str, part: str, n_cols: int, more_bits: bool) -> GgmlType:
    if quant == "mxfp4":
        chosen = GgmlType.MXFP4 if part in ("expert", "expert down") else GgmlType.Q8_0
    elif quant == "q4_k_m":
        wide = part == "output" or (more_bits and part in ("value", "down", "expert down"))
        chosen = GgmlType.Q6_K if wide else GgmlType.Q4_K
    else:
        chosen = _TYPES[quant]
    info = type_info(chosen)
    assert info is not None
    return _FALLBACK if n_cols % info.block else chosen


def _matrix(
    name: str, ne: tuple[int, ...], quant: str, part: str, deviation: float, *, more_bits: bool = False
) -> Entry:
    return Entry(name, ne, _type(quant, part, ne[0], more_bits), deviation)


def _gain(name: str, n: int) -> Entry:
    return Entry(name, (n,), GgmlType.F32, 0.0, "ones")


def _bias(name: str, ne: tuple[int, ...], deviation: float = 0.05) -> Entry:
    return Entry(name, ne, GgmlType.F32, deviation)


def _more_bits(i: int, n_layer: int) -> bool:
    """Which layers the M mixes give more bits: the first and last eighth, and every third between."""
    eighth = n_layer // 8
    return i < eighth or i >= 7 * n_layer // 8 or (i - eighth) % 3 == 2


def _attention(shape: Shape, quant: str, i: int) -> Iterator[Entry]:
    lead, n_embd = f"blk.{i}.", shape.n_embd
    wide = 1.0 / n_embd**0.5

    def matrix(name: str, n_out: int, n_in: int = n_embd, part: str = "attention") -> Entry:
        more = _more_bits(i, shape.n_layer)
        return _matrix(lead + name + ".weight", (n_in, n_out), quant, part, 1.0 / n_in**0.5, more_bits=more)

    yield _gain(lead + "attn_norm.weight", n_embd)
    if shape.kv_rank:
        nope = shape.head - shape.n_rot
        if shape.q_rank:
            yield matrix("attn_q_a", shape.q_rank)
            yield _gain(lead + "attn_q_a_norm.weight", shape.q_rank)
            yield matrix("attn_q_b", shape.n_head * shape.head, shape.q_rank)
        else:
            yield matrix("attn_q", shape.n_head * shape.head)
        yield matrix("attn_kv_a_mqa", shape.kv_rank + shape.n_rot)
        yield _gain(lead + "attn_kv_a_norm.weight", shape.kv_rank)
        for name, ne in (("k_b", (nope, shape.kv_rank)), ("v_b", (shape.kv_rank, shape.v_head))):
            full = (*ne, shape.n_head)
            yield _matrix(f"{lead}attn_{name}.weight", full, quant, "attention", 1.0 / ne[0] ** 0.5)
        yield matrix("attn_output", n_embd, shape.n_head * shape.v_head)
        return
    n_q, n_kv = shape.n_head * shape.head, shape.n_head_kv * shape.head
    yield matrix("attn_q", n_q)
    yield matrix("attn_k", n_kv)
    yield matrix("attn_v", n_kv, part="value")
    yield matrix("attn_output", n_embd, n_q)
    if shape.skew == "bias":
        for name, n in (("attn_q", n_q), ("attn_k", n_kv), ("attn_v", n_kv), ("attn_output", n_embd)):
            yield _bias(f"{lead}{name}.bias", (n,), wide)
        yield _bias(lead + "attn_sinks.weight", (shape.n_head,), 1.0)
    elif shape.arch in ("qwen3moe", "olmoe"):
        per_head = shape.arch == "qwen3moe"
        yield _gain(lead + "attn_q_norm.weight", shape.head if per_head else n_q)
        yield _gain(lead + "attn_k_norm.weight", shape.head if per_head else n_kv)


def _ffn(shape: Shape, quant: str, i: int) -> Iterator[Entry]:
    lead, n_embd, n_expert, n_ff = f"blk.{i}.", shape.n_embd, shape.n_expert, shape.n_ff_exp
    wide = 1.0 / n_embd**0.5
    more = _more_bits(i, shape.n_layer)
    is_gpt_oss = shape.skew == "bias"
    yield _gain(lead + ("post_attention_norm.weight" if is_gpt_oss else "ffn_norm.weight"), n_embd)
    if i < shape.n_dense:
        yield from _dense(lead, "", shape.n_ff, n_embd, quant)
        return
    yield Entry(lead + "ffn_gate_inp.weight", (n_embd, n_expert), GgmlType.F32, 0.02, f"router {shape.skew}".strip())
    if shape.select_bias:
        yield _bias(lead + "exp_probs_b.bias", (n_expert,), 0.1)
    yield _matrix(lead + "ffn_gate_exps.weight", (n_embd, n_ff, n_expert), quant, "expert", wide)
    yield _matrix(lead + "ffn_up_exps.weight", (n_embd, n_ff, n_expert), quant, "expert", wide)
    down = (n_ff, n_embd, n_expert)
    yield _matrix(lead + "ffn_down_exps.weight", down, quant, "expert down", 1.0 / n_ff**0.5, more_bits=more)
    if is_gpt_oss:
        yield Entry(lead + "ffn_gate_inp.bias", (n_expert,), GgmlType.F32, 0.47, "router ranks")
        yield _bias(lead + "ffn_gate_exps.bias", (n_ff, n_expert))
        yield _bias(lead + "ffn_up_exps.bias", (n_ff, n_expert))
        yield _bias(lead + "ffn_down_exps.bias", (n_embd, n_expert))
    if shape.n_shared:
        yield from _dense(lead, "_shexp", n_ff * shape.n_shared, n_embd, quant)


def _dense(lead: str, suffix: str, n_ff: int, n_embd: int, quant: str) -> Iterator[Entry]:
    wide = 1.0 / n_embd**0.5
    yield _matrix(f"{lead}ffn_gate{suffix}.weight", (n_embd, n_ff), quant, "dense", wide)
    yield _matrix(f"{lead}ffn_up{suffix}.weight", (n_embd, n_ff), quant, "dense", wide)
    yield _matrix(f"{lead}ffn_down{suffix}.weight", (n_ff, n_embd), quant, "down", 1.0 / n_ff**0.5)
