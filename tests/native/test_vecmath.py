"""Row functions of cpu/vecmath.h: values against float64, bits over tiers, orders of summation from exact fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from matmul_kit import TIER_NAMES, bits
from row_formats import fma32, round32

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
LENGTHS = (1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100, 255, 256, 257, 300, 1000, 2880)
KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}
UNARY = (
    "exp",
    "sigmoid",
    "silu",
    "softplus",
    "tanh",
    "gelu",
    "gelu_erf",
    "gelu_quick",
    "relu",
    "relu_sqr",
    "log",
    "sqrt",
)


class Rows:
    """The hooks of one tier with numpy rows instead of pointers."""

    def __init__(self, ffi: Any, lib: Any, tier: int) -> None:
        self.ffi, self.lib, self.tier = ffi, lib, tier

    def _in(self, x: npt.NDArray[Any] | None, kind: str = "float[]") -> Any:
        return self.ffi.NULL if x is None else self.ffi.from_buffer(kind, x)

    def glu(self, kind: int, gate: Floats, up: Floats, p0: float, p1: float) -> Floats:
        out = np.empty_like(up)
        args = self._in(gate), self._in(up), p0, p1, self._in(out), up.size
        assert self.lib.strata_test_glu(self.tier, kind, *args) == 0
        return out

    def unary(self, name: str, x: Floats) -> Floats:
        out = np.empty_like(x)
        assert self.lib.strata_test_unary(self.tier, UNARY.index(name), self._in(x), self._in(out), x.size) == 0
        return out

    def binary(self, name: str, x: Floats, y: Floats, a: float = 0, b: float = 0, out: Floats | None = None) -> Floats:
        out = np.empty_like(x) if out is None else out
        number = getattr(self.lib, f"STRATA_TEST_{name}")
        args = self._in(x), self._in(y), a, b, self._in(out), x.size
        assert self.lib.strata_test_binary(self.tier, number, *args) == 0
        return out

    def reduce(self, name: str, x: Floats, y: Floats | None = None) -> np.float32:
        out = np.empty(1, np.float32)
        number = getattr(self.lib, f"STRATA_TEST_{name}")
        assert self.lib.strata_test_reduce(self.tier, number, self._in(x), self._in(y), x.size, self._in(out)) == 0
        return out[0]

    def exp_sub(self, x: Floats, largest: float) -> tuple[Floats, np.float32]:
        out, total = np.empty_like(x), np.empty(1, np.float32)
        args = self._in(x), largest, self._in(out), x.size, self._in(total)
        assert self.lib.strata_test_exp_sub(self.tier, *args) == 0
        return out, total[0]

    def norm(self, kind: int, x: Floats, gain: Floats | None, bias: Floats | None, eps: float) -> Floats:
        out = np.empty_like(x)
        args = self._in(x), self._in(gain), self._in(bias), eps, self._in(out), x.size
        assert self.lib.strata_test_norm(self.tier, kind, *args) == 0
        return out

    def rope(self, style: int, x: Floats, cos_row: Floats, sin_row: Floats) -> Floats:
        out = x.copy()
        args = self._in(out), self._in(cos_row), self._in(sin_row), 2 * cos_row.size
        assert self.lib.strata_test_rope(self.tier, style, *args) == 0
        return out

    def kv_store(self, kv_type: int, x: Floats) -> npt.NDArray[np.uint8]:
        """Store rows x [n_rows, n] as cache rows [n_rows, row bytes]."""
        rows = np.zeros((x.shape[0], self.lib.strata_test_kv_row_bytes(kv_type, x.shape[1])), np.uint8)
        for source, target in zip(x, rows, strict=True):
            args = self._in(np.ascontiguousarray(source)), self._in(target, "uint8_t[]"), x.shape[1]
            assert self.lib.strata_test_kv_store(self.tier, kv_type, *args) == 0
        return rows

    def kv_load(self, kv_type: int, rows: npt.NDArray[np.uint8], n: int) -> Floats:
        out = np.empty((rows.shape[0], n), np.float32)
        for source, target in zip(rows, out, strict=True):
            args = self._in(np.ascontiguousarray(source), "uint8_t[]"), self._in(target), n
            assert self.lib.strata_test_kv_load(self.tier, kv_type, *args) == 0
        return out

    def scores(self, kv_type: int, q: Floats, k: npt.NDArray[np.uint8], scale: float) -> Floats:
        s = np.full((q.shape[0], k.shape[0]), -7, np.float32)
        args = self._in(q), q.shape[0], self._in(k, "uint8_t[]"), k.shape[0], q.shape[1], scale, self._in(s)
        assert self.lib.strata_test_attn_scores(self.tier, kv_type, *args) == 0
        return s

    def values(self, kv_type: int, p: Floats, v: npt.NDArray[np.uint8], acc: Floats) -> Floats:
        acc = acc.copy()
        args = self._in(p), p.shape[0], self._in(v, "uint8_t[]"), v.shape[0], acc.shape[1], self._in(acc)
        assert self.lib.strata_test_attn_values(self.tier, kv_type, *args) == 0
        return acc


@pytest.fixture(scope="module")
def tiers(ffi: Any, native: Any) -> list[Rows]:
    """Return the tiers of this machine, the scalar reference first."""
    return [Rows(ffi, native, tier) for tier in TIER_NAMES if native.strata_test_tier_supported(tier)]


def same_bits(tiers: list[Rows], call: Callable[[Rows], Any]) -> Any:
    """Return the scalar tier's result after checking that every other tier has the same bits (NaN is NaN)."""
    want = call(tiers[0])
    for tier in tiers[1:]:
        got = call(tier)
        pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
        for a, b in pairs:
            a, b = np.atleast_1d(a), np.atleast_1d(b)
            assert np.array_equal(np.isnan(a), np.isnan(b))
            assert np.array_equal(bits(a)[~np.isnan(a)], bits(b)[~np.isnan(b)]), TIER_NAMES[tier.tier]
    return want


