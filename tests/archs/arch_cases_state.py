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
    _plus,
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


TAPS, N_STATE = 4, 12
EVERY_OTHER = {"attention.head_count": 2, "attention.head_count_kv": [0, 1, 0, 2]}


def _attention(bias: bool = False) -> list[Tensors]:
    """Attention of layers 1 and 3 of four, with one KV head and with two."""
    made = [_square(2, 1), _square(2, 2)]
    if bias:
        made = [one | {f"attn_{x}.bias": one[f"attn_{x}.weight"][1:] for x in ("q", "k", "v")} for one in made]
    return made


def _ends(output: bool) -> Tensors:
    made: Tensors = {"token_embd.weight": [N_EMBD, N_VOCAB], "output_norm.weight": [N_EMBD]}
    return made | ({"output.weight": [N_EMBD, N_VOCAB]} if output else {})


def _ssm_keys(inner: int, n_head: int, n_group: int = 2) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": TAPS,
        "ssm.inner_size": inner,
        "ssm.state_size": N_STATE,
        "ssm.time_step_rank": n_head,
        "ssm.group_count": n_group,
    }


def _mamba2(inner: int, n_head: int, n_group: int = 2) -> Tensors:
    width = inner + 2 * n_group * N_STATE
    return {
        "ssm_in.weight": [N_EMBD, inner + width + n_head],
        "ssm_conv1d.weight": [TAPS, width],
        "ssm_conv1d.bias": [width],
        "ssm_dt.bias": [n_head],
        "ssm_a": [1, n_head],
        "ssm_d": [1, n_head],
        "ssm_norm.weight": [inner // n_group, n_group],
        "ssm_out.weight": [inner, N_EMBD],
    }


def _granitehybrid(dense: bool = False, shared: int = 40, extra: Tensors | None = None, **keys: Any) -> Case:
    inner, n_head = 2 * N_EMBD, 8
    mamba, (one, two) = _mamba2(inner, n_head), _attention(bias=dense)
    ffn = _dense(bias=True) if dense else _experts(N_FF)
    if not dense and shared:
        ffn |= {f"ffn_{x}_shexp.weight": [N_EMBD, shared] for x in ("gate", "up")}
        ffn |= {"ffn_down_shexp.weight": [shared, N_EMBD]}
    numbers = {"block_count": 4, "feed_forward_length": N_FF, "rope.dimension_count": HEAD} | EVERY_OTHER
    numbers |= {"expert_shared_feed_forward_length": shared} | ({} if dense else EXPERT_KEYS)
    return {
        "arch": "granitehybrid",
        "keys": BASE_KEYS | numbers | _ssm_keys(inner, n_head) | keys,
        "tensors": _ends(dense) | _layers(4, BLOCK_NORMS | ffn) | _by_layer([mamba, one, mamba, two]) | (extra or {}),
    }


GRANITE_NUMBERS = {"logit_scale": 1.7, "residual_scale": 0.6, "embedding_scale": 3.0, "attention.scale": 0.3}


def _jamba(output: bool = False, **keys: Any) -> Case:
    inner, rank = 2 * N_EMBD, 7
    mamba: Tensors = {
        "ssm_in.weight": [N_EMBD, 2 * inner],
        "ssm_conv1d.weight": [TAPS, inner],
        "ssm_conv1d.bias": [inner],
        "ssm_x.weight": [inner, rank + 2 * N_STATE],
        "ssm_dt_norm.weight": [rank],
        "ssm_b_norm.weight": [N_STATE],
        "ssm_c_norm.weight": [N_STATE],
        "ssm_dt.weight": [rank, inner],
        "ssm_dt.bias": [inner],
        "ssm_a": [N_STATE, inner],
        "ssm_d": [inner],
        "ssm_out.weight": [inner, N_EMBD],
    }
    one, two = _attention(bias=output)
    numbers = {"block_count": 4, "feed_forward_length": N_FF} | EVERY_OTHER
    layers = [mamba | _dense(), one | _experts(N_FF), mamba | _experts(N_FF), two | _dense()]
    return {
        "arch": "jamba",
        "keys": BASE_KEYS | EXPERT_KEYS | numbers | _ssm_keys(inner, rank) | keys,
        "tensors": _ends(output) | _layers(4, BLOCK_NORMS) | _by_layer(layers),
    }


N_K, N_V, STATE_HEAD = 2, 4, 20


def _delta(arch: str, legacy: bool = False) -> Tensors:
    keys, values = N_K * STATE_HEAD, N_V * STATE_HEAD
    made: Tensors = {
        "ssm_conv1d.weight": [TAPS, 2 * keys + values],
        "ssm_dt.bias": [N_V],
        "ssm_a": [N_V],
        "ssm_norm.weight": [STATE_HEAD],
        "ssm_out.weight": [values, N_EMBD],
    }
    if legacy:
        made["ssm_in.weight"] = [N_EMBD, 2 * keys + 2 * values]
    else:
        made |= {"attn_qkv.weight": [N_EMBD, 2 * keys + values], "attn_gate.weight": [N_EMBD, values]}
    if arch == "qwen3next":
        return made | {"ssm_ba.weight": [N_EMBD, 2 * N_V]}
    return made | {"ssm_alpha.weight": [N_EMBD, N_V], "ssm_beta.weight": [N_EMBD, N_V]}


def _qwen_next(arch: str, *, legacy: bool = False, fused: bool = False, output: bool = False, **keys: Any) -> Case:
    q, kv = 4 * HEAD, 2 * HEAD
    attention: Tensors = {"attn_output.weight": [q, N_EMBD]} | {f"attn_{x}_norm.weight": [HEAD] for x in "qk"}
    if fused:
        attention |= {"attn_qkv.weight": [N_EMBD, 2 * q + 2 * kv], "attn_qkv.bias": [2 * q + 2 * kv]}
    else:
        attention |= {f"attn_{x}.weight": [N_EMBD, n] for x, n in (("q", 2 * q), ("k", kv), ("v", kv))}
    shared: Tensors = {f"ffn_{x}_shexp.weight": [N_EMBD, 40] for x in ("gate", "up")}
    shared |= {"ffn_down_shexp.weight": [40, N_EMBD], "ffn_gate_inp_shexp.weight": [N_EMBD]}
    norms: Tensors = {"attn_norm.weight": [N_EMBD], "post_attention_norm.weight": [N_EMBD]}
    numbers = {
        "block_count": 4,
        "feed_forward_length": N_FF,
        "expert_feed_forward_length": N_FF_EXP,
        "expert_shared_feed_forward_length": 40,
        "rope.dimension_count": 24,
        "ssm.conv_kernel": TAPS,
        "ssm.inner_size": N_V * STATE_HEAD,
        "ssm.state_size": STATE_HEAD,
        "ssm.time_step_rank": N_V,
        "ssm.group_count": N_K,
    }
    delta = _delta(arch, legacy)
    if arch == "qwen35moe":
        numbers["rope.dimension_sections"] = [4, 5, 2, 0]
    return {
        "arch": arch,
        "keys": BASE_KEYS | EXPERT_KEYS | numbers | keys,
        "tensors": _ends(output)
        | _layers(4, norms | _experts(fused=fused) | shared)
        | _by_layer(
            [delta, attention, delta, delta] if "attention.recurrent_layers" in keys else [delta] * 3 + [attention]
        ),
    }


MIXED = {"attention.recurrent_layers": [1, 0, 1, 1]}
DELTA_SCALES = ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_out")


def _kimi_linear(fused: bool = False, **keys: Any) -> Case:
    n_head, head, kv_rank, n_rot, nope, v_mla = 3, 20, 40, 16, 24, 20
    width = n_head * head
    kda: Tensors = {f"ssm_conv1d_{x}.weight": [TAPS, 1, width, 1] for x in "qkv"}
    if fused:
        kda |= {"attn_qkv.weight": [N_EMBD, 3 * width], "attn_qkv.bias": [3 * width]}
    else:
        kda |= {f"attn_{x}.weight": [N_EMBD, width] for x in "qkv"} | {"attn_k.bias": [width]}
    kda |= {f"ssm_{x}_a.weight": [N_EMBD, head] for x in "fg"} | {f"ssm_{x}_b.weight": [head, width] for x in "fg"}
    kda |= {"ssm_beta.weight": [N_EMBD, n_head], "ssm_a": [1, n_head], "ssm_dt.bias": [width]}
    kda |= {"ssm_norm.weight": [head], "attn_output.weight": [width, N_EMBD]}
    mla: Tensors = {
        "attn_q.weight": [N_EMBD, n_head * (nope + n_rot)],
        "attn_kv_a_mqa.weight": [N_EMBD, kv_rank + n_rot],
        "attn_kv_a_norm.weight": [kv_rank],
        "attn_k_b.weight": [nope, kv_rank, n_head],
        "attn_v_b.weight": [kv_rank, v_mla, n_head],
        "attn_output.weight": [n_head * v_mla, N_EMBD],
    }
    moe: Tensors = _experts() | {"exp_probs_b.bias": [N_EXPERT], "ffn_down_shexp.weight": [64, N_EMBD]}
    moe |= {"ffn_gate_shexp.weight": [N_EMBD, 64], "ffn_up_shexp.weight": [N_EMBD, 64]}
    numbers = {
        "block_count": 3,
        "feed_forward_length": N_FF,
        "expert_feed_forward_length": N_FF_EXP,
        "expert_shared_count": 2,
        "expert_gating_func": 2,
        "expert_weights_scale": 2.4,
        "leading_dense_block_count": 1,
        "attention.head_count": n_head,
        "attention.head_count_kv": [0, 1, 0],
        "attention.key_length": kv_rank + n_rot,
        "attention.value_length": kv_rank,
        "attention.key_length_mla": nope + n_rot,
        "attention.value_length_mla": v_mla,
        "attention.kv_lora_rank": kv_rank,
        "rope.dimension_count": n_rot,
        "ssm.conv_kernel": TAPS,
        "kda.head_dim": head,
    }
    return {
        "arch": "kimi-linear",
        "keys": BASE_KEYS | EXPERT_KEYS | numbers | keys,
        "tensors": _ends(True) | _layers(3, BLOCK_NORMS) | _by_layer([kda | _dense(), mla | moe, kda | moe]),
    }


def _minimax_01(output: bool = False, **keys: Any) -> Case:
    width, kv = 4 * HEAD, 2 * HEAD
    lightning: Tensors = {
        "attn_qkv.weight": [N_EMBD, 3 * width],
        "attn_norm_2.weight": [width],
        "attn_gate.weight": [N_EMBD, width],
        "attn_output.weight": [width, N_EMBD],
    }
    attention: Tensors = {f"attn_{x}.weight": [N_EMBD, n] for x, n in (("q", width), ("k", kv), ("v", kv))}
    attention |= {"attn_output.weight": [width, N_EMBD]}
    numbers = {"block_count": 4, "feed_forward_length": N_FF, "rope.dimension_count": 16, "residual_scale": 0.7}
    return {
        "arch": "minimax-01",
        "keys": BASE_KEYS | EXPERT_KEYS | numbers | keys,
        "tensors": _ends(output)
        | _layers(4, BLOCK_NORMS | _experts(N_FF))
        | _by_layer([lightning, attention, lightning, attention]),
    }


NEMOTRON_SCALES = (
    (0, "ssm_in", 1),
    (1, "ffn_up_exps", N_EXPERT),
    (1, "ffn_down_shexp", 1),
    (2, "attn_output", 1),
    (4, "ssm_out", 1),
)


def _nemotron(arch: str, *, latent: int = 0, dense: bool = False, bias: bool = False, **keys: Any) -> Case:
    """Mamba 2, FFN, attention, FFN, Mamba 2."""
    inner, n_head = 96, 6
    widths, used = [0, N_FF_EXP, 0, 40, 0], [0, 2, 0, 3, 0]
    ffns: list[Tensors] = []
    for width in (N_FF_EXP, 40):
        outer = latent or N_EMBD
        if dense:
            ffn: Tensors = {"ffn_up.weight": [N_EMBD, width], "ffn_down.weight": [width, N_EMBD]}
            ffns.append(ffn | ({"ffn_up.bias": [width], "ffn_down.bias": [N_EMBD]} if bias else {}))
            continue
        moe: Tensors = {"ffn_gate_inp.weight": [N_EMBD, N_EXPERT], "exp_probs_b.bias": [N_EXPERT]}
        moe |= {"ffn_up_exps.weight": [outer, width, N_EXPERT], "ffn_down_exps.weight": [width, outer, N_EXPERT]}
        moe |= {"ffn_up_shexp.weight": [N_EMBD, 48], "ffn_down_shexp.weight": [48, N_EMBD]}
        if latent:
            moe |= {"ffn_latent_down.weight": [N_EMBD, latent], "ffn_latent_up.weight": [latent, N_EMBD]}
        ffns.append(moe)
    q, kv = 3 * HEAD, HEAD
    attention: Tensors = {f"attn_{x}.weight": [N_EMBD, n] for x, n in (("q", q), ("k", kv), ("v", kv))}
    attention |= {"attn_output.weight": [q, N_EMBD]} | ({"attn_output.bias": [N_EMBD]} if bias else {})
    mamba = _mamba2(inner, n_head, 3)
    numbers = {
        "block_count": 5,
        "feed_forward_length": widths,
        "attention.head_count": 3,
        "attention.head_count_kv": [0, 0, 1, 0, 0],
        "attention.layer_norm_epsilon": 1e-5,
    }
    if not dense:
        numbers |= {"expert_count": N_EXPERT, "expert_used_count": used, "expert_feed_forward_length": widths}
        numbers |= {"expert_shared_feed_forward_length": 48, "expert_weights_norm": True, "expert_weights_scale": 2.5}
        numbers |= {"moe_latent_size": latent} if latent else {}
    base = {key: value for key, value in BASE_KEYS.items() if not (dense and "rms" in key)}
    return {
        "arch": arch,
        "keys": base | numbers | _ssm_keys(inner, n_head, 3) | keys,
        "tensors": _ends(dense)
        | _layers(5, {"attn_norm.weight": [N_EMBD]})
        | _by_layer([mamba, ffns[0], attention, ffns[1], mamba]),
    }


STATE_CASES: dict[str, Case] = {
    "lfm2moe": _lfm2moe(),
    "lfm2moe-output": _lfm2moe(taps=4, output=True, fused=True, expert_gating_func=1),
    "granitehybrid": _granitehybrid(**GRANITE_NUMBERS, **{"rope.scaling.finetuned": False}),
    "granitehybrid-rope": _granitehybrid(shared=0, extra={"rope_freqs.weight": [HEAD // 2]}),
    "granitehybrid-dense": _granitehybrid(
        dense=True,
        extra={f"blk.{i}.attn_output.{x}": ne for i in (1, 3) for x, ne in (("scale", [1]), ("bias", [N_EMBD]))},
    ),
    "qwen3next": _qwen_next("qwen3next", **MIXED),
    "qwen3next-old": _qwen_next("qwen3next", legacy=True, fused=True, output=True),
    "qwen35moe": _qwen_next("qwen35moe", **MIXED),
    "qwen35moe-scales": _plus(
        _qwen_next("qwen35moe", output=True, fused=True),
        _layers(3, _scales(DELTA_SCALES, 1))
        | {"blk.3.attn_output.scale": [1], "blk.3.ffn_down_exps.scale": [N_EXPERT]},
    ),
    "kimi-linear": _kimi_linear(),
    "kimi-linear-fused": _kimi_linear(fused=True),
    "minimax-01": _minimax_01(full_attention_interval=2),
    "minimax-01-output": _minimax_01(output=True, residual_scale=1.5, **{"attention.recurrent_layers": [1, 0, 1, 0]}),
    "nemotron_h_moe": _nemotron("nemotron_h_moe"),
    "nemotron_h_moe-latent": _plus(
        _nemotron("nemotron_h_moe", latent=40, bias=True),
        {f"blk.{i}.{stem}.scale": [n] for i, stem, n in NEMOTRON_SCALES},
    ),
    "nemotron_h": _nemotron("nemotron_h", dense=True, bias=True),
    "jamba": _jamba(),
    "jamba-output": _jamba(output=True),
}
