"""Weights, activations and calls for tests of the matrix kernels: numpy in, numpy out, buffers aligned.

Pure numpy references here are the slow, obvious side; the native library is the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

F32, A32, A256 = 0, 1, 2
PACKED, ROWS = 0, 1
SCALAR = 0
TIER_NAMES = {0: "scalar", 1: "avx2", 2: "avx512", 3: "neon"}

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def aligned(n_bytes: int) -> Bytes:
    """Return n_bytes that start at a multiple of 64, filled with 0xa5 so that forgotten bytes show."""
    raw = np.full(n_bytes + 64, 0xA5, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n_bytes]


def random_rows(rng: np.random.Generator, quant: GGMLQuantizationType, n_rows: int, n_cols: int) -> Bytes:
    """Return file rows [n_rows, row bytes] with every code possible and scales of moderate size."""
    block, block_bytes = GGML_QUANT_SIZES[quant]
    blocks = rng.integers(0, 256, (n_rows, n_cols // block, block_bytes), np.uint8)
    set_scales(blocks, quant, rng)
    return blocks.reshape(n_rows, -1)


def set_scales(blocks: Bytes, quant: GGMLQuantizationType, rng: np.random.Generator) -> None:
    """Overwrite the floating-point scales of blocks [n_rows, n_blocks, block bytes] with finite random ones."""
    shape = blocks.shape[:2]

    def halves() -> Bytes:
        values = rng.uniform(0.01, 0.1, shape) * rng.choice([-1.0, 1.0], shape)
        return values.astype("<f2").view(np.uint8).reshape(*shape, 2)

    if quant == GGMLQuantizationType.MXFP4:
        blocks[..., 0] = rng.integers(118, 126, shape)
    elif quant == GGMLQuantizationType.Q6_K:
        blocks[..., 208:210] = halves()
    else:
        blocks[..., 0:2] = halves()
    if quant == GGMLQuantizationType.Q4_K:
        blocks[..., 2:4] = halves()


def weights_float64(rows: Bytes, quant: GGMLQuantizationType) -> npt.NDArray[np.float64]:
    """Return the matrix [n_rows, n_cols] as gguf's own dequantisation gives it."""
    return dequantize(rows, quant).astype(np.float64)


@dataclass
class RoundedActs:
    """Activations after rounding: codes int8 [n_tokens, n_cols] and scales float32 [n_tokens, n_cols / unit]."""

    codes: npt.NDArray[np.int8]
    scales: Floats

    def values(self) -> npt.NDArray[np.float64]:
        """Return codes times scales, exact in float64."""
        repeat = self.codes.shape[1] // self.scales.shape[1]
        return self.codes.astype(np.float64) * np.repeat(self.scales.astype(np.float64), repeat, axis=1)


def round_acts(x: Floats, form: int) -> RoundedActs:
    """Round activations [n_tokens, n_cols] as contract C1 says, in numpy float32 arithmetic."""
    unit = 32 if form == A32 else 256
    units = x.reshape(x.shape[0], -1, unit)
    with np.errstate(all="ignore"):
        d = (np.abs(units).max(axis=2) / np.float32(127)).astype(np.float32)
        bad = ~np.isfinite(units).all(axis=2)
        empty = bad | (d == 0)
        ratio = units / np.where(empty, np.float32(1), d)[..., None]
        codes = np.where(empty[..., None], np.float32(0), np.rint(np.clip(ratio, -127, 127)))
        codes = codes.astype(np.int8)
    d = np.where(bad, np.float32(np.nan), d)
    return RoundedActs(codes.reshape(x.shape), d)


def section(row: Bytes, offset: int, dtype: str, count: int) -> npt.NDArray[Any]:
    """Return `count` values of a section of an activation row."""
    return row[offset : offset + count * np.dtype(dtype).itemsize].view(dtype)


