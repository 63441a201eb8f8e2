"""Binding of recurrent layers: which ones they are, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from arch_cases import N_EMBD, Case
from arch_cases_mla import MLA_CASES
from arch_cases_state import STATE_CASES
from arch_fake_file import changed, fake_file
from arch_sources import ALL_CASES

from strata.arch.bind import bind, inspect_binding
from strata.arch.bound import BoundArch, BoundGqa, BoundMla, BoundMoe
from strata.arch.plan import plan
from strata.arch.registry import Registry
from strata.arch.report import binding_report, plan_summary
from strata.arch.spec import Block
from strata.errors import BindError

LFM, NEXT, QWEN = STATE_CASES["lfm2moe"], STATE_CASES["qwen3next"], STATE_CASES["qwen35moe"]
GRANITE, JAMBA = STATE_CASES["granitehybrid"], STATE_CASES["jamba"]
NEMOTRON, LATENT = STATE_CASES["nemotron_h_moe"], STATE_CASES["nemotron_h_moe-latent"]
KEPT = MLA_CASES["kimi-k3"]
STREAMS = MLA_CASES["hy_v4"]
SPARSE, DOTS = MLA_CASES["glm-dsa"], MLA_CASES["dots3note"]
LING, KIMI, MINIMAX = MLA_CASES["bailingmoe3"], STATE_CASES["kimi-linear"], STATE_CASES["minimax-01"]


def bound_of(registry: Registry, case: Case) -> BoundArch:
    return bind(registry.lookup(case["arch"]), fake_file(case))


def kinds(bound: BoundArch) -> str:
    """A for attention, r for a recurrent layer."""
    return "".join("A" if isinstance(layer.attention, BoundGqa | BoundMla) else "r" for layer in bound.layers)


def key(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


def test_layers_without_kv_heads_are_recurrent(registry: Registry) -> None:
    assert kinds(bound_of(registry, LFM)) == "rArr"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"attention.recurrent_layers": None}, "rrrA"),
        ({"attention.recurrent_layers": None, "full_attention_interval": 4}, "rrrA"),
        ({"attention.recurrent_layers": [True, True, True, False]}, "rrrA"),
    ],
)
def test_recurrent_layers_by_list_or_interval(registry: Registry, keys: dict[str, Any], expected: str) -> None:
    assert kinds(bound_of(registry, changed(STATE_CASES["qwen3next-old"], **keys))) == expected


def test_both_spellings_of_delta_inputs(registry: Registry) -> None:
    """attn_qkv and attn_gate go before ssm_in, which is then ignored."""
    case = changed(NEXT, add={"blk.0.ssm_in.weight": [N_EMBD, 240]})
    assert bound_of(registry, case).ignored == {"blk.0.ssm_in.weight": "attn_qkv and attn_gate say the same"}


def test_idle_biases_and_scales_of_mixers_are_listed(registry: Registry) -> None:
    bound = bound_of(registry, changed(NEXT, add={"blk.0.attn_gate.scale": [1], "blk.0.ssm_out.scale": [1]}))
    assert set(bound.ignored) == {"blk.0.attn_gate.scale", "blk.0.ssm_out.scale"}
    assert bound_of(registry, KIMI).ignored["blk.0.attn_k.bias"] == "a bias that this architecture does not apply"


def test_head_counts_may_be_given_by_layer(registry: Registry) -> None:
    by_layer = changed(LFM, **key("attention.head_count", [0, 2, 0, 0]))
    assert bound_of(registry, by_layer).layers == bound_of(registry, LFM).layers


BAD_KEYS: list[tuple[Case, str, Any, str]] = [
    (LFM, "shortconv.l_cache", 1, "l_cache is 1; accepted: 2 to 64"),
    (LFM, "shortconv.l_cache", None, "l_cache is missing"),
    (LFM, "attention.head_count_kv", [0, 1], "array of block_count"),
    (LFM, "attention.head_count_kv", [0, 3, 0, 0], "accepted: 0 to 2"),
    (LFM, "attention.head_count", [2, 0, 2, 2], "head_count_kv is 1; accepted: a divisor of head_count"),
    (NEXT, "ssm.inner_size", 60, r"inner_size is 60; accepted: time_step_rank \* state_size \(80\)"),
    (NEXT, "ssm.group_count", 3, "time_step_rank is 4; accepted: a multiple of ssm.group_count"),
    (NEXT, "attention.value_length", 16, "value_length is 16; accepted: key_length"),
    (NEXT, "attention.recurrent_layers", [1, 0], "array of block_count"),
    (QWEN, "rope.dimension_sections", None, "dimension_sections is missing"),
    (GRANITE, "ssm.time_step_rank", 7, "inner_size is 128; accepted: a multiple of ssm.time_step_rank"),
    (GRANITE, "ssm.state_size", 0, "state_size is 0; accepted: 1"),
    (JAMBA, "ssm.conv_kernel", 1, "conv_kernel is 1; accepted: 2 to 64"),
    (KIMI, "kda.head_dim", None, "head_dim is missing"),
    (LING, "kda.safe_gate", False, "safe_gate is False; accepted: true"),
    (LING, "kda.gate_lower_bound", 0.0, "gate_lower_bound is 0.0; accepted: -100 to below 0"),
    (LING, "kda.gate_lower_bound", -1000.0, "gate_lower_bound is -1000"),
    (LING, "kda.gate_lower_bound", None, "gate_lower_bound is missing"),
    (SPARSE, "attention.q_lora_rank", 0, "q_lora_rank is 0; accepted: at least 1: the indexer reads"),
    (SPARSE, "attention.indexer.types", [0, 1, 1, 1, 1], "types is 0; accepted: 1 in layer 0"),
    (SPARSE, "attention.indexer.types", [1, 2, 0, 0, 0], "types is 2; accepted: 0 to 1"),
    (SPARSE, "attention.indexer.types", [1, 0], "array of block_count"),
    (SPARSE, "attention.indexer.key_length", 8, "key_length is 8; accepted: at least the 16 entries that rotate"),
    (SPARSE, "attention.indexer.top_k", 0, "top_k is 0; accepted: 1"),
    (DOTS, "attention.kv_lora_rank_swa", None, "kv_lora_rank_swa is missing"),
    (
        DOTS,
        "attention.head_count",
        [3, 0, 5, 3],
        "head_count is 0; accepted: at least 1 in layer 1, which has attention",
    ),
    (DOTS, "attention.sliding_window_pattern", 2, "an array of block_count"),
    (DOTS, "attention.indexer.types", [0, 0, 0, 1], "types is 0; accepted: 1 in layer 0"),
    (STREAMS, "hyper_connection.count", 0, "count is 0; accepted: 1"),
    (STREAMS, "hyper_connection.magnitude", None, "magnitude is missing"),
    (STREAMS, "attention.indexer.types", None, "types is 0; accepted: 1 in layer 0"),
    (KEPT, "attn_res.block_size", None, "block_size is missing"),
    (KEPT, "activation.situ_beta", 0.0, "situ_beta is 0.0; accepted: a finite number, 0.001"),
    (KEPT, "activation.situ_linear_beta", None, "situ_linear_beta is missing"),
    (KEPT, "kda.gate_lower_bound", 0.5, "gate_lower_bound is 0.5; accepted: -100 to below 0"),
    (MINIMAX, "residual_scale", None, "residual_scale is missing"),
    (NEMOTRON, "expert_used_count", [0, 2, 0, 0, 0], "expert_used_count is 0; accepted: 1 to expert_count in layer 3"),
    (NEMOTRON, "expert_feed_forward_length", [0, 0, 0, 40, 0], "expert_feed_forward_length is 0; accepted: at least 1"),
    (NEMOTRON, "attention.layer_norm_rms_epsilon", float("nan"), "accepted: a finite number"),
    (NEMOTRON, "expert_shared_feed_forward_length", None, "expert_shared_feed_forward_length is missing"),
    (LFM, "attention.head_count", 0, r"head_count is \[0, 0, 0, 0\]; accepted: 1"),
]


@pytest.mark.parametrize(("case", "name", "value", "message"), BAD_KEYS, ids=[f"{b[1]}-{b[2]}" for b in BAD_KEYS])
def test_bad_key(registry: Registry, case: Case, name: str, value: Any, message: str) -> None:
    with pytest.raises(BindError, match=message):
        bound_of(registry, changed(case, **key(name, value)))


BAD_TENSORS: list[tuple[Case, dict[str, Any], str]] = [
    (LFM, {"drop": "blk.0.shortconv.conv.weight"}, r"blk.0.shortconv.conv.weight \[3, 64\] is missing"),
    (LFM, {"add": {"blk.0.shortconv.in_proj.weight": [N_EMBD, N_EMBD]}}, r"expected \[64, 192\]"),
    (LFM, {"add": {"blk.1.shortconv.conv.weight": [3, N_EMBD]}}, "blk.1.shortconv.conv.weight"),
    (NEXT, {"drop": "blk.0.ssm_ba.weight"}, "blk.0.ssm_ba.weight"),
    (NEXT, {"drop": "blk.0.attn_qkv.weight"}, r"blk.0.ssm_in.weight \[64, 240\] is missing"),
    (QWEN, {"drop": "blk.0.attn_qkv.weight"}, r"blk.0.attn_qkv.weight \[64, 160\] is missing"),
    (GRANITE, {"drop": "blk.0.ssm_conv1d.bias"}, "blk.0.ssm_conv1d.bias"),
    (GRANITE, {"add": {"blk.0.ssm_a": [8, 1]}}, r"blk.0.ssm_a has shape \[8, 1\]; expected \[1, 8\]"),
    (JAMBA, {"add": {"blk.0.ssm_in.weight": [N_EMBD, 128]}}, r"expected \[64, 256\]"),
    (KIMI, {"drop": "blk.2.ssm_conv1d_k.weight"}, r"blk.2.ssm_conv1d_k.weight \[4, 1, 60\] is missing"),
    (KIMI, {"drop": "blk.1.ffn_up_shexp.weight"}, "blk.1.ffn_up_shexp.weight"),
    (LING, {"add": {"blk.0.ssm_f_a.weight": [N_EMBD, 20]}}, r"expected \[64, 60\]"),
    (LING, {"drop": "blk.1.attn_gate.weight"}, r"blk.1.attn_gate.weight \[64, 3\] is missing"),
    (SPARSE, {"drop": "blk.3.indexer.proj.weight"}, r"blk.3.indexer.proj.weight \[64, 12\] is missing"),
    (STREAMS, {"drop": "output_hc_base.weight"}, r"output_hc_base.weight \[3\] is missing"),
    (STREAMS, {"add": {"blk.0.hc_ffn_fn.weight": [3 * N_EMBD, 3]}}, r"expected \[192, 6\]"),
    (STREAMS, {"drop": "blk.1.attn_sinks.weight"}, "blk.1.attn_sinks.weight"),
    (KEPT, {"drop": "blk.1.attn_res_score.weight"}, r"blk.1.attn_res_score.weight \[64\] is missing"),
    (KEPT, {"drop": "output_res_score.weight"}, "output_res_score.weight"),
    (KEPT, {"drop": "blk.2.ffn_routed_up.weight"}, r"blk.2.ffn_routed_up.weight \[40, 64\] is missing"),
    (KEPT, {"drop": "blk.1.attn_q_a_norm.weight"}, "blk.1.attn_q.weight"),
    (MINIMAX, {"drop": "blk.0.attn_norm_2.weight"}, "attn_norm_2.weight"),
    (NEMOTRON, {"add": {"blk.1.ffn_gate_exps.weight": [N_EMBD, 32, 8]}}, "blk.1.ffn_gate_exps.weight"),
    (LATENT, {"drop": "blk.3.ffn_latent_up.weight"}, r"blk.3.ffn_latent_up.weight \[40, 64\] is missing"),
    (LATENT, {"drop": "blk.1.ffn_up_shexp.weight"}, "blk.1.ffn_up_shexp.weight"),
    (LFM, {"drop": "token_embd_norm.weight"}, "token_embd_norm.weight"),
]


@pytest.mark.parametrize(("case", "change", "message"), BAD_TENSORS, ids=[str(b[1]) for b in BAD_TENSORS])
def test_bad_tensor(registry: Registry, case: Case, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BindError, match=message):
        bound_of(registry, changed(case, **change))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("qwen3next", "0: gated delta net, 4/2 heads of 20;"),
        ("granitehybrid", "0: Mamba 2, 8 heads of 16 with 12 states, 2 groups;"),
        ("jamba", "0: Mamba, 128 channels of 12 states;"),
        ("kimi-linear", "0: KDA, 3 heads of 20;"),
        ("bailingmoe3", "0: KDA, 3 heads of 20;"),
        ("minimax-01", "0: lightning attention, 4 heads of 32;"),
    ],
)
def test_every_mixer_has_a_line(registry: Registry, name: str, line: str) -> None:
    assert line in binding_report(inspect_binding(registry.lookup(name), fake_file(ALL_CASES[name])))


def test_windowed_latent_attention_has_its_own_widths(registry: Registry) -> None:
    report = binding_report(inspect_binding(registry.lookup("dots3note"), fake_file(DOTS)))
    assert "0: MLA absorbed, 3 heads of 40 (rotated 16) and 20, latent 40, best 24 keys by 12 heads of 64;" in report
    assert "1 to 2: MLA absorbed, 5 heads of 28 (rotated 16) and 14, latent 24, window 30;" in report
    assert "keys of layer 1;" in binding_report(inspect_binding(registry.lookup("glm-dsa"), fake_file(SPARSE)))


def test_streams_stand_alone(registry: Registry) -> None:
    """Words that nothing computes together are refused."""
    arch = msgspec.structs.replace(registry.lookup("hy_v4"), block=Block(residual="parallel", ffn_norm=None))
    with pytest.raises(BindError, match="hy_v4 declares streams; accepted beside them: the default Block"):
        bind(arch, fake_file(STREAMS))


def test_what_the_first_layer_does_not_look_back_with(registry: Registry) -> None:
    bound = bound_of(registry, KEPT)
    assert bound.ignored["blk.0.attn_res_score.weight"] == "no layer has kept a residual before"
    assert [layer.attention_mix is None for layer in bound.layers] == [True, False, False, False, False]
    arch = msgspec.structs.replace(registry.lookup("kimi-k3"), block=Block(residual="parallel", ffn_norm=None))
    with pytest.raises(BindError, match="kimi-k3 declares checkpoints; accepted beside them: the default Block"):
        bind(arch, fake_file(KEPT))


def test_which_layers_choose_keys(registry: Registry) -> None:
    def choices(case: Case) -> list[int]:
        return [
            layer.attention.choice_of
            for layer in bound_of(registry, case).layers
            if isinstance(layer.attention, BoundMla)
        ]

    assert choices(SPARSE) == [0, 1, 1, 3, 3]
    unnamed = changed(MLA_CASES["glm-dsa-all"], **key("attention.indexer.types", None))
    assert choices(unnamed) == [0, 1, 2]
    layers = {
        f"blk.{i}.{name.split('.', 2)[2]}": ne
        for i in range(3, 12)
        for name, ne in unnamed["tensors"].items()
        if name.startswith("blk.2.")
    }
    assert choices(changed(unnamed, add=layers, block_count=12)) == list(range(12))
    long = changed(unnamed, add=layers, block_count=12, context_length=1048576)
    assert choices(long) == [0, 1, 2, 2, 2, 2, 6, 6, 6, 6, 10, 10]
    ignored = bound_of(registry, long).ignored
    assert ignored["blk.3.indexer.attn_k.weight"] == "the layer uses an earlier one's choice"
    assert "blk.6.indexer.attn_k.weight" not in ignored


def test_a_layer_of_one_part_is_a_mixer_attention_or_experts(registry: Registry) -> None:
    bound = bound_of(registry, NEMOTRON)
    parts = [(layer.attention is None, layer.ffn is None) for layer in bound.layers]
    assert parts == [(False, True), (True, False), (False, True), (True, False), (False, True)]
    experts = [layer.ffn for layer in bound.layers if isinstance(layer.ffn, BoundMoe)]
    assert [(moe.router.n_used, moe.experts.width) for moe in experts] == [(2, 32), (3, 40)]
    text = binding_report(inspect_binding(registry.lookup("nemotron_h_moe"), fake_file(NEMOTRON)))
    assert "2: GQA 3/1 heads of 32\n" in text
    assert "3: 3 of 8 experts relu-sqr 40 by sigmoid, shared 48\n" in text


def test_expert_widths_have_a_default_by_layer(registry: Registry) -> None:
    keys = {"expert_feed_forward_length": None, "feed_forward_length": [0, 64, 0, 120, 0]}
    assert bound_of(registry, changed(NEMOTRON, **keys)).layers == bound_of(registry, NEMOTRON).layers


def test_eps_may_stand_under_the_other_name(registry: Registry) -> None:
    keys = {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 1e-3}
    assert bound_of(registry, changed(NEMOTRON, **keys)).output_norm.eps == pytest.approx(1e-3)
    with pytest.raises(BindError, match="layer_norm_epsilon is missing"):
        bound_of(registry, changed(NEMOTRON, **dict.fromkeys(keys, None)))


def test_one_layer_has_no_spread_of_decays(registry: Registry) -> None:
    first = {name: ne for name, ne in MINIMAX["tensors"].items() if not name.startswith(("blk.1", "blk.2", "blk.3"))}
    with pytest.raises(BindError, match="block_count is 1; accepted: 2 or more"):
        bound_of(registry, changed(MINIMAX | {"tensors": first}, **key("block_count", 1)))


def test_reports_name_the_mixer_and_its_states(registry: Registry) -> None:
    text = binding_report(inspect_binding(registry.lookup("lfm2moe"), fake_file(LFM)))
    assert "0: short convolution of 64 channels over 3 tokens; dense silu 96" in text
    table = plan(bound_of(registry, LFM), n_batch=8, n_outputs_max=1)
    assert [state.n_floats for state in table.states] == [2 * N_EMBD] * 3
    assert f"states         {4 * 3 * 2 * N_EMBD:,} bytes a sequence" in plan_summary(table)
