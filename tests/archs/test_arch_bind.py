"""Binding refuses what it does not understand, and says which file, key or tensor, and what it would accept."""

from __future__ import annotations

import math
from typing import Any

import pytest
from arch_cases import (
    CASES,
    KV_RANK,
    N_EMBD,
    N_EXPERT,
    N_FF,
    N_FF_EXP,
    V3_ROUTING,
    Case,
    _deepseek2,
    _longrope,
    _qwen3moe,
)
from arch_cases_layers import LAYER_CASES
from arch_fake_file import changed, fake_file
from arch_sources import shipped_sources
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.arch.bind import bind, inspect_binding
from strata.arch.bound import BoundArch, BoundGqa, BoundMla, BoundMoe
from strata.arch.plan import plan
from strata.arch.registry import Registry
from strata.errors import BindError

QWEN, GPT, DEEPSEEK, LLAMA = CASES["qwen3moe"], CASES["gpt-oss"], CASES["deepseek2"], CASES["llama"]
DENSE = CASES["llama-dense"]
Q4_0, MXFP4, NVFP4, I32 = 2, 39, 40, 26


def bound_of(registry: Registry, case: Case, **types: Any) -> BoundArch:
    return bind(registry.lookup(case["arch"]), fake_file(case, **types))


def key(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


BAD_KEYS: list[tuple[Case, str, Any, str]] = [
    (QWEN, "block_count", None, "qwen3moe.block_count is missing"),
    (QWEN, "block_count", 0, r"block_count is 0; accepted: 1 to 512"),
    (QWEN, "block_count", [2], r"block_count is \[2\]; accepted: one value"),
    (QWEN, "block_count", 2.0, r"block_count is 2.0; accepted: a value of type u32"),
    (QWEN, "block_count", "2", r"block_count is '2'; accepted: a value of type u32"),
    (QWEN, "block_count", 2**31 + 5, "accepted: 1 to 512"),
    (QWEN, "embedding_length", 0, "embedding_length is 0"),
    (QWEN, "context_length", None, "context_length is missing"),
    (QWEN, "attention.head_count", [4, 2], r"head_count is \[4, 2\]; accepted: one value for all layers"),
    (QWEN, "attention.head_count", [4], r"accepted: one value, or an array of block_count \(2\) values"),
    (QWEN, "attention.head_count_kv", 3, r"head_count_kv is 3; accepted: a divisor of head_count \(4\)"),
    (QWEN, "attention.layer_norm_rms_epsilon", None, "layer_norm_rms_epsilon is missing"),
    (QWEN, "attention.layer_norm_rms_epsilon", float("nan"), "accepted: a finite number"),
    (QWEN, "attention.causal", False, "attention.causal is False; accepted: true"),
    (QWEN, "rope.dimension_count", 16, r"dimension_count is 16; accepted: the head's width, 32"),
    (QWEN, "rope.scaling.type", "dynamic", "scaling.type is 'dynamic'; accepted: none, linear, yarn, longrope"),
    (QWEN, "rope.scaling.type", "longrope", "scaling.type is 'longrope'; accepted: none, linear, yarn"),
    (QWEN, "rope.scaling.factor", -2.0, "scaling.factor is -2.0"),
    (QWEN, "expert_count", 0, "expert_count is 0; accepted: 1 to 1024"),
    (QWEN, "expert_count", 2000, "accepted: 0 to 1024"),
    (QWEN, "expert_used_count", 9, r"expert_used_count is 9; accepted: 1 to expert_count \(8\)"),
    (QWEN, "expert_group_count", 3, "expert_group_count is 3; accepted: a divisor of expert_count"),
    (QWEN, "expert_group_count", 4, "expert_group_used_count is 0; accepted: 1 to 3"),
    (QWEN, "nextn_predict_layers", 1, "nextn_predict_layers is 1; accepted: 0"),
    (DEEPSEEK, "nextn_predict_layers", 3, "nextn_predict_layers is 3; accepted: 0 to 2"),
    (DEEPSEEK, "expert_gating_func", 7, r"accepted: 1 \(softmax\), 2 \(sigmoid\), 3"),
    (DEEPSEEK, "expert_weights_norm", 1, "expert_weights_norm is 1; accepted: a value of type bool"),
    (DEEPSEEK, "expert_shared_count", 0, "expert_shared_count is 0; accepted: 1 to"),
    (DEEPSEEK, "attention.q_lora_rank", None, "q_lora_rank is missing"),
    (DEEPSEEK, "attention.value_length_mla", None, "value_length_mla is 0"),
    (DEEPSEEK, "rope.dimension_count", 41, "dimension_count is 41; accepted: an even number"),
    (DEEPSEEK, "rope.dimension_count", 40, "dimension_count is 40; accepted: less than the head's 40"),
    (DEEPSEEK, "rope.freq_base", 1.0, "freq_base is 1.0; accepted: a finite number, 1.001"),
    (DEEPSEEK, "rope.scaling.factor", 1e-6, "scaling.factor is 1e-06; accepted: a finite number, 0.01"),
    (GPT, "rope.freq_base_swa", 0.5, "freq_base_swa is 0.5; accepted: a finite number, 1.001"),
    (DEEPSEEK, "attention.temperature_scale", 0.5, "temperature_length is 0"),
    (DEEPSEEK, "expert_group_used_count", 1, "expert_used_count is 3; accepted: up to 2"),
    (GPT, "attention.sliding_window", None, "sliding_window is missing"),
    (GPT, "attention.sliding_window", 0, "sliding_window is 0; accepted: 1"),
    (GPT, "attention.sliding_window_pattern", [True], "array of block_count"),
    (GPT, "attention.sliding_window_pattern", [1.0] * 4, "accepted: a value of type u32"),
    (DENSE, "feed_forward_length", 0, "feed_forward_length is 0; accepted: at least 1 in layer 0"),
]


@pytest.mark.parametrize(("case", "name", "value", "message"), BAD_KEYS, ids=[f"{b[1]}-{b[2]}" for b in BAD_KEYS])
def test_bad_key(registry: Registry, case: Case, name: str, value: Any, message: str) -> None:
    with pytest.raises(BindError, match=message) as caught:
        bound_of(registry, changed(case, **key(name, value)))
    assert str(caught.value).startswith(f"tiny.gguf: {case['arch']}.")


BAD_TENSORS: list[tuple[Case, dict[str, Any], str]] = [
    (QWEN, {"drop": "blk.1.ffn_up_exps.weight"}, r"blk.1.ffn_up_exps.weight \[64, 32, 8\] is missing"),
    (QWEN, {"drop": "blk.0.attn_k_norm.weight"}, "attn_k_norm.weight"),
    (
        QWEN,
        {"add": {"blk.0.attn_q.weight": [64, 64]}},
        r"blk.0.attn_q.weight has shape \[64, 64\]; expected \[64, 128\]",
    ),
    (QWEN, {"add": {"blk.2.attn_q.weight": [64, 128]}}, r"blk.2.attn_q.weight \[64, 128\] is not part"),
    (QWEN, {"add": {"blk.0.attn_output.bias": [64]}}, "blk.0.attn_output.bias"),
    (QWEN, {"add": {"blk.0.attn_q.scale": [2]}}, r"attn_q.scale has shape \[2\]; expected \[1\]"),
    (QWEN, {"add": {"blk.0.attn_q.input_scale": [2]}}, "attn_q.input_scale"),
    (QWEN, {"add": {"blk.0.ffn_gate_inp.scale": [1]}}, "ffn_gate_inp.scale"),
    (QWEN, {"add": {"output.scale": [1]}}, "output.scale"),
    (QWEN, {"add": {"rope_freqs.weight": [16]}}, "rope_freqs.weight"),
    (GPT, {"drop": "output.weight"}, "output.weight"),
    (GPT, {"drop": "blk.3.attn_sinks.weight"}, "blk.3.attn_sinks.weight"),
    (GPT, {"drop": "blk.0.ffn_gate_inp.bias"}, "blk.0.ffn_gate_inp.bias"),
    (DEEPSEEK, {"add": {"blk.2.nextn.enorm.weight": [64]}}, "blk.2.nextn.enorm.weight"),
    (LLAMA, {"add": {"rope_factors_long.weight": [16]}}, "rope_factors_long.weight"),
]


@pytest.mark.parametrize(("case", "change", "message"), BAD_TENSORS, ids=[str(b[1]) for b in BAD_TENSORS])
def test_bad_tensor(registry: Registry, case: Case, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BindError, match=message) as caught:
        bound_of(registry, changed(case, **change))
    assert str(caught.value).startswith(f"tiny.gguf does not fit architecture {case['arch']}")


def test_bad_types(registry: Registry) -> None:
    types = {"blk.0.attn_q.weight": I32, "blk.0.attn_norm.weight": Q4_0, "output_norm.weight": 77}
    with pytest.raises(BindError) as caught:
        bound_of(registry, QWEN, types=types)
    text = str(caught.value)
    assert "blk.0.attn_q.weight has type I32, which is no type of a weight matrix" in text
    assert "blk.0.attn_norm.weight has type Q4_0; accepted: F32, F16, BF16" in text
    assert "output_norm.weight has type type 77" in text


def test_rows_that_no_block_divides(registry: Registry) -> None:
    with pytest.raises(BindError, match=r"rows of 40, no multiple of MXFP4's block of 32"):
        bound_of(registry, DEEPSEEK, types={"blk.0.attn_v_b.weight": MXFP4})


def test_many_problems_are_cut_short(registry: Registry) -> None:
    case = QWEN | {"tensors": {}}
    with pytest.raises(BindError, match=r"and \d+ more$"):
        bound_of(registry, case)


def test_inspect_lists_every_problem(registry: Registry) -> None:
    case = changed(QWEN, drop="output_norm.weight", add={"extra": [3], "blk.0.attn_q.weight": [3]})
    binding = inspect_binding(registry.lookup("qwen3moe"), fake_file(case))
    assert [len(x) for x in (binding.missing, binding.wrong, binding.unexpected)] == [1, 1, 1]


def test_scales_are_applied_or_ignored_as_declared(registry: Registry) -> None:
    qwen, gpt = bound_of(registry, CASES["qwen3moe-scales"]), bound_of(registry, CASES["gpt-oss-scales"])
    moe = qwen.layers[0].ffn
    assert isinstance(moe, BoundMoe)
    assert moe.experts.gate_scale is not None
    assert moe.experts.gate_scale.n_mats == N_EXPERT
    assert set(qwen.ignored) == {name for name in CASES["qwen3moe-scales"]["tensors"] if name.endswith("input_scale")}
    idle = gpt.layers[0].ffn
    assert isinstance(idle, BoundMoe)
    assert idle.experts.gate_scale is None
    assert "blk.0.ffn_gate_exps.scale" in gpt.ignored
    assert "blk.0.attn_qkv.scale" not in gpt.ignored


def test_output_scale_belongs_to_nvfp4(registry: Registry) -> None:
    case = changed(CASES["qwen3moe-output"], add={"output.scale": [1], "output.input_scale": [1]})
    bound = bound_of(registry, case, types={"output.weight": NVFP4})
    assert bound.head.scale is not None
    assert set(bound.ignored) == {"output.input_scale"}


def test_fused_tensors_are_row_ranges(registry: Registry) -> None:
    bound = bound_of(registry, CASES["qwen3moe-fused-qkv"])
    attention = bound.layers[1].attention
    assert isinstance(attention, BoundGqa)
    rows = [(x.weight.row_first, x.weight.n_rows) for x in (attention.q, attention.k, attention.v)]
    assert rows == [(0, 128), (128, 64), (192, 64)]
    q, k = attention.q.weight, attention.k.weight
    assert k.file_offset - q.file_offset == 128 * N_EMBD * 4
    moe = bound_of(registry, CASES["deepseek2-fused"]).layers[1].ffn
    assert isinstance(moe, BoundMoe)
    gate, up = moe.experts.gate, moe.experts.up
    assert gate is not None
    assert up.file_offset - gate.file_offset == N_FF_EXP * N_EMBD * 4
    assert up.file_stride_bytes == 2 * N_FF_EXP * N_EMBD * 4


def test_split_bias_of_fused_weights_needs_all_three(registry: Registry) -> None:
    biases = {f"blk.{i}.attn_{x}.bias": [n] for i in range(2) for x, n in (("q", 128), ("k", 64), ("v", 64))}
    case = CASES["qwen3moe-fused-qkv"]
    for i in range(2):
        case = changed(case, drop=f"blk.{i}.attn_qkv.bias")
    attention = bound_of(registry, changed(case, add=biases)).layers[0].attention
    assert isinstance(attention, BoundGqa)
    assert attention.v.bias is not None
    del biases["blk.0.attn_k.bias"]
    with pytest.raises(BindError, match=r"blk\.0\.attn_q\.bias \[128\] is not part"):
        bound_of(registry, changed(case, add=biases))


def test_experts_with_a_tensor_each(registry: Registry) -> None:
    case = per_expert(LLAMA)
    moe = bound_of(registry, case).layers[0].ffn
    assert isinstance(moe, BoundMoe)
    assert [part.name for part in moe.experts.down.parts] == [f"blk.0.ffn_down.{e}.weight" for e in range(N_EXPERT)]
    with pytest.raises(
        BindError, match=r"blk.0.ffn_up.3.weight has type Q4_0; the other experts of its layer have F32"
    ):
        bound_of(registry, case, types={"blk.0.ffn_up.3.weight": Q4_0})
    with pytest.raises(BindError, match=r"blk.1.ffn_gate.7.weight \[64, 96\] is missing"):
        bound_of(registry, changed(case, drop="blk.1.ffn_gate.7.weight"))


def per_expert(case: Case) -> Case:
    """The case with one tensor per expert instead of stacks."""
    tensors = {name: ne for name, ne in case["tensors"].items() if "_exps" not in name}
    shapes = {"gate": [N_EMBD, N_FF], "up": [N_EMBD, N_FF], "down": [N_FF, N_EMBD]}
    for i in range(2):
        tensors |= {f"blk.{i}.ffn_{x}.{e}.weight": ne for x, ne in shapes.items() for e in range(N_EXPERT)}
    return case | {"tensors": tensors}


def test_bias_and_scale_on_a_dense_matrix_are_refused(registry: Registry) -> None:
    with pytest.raises(BindError, match=r"blk\.0\.ffn_up has both a bias and a scale"):
        bound_of(registry, changed(DENSE, add={"blk.0.ffn_up.scale": [1]}))


def test_lite_shapes_have_no_query_latent(registry: Registry) -> None:
    """Whatever the file's key says: layer counts 26 and 27 decide."""
    lite = changed(CASES["deepseek2-lite"], **key("attention.q_lora_rank", 48))
    attention = bound_of(registry, lite).layers[0].attention
    assert isinstance(attention, BoundMla)
    assert attention.q is not None


def test_default_scores_by_shape(registry: Registry) -> None:
    for n_layer, n_vocab, scores in ((3, 272, "softmax"), (47, 154880, "sigmoid"), (47, 272, "softmax")):
        case = _deepseek2(n_layer=n_layer)
        case["tensors"]["token_embd.weight"] = case["tensors"]["output.weight"] = [N_EMBD, n_vocab]
        file = fake_file(case)
        file.metadata["tokenizer.ggml.tokens"] = ["x"] * n_vocab
        moe = bind(registry.lookup("deepseek2"), file).layers[-1].ffn
        assert isinstance(moe, BoundMoe)
        assert moe.router.scores == scores


def test_expert_width_has_a_default(registry: Registry) -> None:
    case = changed(_qwen3moe(), feed_forward_length=N_FF_EXP * 3, expert_feed_forward_length=None)
    moe = bound_of(registry, case).layers[0].ffn
    assert isinstance(moe, BoundMoe)
    assert moe.experts.width == N_FF_EXP
    with pytest.raises(BindError, match=r"its default n_ff / n_expert_used is not a whole number \(97 / 3\)"):
        bound_of(registry, changed(case, feed_forward_length=97))


def test_zeros_of_saved_fixtures_mean_missing(registry: Registry) -> None:
    zeros: dict[str, Any] = {"expert_gating_func": 0, "expert_weights_scale": 0.0, "rope.scaling.factor": 0.0}
    zeros |= {"rope.scaling.yarn_beta_fast": -1.0, "expert_group_count": 0, "expert_group_used_count": 0}
    moe = bound_of(registry, changed(_deepseek2(), **zeros)).layers[-1].ffn
    assert isinstance(moe, BoundMoe)
    assert (moe.router.scores, moe.router.scale, moe.router.n_group) == ("softmax", 1.0, 0)


def test_per_layer_arrays_of_equal_values(registry: Registry) -> None:
    arrays = {"expert_used_count": [3] * 2, "attention.head_count": [4] * 2, "feed_forward_length": [N_FF] * 2}
    assert bound_of(registry, changed(QWEN, **arrays)).layers == bound_of(registry, QWEN).layers


def test_leading_dense_layers_take_their_own_width(registry: Registry) -> None:
    bound = bound_of(registry, changed(DEEPSEEK, feed_forward_length=[N_FF, 7, 9]))
    assert bound.layers == bound_of(registry, DEEPSEEK).layers


@pytest.mark.parametrize(("pattern", "windows"), [(None, "1010"), (2, "1010"), (3, "1101"), (0, "1111"), (1, "0000")])
def test_window_period(registry: Registry, pattern: int | None, windows: str) -> None:
    bound = bound_of(registry, changed(GPT, **key("attention.sliding_window_pattern", pattern)))
    found = ["1" if layer.attention.window else "0" for layer in bound.layers if isinstance(layer.attention, BoundGqa)]
    assert "".join(found) == windows


def test_window_period_dense_first(registry: Registry) -> None:
    bound = bound_of(registry, LAYER_CASES["cohere2moe"])
    found = [layer.attention.window for layer in bound.layers if isinstance(layer.attention, BoundGqa)]
    assert found == [0, 20, 20, 20, 0]


def test_next_token_blocks_are_ignored_by_name(registry: Registry) -> None:
    bound = bound_of(registry, CASES["deepseek2-nextn"])
    assert bound.n_layer == 3
    assert {name.split(".")[1] for name in bound.ignored} == {"3"}
    assert "blk.3.attn_norm.weight" in bound.ignored


def test_longrope_needs_both_lists(registry: Registry) -> None:
    case = _longrope(n_ctx=512, original=128)
    with pytest.raises(BindError, match=r"rope_factors_short\.weight"):
        bound_of(registry, changed(case, drop="rope_factors_short.weight"))


def test_legacy_mla_is_multi_head(registry: Registry) -> None:
    case = CASES["deepseek2-legacy"]
    attention = bound_of(registry, case).layers[0].attention
    assert isinstance(attention, BoundMla)
    assert attention.kv_b is not None
    assert attention.kv_rank == KV_RANK
    with pytest.raises(BindError, match=r"head_count_kv is 1; accepted: head_count \(3\)"):
        bound_of(registry, changed(case, **key("attention.head_count_kv", 1)))


def test_yarn_with_log_multiplier_moves_into_the_scale(registry: Registry) -> None:
    attention = bound_of(registry, DEEPSEEK).layers[0].attention
    assert isinstance(attention, BoundMla)
    assert attention.rope.magnitude == 1.0
    plain = bound_of(registry, _deepseek2(**V3_ROUTING)).layers[0].attention
    assert isinstance(plain, BoundMla)
    assert attention.scale / plain.scale == pytest.approx((1 + 0.1 * 0.707 * 2.0794415) ** 2, rel=1e-6)


def test_unread_keys_are_reported(registry: Registry) -> None:
    bound = bound_of(registry, changed(QWEN, **key("attn_logit_softcapping", 50.0)))
    assert "attn_logit_softcapping" in bound.unread_keys
    assert "block_count" not in bound.unread_keys


def test_the_ends_of_yarns_range_are_the_architectures(registry: Registry) -> None:
    other = bound_of(registry, changed(DEEPSEEK, **key("rope.scaling.yarn_beta_fast", 1.0)))
    assert "rope.scaling.yarn_beta_fast" in other.unread_keys
    assert other.layers == bound_of(registry, DEEPSEEK).layers


ANY_VALUE = st.one_of(
    st.integers(0, 2**32 - 1),
    st.integers(0, 70),
    st.floats(width=32),
    st.booleans(),
    st.sampled_from(["", "yarn", "linear", "none", "longrope"]),
    st.lists(st.integers(0, 100), min_size=1, max_size=4),
)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.sampled_from(sorted(CASES)), st.data())
def test_any_value_of_any_key_binds_or_is_refused(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    names = st.sampled_from(sorted(case["keys"]))
    keys = data.draw(st.dictionaries(names, ANY_VALUE, min_size=1, max_size=2))
    arch = Registry(shipped_sources()).lookup(case["arch"])
    try:
        table = plan(bind(arch, fake_file(changed(case, **keys))), n_batch=4, n_outputs_max=1)
    except BindError:
        return
    assert all(math.isfinite(f) for f in table.freqs)
