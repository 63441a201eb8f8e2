"""The cached backend over a scripted device: when copies start, when the table changes, what a refusal does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cache_kit import uniform

from strata.engine.backend import BackendLimits, BatchRow, Phase, Routing, StepBatch, StepResult
from strata.engine.cached import CachedBackend, fill_slots
from strata.engine.expert_cache import ExpertCache
from strata.engine.placement import exact_slots
from strata.engine.swaps import SwapBudget
from strata.errors import EngineStopped, StrataError

N_SETS, N_EXPERT, K = 3, 8, 2


class Device:
    """Copies end when `end_copies` is called; the routing of every step is `hot`."""

    name = "scripted"
    limits = BackendLimits(n_ctx=64, n_batch=8, max_seqs=1, n_kv_blocks=1, n_vocab=10)

    def __init__(self) -> None:
        self.hot = (0, 1)
        self.copies: list[tuple[int, int, int]] = []
        self.n_done = 0
        self.commits: list[list[tuple[int, int, int]]] = []
        self.running: int | None = None
        self.n_steps = 0
        self.refuse = False

    def copy_expert(self, set_id: int, expert: int, slot: int) -> int:
        if self.refuse:
            raise StrataError("no room")
        self.copies.append((set_id, expert, slot))
        return len(self.copies)

    def end_copies(self) -> None:
        self.n_done = len(self.copies)

    def copied(self) -> int:
        return self.n_done

    def commit_experts(self, entries: Any) -> None:
        assert self.running is None, "the table changes between steps only"
        self.commits.append(list(entries))

    def submit(self, batch: StepBatch) -> int:
        assert self.running is None
        self.n_steps += 1
        self.running = self.n_steps
        return self.n_steps

    async def wait(self, ticket: int) -> StepResult:
        self.running = None
        ids = np.tile(np.asarray(self.hot, np.int32), (N_SETS, 1, 1))
        routing = Routing(ids=ids, weights=np.ones(ids.shape, np.float32))
        return StepResult(ticket=ticket, tokens=(None,), routing=routing)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not expected")


def cached(device: Device, n_slots: int = 9, **options: Any) -> tuple[CachedBackend, Any]:
    experts = uniform(N_SETS, N_EXPERT, K)
    split, chosen = exact_slots(experts, np.zeros((N_SETS, N_EXPERT)), n_slots, spares=3)
    cache = ExpertCache(experts, split, SwapBudget(1e9, 10**9, 0.0))
    clock = iter(range(1, 10_000))
    return CachedBackend(device, cache, clock=lambda: float(next(clock)), **options), chosen  # type: ignore[arg-type]


def decode(phase: Phase = Phase.DECODE) -> StepBatch:
    return StepBatch(rows=(BatchRow(seq_id=0, tokens=(1,), first_pos=0, blocks=(0,), phase=phase),))


async def opened(device: Device, **options: Any) -> CachedBackend:
    backend, chosen = cached(device, **options)
    await_copies = device.copied
    device.copied = lambda: (device.end_copies(), await_copies())[1]  # type: ignore[method-assign]
    await fill_slots(device, backend.cache, chosen)  # type: ignore[arg-type]
    device.copied = await_copies  # type: ignore[method-assign]
    return backend


async def steps(backend: CachedBackend, n: int, phase: Phase = Phase.DECODE) -> list[StepResult]:
    return [await backend.wait(backend.submit(decode(phase))) for _ in range(n)]


async def test_the_first_choice_is_copied_then_committed_at_once():
    device = Device()
    await opened(device)
    assert len(device.copies) == 9
    assert [sorted(commit) for commit in device.commits] == [sorted(device.copies)]


async def test_swaps_enter_the_table_only_after_their_copy_and_between_steps():
    device = Device()
    backend = await opened(device)
    device.hot = (6, 7)
    await steps(backend, 30)
    begun = device.copies[9:]
    assert {(s, e) for s, e, _ in begun} <= {(s, e) for s in range(N_SETS) for e in (6, 7)}
    assert begun
    assert len(device.commits) == 1  # no copy has ended
    device.end_copies()
    results = await steps(backend, 1)
    assert len(device.commits) == 2
    arrivals = {entry for entry in device.commits[1] if entry[2] >= 0}
    assert arrivals == set(begun)
    assert backend.n_swaps == len(begun)
    on_gpu = results[0].routing.on_gpu
    assert on_gpu.sum() == len(begun)  # the step after the commit saw them


async def test_prompts_start_no_swaps():
    device = Device()
    backend = await opened(device)
    device.hot = (6, 7)
    await steps(backend, 30, Phase.PREFILL)
    assert len(device.copies) == 9


async def test_a_refused_copy_costs_nothing_but_the_swap():
    device = Device()
    backend = await opened(device)
    device.hot, device.refuse = (6, 7), True
    await steps(backend, 30)
    backend.cache.residency.check_integrity()
    assert backend.cache.residency.open_swaps == ()
    device.refuse = False
    await steps(backend, 30)
    assert len(device.copies) > 9


async def test_the_test_mode_exchanges_one_before_every_step():
    device = Device()
    backend = await opened(device, swap_every_step=True)
    device.copied = lambda: len(device.copies)  # type: ignore[method-assign]
    await steps(backend, 12)
    assert backend.n_swaps >= 12  # those of the policy come on top
    backend.cache.residency.check_integrity()


async def test_a_device_that_never_copies_is_given_up(monkeypatch, autojump_clock):
    device = Device()
    backend, chosen = cached(device)
    with pytest.raises(EngineStopped, match="no expert was copied"):
        await fill_slots(device, backend.cache, chosen)  # type: ignore[arg-type]


async def test_the_test_mode_leaves_the_policys_open_swaps_alone():
    device = Device()
    backend = await opened(device, swap_every_step=True)
    device.hot = (6, 7)
    ended = 0

    def slowly() -> int:  # the policy's copies stay open over several steps, the exchanged one's is waited for
        nonlocal ended
        ended = min(ended + 1, len(device.copies))
        return ended

    device.copied = slowly  # type: ignore[method-assign]
    await steps(backend, 60)
    backend.cache.residency.check_integrity()
    assert backend.n_swaps >= 60
