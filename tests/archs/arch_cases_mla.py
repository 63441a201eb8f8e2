"""Tiny models with latent attention that has more than deepseek2's, as in arch_cases.py."""

from __future__ import annotations

from typing import Any

from arch_cases import BLOCK_NORMS, N_EMBD, N_EXPERT, N_FF, N_FF_EXP, YARN_KEYS, Case, Tensors
from arch_parts import SIGMOID, case, experts

HEADS, KV_RANK, N_ROT, NOPE, V_MLA, Q_RANK = 3, 40, 16, 24, 20, 28
KDA_HEAD, TAPS = 20, 4
MLA_KEYS: dict[str, Any] = {
    "attention.head_count": HEADS,
    "attention.key_length": KV_RANK + N_ROT,
    "attention.value_length": KV_RANK,
    "attention.key_length_mla": NOPE + N_ROT,
    "attention.value_length_mla": V_MLA,
    "attention.kv_lora_rank": KV_RANK,
    "rope.dimension_count": N_ROT,
}


def mla(
    q_rank: int = Q_RANK, n_head: int = HEADS, kv_rank: int = KV_RANK, nope: int = NOPE, v_mla: int = V_MLA
) -> Tensors:
    """Projections of one layer; q_rank 0: queries without a latent."""
    made: Tensors = {
        "attn_kv_a_mqa.weight": [N_EMBD, kv_rank + N_ROT],
        "attn_kv_a_norm.weight": [kv_rank],
        "attn_k_b.weight": [nope, kv_rank, n_head],
        "attn_v_b.weight": [kv_rank, v_mla, n_head],
        "attn_output.weight": [n_head * v_mla, N_EMBD],
    }
    width = n_head * (nope + N_ROT)
    if q_rank == 0:
        return made | {"attn_q.weight": [N_EMBD, width]}
    made |= {"attn_q_a.weight": [N_EMBD, q_rank], "attn_q_a_norm.weight": [q_rank]}
    return made | {"attn_q_b.weight": [q_rank, width]}


def dense() -> Tensors:
    """A gated FFN."""
    return {"ffn_gate.weight": [N_EMBD, N_FF], "ffn_up.weight": [N_EMBD, N_FF], "ffn_down.weight": [N_FF, N_EMBD]}


def _bailingmoe3(q_rank: int = Q_RANK, extra: Tensors | None = None, output: bool = True, **keys: Any) -> Case:
    width = HEADS * KDA_HEAD
    kda: Tensors = {f"ssm_conv1d_{x}.weight": [TAPS, 1, width, 1] for x in "qkv"}
    kda |= {f"attn_{x}.weight": [N_EMBD, width] for x in "qkv"} | {"attn_q.bias": [width]}
    kda |= {"ssm_f_a.weight": [N_EMBD, width], "ssm_g_a.weight": [N_EMBD, width]}
    kda |= {"ssm_beta.weight": [N_EMBD, HEADS], "ssm_a": [1, HEADS], "ssm_dt.bias": [width]}
    kda |= {"ssm_norm.weight": [KDA_HEAD], "attn_output.weight": [width, N_EMBD]}
    gated = mla(q_rank) | {"attn_gate.weight": [N_EMBD, HEADS]}
    moe = experts(select="exp_probs_b.bias", shared=40)
    numbers: dict[str, Any] = {
        "attention.head_count_kv": [0, 1, 0],
        "attention.q_lora_rank": q_rank,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": 40,
        "expert_gating_func": 2,
        "leading_dense_block_count": 1,
        "ssm.conv_kernel": TAPS,
        "kda.head_dim": KDA_HEAD,
        "kda.gate_lower_bound": -5.0,
    }
    layers = [kda | dense(), gated | moe, kda | moe]
    made = case("bailingmoe3", [BLOCK_NORMS | one for one in layers], MLA_KEYS, numbers, output=output, extra=extra)
    return made | {"keys": made["keys"] | keys, "deviations": {"ssm_a": 1.0}}


