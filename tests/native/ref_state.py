"""The ops with a state in numpy float64, token by token, one obvious function each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


def conv(x: Any, weight: Any, bias: Any = None) -> Doubles:
    """Causal convolution of every channel. x [n, width], weight [width, taps], zeros before the first token."""
    n, (width, taps) = len(x), weight.shape
    padded = np.vstack([np.zeros((taps - 1, width)), x])
    out = np.array([sum(weight[:, k] * padded[t + k] for k in range(taps)) for t in range(n)])
    return out if bias is None else out + bias
