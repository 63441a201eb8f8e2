"""Ops with a state through the public ABI: values against numpy float64, and the same bits over tiers, threads, chunks,
neighbours; what becomes of states when steps fail, sequences start anew, and slots are copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import ref_ops as ref
import ref_state
from plan_kit import Plan, Rows, same_everywhere

N = 19


def table(width: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((N, width)).astype(np.float32)


def rows_of(plan: Plan, width: int) -> Any:
    """Run all tokens in every way; [N, width]."""
    return same_everywhere(plan, list(range(N)))[:, :width].astype(np.float64)


def conv_plan(plan: Plan, width: int, taps: int, bias: bool = False, **params: Any) -> tuple[Any, Any, Any]:
    """Inputs, CONV, result; the table, the weight [width, taps] and the bias."""
    x, weight, offset = table(width), table(width * taps, 1)[0].reshape(width, taps), table(width, 2)[0]
    inputs = plan.inputs(x, width + 8, pad=3)
    out = plan.buffer(width + params.get("out_offset", 0))
    if params.get("out_offset"):
        plan.op("ADD", [inputs], [out], width=width, a=0.0)
    weights = [plan.vector(weight.ravel()), plan.vector(offset)] if bias else [plan.vector(weight.ravel())]
    state = plan.state((taps - 1) * width)
    plan.op("CONV", [inputs], [out], weights, state=state, width=width, taps=taps, **params)
    plan.result(out)
    return x.astype(np.float64), weight.astype(np.float64), offset.astype(np.float64)


@pytest.mark.parametrize("taps", [2, 4])
@pytest.mark.parametrize("act", [0, 2])
def test_conv(abi: Any, abi_ffi: Any, taps: int, act: int) -> None:
    """More channels than a task has; with bias where there is an activation."""
    plan = Plan(abi_ffi, abi)
    x, weight, bias = conv_plan(plan, 300, taps, bias=act == 2, act=act)
    want = ref_state.conv(x, weight, bias if act == 2 else None)
    want = want * ref.sigmoid(want) if act == 2 else want
    np.testing.assert_allclose(rows_of(plan, 300), want, rtol=3e-6, atol=3e-6)


def test_conv_writes_where_it_is_told(abi: Any, abi_ffi: Any) -> None:
    plan = Plan(abi_ffi, abi)
    x, weight, _ = conv_plan(plan, 20, 3, out_offset=8)
    got = rows_of(plan, 28)
    np.testing.assert_allclose(got[:, 8:], ref_state.conv(x, weight), rtol=3e-6, atol=3e-6)


def test_conv_adds_products_in_order_each_rounded(abi: Any, abi_ffi: Any) -> None:
    """Taps 1, 2^-24 and -1 on ones: (1 + 2^-24) rounds to 1, then 1 - 1 = 0; any other order or an fma gives 2^-24."""
    plan = Plan(abi_ffi, abi)
    inputs, out = plan.inputs(np.ones((N, 1), np.float32), 4), plan.buffer(1)
    weight = plan.vector(np.array([1.0, 2.0**-24, -1.0], np.float32))
    plan.op("CONV", [inputs], [out], [weight], state=plan.state(2), width=1, taps=3)
    plan.result(out)
    got = rows_of(plan, 1)[:, 0]
    assert got[:2].tolist() == [-1.0, 2.0**-24 - 1.0]
    assert not got[2:].any()


def test_states_follow_their_sequence_or_are_refused(abi: Any, abi_ffi: Any) -> None:
    plan = Plan(abi_ffi, abi)
    conv_plan(plan, 4, 3)
    tokens = list(range(N))
    with plan.model() as model, plan.engine(model) as engine:
        whole = engine.step(Rows(tokens))
        with pytest.raises(
            RuntimeError, match=r"-7: .*pos\[0\] is 5, but the states of slot 0 have reached position 19"
        ):
            engine.step(Rows(tokens[5:], 5))
        first = engine.step(Rows(tokens[:5]))  # position 0 starts anew
        plan.check(abi.strata_engine_state_copy(engine.handle, 0, 3))
        rest = engine.step(Rows(tokens[5:], 5))
        copied = engine.step(Rows(tokens[5:], 5, (3, 2, 1, 0)))
        assert np.concatenate([first, rest]).tobytes() == whole.tobytes()
        assert copied.tobytes() == rest.tobytes()
        with pytest.raises(RuntimeError, match="slot 9 have reached position -1"):
            engine.step(Rows(tokens[5:], 5, (9, 1, 2, 3)))


def test_a_failed_step_leaves_no_state_behind(abi: Any, abi_ffi: Any) -> None:
    """NaN in poison mode ends a step behind the CONV: its slot serves position 0 only."""
    plan = Plan(abi_ffi, abi)
    x = np.ones((N, 4), np.float32)
    x[7] = np.nan
    inputs, out = plan.inputs(x, 8), plan.buffer(4)
    plan.op("CONV", [inputs], [out], [plan.vector(np.ones(8))], state=plan.state(4), width=4, taps=2)
    plan.result(out)
    with plan.model() as model, plan.engine(model) as engine:
        engine.step(Rows([0, 1, 2]))
        with pytest.raises(RuntimeError, match="NaN"):
            engine.step(Rows([7], 3))
        with pytest.raises(RuntimeError, match="have reached position -1"):
            engine.step(Rows([4], 4))
        assert np.isfinite(engine.step(Rows([0, 1]))).all()


def test_slots_are_checked(abi: Any, abi_ffi: Any) -> None:
    plan = Plan(abi_ffi, abi)
    conv_plan(plan, 4, 3)
    with plan.model() as model, plan.engine(model, n_state_slots=2) as engine:
        with pytest.raises(RuntimeError, match=r"state_slot\[0\] is 4; accepted: 0 to 1"):
            engine.step(Rows([1], 0, (4,)))
        plan.check(abi.strata_engine_state_copy(engine.handle, 1, 0))
        with pytest.raises(RuntimeError, match="to is 2; accepted: 0 to 1"):
            plan.check(abi.strata_engine_state_copy(engine.handle, 0, 2))


def delta_plan(plan: Plan, shape: tuple[int, int, int, int], **params: Any) -> Any:
    """Inputs cut into qkv, a and b; keys of length about 1, so that S stays bounded. Returns what numpy says."""
    n_k, n_v, dk, dv = shape
    n_decay, bound = n_v * dk if params.get("per_row") else n_v, params.get("bound", 0.0)
    width = 2 * n_k * dk + n_v * dv
    x = table(width + n_decay + n_v)
    x[:, : 2 * n_k * dk] /= np.float32(np.sqrt(dk))
    rng = np.random.default_rng(3)
    a, bias = -np.exp(rng.standard_normal(n_v)).astype(np.float32), rng.standard_normal(n_decay).astype(np.float32)
    inputs, out = plan.inputs(x, n_v * dv, pad=5), plan.buffer(n_v * dv)
    ins = [plan.view(inputs, 0, width), plan.view(inputs, width, n_decay), plan.view(inputs, width + n_decay, n_v)]
    numbers = {"state": plan.state(n_v * dk * dv), "n_k": n_k, "n_v": n_v, "head_k": dk, "head_v": dv} | params
    plan.op("DELTA", ins, [out], [plan.vector(a), plan.vector(bias)], scale=1 / np.sqrt(dk), **numbers)
    plan.result(out)
    wide = x.astype(np.float64)
    cuts = wide[:, :width], wide[:, width : width + n_decay], wide[:, width + n_decay :]
    weights = a.astype(np.float64), bias.astype(np.float64)
    return ref_state.delta(
        *cuts, weights, shape, tiled=bool(params.get("tiled")), bound=bound, sign=-1 if params.get("negated") else 1
    )


@pytest.mark.parametrize("tiled", [0, 1])
@pytest.mark.parametrize("per_row", [0, 1])
def test_delta(abi: Any, abi_ffi: Any, tiled: int, per_row: int) -> None:
    plan = Plan(abi_ffi, abi)
    want = delta_plan(plan, (2, 4, 24, 20), tiled=tiled, per_row=per_row)
    np.testing.assert_allclose(rows_of(plan, 80), want, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("per_row", [0, 1])
@pytest.mark.parametrize("negated", [0, 1])
def test_delta_with_a_bound(abi: Any, abi_ffi: Any, per_row: int, negated: int) -> None:
    plan = Plan(abi_ffi, abi)
    want = delta_plan(plan, (2, 4, 24, 20), per_row=per_row, bound=-1.5, negated=negated)
    np.testing.assert_allclose(rows_of(plan, 80), want, rtol=1e-4, atol=2e-6)


def test_delta_is_validated(abi: Any, abi_ffi: Any) -> None:
    for params, message in (
        ({"n_v": 3, "n_k": 2}, r"i\[N_V\] is 3; a multiple of N_K"),
        ({"head_v": 6}, "the op's state is 48"),
        ({"per_row": 1}, "a vector of 2; one of 8 is needed"),
        ({"negated": 1}, r"i\[NEGATED\] is 1; accepted: 0 to 0"),
        ({"bound": 2.0}, r"f\[BOUND\] is 2; -100 to 0 is needed"),
        ({"bound": -101.0}, r"f\[BOUND\] is -101; -100 to 0 is needed"),
    ):
        plan = Plan(abi_ffi, abi)
        inputs, out = plan.inputs(table(24 + 4), 32), plan.buffer(8)
        numbers = {"state": plan.state(32), "n_k": 2, "n_v": 2, "head_k": 4, "head_v": 4} | params
        ins = [plan.view(inputs, 0, 24), plan.view(inputs, 24, 2), plan.view(inputs, 26, 2)]
        vectors = [plan.vector(np.ones(numbers["n_v"])), plan.vector(np.ones(2))]
        plan.op("DELTA", ins, [out], vectors, **({"scale": 1.0} | numbers))
        plan.result(out)
        with pytest.raises(RuntimeError, match=message), plan.model():
            pass


def vectors(plan: Plan, *lengths: int) -> tuple[list[int], list[Any]]:
    """Random vectors, the first one negative as decays are: their tensors and values."""
    rng = np.random.default_rng(5)
    values = [rng.standard_normal(n).astype(np.float32) for n in lengths]
    values[0] = -np.abs(values[0]) - np.float32(0.05)
    return [plan.vector(v) for v in values], [v.astype(np.float64) for v in values]


def test_ssm_heads(abi: Any, abi_ffi: Any) -> None:
    """4 heads of 20 in 2 groups, 12 states each."""
    plan = Plan(abi_ffi, abi)
    x = table(80 + 2 * 24 + 4)
    inputs, out = plan.inputs(x, 80), plan.buffer(80)
    tensors, weights = vectors(plan, 4, 4, 4)
    numbers = {"state": plan.state(4 * 12 * 20), "n_head": 4, "head": 20, "n_group": 2, "n_state": 12}
    plan.op("SSM_HEADS", [plan.view(inputs, 0, 128), plan.view(inputs, 128, 4)], [out], tensors, **numbers)
    plan.result(out)
    wide = x.astype(np.float64)
    b, c = (wide[:, 80 + 24 * k : 104 + 24 * k].reshape(N, 2, 12) for k in (0, 1))
    want = ref_state.ssm_heads(wide[:, :80].reshape(N, 4, 20), b, c, wide[:, 128:], tuple(weights))
    np.testing.assert_allclose(rows_of(plan, 80), want, rtol=1e-4, atol=1e-5)


def test_ssm_channels(abi: Any, abi_ffi: Any) -> None:
    """More channels than a task has, 12 states each."""
    plan = Plan(abi_ffi, abi)
    x = table(2 * 70 + 2 * 12)
    inputs, out = plan.inputs(x, 70), plan.buffer(70)
    tensors, (a, d, bias) = vectors(plan, 70 * 12, 70, 70)
    ins = [plan.view(inputs, first, n) for first, n in ((0, 70), (70, 70), (140, 12), (152, 12))]
    plan.op("SSM_CHANNELS", ins, [out], tensors, state=plan.state(70 * 12), width=70, n_state=12)
    plan.result(out)
    wide = x.astype(np.float64)
    cuts = wide[:, :70], wide[:, 70:140], wide[:, 140:152], wide[:, 152:]
    want = ref_state.ssm_channels(*cuts, (a.reshape(70, 12), d, bias))
    np.testing.assert_allclose(rows_of(plan, 70), want, rtol=1e-4, atol=1e-5)


def test_lightning(abi: Any, abi_ffi: Any) -> None:
    plan, x = Plan(abi_ffi, abi), table(4 * 3 * 20)
    inputs, out = plan.inputs(x, 80), plan.buffer(80)
    plan.op("LIGHTNING", [inputs], [out], state=plan.state(4 * 400), n_head=4, head=20, slope=0.7)
    plan.result(out)
    want = ref_state.lightning(x.astype(np.float64).reshape(N, 4, 3, 20), 0.7)
    np.testing.assert_allclose(rows_of(plan, 80), want, rtol=1e-4, atol=1e-4)


def test_state_spaces_are_validated(abi: Any, abi_ffi: Any) -> None:
    cases: list[tuple[str, list[int], list[int], dict[str, Any], str]] = [
        ("SSM_HEADS", [32, 2], [2, 2, 3], {"n_head": 2, "head": 4, "n_group": 2, "n_state": 6}, "one of 2 is needed"),
        ("SSM_HEADS", [32, 2], [2, 2, 2], {"n_head": 3, "head": 4, "n_group": 2, "n_state": 6}, "multiple of N_GROUP"),
        ("SSM_HEADS", [32, 2], [2, 2, 2], {"n_head": 2, "head": 5, "n_group": 2, "n_state": 6}, "state is 60"),
        ("SSM_CHANNELS", [6, 6, 8, 8], [40, 6, 6], {"width": 6, "n_state": 8}, "one of 48 is needed"),
        ("SSM_CHANNELS", [6, 6, 8, 7], [48, 6, 6], {"width": 6, "n_state": 8}, r"in\[3\] is buffer"),
        ("LIGHTNING", [48], [], {"n_head": 3, "head": 4, "slope": -1.0}, r"f\[SLOPE\]"),
        ("LIGHTNING", [36], [], {"n_head": 2, "head": 4, "slope": 1.0}, "the op's state is 32"),
    ]
    for kind, widths, lengths, params, message in cases:
        plan = Plan(abi_ffi, abi)
        inputs, out = plan.inputs(table(sum(widths)), 64), plan.buffer(16)
        ins = [plan.view(inputs, sum(widths[:k]), width) for k, width in enumerate(widths)]
        plan.op(kind, ins, [out], [plan.vector(np.ones(n)) for n in lengths], state=plan.state(48), **params)
        plan.result(out)
        with pytest.raises(RuntimeError, match=message), plan.model():
            pass


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"state": 1}, r"i\[STATE\] is 1; accepted: 0 to 0"),
    ({"taps": 4}, "n_floats is 8, but the op's state is 12"),
    ({"taps": 1}, r"i\[TAPS\] is 1"),
    ({"act": 1}, r"i\[ACT\] is 1; accepted: NONE, SILU"),
    ({"out_offset": 3}, r"out\[0\] is buffer"),
]


@pytest.mark.parametrize(("params", "message"), REFUSED)
def test_conv_is_validated(abi: Any, abi_ffi: Any, params: dict[str, Any], message: str) -> None:
    plan = Plan(abi_ffi, abi)
    inputs, out = plan.inputs(table(4), 8), plan.buffer(4)
    numbers = {"state": 0, "width": 4, "taps": 3} | params
    plan.state(8)
    plan.op("CONV", [inputs], [out], [plan.vector(np.ones(4 * 3))], **numbers)
    plan.result(out)
    with pytest.raises(RuntimeError, match=message), plan.model():
        pass


def test_two_ops_cannot_share_a_state(abi: Any, abi_ffi: Any) -> None:
    plan = Plan(abi_ffi, abi)
    inputs, out = plan.inputs(table(4), 8), plan.buffer(4)
    plan.state(4)
    weight = plan.vector(np.ones(8))
    for _ in range(2):
        plan.op("CONV", [inputs], [out], [weight], state=0, width=4, taps=2)
    plan.result(out)
    with pytest.raises(RuntimeError, match="an earlier op updates this state"), plan.model():
        pass
