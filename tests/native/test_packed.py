"""The packed matrix kernels and activation rounding: bits between tiers, values against numpy float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from matmul_kit import (
    A32,
    A256,
    ROWS,
    SCALAR,
    Floats,
    Kernels,
    bits,
    random_rows,
    round_acts,
    section,
    set_scales,
    weights_float64,
)

Quant = GGMLQuantizationType
TYPES = [Quant.Q4_K, Quant.Q6_K, Quant.Q8_0, Quant.MXFP4]
# Odd multiples of the block sizes too: bundles of two and four blocks, and accumulators, end in the middle.
COLS = {
    Quant.Q4_K: [256, 768, 1280],
    Quant.Q6_K: [256, 768, 1280],
    Quant.Q8_0: [32, 96, 352],
    Quant.MXFP4: [32, 224, 576],
}
SHAPES = [(quant, n_rows, n_cols) for quant in TYPES for n_rows in (1, 15, 16, 17, 33) for n_cols in COLS[quant]]


@pytest.fixture(name="kernels")
def _kernels(ffi: Any, native: Any) -> Kernels:
    return Kernels(ffi, native)


def activations(rng: np.random.Generator, n_tokens: int, n_cols: int) -> Floats:
    """Return activations whose magnitude changes along the row, with a run of zeros and a few outliers."""
    x = rng.standard_normal((n_tokens, n_cols)) * np.exp2(rng.integers(-6, 6, (n_tokens, n_cols)))
    x[:, : n_cols // 3 : 7] = 0
    return x.astype(np.float32)


def assert_values(y: Floats, weights: Any, acts: Any, why: str = "") -> None:
    """Compare y with weights . acts in float64; the limit is a few float32 roundings of the terms' magnitudes."""
    want = acts @ weights.T
    limit = 4e-7 * (np.abs(acts) @ np.abs(weights).T) + 1e-30
    assert (np.abs(y - want) <= limit).all(), why


@pytest.mark.parametrize(("quant", "n_rows", "n_cols"), SHAPES)
def test_tiers_agree_and_values_are_right(kernels: Kernels, quant: Quant, n_rows: int, n_cols: int) -> None:
    rng = np.random.default_rng(n_rows * 10_000 + n_cols)
    rows = random_rows(rng, quant, n_rows, n_cols)
    x = activations(rng, 15, n_cols)  # tiles of 8, 4, 2 and 1 tokens
    form = kernels.act_form(quant)
    acts = kernels.quantize(x, form)
    packed = kernels.pack(quant, rows, n_cols)
    want = kernels.matmul(quant, packed, (n_rows, n_cols), acts)
    assert_values(want, weights_float64(rows, quant), round_acts(x, form).values())
    for tier in kernels.tiers()[1:]:
        y = kernels.matmul(quant, packed, (n_rows, n_cols), acts, tier)
        np.testing.assert_array_equal(bits(y), bits(want), err_msg=f"tier {tier}")
    for tier in kernels.tiers():
        y = kernels.matmul(quant, rows, (n_rows, n_cols), acts, tier, layout=ROWS)
        np.testing.assert_array_equal(bits(y), bits(want), err_msg=f"row layout, tier {tier}")


@pytest.mark.parametrize("quant", TYPES)
def test_row_bits_ignore_splits_tokens_and_neighbours(kernels: Kernels, quant: Quant) -> None:
    rng = np.random.default_rng(5)
    n_rows, n_cols = 65, 768
    rows = random_rows(rng, quant, n_rows, n_cols)
    acts = kernels.quantize(activations(rng, 21, n_cols), kernels.act_form(quant))
    packed = kernels.pack(quant, rows, n_cols)
    other = random_rows(rng, quant, n_rows, n_cols)
    other[19] = rows[19]
    packed_other = kernels.pack(quant, other, n_cols)
    want = kernels.matmul(quant, packed, (n_rows, n_cols), acts)
    for tier in kernels.tiers():
        for n_tokens in (1, 2, 3, 5, 8, 9, 16, 21):
            y = kernels.matmul(quant, packed, (n_rows, n_cols), acts[:n_tokens], tier)
            np.testing.assert_array_equal(bits(y), bits(want[:n_tokens]))
        y = np.full_like(want, -7)
        for begin, end in ((0, 16), (16, 48), (48, 65)):
            kernels.matmul(quant, packed, (n_rows, n_cols), acts, tier, rows=(begin, end), y=y)
            assert (y[:, end:] == -7).all(), "rows past the range were written"
        np.testing.assert_array_equal(bits(y), bits(want))
        beside = kernels.matmul(quant, packed_other, (n_rows, n_cols), acts, tier)
        np.testing.assert_array_equal(bits(beside[:, 19]), bits(want[:, 19]))
        assert (bits(beside[:, 20]) != bits(want[:, 20])).any()


