"""Row functions of cpu/vecmath.h: values against float64, bits over tiers, orders of summation from exact fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from matmul_kit import Floats, bits
from row_formats import fma32, round32
from row_kit import UNARY, Rows, rows_of, same_bits, supported_tiers

Doubles = npt.NDArray[np.float64]
LENGTHS = (1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100, 255, 256, 257, 300, 1000, 2880)


@pytest.fixture(scope="module")
def tiers(ffi: Any, native: Any) -> list[Rows]:
    return supported_tiers(ffi, native)


def silu64(x: Doubles) -> Doubles:
    return x / (1 + np.exp(-x))


def gelu64(x: Doubles) -> Doubles:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid64(x: Doubles) -> Doubles:
    return 1 / (1 + np.exp(-x))


# STRATA_GLU_* number -> (reference of gate and up in float64, p0, p1)
GLU: dict[int, tuple[Callable[[Doubles, Doubles], Doubles], float, float]] = {
    0: (lambda g, u: silu64(g) * u, 0, 0),
    1: (lambda g, u: gelu64(g) * u, 0, 0),
    2: (lambda g, u: np.maximum(g, 0) * u, 0, 0),
    3: (lambda g, u: np.minimum(g, 7) * sigmoid64(1.702 * np.minimum(g, 7)) * (np.clip(u, -7, 7) + 1), 1.702, 7),
    4: (lambda g, u: silu64(np.minimum(g, 2.5)) * np.clip(u, -2.5, 2.5), 2.5, 0),
    5: (lambda g, u: np.minimum(silu64(g), 2.5) * np.clip(u, -2.5, 2.5), 2.5, 0),
    6: (lambda g, u: 4 * np.tanh(g / 4) * sigmoid64(g) * (25 * np.tanh(u / 25)), 4, 25),
    7: (lambda _, u: silu64(u), 0, 0),
    8: (lambda _, u: np.maximum(u, 0) ** 2, 0, 0),
    9: (lambda _, u: gelu64(u), 0, 0),
}


@pytest.mark.parametrize("kind", GLU)
def test_glu(tiers: list[Rows], kind: int) -> None:
    reference, p0, p1 = GLU[kind]
    for n in LENGTHS:
        gate, up = rows_of(n, n)
        got = same_bits(tiers, lambda t, g=gate, u=up: t.glu(kind, g, u, p0, p1))
        want = reference(gate.astype(np.float64), up.astype(np.float64))
        assert np.allclose(got, want, rtol=2e-6, atol=1e-6)


def test_situ_without_a_linear_limit(tiers: list[Rows]) -> None:
    gate, up = rows_of(1, 100)
    got = same_bits(tiers, lambda t: t.glu(6, gate, up, 4, 0))
    g = gate.astype(np.float64)
    assert np.allclose(got, 4 * np.tanh(g / 4) * sigmoid64(g) * up, rtol=2e-6, atol=1e-6)


def test_unknown_glu_is_poison(tiers: list[Rows]) -> None:
    gate, up = rows_of(1, 20)
    assert all(np.isnan(t.glu(99, gate, up, 0, 0)).all() for t in tiers)


@pytest.mark.parametrize("name", UNARY)
def test_unary(ffi: Any, native: Any, tiers: list[Rows], name: str) -> None:
    """Every tier has the bits of the one-value function, special values included."""
    rng = np.random.default_rng(2)
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        1e-38,
        88.8,
        -104.5,
        3e38,
        -3e38,
        20.0,
        20.5,
        1.0,
        -1.0,
    ]
    random_bits = rng.integers(0, 2**32, 20_000, np.uint32).view(np.float32)
    x = np.concatenate([np.array(special, np.float32), random_bits, rng.normal(0, 8, 20_001).astype(np.float32)])
    got = same_bits(tiers, lambda t: t.unary(name, x))
    if name == "relu":
        want = np.where(x < 0, np.float32(0), x)
    else:
        want = np.empty_like(x)
        number = getattr(native, f"STRATA_TEST_{name.upper()}")
        native.strata_test_math(number, ffi.from_buffer("float[]", x), ffi.from_buffer("float[]", want), x.size)
    number = ~np.isnan(want)
    assert np.array_equal(bits(got)[number], bits(want)[number])
    assert np.isnan(got[~number]).all()
    for n in LENGTHS:
        part = same_bits(tiers, lambda t, n=n: t.unary(name, x[:n].copy()))
        assert np.array_equal(bits(part)[number[:n]], bits(want[:n])[number[:n]])


def test_elementwise(tiers: list[Rows]) -> None:
    f = np.float32
    a, b = f(1.7), f(-0.3)
    for n in LENGTHS:
        x, y = rows_of(n, n)
        wants = {
            "ADD": x + y,
            "MUL": x * y,
            "SCALE": x * a,
            "ADD_SCALED": a * x + b * y,
            "CLAMP": np.clip(x, -a, a),
        }
        for name, want in wants.items():
            got = same_bits(tiers, lambda t, k=name, u=x, v=y: t.binary(k, u, v, float(a), float(b)))
            assert np.array_equal(bits(got), bits(want)), name
        got = same_bits(tiers, lambda t, u=x, v=y: t.binary("SOFTCAP", u, v, 30.0))
        assert np.allclose(got, 30 * np.tanh(x.astype(np.float64) / 30), rtol=1e-6, atol=1e-7)
        got = same_bits(tiers, lambda t, u=x, v=y: t.binary("AXPY", u, v, float(a), out=v.copy()))
        want = [
            float(fma32(Fraction(float(a)), Fraction(float(u)), Fraction(float(v)))) for u, v in zip(x, y, strict=True)
        ]
        assert np.array_equal(got, np.array(want, np.float32))


def tree_sum(x: Floats, n_lanes: int, square: bool) -> float:
    """Return the documented sum: strided lanes, then halves are added down to one."""
    lanes = [Fraction(0)] * n_lanes
    for i, value in enumerate(x):
        v = Fraction(float(value))
        lanes[i % n_lanes] = fma32(v, v, lanes[i % n_lanes]) if square else round32(lanes[i % n_lanes] + v)
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [round32(lanes[i] + lanes[i + half]) for i in range(half)]
    return float(lanes[0])


def test_sums(tiers: list[Rows]) -> None:
    for n in LENGTHS:
        x, y = rows_of(n + 1, n)
        total = same_bits(tiers, lambda t, u=x: t.reduce("SUM", u))
        squares = same_bits(tiers, lambda t, u=x: t.reduce("SUM_SQUARES", u))
        dot = same_bits(tiers, lambda t, u=x, v=y: t.reduce("DOT", u, v))
        x64, y64 = x.astype(np.float64), y.astype(np.float64)
        assert abs(total - x64.sum()) <= 2e-6 * np.abs(x64).sum()
        assert squares == pytest.approx(float(x64 @ x64), rel=2e-6)
        assert abs(dot - x64 @ y64) <= 2e-5 * np.abs(x64 * y64).sum()
        if n <= 300:
            assert total == tree_sum(x, 256, square=False)
            assert squares == tree_sum(x, 256, square=True)
            assert same_bits(tiers, lambda t, u=x: t.reduce("DOT", u, u)) == tree_sum(x, 16, square=True)


def test_max(tiers: list[Rows]) -> None:
    for n in LENGTHS:
        (x,) = rows_of(n + 2, n, 1)
        assert same_bits(tiers, lambda t, u=x: t.reduce("MAX", u)) == x.max()
        for place in {0, n // 2, n - 1}:
            poisoned = x.copy()
            poisoned[place] = np.nan
            assert np.isnan(same_bits(tiers, lambda t, u=poisoned: t.reduce("MAX", u)))
    zeros = np.array([-0.0, 0.0, -0.0] * 9, np.float32)
    assert bits(np.atleast_1d(same_bits(tiers, lambda t: t.reduce("MAX", zeros))))[0] == 0
    assert same_bits(tiers, lambda t: t.reduce("MAX", np.full(5, -np.inf, np.float32))) == -np.inf


def test_exp_sub(tiers: list[Rows]) -> None:
    for n in LENGTHS:
        (x,) = rows_of(n + 3, n, 1)
        out, total = same_bits(tiers, lambda t, u=x: t.exp_sub(u, float(u.max())))
        assert np.allclose(out, np.exp(x.astype(np.float64) - x.max()), rtol=1e-6)
        assert total == tree_sum(out, 16, square=False) if n <= 300 else total == pytest.approx(out.sum(), rel=1e-5)


def test_masked_positions_change_no_bit(tiers: list[Rows]) -> None:
    """A tile with masked tail positions (-inf scores) has the sum of the same tile cut short."""
    (x,) = rows_of(4, 64, 1)
    for visible in (1, 15, 16, 40, 63):
        masked = x.copy()
        masked[visible:] = -np.inf
        largest = float(x[:visible].max())
        _, whole = same_bits(tiers, lambda t, u=masked, m=largest: t.exp_sub(u, m))
        _, cut = same_bits(tiers, lambda t, n=visible, m=largest: t.exp_sub(x[:n].copy(), m))
        assert bits(np.atleast_1d(whole)) == bits(np.atleast_1d(cut))


def test_norms(tiers: list[Rows]) -> None:
    eps = float(np.float32(1e-5))
    for n in LENGTHS:
        x, gain, bias = rows_of(n + 5, n, 3)
        x += np.float32(0.5)
        x64 = x.astype(np.float64)
        rms = x64 / np.sqrt(np.mean(x64**2) + eps)
        centred = x64 - x64.mean()
        layer = centred / np.sqrt(np.mean(centred**2) + eps)
        l2 = x64 / np.sqrt(np.sum(x64**2) + eps)
        cases = [
            (0, None, None, rms),
            (0, gain, None, rms * gain),
            (1, None, None, layer),
            (1, gain, None, layer * gain),
            (1, None, bias, layer + bias),
            (1, gain, bias, layer * gain + bias),
            (2, None, None, l2),
        ]
        for kind, g, b, want in cases:
            got = same_bits(tiers, lambda t, k=kind, u=x, g=g, b=b: t.norm(k, u, g, b, eps))
            assert np.allclose(got, want, rtol=3e-6, atol=1e-5), (kind, n)
        poisoned = x.copy()
        poisoned[n - 1] = np.nan
        for kind in (0, 1, 2):
            assert np.isnan(same_bits(tiers, lambda t, k=kind, u=poisoned: t.norm(k, u, None, None, eps))).all()


@pytest.mark.parametrize("style", [0, 1], ids=["norm", "neox"])
def test_rope(tiers: list[Rows], style: int) -> None:
    for n_rot in (2, 6, 16, 34, 64, 128):
        (x,) = rows_of(n_rot, n_rot + 5, 1)
        angle = np.random.default_rng(6).uniform(0, 6, n_rot // 2)
        c, s = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        got = same_bits(tiers, lambda t, u=x, c=c, s=s: t.rope(style, u, c, s))
        a, b = (x[0:n_rot:2], x[1:n_rot:2]) if style == 0 else (x[: n_rot // 2], x[n_rot // 2 : n_rot])
        ya, yb = (
            a.astype(np.float64) * c - b.astype(np.float64) * s,
            a.astype(np.float64) * s + b.astype(np.float64) * c,
        )
        want = np.stack([ya, yb], 1).ravel() if style == 0 else np.concatenate([ya, yb])
        assert np.allclose(got[:n_rot], want, rtol=0, atol=2e-6)
        assert np.array_equal(got[n_rot:], x[n_rot:])
