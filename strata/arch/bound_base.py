"""What every bound part is made of: tensors, norms, projections. Shapes are those of y = W x."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Bound", "BoundLinear", "BoundNorm", "BoundTensor", "Part"]


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the bound structs."""


class Part(Bound, frozen=True, kw_only=True):
    """Where one expert's matrix begins when the file holds one tensor per expert."""

    name: str
    shard: int
    file_offset: int


class BoundTensor(Bound, frozen=True, kw_only=True):
    """A tensor that the model uses, or a row range of one (fused projections).

    `name` is the file's; rows row_first .. row_first + n_rows of each matrix are meant. `parts` is empty unless every
    expert has a file tensor of its own; `name` then is the first one's.
    """

    name: str
    role: Literal["matrix", "vector", "expert-matrix", "expert-vector"]
    type: int
    n_cols: int
    n_rows: int
    n_mats: int
    shard: int
    file_offset: int
    file_stride_bytes: int
    row_first: int = 0
    parts: tuple[Part, ...] = ()


class BoundNorm(Bound, frozen=True, kw_only=True):
    """eps inside the root; gain and bias of the normed vector's width, gain None: 1."""

    kind: Literal["rms", "layer"]
    eps: float
    gain: BoundTensor | None
    bias: BoundTensor | None = None


class BoundLinear(Bound, frozen=True, kw_only=True):
    """y = (W x) * scale + bias."""

    weight: BoundTensor
    bias: BoundTensor | None = None
    scale: BoundTensor | None = None
