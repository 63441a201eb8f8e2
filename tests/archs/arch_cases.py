"""Tiny models, one dict each: metadata without the architecture's prefix, and tensors by GGUF shape.

Sizes are small enough for numpy and odd enough to catch mixed-up dimensions: heads times head width is not n_embd,
experts are at least eight, top-3 or so, and prompts are longer than windows and original contexts.
"""

from __future__ import annotations

from typing import Any

Tensors = dict[str, list[int]]
Case = dict[str, Any]

N_EMBD, N_VOCAB, N_CTX = 64, 272, 512
N_HEAD, N_HEAD_KV, HEAD = 4, 2, 32
N_EXPERT, N_USED, N_FF, N_FF_EXP = 8, 3, 96, 32


def _ends(output: bool) -> Tensors:
    tensors = {"token_embd.weight": [N_EMBD, N_VOCAB], "output_norm.weight": [N_EMBD]}
    return tensors | ({"output.weight": [N_EMBD, N_VOCAB]} if output else {})


def _layers(n_layer: int, stems: Tensors, first: int = 0) -> Tensors:
    return {f"blk.{i}.{stem}": ne for i in range(first, n_layer) for stem, ne in stems.items()}


def _qkv(bias: bool = False, fused: bool = False) -> Tensors:
    q, kv = N_HEAD * HEAD, N_HEAD_KV * HEAD
    if fused:
        return {"attn_qkv.weight": [N_EMBD, q + 2 * kv]} | ({"attn_qkv.bias": [q + 2 * kv]} if bias else {})
    sizes = {"attn_q": q, "attn_k": kv, "attn_v": kv}
    weights = {f"{stem}.weight": [N_EMBD, n] for stem, n in sizes.items()}
    return weights | ({f"{stem}.bias": [n] for stem, n in sizes.items()} if bias else {})


def _output(bias: bool = False) -> Tensors:
    return {"attn_output.weight": [N_HEAD * HEAD, N_EMBD]} | ({"attn_output.bias": [N_EMBD]} if bias else {})


def _experts(width: int = N_FF_EXP, bias: bool = False, fused: bool = False) -> Tensors:
    made: Tensors = {"ffn_gate_inp.weight": [N_EMBD, N_EXPERT], "ffn_down_exps.weight": [width, N_EMBD, N_EXPERT]}
    if fused:
        made["ffn_gate_up_exps.weight"] = [N_EMBD, 2 * width, N_EXPERT]
    else:
        made |= {f"ffn_{x}_exps.weight": [N_EMBD, width, N_EXPERT] for x in ("gate", "up")}
    if bias:
        made |= {f"ffn_{x}_exps.bias": [width, N_EXPERT] for x in ("gate", "up")}
        made |= {"ffn_down_exps.bias": [N_EMBD, N_EXPERT], "ffn_gate_inp.bias": [N_EXPERT]}
    return made


def _dense(width: int = N_FF, bias: bool = False) -> Tensors:
    made = {"ffn_gate.weight": [N_EMBD, width], "ffn_up.weight": [N_EMBD, width], "ffn_down.weight": [width, N_EMBD]}
    biases = {"ffn_gate.bias": [width], "ffn_up.bias": [width], "ffn_down.bias": [N_EMBD]}
    return made | (biases if bias else {})


def _scales(stems: tuple[str, ...], n: int) -> Tensors:
    return {f"{stem}.{kind}": [n] for stem in stems for kind in ("scale", "input_scale")}


QKV_STEMS = ("attn_q", "attn_k", "attn_v", "attn_output")
EXPERT_STEMS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
BLOCK_NORMS: Tensors = {"attn_norm.weight": [N_EMBD], "ffn_norm.weight": [N_EMBD]}
BASE_KEYS: dict[str, Any] = {
    "context_length": N_CTX,
    "embedding_length": N_EMBD,
    "attention.head_count": N_HEAD,
    "attention.head_count_kv": N_HEAD_KV,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10000.0,
}
EXPERT_KEYS = {"expert_count": N_EXPERT, "expert_used_count": N_USED}
YARN_KEYS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64}


def _qwen3moe(n_layer: int = 2, output: bool = False, qkv: Tensors | None = None, **keys: Any) -> Case:
    stems = BLOCK_NORMS | (qkv or _qkv()) | _output() | _experts()
    stems |= {"attn_q_norm.weight": [HEAD], "attn_k_norm.weight": [HEAD]}
    numbers = {"block_count": n_layer, "feed_forward_length": N_FF, "expert_feed_forward_length": N_FF_EXP}
    return {
        "arch": "qwen3moe",
        "keys": BASE_KEYS | EXPERT_KEYS | numbers | {"rope.dimension_count": HEAD} | keys,
        "tensors": _ends(output) | _layers(n_layer, stems),
    }


