"""Row ops through the public ABI: values against numpy float64, and the same bits over tiers, threads, chunks, neighbours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import ref_ops as ref
from plan_kit import Plan, Rows, f32_matrix, same_everywhere

N = 19


def table(width: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((N, width)).astype(np.float32)


def rows_of(plan: Plan, width: int) -> Any:
    """Run all tokens in every way; [N, width]."""
    return same_everywhere(plan, list(range(N)))[:, :width].astype(np.float64)


def test_embed_scales_rows(abi: Any, abi_ffi: Any) -> None:
    plan = Plan(abi_ffi, abi)
    x = table(48)
    plan.n_vocab = 64
    out = plan.buffer(48, pad=5)
    plan.op(
        "EMBED", [], [out], [plan.matrix(f32_matrix(np.vstack([x, np.zeros((64 - N, 48), np.float32)])))], scale=2.5
    )
    plan.result(out)
    np.testing.assert_array_equal(rows_of(plan, 48), x * np.float32(2.5))


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("per_vec", [0, 1])
def test_norm_of_strided_heads(abi: Any, abi_ffi: Any, kind: int, per_vec: int) -> None:
    """3 heads of 20 values, 24 apart from 4 on; results 22 apart from 1 on."""
    plan, x = Plan(abi_ffi, abi), table(80)
    rng = np.random.default_rng(1)
    gain = rng.standard_normal((3, 20) if per_vec else (1, 20)).astype(np.float32)
    bias = rng.standard_normal(gain.shape).astype(np.float32)
    inputs, out = plan.inputs(x, 80, pad=3), plan.buffer(70)
    strides = {"in_stride": 24, "in_offset": 4, "out_stride": 22, "out_offset": 1}
    plan.op("ADD", [plan.view(inputs, 0, 70)], [out], width=70, a=0)
    weights = [plan.vector(gain.ravel()), plan.vector(bias.ravel())]
    plan.op("NORM", [inputs], [out], weights, kind=kind, n_vec=3, width=20, gain_per_vec=per_vec, eps=1e-3, **strides)
    plan.result(out)
    got = rows_of(plan, 70)
    heads = np.stack([x[:, 4 + 24 * h : 24 + 24 * h] for h in range(3)], 1).astype(np.float64)
    want = [ref.rms_norm, ref.layer_norm, ref.l2_norm][kind](heads, 1e-3) * gain + bias
    for h in range(3):
        np.testing.assert_allclose(got[:, 1 + 22 * h : 21 + 22 * h], want[:, h], rtol=2e-6, atol=2e-6)
    assert not got[:, [0, 21, 43, 65, 69]].any()  # between the heads nothing is written


def test_norm_without_weights_in_place(abi: Any, abi_ffi: Any) -> None:
    plan, x = Plan(abi_ffi, abi), table(33)
    inputs = plan.inputs(x, 33)
    plan.op("NORM", [inputs], [inputs], kind=0, n_vec=1, width=33, in_stride=33, out_stride=33, eps=1e-6)
    plan.result(inputs)
    np.testing.assert_allclose(rows_of(plan, 33), ref.rms_norm(x.astype(np.float64), 1e-6), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("style", [0, 1])
@pytest.mark.parametrize("with_factors", [False, True])
def test_rope_rotates_part_of_each_head(abi: Any, abi_ffi: Any, style: int, with_factors: bool) -> None:
    """Two tables in one plan; 2 heads of 20 values from 3 on, of which 16 or 8 rotate; far positions too."""
    plan, x = Plan(abi_ffi, abi), table(44)
    inputs = plan.inputs(x, 44)
    freqs = [10000.0 ** (-p / 8) for p in range(8)]
    factors = np.linspace(1, 9, 8).astype(np.float32)
    plan.freqs = [*freqs, 0.5, 0.25, 0.125, 1e-5]
    tensor = plan.vector(factors) if with_factors else -1
    plan.ropes.append({"style": 1 - style, "n_rot": 8, "freq_first": 8, "factors": -1, "magnitude": 1.0})
    plan.ropes.append({"style": style, "n_rot": 16, "freq_first": 0, "factors": tensor, "magnitude": 1.25})
    plan.op("ROPE", [inputs], [inputs], table=1, n_head=2, stride=20, offset=3)
    plan.op("ROPE", [inputs], [inputs], table=0, n_head=1, stride=0, offset=31)
    plan.result(inputs)
    got = rows_of(plan, 44)

    def want(first: int) -> Any:
        pos = np.arange(first, first + N)
        out = x.astype(np.float64)
        scaled = np.asarray(freqs) / (factors.astype(np.float64) if with_factors else 1)
        heads = np.stack([out[:, 3:23], out[:, 23:43]], 1)
        rotated = ref.rope(heads, pos, scaled, style, 1.25)
        out[:, 3:23], out[:, 23:43] = rotated[:, 0], rotated[:, 1]
        out[:, 31:39] = ref.rope(out[:, None, 31:39], pos, plan.freqs[8:], 1 - style, 1.0)[:, 0]
        return out

    np.testing.assert_allclose(got, want(0), rtol=1e-6, atol=1e-6)
    with plan.model() as model, plan.engine(model, n_kv_blocks=20, max_seqs=1) as engine:
        far = engine.step(Rows(list(range(N)), 1200, tuple(range(20))))[:, :44]
        np.testing.assert_allclose(far, want(1200), rtol=1e-6, atol=2e-6)


def test_copy_repeats_and_places_heads(abi: Any, abi_ffi: Any) -> None:
    plan, x = Plan(abi_ffi, abi), table(30)
    inputs, out = plan.inputs(x, 40, pad=7), plan.buffer(36, pad=2)
    plan.op("ADD", [inputs], [plan.view(out, 0, 30)], width=30, a=0)
    plan.op("ADD", [plan.view(inputs, 0, 6)], [plan.view(out, 30, 6)], width=6, a=0)
    plan.op("COPY", [inputs], [out], n_head=3, width=5, in_stride=0, in_offset=4, out_stride=9, out_offset=2)
    plan.op("COPY", [inputs], [out], n_head=2, width=3, in_stride=10, in_offset=11, out_stride=4, out_offset=29)
    plan.result(out)
    want = np.zeros((N, 36))
    for h in range(3):
        want[:, 2 + 9 * h : 7 + 9 * h] = x[:, 4:9]
    want[:, 29:32], want[:, 33:36] = x[:, 11:14], x[:, 21:24]
    np.testing.assert_array_equal(rows_of(plan, 36), want)


@pytest.mark.parametrize("kind", range(10))
def test_glu(abi: Any, abi_ffi: Any, kind: int) -> None:
    plan, x = Plan(abi_ffi, abi), table(74) * 4
    p0, p1 = (1.702, 7.0) if kind == 3 else (2.5, 1.5)
    inputs, out = plan.inputs(x, 74), plan.buffer(37)
    gate, up = plan.view(inputs, 0, 37), plan.view(inputs, 37, 37)
    plan.op("GLU", [-1 if kind >= 7 else gate, up], [out], kind=kind, width=37, p0=p0, p1=p1)
    plan.result(out)
    want = ref.glu(kind, x[:, :37].astype(np.float64), x[:, 37:].astype(np.float64), p0, p1)
    np.testing.assert_allclose(rows_of(plan, 37), want, rtol=3e-6, atol=1e-6)


def test_glu_names_have_the_numbers_of_the_reference(abi: Any) -> None:
    names = "SILU GELU RELU SWIGLU_OAI SILU_CLAMP_EARLY SILU_CLAMP_LATE SITU UP_SILU UP_RELU_SQR UP_GELU"
    assert [getattr(abi, f"STRATA_GLU_{name}") for name in names.split()] == list(range(10))


@pytest.mark.parametrize(("a", "b"), [(1, 1), (0.5, -3), (2, None)])
def test_add(abi: Any, abi_ffi: Any, a: float, b: float | None) -> None:
    plan, x = Plan(abi_ffi, abi), table(60)
    inputs, out = plan.inputs(x, 60, pad=1), plan.buffer(30, pad=9)
    left, right = plan.view(inputs, 0, 30), plan.view(inputs, 30, 30)
    plan.op("ADD", [left] if b is None else [left, right], [out], width=30, a=a, b=b or 0)
    plan.result(out)
    want = np.float32(a) * x[:, :30]
    want = want if b is None else want + np.float32(b) * x[:, 30:]
    np.testing.assert_array_equal(rows_of(plan, 30), want)


@pytest.mark.parametrize("act", [0, 1, 2, 3])
@pytest.mark.parametrize("n_vec", [0, 5, 1])
def test_mul(abi: Any, abi_ffi: Any, act: int, n_vec: int) -> None:
    plan, x = Plan(abi_ffi, abi), table(60)
    n_factor = n_vec or 30
    inputs, out = plan.inputs(x, 60), plan.buffer(30)
    operands = [plan.view(inputs, 0, 30), plan.view(inputs, 30, n_factor)]
    plan.op("MUL", operands, [out], width=30, act=act, n_vec=n_vec)
    plan.result(out)
    y = x[:, 30 : 30 + n_factor].astype(np.float64)
    y = [y, ref.sigmoid(y), y * ref.sigmoid(y), np.logaddexp(0, y)][act]
    want = x[:, :30] * np.repeat(y, 30 // n_factor, axis=1)
    np.testing.assert_allclose(rows_of(plan, 30), want, rtol=1e-6, atol=1e-7)


def test_clamp(abi: Any, abi_ffi: Any) -> None:
    plan, x = Plan(abi_ffi, abi), table(50) * 3
    inputs = plan.inputs(x, 50)
    part = plan.view(inputs, 10, 20)
    plan.op("CLAMP", [part], [part], width=20, limit=1.5)
    plan.result(inputs)
    want = x.copy()
    want[:, 10:30] = np.clip(want[:, 10:30], -1.5, 1.5)
    np.testing.assert_array_equal(rows_of(plan, 50), want)


def test_scale_by_a_weight(abi: Any, abi_ffi: Any) -> None:
    plan, x = Plan(abi_ffi, abi), table(50)
    inputs = plan.inputs(x, 50)
    part = plan.view(inputs, 10, 20)
    plan.op("SCALE", [part], [part], [plan.vector(np.array([-1.7], np.float32))], width=20)
    plan.result(inputs)
    want = x.copy()
    want[:, 10:30] *= np.float32(-1.7)
    np.testing.assert_array_equal(rows_of(plan, 50), want)


def test_temperature_grows_with_the_position(abi: Any, abi_ffi: Any) -> None:
    plan, x = Plan(abi_ffi, abi), table(24)
    inputs = plan.inputs(x, 24)
    plan.op("TEMPERATURE", [inputs], [inputs], width=24, length=4, offset=1, scale=0.1)
    plan.result(inputs)
    factor = np.array([1 + 0.1 * math.log(1 + (pos + 1) // 4) for pos in range(N)])
    np.testing.assert_allclose(rows_of(plan, 24), x * factor[:, None], rtol=2e-7)
