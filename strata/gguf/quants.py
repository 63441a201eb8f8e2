"""GGML tensor types: block sizes, bytes, the activation form each is multiplied with, and packed sizes.

`packed_bytes` mirrors the native library's formula (native/src/cpu/pack.h); a test binds the two.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

GROUP_ROWS = 16  # rows of one group of the packed layout


class GgmlType(IntEnum):
    """Type numbers as GGUF files store them. Q8_1 (9) is ggml's form of activations and never stored."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40


class TypeInfo(NamedTuple):
    """`block` values are stored in `block_bytes` bytes; `act`: f32, a32, a256, or "" where no product exists."""

    name: str
    block: int
    block_bytes: int
    act: str


_TABLE: dict[GgmlType, TypeInfo] = {
    t: TypeInfo(t.name, block, block_bytes, act)
    for t, block, block_bytes, act in (
        (GgmlType.F32, 1, 4, "f32"),
        (GgmlType.F16, 1, 2, "f32"),
        (GgmlType.BF16, 1, 2, "f32"),
        (GgmlType.F64, 1, 8, ""),
        (GgmlType.I8, 1, 1, ""),
        (GgmlType.I16, 1, 2, ""),
        (GgmlType.I32, 1, 4, ""),
        (GgmlType.I64, 1, 8, ""),
        (GgmlType.Q4_0, 32, 18, "a32"),
        (GgmlType.Q4_1, 32, 20, "a32"),
        (GgmlType.Q5_0, 32, 22, "a32"),
        (GgmlType.Q5_1, 32, 24, "a32"),
        (GgmlType.Q8_0, 32, 34, "a32"),
        (GgmlType.IQ4_NL, 32, 18, "a32"),
        (GgmlType.MXFP4, 32, 17, "a32"),
        (GgmlType.NVFP4, 64, 36, "a32"),
        (GgmlType.Q2_K, 256, 84, "a256"),
        (GgmlType.Q3_K, 256, 110, "a256"),
        (GgmlType.Q4_K, 256, 144, "a256"),
        (GgmlType.Q5_K, 256, 176, "a256"),
        (GgmlType.Q6_K, 256, 210, "a256"),
        (GgmlType.Q8_K, 256, 292, ""),
        (GgmlType.IQ1_S, 256, 50, "a256"),
        (GgmlType.IQ1_M, 256, 56, "a256"),
        (GgmlType.IQ2_XXS, 256, 66, "a256"),
        (GgmlType.IQ2_XS, 256, 74, "a256"),
        (GgmlType.IQ2_S, 256, 82, "a256"),
        (GgmlType.IQ3_XXS, 256, 98, "a256"),
        (GgmlType.IQ3_S, 256, 110, "a256"),
        (GgmlType.IQ4_XS, 256, 136, "a256"),
        (GgmlType.TQ1_0, 256, 54, "a256"),
        (GgmlType.TQ2_0, 256, 66, "a256"),
    )
}


def type_info(ggml_type: int) -> TypeInfo | None:
    """Facts of a type number, None when unknown."""
    try:
        return _TABLE[GgmlType(ggml_type)]
    except ValueError:
        return None


def type_name(ggml_type: int) -> str:
    info = type_info(ggml_type)
    return info.name if info else f"type {ggml_type}"


def row_bytes(ggml_type: int, n_cols: int) -> int:
    """Bytes of one row of n_cols values. Raises ValueError for an unknown type or a ragged row."""
    info = type_info(ggml_type)
    if info is None:
        raise ValueError(f"GGML type {ggml_type} is unknown")
    if n_cols % info.block:
        raise ValueError(f"a row of {n_cols} values is no multiple of {info.name}'s block of {info.block}")
    return n_cols // info.block * info.block_bytes


def is_interleaved(ggml_type: int) -> bool:
    """Whether the packed layout differs from the file's rows."""
    return ggml_type in (GgmlType.Q4_K, GgmlType.Q6_K, GgmlType.Q8_0, GgmlType.MXFP4)


def packed_bytes(ggml_type: int, n_rows: int, n_cols: int) -> int:
    """Bytes of a matrix in the packed layout, a multiple of 64. Raises ValueError as row_bytes does.

    Interleaved types: whole groups of 16 rows; scales stand apart in chunks of 64 bytes (native/src/cpu/pack.h).
    Others keep their rows.
    """
    rows = row_bytes(ggml_type, n_cols) * n_rows
    if not is_interleaved(ggml_type):
        return _round64(rows)
    n_blocks = n_cols // _TABLE[GgmlType(ggml_type)].block
    if ggml_type == GgmlType.Q4_K:
        group = n_blocks * 2304
    elif ggml_type == GgmlType.Q6_K:
        group = _round64(n_blocks * 32) + n_blocks * 3328
    elif ggml_type == GgmlType.Q8_0:
        group = (n_blocks + 1) // 2 * 64 + n_blocks * 512
    else:
        group = (n_blocks + 3) // 4 * 64 + n_blocks * 256
    return (n_rows + GROUP_ROWS - 1) // GROUP_ROWS * group


def _round64(n: int) -> int:
    return (n + 63) & ~63
