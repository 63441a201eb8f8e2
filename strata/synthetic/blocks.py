"""Scale fields of quantised blocks: random bytes become weights of a wanted deviation.

The payload of a block (codes, grid indices, signs, sub-scales) may be any bytes; only the fields that scale the whole
block decide how large its values are, and random ones would give infinities.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.gguf.quants import GgmlType, type_info

JITTER = 64  # scale fields differ by up to this many steps of their last bit

# Half-precision fields of a block: byte offset, and the factor on the block's scale. The second field of a pair moves
# the values' mean to 0: minimums (Q2_K to Q5_K, where they are subtracted) or offsets (Q4_1, Q5_1).
_HALF_FIELDS: dict[GgmlType, tuple[tuple[int, float], ...]] = {
    GgmlType.Q4_0: ((0, 1.0),),
    GgmlType.Q4_1: ((0, 1.0), (2, -7.5)),
    GgmlType.Q5_0: ((0, 1.0),),
    GgmlType.Q5_1: ((0, 1.0), (2, -15.5)),
    GgmlType.Q8_0: ((0, 1.0),),
    GgmlType.Q2_K: ((80, 1.0), (82, 1.5)),
    GgmlType.Q3_K: ((108, 1.0),),
    GgmlType.Q4_K: ((0, 1.0), (2, 7.5)),
    GgmlType.Q5_K: ((0, 1.0), (2, 15.5)),
    GgmlType.Q6_K: ((208, 1.0),),
    GgmlType.IQ1_S: ((0, 1.0),),
    GgmlType.IQ2_XXS: ((0, 1.0),),
    GgmlType.IQ2_XS: ((0, 1.0),),
    GgmlType.IQ2_S: ((0, 1.0),),
    GgmlType.IQ3_XXS: ((0, 1.0),),
    GgmlType.IQ3_S: ((0, 1.0),),
    GgmlType.IQ4_NL: ((0, 1.0),),
    GgmlType.IQ4_XS: ((0, 1.0),),
    GgmlType.TQ1_0: ((52, 1.0),),
    GgmlType.TQ2_0: ((64, 1.0),),
}

# Deviation of a dequantised value when the block's scale is 1 and the payload is uniformly random; a test measures it.
_UNIT_DEVIATION: dict[GgmlType, float] = {
    GgmlType.Q4_0: 4.61,
    GgmlType.Q4_1: 4.61,
    GgmlType.Q5_0: 9.23,
    GgmlType.Q5_1: 9.23,
    GgmlType.Q8_0: 73.9,
    GgmlType.Q2_K: 13.88,
    GgmlType.Q3_K: 43.3,
    GgmlType.Q4_K: 258.3,
    GgmlType.Q5_K: 527.0,
    GgmlType.Q6_K: 1365.3,
    GgmlType.IQ1_S: 7.20,
    GgmlType.IQ1_M: 7.20,
    GgmlType.IQ2_XXS: 53.3,
    GgmlType.IQ2_XS: 55.9,
    GgmlType.IQ2_S: 56.3,
    GgmlType.IQ3_XXS: 142.2,
    GgmlType.IQ3_S: 140.4,
    GgmlType.IQ4_NL: 67.2,
    GgmlType.IQ4_XS: 1246.0,
    GgmlType.TQ1_0: 0.817,
    GgmlType.TQ2_0: 1.118,
    GgmlType.MXFP4: 5.852,
    GgmlType.NVFP4: 2.923,
}
BLOCK_TYPES = tuple(_UNIT_DEVIATION)
FLOAT_TYPES = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)


def random_rows(
    rng: np.random.Generator, ggml_type: GgmlType, n_rows: int, n_cols: int, deviation: float
) -> NDArray[np.uint8]:
    """Random rows in the file's layout, uint8 [n_rows, row bytes]; every code of the type can occur.

    Raises: KeyError for a type that is neither in BLOCK_TYPES nor in FLOAT_TYPES.
    """
    if ggml_type in FLOAT_TYPES:
        values = rng.standard_normal((n_rows, n_cols), np.float32) * np.float32(deviation)
        return float_bytes(values, ggml_type)
    info = type_info(ggml_type)
    assert info is not None
    blocks = rng.integers(0, 256, (n_rows * (n_cols // info.block), info.block_bytes), np.uint8)
    set_scales(blocks, ggml_type, deviation)
    return blocks.reshape(n_rows, -1)


def set_scales(blocks: NDArray[np.uint8], ggml_type: GgmlType, deviation: float) -> None:
    """Overwrite the scale fields of uint8 [n_blocks, block_bytes] in place; their old bytes become the jitter.

    Raises: KeyError for a type that is not in BLOCK_TYPES.
    """
    scale = deviation / _UNIT_DEVIATION[ggml_type]
    if ggml_type == GgmlType.MXFP4:
        # value = 2^(e - 128) * code
        exponent, share = _octave(scale)
        blocks[:, 0] = np.clip(exponent + 128, 1, 253) + (blocks[:, 0] < 256 * share)
    elif ggml_type == GgmlType.NVFP4:
        # a scale for every 16 values, 2^(e - 7) * (1 + m / 8) in the byte 8 e + m, with m and the choice of e from the
        # old byte. The smallest scales have e = 0: deviations below 0.02 cannot be reached.
        exponent, share = _octave(scale / 1.466)
        e = max(exponent + 7, 0) + (blocks[:, :4] >> 3 < (32 * share if exponent >= -7 else 0))
        blocks[:, :4] = 8 * np.minimum(e, 14) + (blocks[:, :4] & 7)
    elif ggml_type == GgmlType.IQ1_M:
        # four bits of the scale in the top of each of the last four 16-bit words
        bits = _half_bits(scale, blocks[:, 48] % JITTER)
        for word in range(4):
            top = (bits >> (4 * word) & 15) << 4
            blocks[:, 49 + 2 * word] = (blocks[:, 49 + 2 * word] & 15) | top
    else:
        fields = _HALF_FIELDS[ggml_type]
        jitter = blocks[:, fields[0][0]] % JITTER
        for at, factor in fields:
            bits = _half_bits(scale * factor, jitter)
            blocks[:, at] = bits & 0xFF
            blocks[:, at + 1] = bits >> 8


def float_bytes(values: NDArray[np.float32], ggml_type: int) -> NDArray[np.uint8]:
    """float32 [n, n_cols] as F32, F16 or BF16 bytes [n, row_bytes]."""
    rounded: Any = values
    if ggml_type == GgmlType.F16:
        rounded = values.astype(np.float16)
    elif ggml_type == GgmlType.BF16:
        bits = values.view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.ascontiguousarray(rounded).view(np.uint8).reshape(len(values), values.shape[1] * rounded.itemsize)


def _octave(scale: float) -> tuple[int, float]:
    """The power of two below `scale`, and how often the next one must stand for the mean square to be scale^2."""
    exponent = math.floor(math.log2(scale))
    return exponent, ((scale / 2.0**exponent) ** 2 - 1) / 3


def _half_bits(value: float, jitter: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Half-precision bits near `value`; near zero, where a step is a large part of the number, without jitter."""
    bits = int(np.float16(value).view(np.uint16))
    steps = jitter.astype(np.uint16) if bits & 0x7FFF > JITTER * 16 else np.zeros(len(jitter), np.uint16)
    return steps + np.uint16(bits)
