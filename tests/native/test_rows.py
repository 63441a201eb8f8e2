"""Row-layout kernels of every weight type: values, bits over tiers, tokens and shapes, equality with the packed path.

Protects contract C1 on the path that a mapped file and all types without a packed layout run on.
"""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Quant
from gguf.quants import dequantize
from matmul_kit import A32, F32, PACKED, ROWS, Floats, Kernels, aligned, bits, round_acts, section, weights_float64
from row_formats import ALL_TYPES, FLOATS, HALF_SCALES, QUANTS, fma32, random_file_rows, round32

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = pytest.mark.parametrize("quant", ALL_TYPES, ids=lambda quant: quant.name)


@pytest.fixture(scope="module")
def kernels(ffi: Any, native: Any) -> Kernels:
    return Kernels(ffi, native)


def some_cols(quant: Quant, n_blocks: int) -> int:
    """Return a width of n_blocks blocks; float rows get a width that no lane count divides."""
    if quant in FLOATS:
        return 37 * n_blocks
    return GGML_QUANT_SIZES[quant][0] * n_blocks


def activations(rng: np.random.Generator, n_tokens: int, n_cols: int) -> Floats:
    return rng.normal(0, 1, (n_tokens, n_cols)).astype(np.float32)


def act_values(kernels: Kernels, quant: Quant, x: Floats) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the activations that the kernel really multiplies, in float64."""
    form = kernels.act_form(quant)
    return x.astype(np.float64) if form == F32 else round_acts(x, form).values()


@BY_NAME
@pytest.mark.parametrize("n_blocks", [1, 2, 3, 5, 8, 23])
def test_values_and_tiers(kernels: Kernels, quant: Quant, n_blocks: int) -> None:
    """Every tier gives the scalar tier's bits, and those are the float64 product up to float32 rounding."""
    rng = np.random.default_rng(100 + n_blocks)
    n_rows, n_cols, n_tokens = 7, some_cols(quant, n_blocks), 5
    rows = random_file_rows(rng, quant, n_rows, n_cols)
    x = activations(rng, n_tokens, n_cols)
    acts = kernels.quantize(x, kernels.act_form(quant))
    got = kernels.matmul(quant, rows, (n_rows, n_cols), acts, layout=ROWS)
    w, a = weights_float64(rows, quant), act_values(kernels, quant, x)
    size = np.abs(a) @ np.abs(w).T
    assert np.all(np.abs(got - a @ w.T) <= (n_cols / 16 + 8) * 2.0**-24 * size)
    for tier in kernels.tiers():
        assert np.array_equal(bits(kernels.matmul(quant, rows, (n_rows, n_cols), acts, tier, ROWS)), bits(got)), tier


@BY_NAME
def test_tokens_rows_and_indices_change_nothing(kernels: Kernels, quant: Quant) -> None:
    """A cell has the same bits alone, in any batch, at any place and for any range of rows."""
    rng = np.random.default_rng(7)
    n_rows, n_cols, n_tokens = 37, some_cols(quant, 5), 41
    rows = random_file_rows(rng, quant, n_rows, n_cols)
    acts = kernels.quantize(activations(rng, n_tokens, n_cols), kernels.act_form(quant))
    for tier in kernels.tiers():
        whole = kernels.matmul(quant, rows, (n_rows, n_cols), acts, tier, ROWS)
        for t in (0, 3, 40):
            one = kernels.matmul(quant, rows, (n_rows, n_cols), acts[t : t + 1], tier, ROWS)
            assert np.array_equal(bits(one[0]), bits(whole[t]))
        for begin, end in ((0, 16), (16, 32), (32, 37), (16, 37)):
            part = kernels.matmul(quant, rows, (n_rows, n_cols), acts, tier, ROWS, rows=(begin, end))
            assert np.array_equal(bits(part[:, begin:end]), bits(whole[:, begin:end]))
            assert np.all(part[:, :begin] == -7)
            assert np.all(part[:, end:] == -7)
        pick = np.array([5, 0, 5, 39, 2, 2, 17], np.int32)
        place = np.array([6, 1, 0, 2, 3, 5, 4], np.int32)
        y = np.full((7, n_rows), -7, np.float32)
        kernels.matmul(quant, rows, (n_rows, n_cols), acts, tier, ROWS, act_index=pick, y_index=place, y=y)
        assert np.array_equal(bits(y[place]), bits(whole[pick]))