def rows_of(seed: int, n: int, count: int = 2) -> list[Floats]:
    """Return `count` rows of n normal values."""
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 3, n).astype(np.float32) for _ in range(count)]


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
    assert np.array_equal(bits(got)[number], bits(want)[number]) and np.isnan(got[~number]).all()
    for n in LENGTHS:
        part = same_bits(tiers, lambda t, n=n: t.unary(name, x[:n].copy()))
        assert np.array_equal(bits(part)[number[:n]], bits(want[:n])[number[:n]])


def test_elementwise(tiers: list[Rows]) -> None:
    f = np.float32
    for n in LENGTHS:
        x, y = rows_of(n, n)
        a, b = f(1.7), f(-0.3)
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


def cache_rows(tiers: list[Rows], kv_type: int, x: Floats) -> npt.NDArray[np.uint8]:
    """Return cache rows, after checking that all tiers store the same bytes."""
    rows = [tier.kv_store(kv_type, x) for tier in tiers]
    assert all(np.array_equal(other, rows[0]) for other in rows)
    return rows[0]


@pytest.mark.parametrize("kv_type", KV_TYPES.values(), ids=KV_TYPES)
def test_cache_rows(tiers: list[Rows], kv_type: int) -> None:
    rng = np.random.default_rng(7)
    for n in (32, 64, 576) if kv_type == 8 else (1, 5, 16, 33, 80, 576):
        x = (rng.normal(0, 1, (4, n)) * 10.0 ** rng.uniform(-3, 3, (4, 1))).astype(np.float32)
        x[3] = 0
        rows = cache_rows(tiers, kv_type, x)
        back = same_bits(tiers, lambda t, r=rows, n=n: t.kv_load(kv_type, r, n))
        if kv_type == 0:
            assert np.array_equal(back, x)
        elif kv_type == 1:
            assert np.array_equal(back, x.astype(np.float16).astype(np.float32))
        else:
            unit = np.abs(x.reshape(4, -1, 32)).max(2, keepdims=True) / 127
            assert np.all(np.abs(back - x).reshape(4, -1, 32) <= 0.56 * unit + 1e-7)
    x = np.ones((1, 64), np.float32)
    x[0, 5] = np.nan
    back = same_bits(tiers, lambda t: t.kv_load(kv_type, cache_rows(tiers, kv_type, x), 64))
    assert np.isnan(back[0, 5]) and not np.isnan(back[0, 32:]).any()