def _gpt_oss(n_layer: int = 4, qkv: Tensors | None = None, **keys: Any) -> Case:
    stems = {"attn_norm.weight": [N_EMBD], "post_attention_norm.weight": [N_EMBD], "attn_sinks.weight": [N_HEAD]}
    stems |= (qkv or _qkv(bias=True)) | _output(bias=True) | _experts(bias=True)
    numbers = {"block_count": n_layer, "expert_feed_forward_length": N_FF_EXP, "attention.sliding_window": 24}
    return {
        "arch": "gpt-oss",
        "keys": BASE_KEYS | EXPERT_KEYS | YARN_KEYS | numbers | {"rope.dimension_count": HEAD} | keys,
        "tensors": _ends(True) | _layers(n_layer, stems),
    }


def _llama(n_layer: int = 2, output: bool = True, extra: Tensors | None = None, **keys: Any) -> Case:
    stems = BLOCK_NORMS | _qkv() | _output() | _experts(N_FF) | (extra or {})
    numbers = {"block_count": n_layer, "feed_forward_length": N_FF}
    return {
        "arch": "llama",
        "keys": BASE_KEYS | EXPERT_KEYS | numbers | {"rope.dimension_count": HEAD} | keys,
        "tensors": _ends(output) | _layers(n_layer, stems),
    }


def _llama_dense(**keys: Any) -> Case:
    stems = BLOCK_NORMS | _qkv(bias=True) | _output(bias=True) | _dense(bias=True)
    numbers = {"block_count": 2, "feed_forward_length": N_FF, "rope.dimension_count": HEAD}
    return {"arch": "llama", "keys": BASE_KEYS | numbers | keys, "tensors": _ends(True) | _layers(2, stems)}


def _olmoe(qkv: Tensors | None = None) -> Case:
    n_head = N_EMBD // HEAD  # query and output matrices are square, and every head has its own key
    rows = {f"attn_{x}.weight": [N_EMBD, N_EMBD] for x in ("q", "k", "v", "output")}
    rows |= {f"attn_{x}_norm.weight": [N_EMBD] for x in "qk"}
    stems = BLOCK_NORMS | rows | _experts(N_FF)
    if qkv is not None:
        stems = {
            name: ne for name, ne in stems.items() if name not in ("attn_q.weight", "attn_k.weight", "attn_v.weight")
        }
    numbers = {"block_count": 2, "feed_forward_length": N_FF, "rope.dimension_count": HEAD}
    numbers |= {"attention.head_count": n_head, "attention.head_count_kv": n_head}
    return {
        "arch": "olmoe",
        "keys": BASE_KEYS | EXPERT_KEYS | numbers,
        "tensors": _ends(True) | _layers(2, stems | (qkv or {})),
    }


Q_RANK, KV_RANK, N_ROT, NOPE, V_MLA = 48, 40, 16, 24, 20


def _mla(n_head: int, q_rank: int, legacy: bool) -> Tensors:
    k_mla = NOPE + N_ROT
    made: Tensors = {
        "attn_kv_a_mqa.weight": [N_EMBD, KV_RANK + N_ROT],
        "attn_kv_a_norm.weight": [KV_RANK],
        "attn_output.weight": [n_head * V_MLA, N_EMBD],
    }
    if q_rank:
        made |= {"attn_q_a.weight": [N_EMBD, q_rank], "attn_q_a_norm.weight": [q_rank]}
        made |= {"attn_q_b.weight": [q_rank, n_head * k_mla]}
    else:
        made |= {"attn_q.weight": [N_EMBD, n_head * k_mla]}
    if legacy:
        return made | {"attn_kv_b.weight": [KV_RANK, n_head * (NOPE + V_MLA)]}
    heads = [] if n_head == 1 else [n_head]  # files drop a last dimension of 1
    return made | {"attn_k_b.weight": [NOPE, KV_RANK, *heads], "attn_v_b.weight": [KV_RANK, V_MLA, *heads]}


def _deepseek2(
    n_layer: int = 3, n_head: int = 3, q_rank: int = Q_RANK, legacy: bool = False, bias: bool = True, **keys: Any
) -> Case:
    fused = bool(keys.pop("fused", False))
    attention = BLOCK_NORMS | _mla(n_head, q_rank, legacy)
    shared = {f"ffn_{x}_shexp.weight": ne for x, ne in (("gate", [N_EMBD, 64]), ("up", [N_EMBD, 64]))}
    moe = _experts(fused=fused) | shared | {"ffn_down_shexp.weight": [64, N_EMBD]}
    moe |= {"exp_probs_b.bias": [N_EXPERT]} if bias else {}
    widths = {"attention.key_length": NOPE + N_ROT, "attention.value_length": V_MLA, "attention.head_count_kv": n_head}
    if not legacy:
        widths = {"attention.key_length": KV_RANK + N_ROT, "attention.value_length": KV_RANK}
        widths |= {"attention.head_count_kv": 1, "attention.key_length_mla": NOPE + N_ROT}
        widths |= {"attention.value_length_mla": V_MLA}
    numbers = {
        "block_count": n_layer,
        "feed_forward_length": N_FF,
        "attention.head_count": n_head,
        "attention.kv_lora_rank": KV_RANK,
        "leading_dense_block_count": 1,
        "expert_feed_forward_length": N_FF_EXP,
        "expert_shared_count": 2,
        "rope.dimension_count": N_ROT,
    }
    numbers |= {"attention.q_lora_rank": q_rank} if q_rank else {}
    tensors = _ends(True) | _layers(n_layer, attention) | _layers(1, _dense()) | _layers(n_layer, moe, first=1)
    return {"arch": "deepseek2", "keys": BASE_KEYS | EXPERT_KEYS | numbers | widths | keys, "tensors": tensors}


