"""A backend whose experts move: routing goes to the cache's policy, its swaps become copies and table changes.

What a step taught is worked in while the next one runs, so that no token waits for it. Copies are started then and run
beside steps; the table changes before a step, while none runs. Nothing here waits for a copy, except at the opening and
in the test mode that swaps before every step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np
import trio

from strata.engine.backend import Backend, BackendHealth, Handoffs, Phase, Routing, StepBatch, StepResult
from strata.engine.expert_cache import ExpertCache
from strata.engine.placement import Mask
from strata.engine.prediction import Prediction, SpeedCheck
from strata.engine.residency import Swap
from strata.errors import EngineStopped, StrataError

__all__ = ["CachedBackend", "SlotBackend", "fill_slots"]

_log = logging.getLogger(__name__)
_COPY_POLL_S = 0.002
_COPY_DEADLINE_S = 30.0  # without a single copy ending


class SlotBackend(Backend, Protocol):
    """A backend with expert slots."""

    def copy_expert(self, set_id: int, expert: int, slot: int) -> int: ...
    def copied(self) -> int: ...
    def commit_experts(self, entries: Sequence[tuple[int, int, int]]) -> None: ...
    def handoffs(self) -> Handoffs: ...


async def fill_slots(
    backend: SlotBackend, cache: ExpertCache, chosen: Mask, on_copied: Callable[[int], None] | None = None
) -> None:
    """Make the first choice resident, before any step. on_copied: experts copied so far.

    Raises: ValueError when the choice does not fit, EngineStopped when copies do not end. Cancellation: immediate;
    nothing has become resident then.
    """
    placed = cache.residency.fill(chosen)
    for first in range(0, len(placed), _FILL_AT_ONCE):
        number = 0
        for set_id, expert, slot in placed[first : first + _FILL_AT_ONCE].tolist():
            number = backend.copy_expert(set_id, expert, slot)
        await _all_copied(backend, number)
        if on_copied is not None:
            on_copied(min(first + _FILL_AT_ONCE, len(placed)))
    backend.commit_experts([tuple(entry) for entry in placed.tolist()])


_FILL_AT_ONCE = 256


async def _all_copied(backend: SlotBackend, number: int) -> None:
    seen, since = -1, trio.current_time()
    while (done := backend.copied()) < number:
        if done != seen:
            seen, since = done, trio.current_time()
        if trio.current_time() - since > _COPY_DEADLINE_S:
            raise EngineStopped(f"no expert was copied for {_COPY_DEADLINE_S:.0f} s; the device does not answer")
        await trio.sleep(_COPY_POLL_S)


class CachedBackend:
    """Backend over `inner`, which captures routing. One step at a time may be under way."""

    def __init__(
        self,
        inner: SlotBackend,
        cache: ExpertCache,
        *,
        swap_every_step: bool = False,
        predicted: Prediction | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """swap_every_step: a test mode; before every step one resident expert is exchanged, whatever its heat."""
        self.name = inner.name
        self.limits = inner.limits
        self.cache = cache
        self.n_swaps = 0
        self.n_swap_bytes = 0
        self._inner = inner
        self._clock = clock
        self._swap_every_step = swap_every_step
        self._predicted = predicted
        self._speed = SpeedCheck()
        self._copies: dict[int, int] = {}  # number of a copy -> its swap
        self._steps: dict[int, tuple[int, StepBatch, Mask]] = {}  # ticket -> number, batch, what was resident
        self._unread: list[tuple[StepBatch, StepResult]] = []  # finished steps that have not been counted
        self._n_steps = 0
        self._turn = 0

    def submit(self, batch: StepBatch) -> int:
        if not self._steps:
            self._move_in()
        ticket = self._inner.submit(batch)
        self._n_steps += 1
        self._steps[ticket] = (self._n_steps, batch, self.cache.residency.resident)
        self._learn()
        return ticket

    async def wait(self, ticket: int) -> StepResult:
        """Cancellation: immediate; the step is counted when its result is read after all."""
        result = await self._inner.wait(ticket)
        number, batch, resident = self._steps.pop(ticket)
        if result.routing is not None:
            result = msgspec.structs.replace(result, routing=_placed(result.routing, resident))
        self.cache.step_ended(number)
        self._unread.append((batch, result))
        return result

    def abort(self, ticket: int) -> None:
        self._inner.abort(ticket)

    def kv_copy(self, from_block: int, to_block: int) -> None:
        self._inner.kv_copy(from_block, to_block)

    def state_copy(self, from_slot: int, to_slot: int) -> None:
        self._inner.state_copy(from_slot, to_slot)

    def health(self) -> BackendHealth:
        return self._inner.health()

    def handoffs(self) -> Handoffs:
        return self._inner.handoffs()

    async def aclose(self) -> None:
        self._learn()
        self.cache.cancel_all()
        await self._inner.aclose()

    def _compare(self, token_s: float | None) -> None:
        """Say once how fast decoding is, beside what was predicted."""
        if token_s is None or self._predicted is None:
            return
        _log.info(
            "decoding takes %.2f ms a token (%.1f tok/s), predicted were %s; %.0f %% of the expert uses hit",
            token_s * 1e3,
            1.0 / token_s,
            self._predicted.text(),
            100.0 * self.cache.n_hits / max(self.cache.n_uses, 1),
        )

    # ---- inside -----------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Count what has finished and start the copies that it asks for."""
        unread, self._unread = self._unread, []
        for batch, result in unread:
            if result.routing is not None:
                self.cache.note(batch, result.routing)
            if batch.n_tokens == 1 and batch.rows[0].phase == Phase.DECODE and result.error is None:
                self._compare(self._speed.note(result.run_s))
        self._note_copied()
        if any(row.phase != Phase.PREFILL for batch, _ in unread for row in batch.rows):
            self._start_copies(self.cache.plan(self._clock()))

    def _move_in(self) -> None:
        """Between steps: newcomers whose copy has ended enter the table, their victims leave it."""
        if self._swap_every_step:
            self._exchange_one()
        self._note_copied()
        self._commit(self.cache.commit(self._n_steps + 1))

    def _commit(self, swaps: list[Swap]) -> None:
        if not swaps:
            return
        entries: list[tuple[int, int, int]] = []
        for swap in swaps:
            if swap.victim is not None:
                entries.append((*swap.victim, -1))
            entries.append((*swap.newcomer, swap.slot))
        self._inner.commit_experts(entries)
        self.n_swaps += len(swaps)
        self.n_swap_bytes += sum(swap.n_bytes for swap in swaps)

    def _start_copies(self, swaps: list[Swap]) -> None:
        for swap in swaps:
            try:
                self._copies[self._inner.copy_expert(*swap.newcomer, swap.slot)] = swap.swap_id
            except StrataError as error:  # the cache stays as it is; requests go on
                _log.warning("expert %s could not be copied: %s", swap.newcomer, error)
                self.cache.residency.cancel(swap.swap_id)
                self.cache.residency.copied(swap.swap_id)

    def _note_copied(self) -> None:
        if not self._copies:
            return
        done = self._inner.copied()
        for number in [number for number in self._copies if number <= done]:
            self.cache.copied(self._copies.pop(number))

    def _exchange_one(self) -> None:
        residency = self.cache.residency
        may_go = residency.resident & ~residency.outgoing
        may_come = residency.experts.exists & ~residency.resident & ~residency.incoming
        pair = _next_pair(may_go, may_come, self._turn)
        if pair is None or residency.n_spare(residency.experts.class_of[pair[0][0]]) == 0:
            return
        self._turn += 1
        self._start_copies([residency.begin(*pair)])
        deadline = time.monotonic() + _COPY_DEADLINE_S
        while self._copies and self._inner.copied() < max(self._copies):
            if time.monotonic() > deadline:
                raise EngineStopped("an expert's copy did not end; the device does not answer")
            time.sleep(0)


def _placed(routing: Routing, resident: Mask) -> Routing:
    used = routing.ids >= 0
    on_gpu = resident[np.arange(len(routing.ids))[:, None, None], routing.ids] & used
    return Routing(ids=routing.ids, weights=routing.weights, on_gpu=on_gpu)


def _next_pair(may_go: Mask, may_come: Mask, turn: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """A newcomer and a victim of the same set, round the sets and experts as turns go by."""
    candidates = np.flatnonzero(may_go.any(axis=1) & may_come.any(axis=1))
    if len(candidates) == 0:
        return None
    set_id = int(candidates[turn % len(candidates)])
    turn //= len(candidates)
    victims, newcomers = np.flatnonzero(may_go[set_id]), np.flatnonzero(may_come[set_id])
    return (set_id, int(newcomers[turn % len(newcomers)])), (set_id, int(victims[turn % len(victims)]))