@pytest.mark.parametrize(
    ("kv_type", "n_dim"),
    [
        (t, n)
        for t in KV_TYPES.values()
        for n in (16, 40, 64, 80, 96, 128, 192, 576)
        if t != KV_TYPES["q8_0"] or n % 32 == 0
    ],
)
def test_attention_products(tiers: list[Rows], kv_type: int, n_dim: int) -> None:
    """Scores and values of 1 to 9 query heads: float64 values, bits over tiers, each head as if alone."""
    rng = np.random.default_rng(n_dim)
    for n_q, n_keys in ((1, 1), (1, 7), (2, 64), (4, 33), (9, 64)):
        q = rng.normal(0, 1, (n_q, n_dim)).astype(np.float32)
        k = cache_rows(tiers, kv_type, rng.normal(0, 1, (n_keys, n_dim)).astype(np.float32))
        k64 = tiers[0].kv_load(kv_type, k, n_dim).astype(np.float64)
        s = same_bits(tiers, lambda t, q=q, k=k: t.scores(kv_type, q, k, 0.125))
        assert np.allclose(s, q.astype(np.float64) @ k64.T * 0.125, rtol=1e-5, atol=1e-5)
        single = same_bits(tiers, lambda t, q=q, k=k: t.scores(kv_type, q[-1:].copy(), k[-1:].copy(), 0.125))
        assert bits(single)[0, 0] == bits(s)[-1, -1]
        dot = tiers[0].reduce("DOT", q[-1].copy(), k64[-1].astype(np.float32))
        assert s[-1, -1] == np.float32(dot * np.float32(0.125))

        p = rng.uniform(0, 1, (n_q, n_keys)).astype(np.float32)
        p[:, n_keys // 2] = 0
        acc = rng.normal(0, 1, (n_q, n_dim)).astype(np.float32)
        got = same_bits(tiers, lambda t, p=p, k=k, acc=acc: t.values(kv_type, p, k, acc))
        assert np.allclose(got, acc + p.astype(np.float64) @ k64, rtol=1e-5, atol=1e-5)
        single = same_bits(tiers, lambda t, p=p, k=k, acc=acc: t.values(kv_type, p[-1:].copy(), k, acc[-1:].copy()))
        assert np.array_equal(bits(single[0]), bits(got[-1]))


def test_value_tile_is_a_chain_of_fma_added_once(tiers: list[Rows]) -> None:
    rng = np.random.default_rng(8)
    p = rng.uniform(0, 1, (1, 13)).astype(np.float32)
    v = rng.normal(0, 1, (13, 6)).astype(np.float32)
    acc = rng.normal(0, 1, (1, 6)).astype(np.float32)
    got = same_bits(tiers, lambda t: t.values(0, p, v.view(np.uint8), acc))
    for d in range(6):
        tile = Fraction(0)
        for j in range(13):
            tile = fma32(Fraction(float(p[0, j])), Fraction(float(v[j, d])), tile)
        assert float(got[0, d]) == float(round32(Fraction(float(acc[0, d])) + tile))


def test_masked_value_rows_are_not_read(tiers: list[Rows]) -> None:
    """Rows of positions with p == 0 may hold poison; a NaN weight is no zero."""
    p = np.array([[0.5, 0, 0.25, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0.5, 0, np.nan, 0]], np.float32)
    v = np.full((4, 40), np.nan, np.float32)
    v[0], v[2] = 2.0, 8.0
    zero = np.zeros((4, 40), np.float32)
    got = same_bits(tiers, lambda t: t.values(0, p, v.view(np.uint8), zero))
    assert np.all(got[0] == 3) and np.all(got[1] == 8)
    assert np.isnan(got[2]).all() and np.isnan(got[3]).all()
