"""base/ieee_math.h against float64: dense samples, special values, exact number formats.

The limits in ULP_LIMITS are those that docs/numerics.md states.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Reference = Callable[[Doubles], Doubles]

N_SAMPLES = 200_000


def run(ffi: Any, native: Any, name: str, x: Floats) -> Floats:
    """Return the scalar function `name` of each value."""
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty_like(x)
    status = native.strata_test_math(
        getattr(native, f"STRATA_TEST_{name}"), ffi.from_buffer("float[]", x), ffi.from_buffer("float[]", out), x.size
    )
    assert status == 0
    return out


def run_double(ffi: Any, native: Any, name: str, x: Doubles) -> Doubles:
    """Return the scalar double function `name` of each value."""
    out = np.empty_like(x)
    status = native.strata_test_math_double(
        getattr(native, f"STRATA_TEST_{name}"), ffi.from_buffer("double[]", x), ffi.from_buffer("double[]", out), x.size
    )
    assert status == 0
    return out


def erf64(x: Doubles) -> Doubles:
    """Return erf in float64."""
    return np.array([math.erf(v) for v in x])


def gelu_tanh64(x: Doubles) -> Doubles:
    """Return the tanh form of GELU without cancellation."""
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x / (1 + np.exp(-2 * u))


def ulp_error(got: Floats, want: Doubles) -> float:
    """Return the largest error in units of the last place of the correctly rounded result (subnormals included)."""
    with np.errstate(over="ignore"):
        unit = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
    return float(np.max(np.abs(got.astype(np.float64) - want) / unit))


# name -> (reference, low, high, limit in ulp)
ULP_LIMITS: dict[str, tuple[Reference, float, float, float]] = {
    "EXP": (np.exp, -103.9, 88.72, 1.02),
    "EXPM1": (np.expm1, -20.0, 88.72, 1.5),
    "SIGMOID": (lambda x: 1 / (1 + np.exp(-x)), -87.0, 87.0, 2.4),
    "SILU": (lambda x: x / (1 + np.exp(-x)), -83.0, 100.0, 2.3),
    "TANH": (np.tanh, -12.0, 12.0, 2.3),
    "ERF": (erf64, -5.0, 5.0, 1.1),
    "LOG": (np.log, 1e-6, 10.0, 0.9),
    "LOG1P": (np.log1p, -0.999, 50.0, 1.5),
    "SOFTPLUS": (lambda x: np.where(x > 20, x, np.log1p(np.exp(x))), -80.0, 30.0, 1.8),
    "SQRT": (np.sqrt, 0.0, 100.0, 0.5),
}


def samples(low: float, high: float) -> Floats:
    """Return a dense grid, random points, and points near zero at every magnitude, all inside [low, high]."""
    rng = np.random.default_rng(11)
    grid = np.linspace(low, high, N_SAMPLES)
    near_zero = rng.choice([-1.0, 1.0], 20_000) * 2.0 ** rng.uniform(-40, 3, 20_000)
    x = np.concatenate([grid, rng.uniform(low, high, N_SAMPLES), near_zero]).astype(np.float32)
    return x[(x >= np.float32(low)) & (x <= np.float32(high))]


@pytest.mark.parametrize("name", ULP_LIMITS)
def test_error_in_ulp(ffi: Any, native: Any, name: str) -> None:
    reference, low, high, limit = ULP_LIMITS[name]
    x = samples(low, high)
    with np.errstate(divide="ignore"):
        error = ulp_error(run(ffi, native, name, x), reference(x.astype(np.float64)))
    assert error <= limit


def test_gelu_forms(ffi: Any, native: Any) -> None:
    """The error of each GELU is at most 1.2e-7 |x|: an ulp of x on the positive side."""
    x = samples(-12.0, 12.0)
    x64 = x.astype(np.float64)
    cases = {
        "GELU": gelu_tanh64(x64),
        "GELU_QUICK": x64 / (1 + np.exp(-float(np.float32(1.702)) * x64)),
        "GELU_ERF": 0.5 * x64 * (1 + erf64(x64 / math.sqrt(2))),
    }
    for name, want in cases.items():
        got = run(ffi, native, name, x).astype(np.float64)
        assert np.all(np.abs(got - want) <= 1.2e-7 * np.abs(x64)), name


def test_special_values(ffi: Any, native: Any) -> None:
    """Infinities, NaN, zeros and subnormal results."""
    inf, nan = math.inf, math.nan

    def one(name: str, x: float) -> float:
        return float(run(ffi, native, name, np.array([x], np.float32))[0])

    for name in ("EXP", "EXPM1", "SIGMOID", "SILU", "TANH", "GELU", "GELU_ERF", "GELU_QUICK", "ERF", "LOG", "LOG1P", "SOFTPLUS", "RELU_SQR"):  # fmt: skip
        assert math.isnan(one(name, nan)), name
    assert (one("EXP", inf), one("EXP", -inf), one("EXP", 0.0)) == (inf, 0.0, 1.0)
    assert (one("EXP", 88.73), one("EXP", -104.0)) == (inf, 0.0)
    assert one("EXP", -103.0) == float(np.float32(2.0**-149))
    assert (one("EXPM1", -inf), one("EXPM1", inf)) == (-1.0, inf)
    assert (one("SIGMOID", inf), one("SIGMOID", -inf)) == (1.0, 0.0)
    assert one("SILU", inf) == inf
    assert math.isnan(one("SILU", -inf))
    assert one("SILU", -200.0) == 0.0
    assert (one("TANH", inf), one("TANH", -inf)) == (1.0, -1.0)
    assert (one("ERF", inf), one("ERF", -inf)) == (1.0, -1.0)
    assert (one("LOG", 0.0), one("LOG", inf), one("LOG", 1.0)) == (-inf, inf, 0.0)
    assert math.isnan(one("LOG", -1.0))
    assert math.isnan(one("LOG1P", -2.0))
    assert (one("LOG1P", -1.0), one("LOG1P", inf)) == (-inf, inf)
    assert one("LOG", 2.0**-140) == pytest.approx(-140 * math.log(2), rel=1e-7)
    assert (one("SOFTPLUS", 25.0), one("SOFTPLUS", inf), one("SOFTPLUS", -inf)) == (25.0, inf, 0.0)
    for name in ("EXPM1", "TANH", "ERF", "LOG1P"):
        assert math.copysign(1, one(name, -0.0)) == -1.0, name


def test_round_even(ffi: Any, native: Any) -> None:
    x = np.concatenate([np.arange(-300, 300) / np.float32(4), [8388607.5, 8388609.0, -1e30, 0.49999997]])
    x = x.astype(np.float32)
    got = run(ffi, native, "ROUND_EVEN", x)
    assert np.array_equal(got.view(np.uint32), np.rint(x).view(np.uint32))


def test_angles(ffi: Any, native: Any) -> None:
    """sin and cos in double up to 2^24, also near multiples of pi / 2."""
    rng = np.random.default_rng(12)
    near = np.arange(1, 20_000) * (math.pi / 2) + rng.uniform(-1e-6, 1e-6, 19_999)
    x = np.concatenate([rng.uniform(-(2.0**24), 2.0**24, 200_000), rng.uniform(-10, 10, 50_000), near, [0.0]])
    assert np.max(np.abs(run_double(ffi, native, "SIN", x) - np.sin(x))) <= 2.3e-16
    assert np.max(np.abs(run_double(ffi, native, "COS", x) - np.cos(x))) <= 2.3e-16


def test_double_exp_log_and_rope_frequencies(ffi: Any, native: Any) -> None:
    rng = np.random.default_rng(13)
    x = rng.uniform(-600, 600, 100_000)
    assert np.max(np.abs(run_double(ffi, native, "EXP_DOUBLE", x) / np.exp(x) - 1)) <= 1e-15
    y = np.concatenate([2.0 ** rng.uniform(-300, 300, 100_000), rng.uniform(0.5, 2, 100_000)])
    want = np.log(y)
    assert np.max(np.abs(run_double(ffi, native, "LOG_DOUBLE", y) - want) / np.maximum(np.abs(want), 1e-8)) <= 1e-15
    for base, n_rot in ((10_000.0, 128), (1_000_000.0, 64), (150_000.0, 64)):
        for k in range(n_rot // 2):
            assert native.strata_test_rope_freq(base, k, n_rot) == pytest.approx(base ** (-2 * k / n_rot), rel=1e-14)


def to_16(ffi: Any, native: Any, number: int, x: Floats) -> npt.NDArray[np.uint16]:
    """Return the 16-bit codes of floats."""
    out = np.empty(x.size, np.uint16)
    assert (
        native.strata_test_to_16(number, ffi.from_buffer("float[]", x), ffi.from_buffer("uint16_t[]", out), x.size) == 0
    )
    return out


def from_16(ffi: Any, native: Any, number: int, codes: npt.NDArray[np.uint16]) -> Floats:
    """Return the floats of 16-bit codes."""
    out = np.empty(codes.size, np.float32)
    pointers = ffi.from_buffer("uint16_t[]", codes), ffi.from_buffer("float[]", out)
    assert native.strata_test_from_16(number, *pointers, codes.size) == 0
    return out


def test_half_and_bfloat16_are_exact(ffi: Any, native: Any) -> None:
    """All 65,536 codes decode exactly; all ties and random floats encode as IEEE rounding says."""
    codes = np.arange(65536, dtype=np.uint16)
    halves = codes.view(np.float16).astype(np.float32)
    number = ~np.isnan(halves)
    got = from_16(ffi, native, 1, codes)
    assert np.array_equal(got.view(np.uint32)[number], halves.view(np.uint32)[number])
    assert np.isnan(got[~number]).all()
    bf16 = from_16(ffi, native, 30, codes)
    assert np.array_equal(bf16.view(np.uint32), codes.astype(np.uint32) << 16)

    rng = np.random.default_rng(14)
    finite = halves[np.isfinite(halves)]
    midpoints = (np.sort(finite)[1:].astype(np.float64) + np.sort(finite)[:-1]) / 2
    random_bits = rng.integers(0, 2**32, 500_000, np.uint32).view(np.float32)
    x = np.concatenate([midpoints.astype(np.float32), random_bits[~np.isnan(random_bits)], finite])
    x = np.concatenate([x, np.array([65519.99, 65520, -65520, np.inf, -np.inf, 1e-45, -0.0], np.float32)])
    with np.errstate(over="ignore"):
        assert np.array_equal(to_16(ffi, native, 1, x), x.astype(np.float16).view(np.uint16))
    bits = x.view(np.uint32).astype(np.uint64)
    assert np.array_equal(to_16(ffi, native, 30, x), ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16))
    nans = np.array([0x7F800001, 0xFFC12345, 0x7FFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(from_16(ffi, native, 1, to_16(ffi, native, 1, nans))).all()
    assert np.isnan(from_16(ffi, native, 30, to_16(ffi, native, 30, nans))).all()


def test_eight_bit_scales(ffi: Any, native: Any) -> None:
    """E8M0 and unsigned E4M3 scales, halved as the doubled codes want it."""
    codes = np.arange(256, dtype=np.uint8)
    out = np.empty(256, np.float32)
    pointers = ffi.from_buffer("uint8_t[]", codes), ffi.from_buffer("float[]", out)
    assert native.strata_test_from_8(39, *pointers, 256) == 0
    assert np.array_equal(out.astype(np.float64), 2.0 ** (codes.astype(np.float64) - 128))
    assert native.strata_test_from_8(40, *pointers, 256) == 0
    exponent, mantissa = (codes >> 3 & 15).astype(np.float64), (codes & 7).astype(np.float64)
    want = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7)) / 2
    want[0x7F] = 0
    assert np.array_equal(out.astype(np.float64), want)
