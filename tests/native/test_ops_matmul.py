"""LINEAR, HEAD_LINEAR and HEAD through the public ABI: values, views, scales and biases, bits in every way of running."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Quant
from matmul_kit import random_rows
from plan_kit import Matrix, Plan, f32_matrix, same_everywhere

N = 17
# Rounding of activations to int8 against the exact product, as a part of the largest result.
TOLERANCE = {
    Quant.F32: 2e-6,
    Quant.F16: 2e-6,
    Quant.Q8_0: 0.02,
    Quant.Q4_K: 0.02,
    Quant.Q6_K: 0.02,
    Quant.MXFP4: 0.02,
    Quant.Q5_0: 0.03,
}


def matrix(quant: Quant, n_rows: int, n_cols: int, seed: int = 3, n_mats: int = 1) -> Matrix:
    rng = np.random.default_rng(seed)
    if quant == Quant.F32:
        return f32_matrix(rng.standard_normal((n_mats, n_rows, n_cols)))
    if quant == Quant.F16:
        values = rng.standard_normal((n_mats, n_rows, n_cols)).astype(np.float16)
        return Matrix(quant, values.view(np.uint8))
    return Matrix(quant, random_rows(rng, quant, n_mats * n_rows, n_cols).reshape(n_mats, n_rows, -1))


def close(got: Any, want: Any, quant: Quant) -> None:
    assert float(np.abs(got - want).max()) <= TOLERANCE[quant] * float(np.abs(want).max())


def table(width: int) -> Any:
    return np.random.default_rng(7).standard_normal((N, width)).astype(np.float32)


MIXES = {
    "one": [(Quant.Q4_K, 40, False, False)],
    "attention": [(Quant.Q4_K, 64, True, False), (Quant.Q4_K, 24, True, False), (Quant.Q6_K, 24, True, False)],
    "three forms": [
        (Quant.F32, 33, True, True),
        (Quant.Q8_0, 16, False, True),
        (Quant.Q6_K, 50, True, False),
        (Quant.MXFP4, 1, True, True),
    ],
    "generic": [(Quant.F16, 20, False, False), (Quant.Q5_0, 19, True, True)],
}


@pytest.mark.parametrize("mix", MIXES)
def test_linear_shares_one_input(abi: Any, abi_ffi: Any, mix: str) -> None:
    """Up to four matrices of different types and heights, each result next to the others in one buffer."""
    plan, x = Plan(abi_ffi, abi), table(256)
    parts = MIXES[mix]
    inputs = plan.inputs(x, 256, pad=3)
    total = sum(rows for _, rows, _, _ in parts)
    out = plan.buffer(total, pad=1)
    rng = np.random.default_rng(2)
    weights, biases, scales, outs, want, at = [], [], [], [], [], 0
    for k, (quant, n_rows, with_bias, with_scale) in enumerate(parts):
        m = matrix(quant, n_rows, 256, seed=k)
        bias = rng.standard_normal(n_rows).astype(np.float32)
        weights.append(plan.matrix(m))
        biases.append(plan.vector(bias) if with_bias else -1)
        scales.append(plan.vector([0.75]) if with_scale else -1)
        outs.append(plan.view(out, at, n_rows))
        product = x.astype(np.float64) @ m.values[0].T * (0.75 if with_scale else 1)
        want.append((quant, at, product + (bias if with_bias else 0)))
        at += n_rows
    absent = [-1] * (4 - len(parts))
    plan.op("LINEAR", [inputs], outs, [*weights, *absent, *biases, *absent, *scales, *absent], n=len(parts))
    plan.result(out)
    got = same_everywhere(plan, list(range(N)))
    for quant, first, product in want:
        close(got[:, first : first + product.shape[1]], product, quant)


def test_linear_of_a_tall_matrix_is_cut_into_many_tasks(abi: Any, abi_ffi: Any) -> None:
    """600 rows of 2,048 F32 values: tasks of a few groups of rows each, the last one ragged."""
    plan = Plan(abi_ffi, abi, n_batch=40)
    rng = np.random.default_rng(5)
    x = rng.standard_normal((N, 2048)).astype(np.float32)
    m = f32_matrix(rng.standard_normal((603, 2048)))
    inputs, out = plan.inputs(x, 603), plan.buffer(603)
    plan.op("LINEAR", [inputs], [out], [plan.matrix(m)], n=1)
    plan.result(out)
    close(same_everywhere(plan, list(range(N)))[:, :603], x.astype(np.float64) @ m.values[0].T, Quant.F32)


@pytest.mark.parametrize("quant", [Quant.F32, Quant.Q8_0, Quant.Q4_K])
def test_head_linear_has_a_matrix_for_each_head(abi: Any, abi_ffi: Any, quant: Quant) -> None:
    """3 heads of 256 inputs, 260 apart from 4 on; results of 24, 30 apart from 2 on."""
    plan, x = Plan(abi_ffi, abi), table(800)
    m = matrix(quant, 24, 256, n_mats=3)
    inputs, out = plan.inputs(x, 90), plan.buffer(90)
    plan.op("ADD", [plan.view(inputs, 0, 90)], [out], width=90, a=0)
    strides = {"in_stride": 260, "in_offset": 4, "out_stride": 30, "out_offset": 2}
    plan.op("HEAD_LINEAR", [inputs], [out], [plan.matrix(m)], n_head=3, **strides)
    plan.result(out)
    got = same_everywhere(plan, list(range(N)))
    for h in range(3):
        want = x[:, 4 + 260 * h : 260 + 260 * h].astype(np.float64) @ m.values[h].T
        close(got[:, 2 + 30 * h : 26 + 30 * h], want, quant)


@pytest.mark.parametrize(("scale", "bias", "softcap"), [(1, False, 0), (0.25, True, 0), (0.5, True, 8), (1, False, 2)])
def test_head_scales_adds_and_caps(abi: Any, abi_ffi: Any, scale: float, bias: bool, softcap: float) -> None:
    plan, x = Plan(abi_ffi, abi), table(256)
    m = matrix(Quant.F32, 77, 256)
    b = np.random.default_rng(1).standard_normal(77).astype(np.float32)
    inputs = plan.inputs(x, 77)
    gathered, logits = plan.buffer(256, 1), plan.buffer(77, 1, pad=3)
    plan.op("GATHER", [inputs], [gathered], width=256)
    weights = [plan.matrix(m), plan.vector(b) if bias else -1]
    plan.op("HEAD", [gathered], [logits], weights, scale=scale, softcap=softcap)
    want = x.astype(np.float64) @ m.values[0].T * scale + (b if bias else 0)
    want = softcap * np.tanh(want / softcap) if softcap else want
    np.testing.assert_allclose(same_everywhere(plan, list(range(N))), want, rtol=2e-6, atol=5e-5)