def scales(names: dict[str, int]) -> Tensors:
    """`.scale` tensors, by the stem of their weight."""
    return {f"{stem}.{kind}": [n] for stem, n in names.items() for kind in ("scale", "input_scale")}


# enough heads that few keys score exactly 0, the rule for ties is not llama.cpp's; fewer keys than the prompt has tokens
INDEX_HEADS, INDEX_WIDTH, TOP_K = 12, 64, 24


def indexer(q_rank: int = Q_RANK) -> Tensors:
    """The tensors of one layer's indexer."""
    return {
        "indexer.attn_q_b.weight": [q_rank, INDEX_HEADS * INDEX_WIDTH],
        "indexer.attn_k.weight": [N_EMBD, INDEX_WIDTH],
        "indexer.k_norm.weight": [INDEX_WIDTH],
        "indexer.k_norm.bias": [INDEX_WIDTH],
        "indexer.proj.weight": [N_EMBD, INDEX_HEADS],
    }


INDEX_KEYS: dict[str, Any] = {
    "attention.q_lora_rank": Q_RANK,
    "attention.indexer.head_count": INDEX_HEADS,
    "attention.indexer.key_length": INDEX_WIDTH,
    "attention.indexer.top_k": TOP_K,
}


def _dsa(arch: str, owners: str = "111", extra: Tensors | None = None, select: bool = True, **keys: Any) -> Case:
    """A dense layer, then layers with experts; owners: by layer, whether it has an indexer."""
    moe = experts(select="exp_probs_b.bias" if select else "", shared=2 * N_FF_EXP)
    layers = [
        BLOCK_NORMS | mla() | (indexer() if own == "1" else {}) | (moe if i else dense())
        for i, own in enumerate(owners)
    ]
    numbers = {"attention.head_count_kv": 1, "expert_shared_count": 2, "leading_dense_block_count": 1}
    made = case(arch, layers, MLA_KEYS, INDEX_KEYS, numbers, extra=extra)
    return made | {"keys": made["keys"] | keys}


def _dots3note(extra: Tensors | None = None, **keys: Any) -> Case:
    """Full, windowed, windowed, full, with 3 heads and with 5."""
    own: Tensors = {"attn_k_norm.weight": [N_ROT]}
    full = mla() | indexer() | own | {"attn_gate.weight": [N_EMBD, HEADS]}
    narrow = mla(n_head=5, kv_rank=24, nope=12, v_mla=14) | own | {"attn_gate.weight": [N_EMBD, 5]}
    moe = experts(select="exp_probs_b.bias", shared=N_FF_EXP)
    layers = [BLOCK_NORMS | one for one in (full | dense(), narrow | moe, narrow | moe, full | moe)]
    numbers = {
        "attention.head_count": [HEADS, 5, 5, HEADS],
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank_swa": 24,
        "attention.key_length_mla_swa": 12 + N_ROT,
        "attention.value_length_mla_swa": 14,
        "attention.key_length_swa": 24 + N_ROT,
        "attention.value_length_swa": 24,
        "attention.sliding_window": 30,
        "attention.sliding_window_pattern": [False, True, True, False],
        "attention.indexer.types": [1, 0, 0, 1],
        "rope.freq_base_swa": 500.0,
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
    }
    made = case("dots3note", layers, MLA_KEYS, INDEX_KEYS, numbers, extra=extra)
    return made | {"keys": made["keys"] | keys}


N_STREAMS = 3