@pytest.mark.parametrize("quant", TYPES)
def test_index_tables_are_honoured(kernels: Kernels, quant: Quant) -> None:
    rng = np.random.default_rng(6)
    n_rows, n_cols = 20, 512
    packed = kernels.pack(quant, random_rows(rng, quant, n_rows, n_cols), n_cols)
    acts = kernels.quantize(activations(rng, 12, n_cols), kernels.act_form(quant))
    want = kernels.matmul(quant, packed, (n_rows, n_cols), acts)
    act_index = np.array([3, 3, 11, 0, 7, 1, 2, 10, 9], np.int32)
    y_index = np.array([8, 0, 1, 13, 2, 5, 4, 3, 9], np.int32)
    for tier in kernels.tiers():
        y = np.full((14, n_rows), -7, np.float32)
        kernels.matmul(quant, packed, (n_rows, n_cols), acts, tier, act_index=act_index, y_index=y_index, y=y)
        np.testing.assert_array_equal(bits(y[y_index]), bits(want[act_index]))
        untouched = np.setdiff1d(np.arange(14), y_index)
        assert (y[untouched] == -7).all()


def extreme_rows(quant: Quant, n_cols: int) -> Any:
    """Return rows with every byte 0x00, 0x7f, 0x80 and 0xff, the sub-scales included: the largest sums a type can give."""
    rng = np.random.default_rng(1)
    rows = random_rows(rng, quant, 4, n_cols)
    block_bytes = rows.shape[1] * (32 if quant in (Quant.Q8_0, Quant.MXFP4) else 256) // n_cols
    blocks = rows.reshape(4, -1, block_bytes)
    for row, byte in zip(blocks, (0x00, 0x7F, 0x80, 0xFF), strict=True):
        row[:] = byte
    set_scales(blocks, quant, rng)
    return blocks.reshape(4, -1)


@pytest.mark.parametrize("quant", TYPES)
def test_extreme_codes_do_not_saturate(kernels: Kernels, quant: Quant) -> None:
    n_cols = 512
    rows = extreme_rows(quant, n_cols)
    x = np.ones((4, n_cols), np.float32)
    x[1] = -1
    x[2, ::2] = -1
    x[3, n_cols // 2 :] = -1
    form = kernels.act_form(quant)
    acts = kernels.quantize(x, form)
    packed = kernels.pack(quant, rows, n_cols)
    want = kernels.matmul(quant, packed, (4, n_cols), acts)
    assert_values(want, weights_float64(rows, quant), round_acts(x, form).values())
    for tier in kernels.tiers()[1:]:
        np.testing.assert_array_equal(bits(kernels.matmul(quant, packed, (4, n_cols), acts, tier)), bits(want))


def test_mxfp4_subnormal_scales(kernels: Kernels) -> None:
    """Exponents 0 and 1 are subnormal once the doubled codes take their factor of two out of the scale."""
    n_cols = 32
    rng = np.random.default_rng(2)
    rows = random_rows(rng, Quant.MXFP4, 5, n_cols)
    rows[:, 0] = [0, 1, 2, 3, 240]
    x = activations(rng, 9, n_cols)
    x[:, 0] = np.float32(127 * 2.0**-3)
    acts = kernels.quantize(x, A32)
    packed = kernels.pack(Quant.MXFP4, rows, n_cols)
    want = kernels.matmul(Quant.MXFP4, packed, (5, n_cols), acts)
    exponents = np.ldexp(1.0, rows[:, 0].astype(np.int32) - 128)
    codes = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float64)
    nibbles = np.concatenate([rows[:, 1:] & 15, rows[:, 1:] >> 4], axis=1)
    exact = round_acts(x, A32).values() @ (codes[nibbles] * exponents[:, None]).T
    smallest = 2.0**-149
    assert (np.abs(want - exact) <= 1e-6 * np.abs(exact) + 60_000 * smallest).all()
    assert (want[:, 0] != 0).any(), "a subnormal scale was flushed to zero"
    for tier in kernels.tiers()[1:]:
        np.testing.assert_array_equal(bits(kernels.matmul(Quant.MXFP4, packed, (5, n_cols), acts, tier)), bits(want))