V3_ROUTING = {
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
}


def _with_nextn(case: Case) -> Case:
    """One next-token block behind the layers, with the tensors of an ordinary block."""
    n_layer = case["keys"]["block_count"]
    last = f"blk.{n_layer - 1}."
    block = {name.replace(last, f"blk.{n_layer}."): ne for name, ne in case["tensors"].items() if name.startswith(last)}
    extra = {"eh_proj": [2 * N_EMBD, N_EMBD], "enorm": [N_EMBD], "hnorm": [N_EMBD]}
    block |= {f"blk.{n_layer}.nextn.{stem}.weight": ne for stem, ne in extra.items()}
    keys = case["keys"] | {"block_count": n_layer + 1, "nextn_predict_layers": 1}
    return case | {"keys": keys, "tensors": case["tensors"] | block}


def _longrope(n_ctx: int, original: int) -> Case:
    case = _llama(**{"rope.scaling.type": "longrope", "rope.scaling.original_context_length": original})
    factors = {f"rope_factors_{x}.weight": [HEAD // 2] for x in ("long", "short")}
    return case | {
        "keys": case["keys"] | {"context_length": n_ctx, "rope.scaling.attn_factor": 1.2},
        "tensors": case["tensors"] | factors,
    }


def _without(case: Case, stem: str) -> Case:
    return case | {"tensors": {name: ne for name, ne in case["tensors"].items() if stem not in name}}


def _plus(case: Case, extra: Tensors) -> Case:
    return case | {"tensors": case["tensors"] | extra}


CASES: dict[str, Case] = {
    "qwen3moe": _qwen3moe(),
    "qwen3moe-output": _qwen3moe(output=True, **{"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}),
    "qwen3moe-fused-qkv": _qwen3moe(qkv=_qkv(bias=True, fused=True)),
    "qwen3moe-yarn": _qwen3moe(qkv=_qkv(bias=True), **YARN_KEYS),
    "qwen3moe-groups": _qwen3moe(expert_group_count=4, expert_group_used_count=2),
    "qwen3moe-scales": _plus(_qwen3moe(), _layers(2, _scales(QKV_STEMS, 1) | _scales(EXPERT_STEMS, N_EXPERT))),
    "gpt-oss": _gpt_oss(),
    "gpt-oss-pattern": _gpt_oss(
        **{"attention.sliding_window_pattern": [True, True, False, False], "rope.freq_base_swa": 500.0}
    ),
    "gpt-oss-scales": _plus(
        _gpt_oss(qkv=_qkv(fused=True)),
        _layers(4, _scales(("attn_qkv", "attn_output"), 1) | _scales(EXPERT_STEMS, N_EXPERT)),
    ),
    "deepseek2": _deepseek2(**V3_ROUTING, **YARN_KEYS, **{"rope.scaling.yarn_log_multiplier": 0.0707}),
    "deepseek2-softmax": _deepseek2(bias=False, expert_weights_scale=16.0, **YARN_KEYS),
    "deepseek2-softmax-weight": _deepseek2(expert_gating_func=3),
    "deepseek2-sqrt-softplus": _deepseek2(expert_gating_func=4, expert_weights_norm=True),
    "deepseek2-lite": _deepseek2(n_layer=27, q_rank=0, bias=False),
    "deepseek2-legacy": _deepseek2(legacy=True, **V3_ROUTING),
    "deepseek2-fused": _plus(
        _deepseek2(fused=True, **V3_ROUTING, **{"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        _layers(3, _scales(("ffn_up_shexp",), 1) | _scales(("ffn_down_exps",), N_EXPERT), first=1),
    ),
    "deepseek2-temperature": _deepseek2(
        n_head=1, **V3_ROUTING, **{"attention.temperature_scale": 0.4, "attention.temperature_length": 16}
    ),
    "deepseek2-nextn": _with_nextn(_deepseek2(**V3_ROUTING)),
    "olmoe": _olmoe(),
    "olmoe-fused-qkv": _olmoe({"attn_qkv.weight": [N_EMBD, 3 * N_EMBD], "attn_qkv.bias": [3 * N_EMBD]}),
    "llama": _plus(_llama(), {"rope_freqs.weight": [HEAD // 2]}),
    "llama-tied-scales": _llama(
        output=False, extra=_output(bias=True) | _scales(QKV_STEMS, 1) | _scales(EXPERT_STEMS, N_EXPERT)
    ),
    "llama-ungated": _without(_llama(), "ffn_gate_exps"),
    "llama-dense": _llama_dense(),
    "llama-longrope-long": _longrope(n_ctx=N_CTX, original=128),
    "llama-longrope-short": _longrope(n_ctx=N_CTX, original=N_CTX),
}