@pytest.mark.parametrize("quant", [Quant.Q4_K, Quant.Q6_K, Quant.Q8_0, Quant.MXFP4], ids=lambda quant: quant.name)
@pytest.mark.parametrize("n_blocks", [1, 3, 4, 11])
def test_packed_path_has_the_same_bits(kernels: Kernels, quant: Quant, n_blocks: int) -> None:
    rng = np.random.default_rng(8)
    n_rows, n_cols = 21, some_cols(quant, n_blocks)
    rows = random_file_rows(rng, quant, n_rows, n_cols)
    acts = kernels.quantize(activations(rng, 6, n_cols), kernels.act_form(quant))
    packed = kernels.pack(quant, rows, n_cols)
    for tier in kernels.tiers():
        by_rows = kernels.matmul(quant, rows, (n_rows, n_cols), acts, tier, ROWS)
        by_group = kernels.matmul(quant, packed, (n_rows, n_cols), acts, tier, PACKED)
        assert np.array_equal(bits(by_rows), bits(by_group))


@BY_NAME
def test_poison_reaches_the_output(kernels: Kernels, quant: Quant) -> None:
    """One NaN activation makes every output of its token NaN, and no other token's; so does infinity once rounded."""
    rng = np.random.default_rng(9)
    n_rows, n_cols = 5, some_cols(quant, 3)
    rows = random_file_rows(rng, quant, n_rows, n_cols)
    x = activations(rng, 3, n_cols)
    clean = kernels.quantize(x, kernels.act_form(quant))
    x[1, n_cols - 2] = np.nan
    acts = kernels.quantize(x, kernels.act_form(quant))
    for tier in kernels.tiers():
        y = kernels.matmul(quant, rows, (n_rows, n_cols), acts, tier, ROWS)
        want = kernels.matmul(quant, rows, (n_rows, n_cols), clean, tier, ROWS)
        assert np.isnan(y[1]).all()
        assert np.array_equal(bits(y[[0, 2]]), bits(want[[0, 2]]))
    if quant in QUANTS:
        x[1, n_cols - 2] = np.inf
        acts = kernels.quantize(x, kernels.act_form(quant))
        assert np.isnan(kernels.matmul(quant, rows, (n_rows, n_cols), acts, layout=ROWS)[1]).all()


@pytest.mark.parametrize("quant", QUANTS, ids=lambda quant: quant.name)
def test_extreme_integers_do_not_overflow(kernels: Kernels, quant: Quant) -> None:
    """The largest activations against random rows and all-ones bytes: sums stay exact, as docs/numerics.md proves."""
    rng = np.random.default_rng(10)
    n_cols = some_cols(quant, 4)
    rows = random_file_rows(rng, quant, 6, n_cols)
    block_bytes = GGML_QUANT_SIZES[quant][1]
    blocks = rows.reshape(6, -1, block_bytes)
    random_blocks = blocks.copy()
    blocks[2], blocks[3] = 0xFF, 0x00
    blocks[4], blocks[5] = 0x7F, 0x80
    keep = scale_bytes(quant)
    blocks[..., keep] = random_blocks[..., keep]
    w = weights_float64(rows, quant)
    x = np.where(w[[0, 2, 3, 4, 5]] < 0, -1.0, 1.0).astype(np.float32)  # every product positive: the largest sums
    acts = kernels.quantize(x, kernels.act_form(quant))
    want = act_values(kernels, quant, x) @ w.T
    for tier in kernels.tiers():
        got = kernels.matmul(quant, rows, (6, n_cols), acts, tier, ROWS)
        assert np.all(np.abs(got - want) <= 1e-5 * (np.abs(x).astype(np.float64) @ np.abs(w).T))


def scale_bytes(quant: Quant) -> list[int]:
    """Return the bytes of a block that hold its floating-point scales."""
    if quant == Quant.MXFP4:
        return [0]
    if quant == Quant.NVFP4:
        return [0, 1, 2, 3]
    if quant == Quant.IQ1_M:
        return [49, 51, 53, 55]
    return [offset + i for offset in HALF_SCALES[quant] for i in (0, 1)]


def exact(x: Any) -> Fraction:
    return Fraction(float(x))