def _hy_v4(owners: str = "1010", select: bool = True, extra: Tensors | None = None, **keys: Any) -> Case:
    """owners "": no layer has an indexer."""
    wide = N_STREAMS * N_EMBD
    streams: Tensors = {f"hc_{x}_fn.weight": [wide, 2 * N_STREAMS] for x in ("attn", "ffn")}
    streams |= {f"hc_{x}_base.weight": [2 * N_STREAMS] for x in ("attn", "ffn")}
    streams |= {f"hc_{x}_scale.weight": [2] for x in ("attn", "ffn")}
    gated = mla() | streams | {"attn_gate.weight": [N_EMBD, HEADS * V_MLA], "attn_sinks.weight": [HEADS]}
    moe = experts(select="exp_probs_b.bias" if select else "", shared=N_FF_EXP)
    layers = [
        BLOCK_NORMS | gated | (indexer() if own == "1" else {}) | (moe if i else dense())
        for i, own in enumerate(owners or "000")
    ]
    numbers = {
        "attention.head_count_kv": 1,
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
        "hyper_connection.count": N_STREAMS,
        "hyper_connection.epsilon": 0.01,
        "hyper_connection.magnitude": 1.8,
    }
    numbers |= (
        {"attention.indexer.types": [int(own) for own in owners]} if owners else {"attention.indexer.top_k": None}
    )
    ends: Tensors = {"output_hc_fn.weight": [wide, N_STREAMS], "output_hc_base.weight": [N_STREAMS]}
    ends |= {"output_hc_scale.weight": [1]}
    made = case("hy_v4", layers, MLA_KEYS, INDEX_KEYS, numbers, extra=ends | (extra or {}))
    return made | {"keys": made["keys"] | keys, "deviations": {"hc_": 0.5}}


def _kimi_k3(
    q_rank: int = Q_RANK, latent: int = 40, gate: bool = True, extra: Tensors | None = None, **keys: Any
) -> Case:
    """Five layers, of which 0, 2 and 4 keep the residual; 1 and 4 have MLA."""
    width = HEADS * KDA_HEAD
    scores: Tensors = {f"{x}_res_score.weight": [N_EMBD] for x in ("attn", "ffn")}
    kda: Tensors = {f"ssm_conv1d_{x}.weight": [TAPS, 1, width, 1] for x in "qkv"}
    kda |= {f"attn_{x}.weight": [N_EMBD, width] for x in "qkv"} | {"attn_v.bias": [width]}
    kda |= {"ssm_f_a.weight": [N_EMBD, KDA_HEAD], "ssm_f_b.weight": [KDA_HEAD, width]}
    kda |= {"ssm_g.weight": [N_EMBD, width], "ssm_beta.weight": [N_EMBD, HEADS], "ssm_a": [HEADS]}
    kda |= {"ssm_dt.bias": [width], "ssm_norm.weight": [KDA_HEAD], "attn_output.weight": [width, N_EMBD]}
    full = mla(q_rank) | ({"attn_gate.weight": [N_EMBD, HEADS * V_MLA]} if gate else {})
    moe = experts(select="exp_probs_b.bias", shared=N_FF_EXP)
    if latent:
        moe |= {f"ffn_{x}_exps.weight": [latent, N_FF_EXP, N_EXPERT] for x in ("gate", "up")}
        moe |= {"ffn_down_exps.weight": [N_FF_EXP, latent, N_EXPERT], "ffn_routed_norm.weight": [latent]}
        moe |= {"ffn_routed_down.weight": [N_EMBD, latent], "ffn_routed_up.weight": [latent, N_EMBD]}
    layers = [BLOCK_NORMS | scores | one for one in (kda | dense(), full | moe, kda | moe, kda | moe, full | moe)]
    numbers: dict[str, Any] = {
        "attention.head_count_kv": [0, 1, 0, 0, 1],
        "attention.q_lora_rank": q_rank,
        "expert_shared_count": 1,
        "expert_latent_length": latent,
        "leading_dense_block_count": 1,
        "ssm.conv_kernel": TAPS,
        "kda.head_dim": KDA_HEAD,
        "attn_res.block_size": 2,
        "activation.situ_beta": 1.5,
        "activation.situ_linear_beta": 2.0,
    }
    ends: Tensors = {"output_res_score.weight": [N_EMBD]}
    made = case("kimi-k3", layers, MLA_KEYS, numbers, extra=ends | (extra or {}))
    return made | {"keys": {k: v for k, v in (made["keys"] | keys).items() if v is not None}}


