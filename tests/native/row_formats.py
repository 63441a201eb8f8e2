"""Random file rows of every weight type with moderate scales, and float32 arithmetic rounded from exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Quant
from matmul_kit import Bytes

# Byte offsets of the half-precision scales in a block.
HALF_SCALES: dict[Quant, tuple[int, ...]] = {
    Quant.Q4_0: (0,),
    Quant.Q4_1: (0, 2),
    Quant.Q5_0: (0,),
    Quant.Q5_1: (0, 2),
    Quant.Q8_0: (0,),
    Quant.Q2_K: (80, 82),
    Quant.Q3_K: (108,),
    Quant.Q4_K: (0, 2),
    Quant.Q5_K: (0, 2),
    Quant.Q6_K: (208,),
    Quant.IQ2_XXS: (0,),
    Quant.IQ2_XS: (0,),
    Quant.IQ2_S: (0,),
    Quant.IQ3_XXS: (0,),
    Quant.IQ3_S: (0,),
    Quant.IQ1_S: (0,),
    Quant.IQ4_NL: (0,),
    Quant.IQ4_XS: (0,),
    Quant.TQ1_0: (52,),
    Quant.TQ2_0: (64,),
}
FLOATS = (Quant.F32, Quant.F16, Quant.BF16)
QUANTS = (*HALF_SCALES, Quant.IQ1_M, Quant.MXFP4, Quant.NVFP4)
ALL_TYPES = (*FLOATS, *QUANTS)


def random_file_rows(rng: np.random.Generator, quant: Quant, n_rows: int, n_cols: int) -> Bytes:
    """Return file rows [n_rows, row bytes]: all codes possible, scales finite, moderate and of both signs."""
    if quant in FLOATS:
        x = rng.normal(0, 1, (n_rows, n_cols)).astype(np.float32)
        if quant == Quant.F16:
            return x.astype(np.float16).view(np.uint8)
        if quant == Quant.BF16:
            return np.ascontiguousarray((x.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8)
        return x.view(np.uint8)
    block, block_bytes = GGML_QUANT_SIZES[quant]
    blocks = rng.integers(0, 256, (n_rows, n_cols // block, block_bytes), np.uint8)
    shape = blocks.shape[:2]

    def halves() -> npt.NDArray[np.uint16]:
        values = rng.uniform(0.01, 0.1, shape) * rng.choice([-1.0, 1.0], shape)
        return values.astype(np.float16).view(np.uint16)

    for offset in HALF_SCALES.get(quant, ()):
        blocks[..., offset : offset + 2] = halves()[..., None].view(np.uint8)
    if quant == Quant.IQ1_M:  # four bits of the scale in the top nibble of each of the last four words
        d = halves()
        for word in range(4):
            high = blocks[..., 49 + 2 * word]
            blocks[..., 49 + 2 * word] = (high & 15) | ((d >> (4 * word) & 15) << 4).astype(np.uint8)
    if quant == Quant.MXFP4:
        blocks[..., 0] = rng.integers(118, 126, shape)
    if quant == Quant.NVFP4:
        blocks[..., :4] = rng.integers(20, 80, (*shape, 4))
    return blocks.reshape(n_rows, -1)


def round32(x: Fraction) -> Fraction:
    """Return x rounded to the nearest float32, ties to even; x lies in the range of normal numbers or is zero."""
    if x == 0:
        return x
    exponent = math.floor(math.log2(abs(x)))
    if abs(x) < Fraction(2) ** exponent:
        exponent -= 1
    elif abs(x) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - 23)
    return round(x / unit) * unit


def fma32(a: Fraction, b: Fraction, c: Fraction) -> Fraction:
    """Return the float32 fma of exact arguments."""
    return round32(a * b + c)
