"""Tiny models whose layers differ: windows, rotation, gates, multipliers, experts beside dense FFNs."""

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
    Case,
    Tensors,
    _dense,
    _scales,
    _with_nextn,
    _without,
)
from arch_parts import BLOCK_NORMS, LEAD, SIGMOID, SQUARE, attention, case, experts, norms, square

BIAS = "exp_probs_b.bias"
WINDOW = {"attention.sliding_window": 20}
PATTERN = "attention.sliding_window_pattern"
ALTERNATE = {PATTERN: [True, False, True, False]}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 1.1}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64}
MULTIPLIERS = {"logit_scale": 1.5, "residual_scale": 0.6, "embedding_scale": 3.0, "attention.scale": 0.2}
DENSE_KEYS = {"expert_count": None, "expert_used_count": None}


def _granite(arch: str = "granite", moe: bool = True, shared: int = 80, **keys: Any) -> Case:
    parts = experts(N_FF, shared=shared) if moe else _dense(bias=True)
    stems = BLOCK_NORMS | attention(bias=True) | {"attn_output.bias": [N_EMBD]} | parts
    width = {"expert_shared_feed_forward_length": shared or None}
    freqs: Tensors = {"rope_freqs.weight": [HEAD // 2]}
    return case(arch, [stems] * 2, MULTIPLIERS, width, {} if moe else DENSE_KEYS, keys, output=False, extra=freqs)


def _granite_swa(moe: bool = True) -> Case:
    parts = experts(N_FF, fused=True) | {"ffn_up_shexp.weight": [N_EMBD, 160], "ffn_down_shexp.weight": [80, N_EMBD]}
    stems = BLOCK_NORMS | attention() | {"attn_sinks.weight": [N_HEAD]} | (parts if moe else _dense())
    keys = {"expert_shared_feed_forward_length": 80, "attention.rope_pattern": [True, True, False, True]}
    return case("granite_swa", [stems] * 4, MULTIPLIERS, WINDOW, ALTERNATE, keys, {} if moe else DENSE_KEYS)


def _minicpm(moe: bool = True, **keys: Any) -> Case:
    stems = BLOCK_NORMS | attention() | (experts(N_FF) if moe else _dense(bias=True))
    return case("minicpm", [stems] * 2, {} if moe else DENSE_KEYS, keys, output=False)


def _exaone_moe(nextn: bool = False) -> Case:
    layer = BLOCK_NORMS | attention(norms="head")
    layers = [layer | _dense()] + [layer | experts(select=BIAS, shared=N_FF_EXP)] * 3
    extra: Tensors = {} if nextn else {"rope_freqs.weight": [HEAD // 2]}
    made = case("exaone-moe", layers, LEAD, SIGMOID, WINDOW, extra=extra, expert_shared_count=1)
    if not nextn:
        return made
    made = _with_nextn(made)
    made["tensors"] = {n: ne for n, ne in made["tensors"].items() if not n.startswith("blk.4.") or "ffn_" not in n}
    made["tensors"] |= {f"blk.4.{n}": ne for n, ne in (_dense() | norms("ffn_norm")).items()}
    return _without(made, "blk.4.exp_probs_b")


def _llama4(step: int = 2, freqs: bool = True) -> Case:
    layer = BLOCK_NORMS | attention(bias=True)
    layers = [layer | (experts(shared=N_FF_EXP) if (i + 1) % step == 0 else _dense()) for i in range(4)]
    extra: Tensors = {"rope_freqs.weight": [HEAD // 2]} if freqs else {}
    keys = {"rope.freq_base_swa": 500.0} if freqs else {}
    return case("llama4", layers, keys, extra=extra, interleave_moe_layer_step=step, output=False)


def _cohere2moe(kind: str = "rms", shared: int = 2, nextn: bool = False, fused: bool = False) -> Case:
    layer = norms("attn_norm") | attention(bias=True) | _scales(("attn_output",), 1)
    width = shared * N_FF_EXP
    moe = experts(shared=width, fused=fused) | _scales(("ffn_down_exps",), N_EXPERT)
    layers = [layer | _dense() | _scales(("ffn_up",), 1)] + [layer | moe] * 4
    keys = {"logit_scale": 0.8, "expert_shared_count": shared}
    eps = "attention.layer_norm_rms_epsilon" if kind == "rms" else "attention.layer_norm_epsilon"
    made = case("cohere2moe", layers, LEAD, SIGMOID if shared else {}, WINDOW, keys, eps=eps, output=False)
    return _without(_with_nextn(made), "blk.5.attn_output.scale") if nextn else made


def _grok(dense: bool = False, **keys: Any) -> Case:
    post = "post_ffw_norm" if dense else "layer_output_norm"
    stems = BLOCK_NORMS | norms("attn_output_norm", post) | square() | experts(N_FF_EXP if dense else N_FF)
    stems |= _dense() if dense else {}
    numbers = {"attn_logit_softcapping": 5.0, "embedding_scale": 20.0, "attention.output_scale": 0.3}
    width = {} if dense else {"expert_feed_forward_length": None}
    return case("grok", [stems] * 2, SQUARE, numbers, width, keys, output=False)


def _arctic() -> Case:
    stems = BLOCK_NORMS | norms("ffn_norm_exps") | square(bias=True) | _dense(N_EMBD) | experts(N_FF)
    return case("arctic", [stems] * 2, SQUARE, output=False)


def _afmoe(shared: int = 1) -> Case:
    layer = BLOCK_NORMS | norms("post_attention_norm", "post_ffw_norm") | attention(norms="head")
    layer |= {"attn_gate.weight": [N_EMBD, N_HEAD * HEAD]}
    layers = [layer | _dense()] + [layer | experts(select=BIAS, shared=shared * N_FF_EXP)] * 4
    keys = {PATTERN: 3, "rope.freq_base_swa": 500.0} | WINDOW
    return case("afmoe", layers, LEAD, SIGMOID, keys, expert_shared_count=shared, output=False)


def _smallthinker(n_layer: int = 5, window: bool = True, gating: int = 2) -> Case:
    stems = BLOCK_NORMS | attention() | experts()
    keys = {"attention.sliding_window": 4096, "rope.freq_base_swa": 500.0} if window else {}
    return case("smallthinker", [stems] * n_layer, keys, expert_gating_func=gating, output=False)


HEADS = [(4, 2), (6, 3), (4, 2), (6, 1)]
HEAD_KEYS = {
    "attention.head_count": [n for n, _ in HEADS],
    "attention.head_count_kv": [n for _, n in HEADS],
}


def _mimo2(fused: bool = False, **keys: Any) -> Case:
    layers: list[Tensors] = []
    for i, (n, n_kv) in enumerate(HEADS):
        stems = BLOCK_NORMS | attention(n_head=n, n_head_kv=n_kv, head_v=24, fused=fused, bias=fused)
        stems |= {"attn_sinks.weight": [n]} if i % 2 == 0 else {}
        layers.append(stems | (experts(select=BIAS) if i else _dense()))
    widths = {"attention.value_length": 24, "rope.dimension_count": 16, "rope.freq_base_swa": 500.0}
    return case("mimo2", layers, HEAD_KEYS, WINDOW, ALTERNATE, widths, keys)


def _laguna(per_head: bool = True, window: bool = True, **keys: Any) -> Case:
    layers: list[Tensors] = []
    for i, (n, n_kv) in enumerate(HEADS):
        stems = BLOCK_NORMS | attention(n_head=n, n_head_kv=n_kv, bias=True, norms="head")
        stems |= {"attn_gate.weight": [N_EMBD, n if per_head else n * HEAD]}
        layers.append(stems | (experts(select=BIAS, shared=80) if i else _dense()))
    widths = {"rope.dimension_count": 16, "rope.dimension_count_swa": HEAD, "rope.freq_base_swa": 500.0}
    widths |= WINDOW if window else {}
    routing = SIGMOID | LEAD | {"expert_shared_feed_forward_length": 80}
    return case("laguna", layers, HEAD_KEYS, widths, routing, keys, output=False)


def _step35(gate: bool = True, qk: bool = True, **keys: Any) -> Case:
    layers: list[Tensors] = []
    for i, (n, n_kv) in enumerate(HEADS):
        stems = BLOCK_NORMS | attention(n_head=n, n_head_kv=n_kv, bias=True, norms="head" if qk else "")
        stems |= {"attn_gate.weight": [N_EMBD, n]} if gate else {}
        layers.append(stems | (experts(select=BIAS, shared=80) if i else _dense()))
    widths = {"rope.freq_base_swa": 500.0, "expert_shared_feed_forward_length": 80}
    clamps = {"swiglu_clamp_exp": [0.0, 0.3, 0.0, 0.2], "swiglu_clamp_shexp": [0.2, 0.0, 0.3, 0.1]}
    extra: Tensors = {"rope_freqs.weight": [HEAD // 2 if gate else 8]}
    return case("step35", layers, HEAD_KEYS, WINDOW, ALTERNATE, widths, clamps, SIGMOID, keys, extra=extra)


def _mellum(window: bool = True) -> Case:
    stems = BLOCK_NORMS | attention(norms="head") | experts() | _scales(("ffn_up_exps",), N_EXPERT)
    return case("mellum", [stems] * 4, YARN, WINDOW if window else {})


def _maple(limit: Any) -> Case:
    stems = BLOCK_NORMS | attention(norms="head") | experts()
    keys = {"rope.dimension_count_swa": 16, "rope.freq_base_swa": 500.0, "swiglu_clamp_exp": limit}
    return case("maple", [stems] * 4, WINDOW, {PATTERN: [True, True, False, True]}, keys, LINEAR)


G4_HEAD, G4_INPUT = 16, 24  # of windowed layers; of a layer's own vector


def _gemma4(moe: bool = True, shared: int = 0, inputs: int = 0, values: bool = True, **keys: Any) -> Case:
    """Windowed layers but the second and the last one, with other heads; 'shared' last layers without keys."""
    windowed, n_layer = [True, False, True, True, False, True, False][: 5 + shared], 5 + shared
    layers: list[Tensors] = []
    for i, narrow in enumerate(windowed):
        head, n_kv = (G4_HEAD, 4) if narrow else (HEAD, 1)
        stems = BLOCK_NORMS | norms("post_attention_norm", "post_ffw_norm") | _dense(N_FF + 32 * i)
        stems |= attention(n_head_kv=n_kv, head=head, norms="head") | {"layer_output_scale.weight": [1]}
        if moe and i:
            stems |= norms("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2") | experts(fused=i % 2 == 0)
            stems |= {"ffn_gate_inp.scale": [N_EMBD], "ffn_down_exps.scale": [N_EXPERT]}
        gone = ["attn_v.weight"] if not narrow and not values else []
        gone += ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"] if i >= n_layer - shared else []
        stems = {name: ne for name, ne in stems.items() if name not in gone}
        stems |= {"inp_gate.weight": [N_EMBD, inputs], "proj.weight": [inputs, N_EMBD]} if inputs else {}
        layers.append(stems | (norms("post_norm") if inputs else {}))
    extra: Tensors = {"rope_freqs.weight": [HEAD // 2]}
    if inputs:
        extra |= {"per_layer_token_embd.weight": [inputs * n_layer, N_VOCAB], "per_layer_proj_norm.weight": [inputs]}
        extra |= {"per_layer_model_proj.weight": [N_EMBD, inputs * n_layer]}
    numbers = {
        "attention.head_count_kv": [4 if narrow else 1 for narrow in windowed],
        "attention.key_length_swa": G4_HEAD,
        "attention.value_length_swa": G4_HEAD,
        "rope.dimension_count_swa": G4_HEAD,
        "rope.freq_base_swa": 500.0,
        "attention.shared_kv_layers": shared or None,
        "embedding_length_per_layer_input": inputs,
        "feed_forward_length": [N_FF + 32 * i for i in range(n_layer)],
        PATTERN: windowed,
    }
    made = case("gemma4", layers, WINDOW, numbers, {} if moe else DENSE_KEYS, keys, output=False, extra=extra)
    # unscaled scores of normed heads would be so sharp that llama.cpp's half-precision GELU decides what is attended to
    return made | {"deviations": {"attn_q_norm": 0.4, "attn_k_norm": 0.4}}


LAYER_CASES: dict[str, Case] = {
    "granite": _granite(),
    "granite-dense": _granite(moe=False),
    "granite-unrotated": _granite(shared=0, **{"rope.scaling.finetuned": False, "residual_scale": 0.0}),
    "granitemoe": _granite("granitemoe", **{"rope.scaling.finetuned": False}),
    "granite_swa": _granite_swa(),
    "granite_swa-dense": _granite_swa(moe=False),
    "minicpm": _minicpm(),
    "minicpm-dense": _minicpm(moe=False, embedding_scale=4.0, residual_scale=0.7, logit_scale=1.3),
    "exaone-moe": _exaone_moe(),
    "exaone-moe-nextn": _exaone_moe(nextn=True),
    "llama4": _llama4(),
    "llama4-every": _llama4(step=1, freqs=False),
    "cohere2moe": _cohere2moe(),
    "cohere2moe-layer-norm": _cohere2moe("layer", shared=0, fused=True),
    "grok": _grok(),
    "grok-dense": _grok(dense=True, final_logit_softcapping=8.0, **YARN, **{"rope.scaling.yarn_beta_fast": 4.0}),
    "arctic": _arctic(),
    "afmoe": _afmoe(),
    "afmoe-unshared": _afmoe(shared=0),
    "smallthinker": _smallthinker(),
    "smallthinker-four": _smallthinker(n_layer=4, gating=1),
    "smallthinker-full": _smallthinker(window=False),
    "mimo2": _mimo2(**{"attention.value_scale": 0.7}),
    "mimo2-fused": _mimo2(fused=True, **YARN),
    "laguna": _laguna(**YARN),
    "laguna-elements": _laguna(per_head=False, window=False, expert_weights_norm=False),
    "step35": _step35(),
    "step35-plain": _step35(gate=False, qk=False, **LINEAR, **{"rope.dimension_count_swa": 16}),
    "gemma4": _gemma4(),
    "gemma4-keys-as-values": _gemma4(values=False, final_logit_softcapping=0.0),
    "gemma4-inputs": _gemma4(moe=False, shared=2, inputs=G4_INPUT),
    "mellum": _mellum(),
    "mellum-full": _mellum(window=False),
    "maple": _maple(0.4),
    "maple-layers": _maple([0.5, 0.0, 0.3, 0.2]),
}