def _without(made: Case, stem: str) -> Case:
    return made | {"tensors": {name: ne for name, ne in made["tensors"].items() if stem not in name}}


MLA_CASES: dict[str, Case] = {
    "bailingmoe3": _bailingmoe3(expert_weights_norm=True, expert_weights_scale=2.5),
    "bailingmoe3-clamped": _bailingmoe3(
        q_rank=0,
        output=False,
        swiglu_clamp_exp=[0.0, 0.4, 0.3],
        swiglu_clamp_shexp=[0.3, 0.2, 0.5],
        **YARN_KEYS,
        **{"kda.safe_gate": True, "kda.gate_lower_bound": -2.0, "rope.dimension_sections": [3, 2, 2, 1]},
    ),
    "deepseek32": _dsa("deepseek32", expert_group_count=4, expert_group_used_count=2, **SIGMOID),
    "deepseek32-yarn": _dsa(
        "deepseek32",
        select=False,
        expert_gating_func=1,
        **YARN_KEYS,
        **{"rope.scaling.yarn_log_multiplier": 0.07, "attention.indexer.top_k": 90},
        extra=scales(
            {f"blk.1.ffn_{x}_exps": N_EXPERT for x in ("gate", "up", "down")}
            | {f"blk.2.ffn_{x}_shexp": 1 for x in ("gate", "up", "down")}
            | {f"blk.0.ffn_{x}": 1 for x in ("gate", "up", "down")}
            | {"blk.1.attn_output": 1}
        ),
    ),
    "glm-dsa": _dsa("glm-dsa", "11010", **SIGMOID, **{"attention.indexer.types": [1, 1, 0, 1, 0]}),
    "glm-dsa-all": _dsa("glm-dsa", expert_gating_func=0, **YARN_KEYS),
    "dots3note": _dots3note(**SIGMOID),
    "dots3note-scales": _dots3note(
        expert_gating_func=1,
        **YARN_KEYS,
        extra=scales(
            {f"blk.1.ffn_{x}_exps": N_EXPERT for x in ("gate", "up", "down")}
            | {f"blk.2.ffn_{x}_shexp": 1 for x in ("gate", "up", "down")}
            | {f"blk.0.ffn_{x}": 1 for x in ("gate", "up", "down")}
            | {"blk.1.attn_output": 1, "blk.0.attn_gate": 1}
        ),
    ),
    "hy_v4": _hy_v4(swiglu_clamp_exp=[0.0, 0.4, 0.3, 0.0], **SIGMOID),
    "hy_v4-dense": _hy_v4("", select=False, expert_gating_func=1, **YARN_KEYS, extra=scales({"blk.1.attn_output": 1})),
    "kimi-k3": _kimi_k3(**SIGMOID, **{"kda.gate_lower_bound": -5.0}),
    "kimi-k3-plain": _without(
        _kimi_k3(
            q_rank=0,
            latent=0,
            gate=False,
            expert_gating_func=2,
            extra=scales({"blk.1.attn_output": 1, "blk.2.ffn_up_exps": N_EXPERT}),
            **{"attn_res.block_size": 0, "activation.situ_linear_beta": -1.0},
        ),
        "res_score",
    ),
    "bailingmoe3-scales": _bailingmoe3(
        extra=scales(
            {"blk.0.attn_k": 1, "blk.0.attn_output": 1, "blk.0.ffn_up": 1, "blk.1.attn_gate": 1}
            | {"blk.1.attn_output": 1, "blk.2.ssm_beta": 1, "blk.1.ffn_down_shexp": 1, "blk.2.ffn_up_exps": N_EXPERT}
        )
    ),
}
