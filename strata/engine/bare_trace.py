"""Bare routing records as other tools write them: no header, one record for each MoE layer of each position.

Little-endian: i32 layer, i32 k, k x i32 expert ids in router order, k x f32 weights. A cut-off last record is ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.errors import TraceError

__all__ = ["BareRecord", "read_bare", "write_bare"]

_LEAD = struct.Struct("<ii")


class BareRecord(msgspec.Struct, frozen=True):
    """One layer of one position."""

    layer: int
    experts: NDArray[np.int32]  # [k]
    weights: NDArray[np.float32]  # [k]


def read_bare(path: str | Path, *, n_layers: int, n_expert: int) -> Iterator[BareRecord]:
    """All whole records. Raises: TraceError with the record's number, the field and both values."""
    try:
        with Path(path).open("rb") as file:
            yield from _records(file, str(path), n_layers, n_expert)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error


def _records(file: BinaryIO, where: str, n_layers: int, n_expert: int) -> Iterator[BareRecord]:
    number = 0
    while len(lead := file.read(_LEAD.size)) == _LEAD.size:
        layer, k = _LEAD.unpack(lead)
        if not 0 <= layer < n_layers:
            raise TraceError(f"{where}: record {number}: layer is {layer}; accepted: 0 to {n_layers - 1}")
        if not 1 <= k <= n_expert:
            raise TraceError(f"{where}: record {number}: k is {k}; accepted: 1 to {n_expert}")
        body = file.read(8 * k)
        if len(body) < 8 * k:
            return
        experts = np.frombuffer(body, "<i4", k)
        bad = (experts < 0) | (experts >= n_expert)
        if bad.any():
            value = int(experts[int(np.argmax(bad))])
            raise TraceError(f"{where}: record {number}: expert is {value}; accepted: 0 to {n_expert - 1}")
        yield BareRecord(layer, experts.astype(np.int32), np.frombuffer(body, "<f4", k, 4 * k).astype(np.float32))
        number += 1


def write_bare(file: BinaryIO, record: BareRecord) -> None:
    """Append one record. Raises: ValueError when the arrays differ in length or are empty; OSError."""
    k = len(record.experts)
    if k < 1 or len(record.weights) != k:
        raise ValueError(f"{k} experts with {len(record.weights)} weights are no record")
    file.write(_LEAD.pack(record.layer, k))
    file.write(record.experts.astype("<i4").tobytes() + record.weights.astype("<f4").tobytes())
