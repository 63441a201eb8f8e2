"""Routing traces for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from strata.engine.trace import TraceHeader, TraceRecords, TraceWriter

MARK = "0f" * 32
HEADER = TraceHeader(fingerprint=MARK, n_layers=5, n_expert=9, k=3, layers=(1, 2, 4))


def records(n: int, header: TraceHeader = HEADER, seed: int = 0, first_step: int = 1) -> TraceRecords:
    """Valid records; some sets use fewer experts, some none."""
    rng = np.random.default_rng(seed)
    experts = np.full((n, header.n_sets, header.k), -1, np.int32)
    for place in np.ndindex(n, header.n_sets):
        used = rng.integers(0, header.k + 1)
        experts[place][:used] = rng.permutation(header.n_expert)[:used]
    return TraceRecords(
        step=first_step + np.sort(rng.integers(0, max(n, 1), n)).astype(np.uint64),
        seq_id=rng.integers(0, 2**63, n).astype(np.uint64),
        position=rng.integers(0, 2**30, n).astype(np.uint32),
        phase=rng.integers(0, 3, n).astype(np.uint8),
        experts=experts,
        on_gpu=(rng.random(experts.shape) < 0.5) & (experts >= 0),
        weights=np.where(experts >= 0, rng.random(experts.shape), 0).astype(np.float32),
    )


def equal(a: TraceRecords, b: TraceRecords, *, weights: bool = True) -> bool:
    names = [name for name in TraceRecords.__struct_fields__ if weights or name != "weights"]
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def written(path: Path, *pieces: TraceRecords, header: TraceHeader = HEADER) -> Path:
    with TraceWriter(path, header) as writer:
        for piece in pieces:
            writer.write(piece)
    return path