@dataclass
class Kernels:
    """The hooks with numpy arrays instead of pointers."""

    ffi: Any
    lib: Any

    def tiers(self) -> list[int]:
        """Return the tiers of this machine, the scalar reference first."""
        return [tier for tier in TIER_NAMES if self.lib.strata_test_tier_supported(tier)]

    def pointer(self, array: npt.NDArray[Any] | None, ctype: str) -> Any:
        """Return the array's memory as a C pointer, null for None."""
        if array is None:
            return self.ffi.NULL
        return self.ffi.cast(ctype, array.ctypes.data)

    def act_form(self, quant: GGMLQuantizationType) -> int:
        """Return the activation form of a weight type."""
        info = self.ffi.new("strata_test_type_info *")
        assert self.lib.strata_test_type_info_get(int(quant), info) == 0
        return info.act_form

    def quantize(self, x: Floats, form: int, tier: int = SCALAR) -> Bytes:
        """Return activation rows [n_tokens, row bytes]."""
        n_tokens, n_cols = x.shape
        row_bytes = self.lib.strata_test_act_row_bytes(form, n_cols)
        acts = aligned(n_tokens * row_bytes)
        x = np.ascontiguousarray(x)
        status = self.lib.strata_test_act_quantize(
            tier, form, self.pointer(x, "float *"), n_cols, n_tokens, self.pointer(acts, "uint8_t *")
        )
        assert status == 0
        return acts.reshape(n_tokens, row_bytes)

    def pack(self, quant: GGMLQuantizationType, rows: Bytes, n_cols: int, split: int | None = None) -> Bytes:
        """Return the packed matrix of file rows [n_rows, row bytes], packed in runs of `split` rows."""
        n_rows = rows.shape[0]
        packed = aligned(self.lib.strata_test_packed_bytes(int(quant), n_rows, n_cols))
        for begin in range(0, n_rows, split or n_rows):
            end = min(n_rows, begin + (split or n_rows))
            part = np.ascontiguousarray(rows[begin:end])
            self.lib.strata_test_pack_rows(
                int(quant),
                self.pointer(part, "uint8_t *"),
                begin,
                end,
                n_rows,
                n_cols,
                self.pointer(packed, "uint8_t *"),
            )
        return packed

    def unpack(self, quant: GGMLQuantizationType, packed: Bytes, n_rows: int, n_cols: int) -> Bytes:
        """Return the file rows of a packed matrix."""
        block, block_bytes = GGML_QUANT_SIZES[quant]
        rows = np.zeros((n_rows, n_cols // block * block_bytes), np.uint8)
        for r in range(n_rows):
            self.lib.strata_test_unpack_row(
                int(quant), self.pointer(packed, "uint8_t *"), r, n_cols, self.pointer(rows[r], "uint8_t *")
            )
        return rows

    def matmul(  # noqa: PLR0917 - one argument for each field of the call
        self,
        quant: GGMLQuantizationType,
        data: Bytes,
        shape: tuple[int, int],
        acts: Bytes,
        tier: int = SCALAR,
        layout: int = PACKED,
        rows: tuple[int, int] | None = None,
        act_index: npt.NDArray[np.int32] | None = None,
        y_index: npt.NDArray[np.int32] | None = None,
        y: Floats | None = None,
    ) -> Floats:
        """Return y float32 [n_tokens, n_rows]; cells that the call does not write keep what they had (default -7)."""
        n_tokens = acts.shape[0] if act_index is None else act_index.shape[0]
        if y is None:
            y = np.full((n_tokens, shape[0]), -7, np.float32)
        begin, end = rows or (0, shape[0])
        args = self.ffi.new("strata_test_matmul_args *")
        args.tier, args.type, args.layout = tier, int(quant), layout
        args.n_rows, args.n_cols = shape
        args.data = self.pointer(data, "uint8_t *")
        args.row_begin, args.row_end = begin, end
        args.acts = self.pointer(acts, "uint8_t *")
        args.act_index = self.pointer(act_index, "int32_t *")
        args.n_tokens = n_tokens
        args.y, args.y_stride = self.pointer(y, "float *"), y.shape[1]
        args.y_index = self.pointer(y_index, "int32_t *")
        assert self.lib.strata_test_matmul(args) == 0
        return y


def bits(y: Floats) -> npt.NDArray[np.uint32]:
    """Return the bits of floats, for comparisons that see the sign of zero."""
    return np.ascontiguousarray(y).view(np.uint32)
