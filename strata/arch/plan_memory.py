"""Where things lie: activation buffers by liveness, weights one after the other, experts in slots.

Offsets are multiples of 64 bytes. Pure arithmetic; only the plan's builder uses this.
"""

from __future__ import annotations

import msgspec

from strata.arch.bound import BoundTensor
from strata.arch.plan_tables import PlanBuffer, Rows
from strata.gguf.quants import packed_bytes

__all__ = ["ALIGN", "Value", "arena_bytes", "place_values", "round_up"]

ALIGN = 64
FLOATS_PER_ALIGN = ALIGN // 4


class Value(msgspec.Struct, frozen=True):
    """One activation between the op that writes it first and the op that reads it last: `width` floats a row."""

    id: int
    width: int
    rows: Rows


def round_up(n: int, step: int = ALIGN) -> int:
    """The next multiple of `step`."""
    return (n + step - 1) // step * step


def arena_bytes(tensor: BoundTensor) -> int:
    """Bytes of one matrix, or of one vector as float32, in the weights arena; not rounded for vectors."""
    if tensor.role in ("vector", "expert-vector"):
        return tensor.n_cols * 4
    return packed_bytes(tensor.type, tensor.n_rows, tensor.n_cols)


class _FreeList:
    """Free spans of an arena that grows at its end. First fit, lowest address first; neighbours merge."""

    def __init__(self) -> None:
        self.end = 0
        self._spans: list[tuple[int, int]] = []  # (begin, end), ascending

    def take(self, n_bytes: int) -> int:
        for k, (begin, end) in enumerate(self._spans):
            if end - begin >= n_bytes:
                self._spans[k : k + 1] = [(begin + n_bytes, end)] if end - begin > n_bytes else []
                return begin
        begin = self.end
        if self._spans and self._spans[-1][1] == self.end:
            begin = self._spans.pop()[0]
        self.end = begin + n_bytes
        return begin

    def give(self, begin: int, n_bytes: int) -> None:
        spans = sorted([*self._spans, (begin, begin + n_bytes)])
        merged: list[tuple[int, int]] = []
        for span in spans:
            if merged and merged[-1][1] == span[0]:
                merged[-1] = (merged[-1][0], span[1])
            else:
                merged.append(span)
        self._spans = merged


def place_values(
    values: list[Value], uses: list[set[int]], n_batch: int, n_outputs_max: int
) -> tuple[list[int], list[PlanBuffer], int]:
    """Give each value a place that no other value needs while it lives.

    uses: per op, the ids of the values it reads or writes. An op's results are placed while its inputs
    still live, so that it cannot write over what it reads. Values of equal place and shape share a table row.
    Returns: buffer index per value, the buffer table, bytes of the arena.
    """
    last: dict[int, int] = {}
    for index, ids in enumerate(uses):
        last.update(dict.fromkeys(ids, index))
    free = _FreeList()
    live: dict[int, tuple[int, int]] = {}
    table: dict[tuple[int, int, int, int], int] = {}
    where = [-1] * len(values)
    for index, ids in enumerate(uses):
        for value in (values[k] for k in sorted(ids) if k not in live):
            stride = round_up(value.width, FLOATS_PER_ALIGN)
            n_rows = n_batch if value.rows == Rows.TOKENS else n_outputs_max
            n_bytes = stride * n_rows * 4
            offset = free.take(n_bytes)
            live[value.id] = (offset, n_bytes)
            key = (offset, value.width, stride, int(value.rows))
            where[value.id] = table.setdefault(key, len(table))
        for k in sorted(ids):
            if last[k] == index:
                free.give(*live.pop(k))
    buffers = [PlanBuffer(offset=o, width=w, row_stride=s, rows=r) for o, w, s, r in table]
    return where, buffers, free.end
