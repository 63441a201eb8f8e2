"""Calls of the row functions (cpu/vecmath.h) from tests: numpy in, numpy out, every tier compared with the scalar one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from matmul_kit import TIER_NAMES, Floats, bits

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


def supported_tiers(ffi: Any, native: Any) -> list[Rows]:
    """Return the tiers of this machine, the scalar reference first."""
    return [Rows(ffi, native, tier) for tier in TIER_NAMES if native.strata_test_tier_supported(tier)]


def same_bits(tiers: list[Rows], call: Callable[[Rows], Any]) -> Any:
    """Return the scalar tier's result after checking that every other tier has the same bits (NaN is NaN)."""
    want = call(tiers[0])
    for tier in tiers[1:]:
        got = call(tier)
        pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
        for a, b in pairs:
            row, want_row = np.atleast_1d(a), np.atleast_1d(b)
            number = ~np.isnan(want_row)
            assert np.array_equal(np.isnan(row), ~number)
            assert np.array_equal(bits(row)[number], bits(want_row)[number]), TIER_NAMES[tier.tier]
    return want


def rows_of(seed: int, n: int, count: int = 2) -> list[Floats]:
    """Return `count` rows of n normal values."""
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 3, n).astype(np.float32) for _ in range(count)]
