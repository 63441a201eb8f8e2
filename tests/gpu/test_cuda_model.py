"""Whole models on the GPU against the CPU, bit for bit: every number of slots, chunk, cache type, and while swapping.

Run with `pytest -m gpu tests/gpu` on a machine with an NVIDIA GPU, or on the emulator: `make emulate`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from strata.engine.backend import BatchRow, StepBatch
from strata.engine.offline import logits_of, run_step
from strata.errors import StrataError
from strata.ffi.library import Library

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gates"))
from gate_kit import MODELS, Counts, demo_path, expected, opened, tokens

pytestmark = pytest.mark.gpu
# The emulator is slow, and its NVRTC must be named: a real one may be installed.
DEVICE: dict[str, Any] = {
    "backend": "cuda",
    "swap_budget": 1 << 30,
    "n_threads": int(os.environ.get("STRATA_ENGINE_N_THREADS", "4")),
    "nvrtc_path": os.environ.get("STRATA_ENGINE_NVRTC_PATH"),
    "deadline_scale": float(os.environ.get("STRATA_ENGINE_DEADLINE_SCALE", "1")),
}
ALL_MODELS = (*MODELS, demo_path())


@pytest.fixture(autouse=True, scope="module")
def _needs_gpu() -> None:
    try:
        Library().gpu(0)
    except StrataError as error:
        pytest.skip(str(error))


async def run(model: str, chunk: int, **options: Any) -> tuple[np.ndarray, Counts]:
    async with opened(model, **DEVICE, **options) as backend:
        counts = Counts(backend)
        return np.concatenate([rows async for rows in logits_of(counts, tokens(), chunk)]), counts


_known: dict[str, int] = {}


async def n_experts(model: str) -> int:
    if model not in _known:
        async with opened(model, backend="sim", swap_budget=1 << 30) as backend:
            _known[model] = int(backend.cache.residency.n_resident.sum())
    return _known[model]


def assert_same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    differing = np.flatnonzero((found.view(np.uint32) != wanted.view(np.uint32)).any(-1))
    largest = np.abs(found - wanted).max() if differing.size else 0.0
    assert differing.size == 0, (
        f"{differing.size} of {len(wanted)} rows differ, first {differing[0]}, by up to {largest}"
    )


@pytest.mark.parametrize("model", ALL_MODELS)
@pytest.mark.parametrize("share", ["all", "half", "one", "none"])
@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
async def test_slots_and_chunks(model: str, share: str, chunk: int) -> None:
    n = await n_experts(model)
    slots = {"none": 0, "one": 1, "half": n // 2, "all": n}[share]
    found, counts = await run(model, chunk, expert_slots=slots)
    assert_same_bits(found, await expected(model))
    assert (counts.misses > 0) == (slots < n)
    if slots != 1:
        assert (counts.hits > 0) == (slots > 0)


@pytest.mark.parametrize("model", ALL_MODELS)
async def test_a_swap_before_every_step(model: str) -> None:
    n = await n_experts(model)
    async with opened(model, **DEVICE, expert_slots=n // 2, swap_every_step=True) as backend:
        counts = Counts(backend)
        found = np.concatenate([rows async for rows in logits_of(counts, tokens(), 1)])
        assert backend.n_swaps >= len(tokens()) - 1
        handoffs = backend.handoffs()
    assert_same_bits(found, await expected(model))
    assert counts.hits > 0
    assert counts.misses > 0
    assert sum(handoffs.overhead) > 0


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("model", MODELS)
async def test_cache_types(model: str, kv_type: str) -> None:
    found, _ = await run(model, 16, kv_type=kv_type, expert_slots=9)
    assert_same_bits(found, await expected(model, kv_type))


async def test_an_abort_leaves_nothing_spinning() -> None:
    model = demo_path()
    wanted = await expected(model)
    async with opened(model, **DEVICE, expert_slots=20) as backend:
        for delay in (0.0, 0.0002, 0.001, 0.003):
            row = BatchRow(seq_id=0, tokens=tuple(tokens()), first_pos=0, blocks=(0, 1))
            ticket = backend.submit(StepBatch(rows=(row,)))
            await trio.sleep(delay)
            backend.abort(ticket)
            start = time.monotonic()
            await backend.wait(ticket)
            assert time.monotonic() - start < 5 * DEVICE["deadline_scale"]
        row = BatchRow(seq_id=0, tokens=tuple(tokens()), first_pos=0, blocks=(0, 1), all_logits=True)
        assert_same_bits((await run_step(backend, StepBatch(rows=(row,)))).logits, wanted)
