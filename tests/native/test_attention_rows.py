"""Cache rows and the two products of attention: float64 values, bits over tiers, order, masked positions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from matmul_kit import Floats, bits
from row_formats import fma32, round32
from row_kit import Rows, same_bits, supported_tiers

KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}


@pytest.fixture(scope="module")
def tiers(ffi: Any, native: Any) -> list[Rows]:
    return supported_tiers(ffi, native)


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
    assert np.isnan(back[0, 5])
    assert not np.isnan(back[0, 32:]).any()


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
    assert np.all(got[0] == 3)
    assert np.all(got[1] == 8)
    assert np.isnan(got[2]).all()
    assert np.isnan(got[3]).all()