def q4_terms(row: np.ndarray[Any, Any], codes: Any, sums: Any) -> list[tuple[Fraction, Fraction, Fraction, Fraction]]:
    """Return (isum, d, sum, m) of each Q4_1 block."""
    terms = []
    for u, block in enumerate(row.reshape(-1, 20)):
        d, m = block[:4].view(np.float16)
        q = np.concatenate([block[4:] & 15, block[4:] >> 4]).astype(int)
        isum = int(q @ codes[32 * u : 32 * u + 32].astype(int))
        terms.append((Fraction(isum), exact(d), Fraction(int(sums[u])), exact(m)))
    return terms


def test_order_of_operations_of_quantised_rows(kernels: Kernels) -> None:
    """The C1 rule from exact fractions: unit u to accumulator u mod 4, minimum second, (a0+a2)+(a1+a3)."""
    rng = np.random.default_rng(11)
    n_cols = 32 * 11
    rows = random_file_rows(rng, Quant.Q4_1, 9, n_cols)
    acts = kernels.quantize(activations(rng, 1, n_cols), A32)
    codes = acts[0][:n_cols].view(np.int8)
    d_offset = (n_cols + 63) // 64 * 64
    dx = section(acts[0], d_offset, "<f4", 11)
    sums = section(acts[0], d_offset + 64, "<i4", 11)
    got = kernels.matmul(Quant.Q4_1, rows, (9, n_cols), acts, layout=ROWS)[0]
    for r in range(9):
        a = [Fraction(0)] * 4
        for u, (isum, d, total, m) in enumerate(q4_terms(rows[r], codes, sums)):
            a[u % 4] = fma32(isum, round32(d * exact(dx[u])), a[u % 4])
            a[u % 4] = fma32(total, round32(m * exact(dx[u])), a[u % 4])
        assert exact(got[r]) == round32(round32(a[0] + a[2]) + round32(a[1] + a[3]))


def test_order_of_operations_of_float_rows(kernels: Kernels) -> None:
    """Sixteen strided fma lanes over the columns, then a tree of halves."""
    rng = np.random.default_rng(12)
    n_cols = 59
    x = activations(rng, 1, n_cols)
    rows = random_file_rows(rng, Quant.F32, 4, n_cols)
    got = kernels.matmul(Quant.F32, rows, (4, n_cols), kernels.quantize(x, F32), layout=ROWS)[0]
    for r in range(4):
        lanes = [Fraction(0)] * 16
        for c, w in enumerate(rows[r].view(np.float32)):
            lanes[c % 16] = fma32(exact(w), exact(x[0, c]), lanes[c % 16])
        for half in (8, 4, 2, 1):
            lanes = [round32(lanes[i] + lanes[i + half]) for i in range(half)]
        assert exact(got[r]) == lanes[0]


@BY_NAME
def test_dequantise_bits(ffi: Any, native: Any, kernels: Kernels, quant: Quant) -> None:
    """Rows read back have the bits of gguf's dequantisation, from both layouts, for any bytes at all."""
    rng = np.random.default_rng(13)
    n_cols = some_cols(quant, 3) if quant in FLOATS else GGML_QUANT_SIZES[quant][0] * 3
    for any_bytes in (False, True):
        rows = random_file_rows(rng, quant, 5, n_cols)
        if any_bytes:
            rows = rng.integers(0, 256, rows.shape, np.uint8)
        with np.errstate(all="ignore"):
            want = dequantize(rows, quant).astype(np.float32)
        layouts = {ROWS: rows, PACKED: kernels.pack(quant, rows, n_cols)}
        for layout, data in layouts.items():
            for r in range(5):
                out = np.empty(n_cols, np.float32)
                pointers = kernels.pointer(data, "uint8_t *"), ffi.from_buffer("float[]", out)
                status = native.strata_test_dequantize(int(quant), layout, pointers[0], 5, n_cols, r, pointers[1])
                assert status == 0
                nan = np.isnan(want[r])
                assert np.array_equal(bits(out)[~nan], bits(want[r])[~nan])
                assert np.isnan(out[nan]).all()


def test_unknown_types_are_refused(ffi: Any, native: Any) -> None:
    out = aligned(64)
    for number in (4, 5, 9, 15, 24, 41, 99, -1):
        pointer = ffi.from_buffer("float[]", out)
        assert native.strata_test_dequantize(number, ROWS, ffi.NULL, 1, 32, 0, pointer) == -1


def test_grid_header_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("gen_grids", ROOT / "tools" / "gen_grids.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TARGET.read_text() == module.render()