@pytest.mark.parametrize("quant", TYPES)
def test_poison_reaches_its_outputs_and_no_others(kernels: Kernels, quant: Quant) -> None:
    rng = np.random.default_rng(3)
    n_cols = 768
    packed = kernels.pack(quant, random_rows(rng, quant, 18, n_cols), n_cols)
    x = activations(rng, 9, n_cols)
    clean = kernels.matmul(quant, packed, (18, n_cols), kernels.quantize(x, kernels.act_form(quant)))
    x[2, 700], x[5, 0], x[8, 31] = np.nan, np.inf, -np.inf
    acts = kernels.quantize(x, kernels.act_form(quant))
    for tier in kernels.tiers():
        y = kernels.matmul(quant, packed, (18, n_cols), acts, tier)
        poisoned = [2, 5, 8]
        assert np.isnan(y[poisoned]).all()
        others = np.setdiff1d(np.arange(9), poisoned)
        np.testing.assert_array_equal(bits(y[others]), bits(clean[others]))


@pytest.mark.parametrize(("quant", "n_rows", "n_cols"), SHAPES)
def test_packing_keeps_every_bit(kernels: Kernels, quant: Quant, n_rows: int, n_cols: int) -> None:
    rng = np.random.default_rng(4)
    rows = rng.integers(0, 256, random_rows(rng, quant, n_rows, n_cols).shape, np.uint8)
    packed = kernels.pack(quant, rows, n_cols)
    np.testing.assert_array_equal(kernels.unpack(quant, packed, n_rows, n_cols), rows)
    np.testing.assert_array_equal(kernels.pack(quant, rows, n_cols, split=16), packed)
    padded = kernels.pack(quant, np.vstack([rows, np.zeros(((-n_rows) % 16, rows.shape[1]), np.uint8)]), n_cols)
    np.testing.assert_array_equal(packed, padded, err_msg="padding rows are not zero")
    groups = (n_rows + 15) // 16
    assert packed.size % 64 == 0
    assert packed.size - groups * 16 * rows.shape[1] <= groups * 64, "the layout grew by more than a chunk a group"


def rounding_cases() -> Floats:
    """Return rows of 512 values: ordinary, zeros, ties, subnormal, tiny, huge, not finite, negative zero."""
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((12, 512)) * 3).astype(np.float32)
    x[1] = 0
    x[2] = -0.0
    x[3] = np.arange(512) % 255 / 2 - 63.5  # d = 0.5, every code and half code: ties go to the even one
    x[3, ::32] = 63.5
    x[4] = rng.integers(-190, 191, 512).astype(np.float32) * np.float32(2.0**-149)
    x[5] = rng.choice([-1, 0, 1], 512).astype(np.float32) * np.float32(2.0**-149)
    x[6] = x[0] * np.float32(1e37)
    x[7, 37], x[8, 300], x[9, 511] = np.nan, np.inf, -np.inf
    x[10, ::2] = np.float32(2.0**-140)
    x[11, 40:] = 0
    return x


@pytest.mark.parametrize("form", [A32, A256])
def test_activation_rounding(kernels: Kernels, form: int) -> None:
    x = rounding_cases()
    n_cols = x.shape[1]
    unit = 32 if form == A32 else 256
    want = round_acts(x, form)
    for tier in kernels.tiers():
        acts = kernels.quantize(x, form, tier)
        assert acts.shape[1] % 64 == 0
        for row, codes, scales in zip(acts, want.codes, want.scales, strict=True):
            np.testing.assert_array_equal(section(row, 0, "i1", n_cols), codes)
            d = section(row, n_cols, "<f4", n_cols // unit)
            finite = np.isfinite(scales)
            np.testing.assert_array_equal(bits(d[finite]), bits(scales[finite]))
            assert (bits(d[~finite]) == 0x7FC00000).all()
            sums = codes.astype(np.int64)
            if form == A32:
                got = section(row, n_cols + 64, "<i4", n_cols // 32)
                np.testing.assert_array_equal(got, sums.reshape(-1, 32).sum(axis=1))
            else:
                got = section(row, n_cols + 64, "<i2", n_cols // 16)
                np.testing.assert_array_equal(got, sums.reshape(-1, 16).sum(axis=1))
                got = section(row, n_cols + 128, "<i2", n_cols // 32)
                np.testing.assert_array_equal(got, sums.reshape(-1, 32).sum(axis=1))


def test_unsupported_tiers_and_types_are_refused(kernels: Kernels) -> None:
    info = kernels.ffi.new("strata_test_type_info *")
    assert kernels.lib.strata_test_type_info_get(9, info) == -1  # Q8_1 is no weight type
    assert kernels.lib.strata_test_tier_best() in kernels.tiers()
    assert SCALAR in kernels.tiers()
    args = kernels.ffi.new("strata_test_matmul_args *")
    args.type = int(Quant.Q4_K)
    for tier in set(range(4)) - set(kernels.tiers()):
        args.tier = tier
        assert kernels.lib.strata_test_matmul(args) == -1
