"""A backend whose routing is written to a trace, step by step; everything else passes through."""

from __future__ import annotations

import logging

import numpy as np

from strata.arch.plan_tables import ModelPlan
from strata.engine.backend import Backend, BackendHealth, Routing, StepBatch, StepResult
from strata.engine.trace import TraceHeader, TraceRecords, TraceWriter
from strata.errors import TraceError

__all__ = ["TracedBackend", "trace_header", "trace_records"]

_log = logging.getLogger(__name__)


def trace_header(plan: ModelPlan, fingerprint: str) -> TraceHeader:
    """The header of a trace of this plan's steps. The plan has expert sets."""
    return TraceHeader(
        fingerprint=fingerprint,
        n_layers=plan.n_layer,
        n_expert=max(experts.n_expert for experts in plan.expert_sets),
        k=max(experts.n_used for experts in plan.expert_sets),
        layers=tuple(experts.layer for experts in plan.expert_sets),
    )


def trace_records(step: int, batch: StepBatch, routing: Routing) -> TraceRecords:
    """One record for each token of the step, in batch order."""
    lengths = [len(row.tokens) for row in batch.rows]
    experts = np.moveaxis(routing.ids, 1, 0)
    on_gpu = np.zeros(experts.shape, bool) if routing.on_gpu is None else np.moveaxis(routing.on_gpu, 1, 0)
    return TraceRecords(
        step=np.full(batch.n_tokens, step, np.uint64),
        seq_id=np.repeat(np.asarray([row.seq_id for row in batch.rows], np.uint64), lengths),
        position=np.concatenate(
            [np.arange(row.first_pos, row.first_pos + len(row.tokens), dtype=np.uint32) for row in batch.rows]
        ),
        phase=np.repeat(np.asarray([row.phase for row in batch.rows], np.uint8), lengths),
        experts=experts,
        on_gpu=on_gpu,
        weights=np.moveaxis(routing.weights, 1, 0),
    )


class TracedBackend:
    """Writes what `inner`, which captures routing, computed. The writer belongs to the caller.

    A disk that refuses ends the trace, once and loudly, and not the requests.
    """

    def __init__(self, inner: Backend, writer: TraceWriter) -> None:
        self._inner = inner
        self._writer: TraceWriter | None = writer
        self._batches: dict[int, StepBatch] = {}
        self.name = inner.name
        self.limits = inner.limits

    @property
    def inner(self) -> Backend:
        return self._inner

    def submit(self, batch: StepBatch) -> int:
        ticket = self._inner.submit(batch)
        self._batches[ticket] = batch
        return ticket

    async def wait(self, ticket: int) -> StepResult:
        """Cancellation: immediate; a step whose result nobody reads is not in the trace."""
        result = await self._inner.wait(ticket)
        batch = self._batches.pop(ticket)
        if self._writer is not None and result.routing is not None:
            try:
                self._writer.write(trace_records(ticket, batch, result.routing))
            except TraceError as error:
                _log.error("the routing trace ends after %d tokens: %s", self._writer.n_records, error)
                self._writer = None
        return result

    def abort(self, ticket: int) -> None:
        self._inner.abort(ticket)

    def kv_copy(self, from_block: int, to_block: int) -> None:
        self._inner.kv_copy(from_block, to_block)

    def state_copy(self, from_slot: int, to_slot: int) -> None:
        self._inner.state_copy(from_slot, to_slot)

    def health(self) -> BackendHealth:
        return self._inner.health()

    async def aclose(self) -> None:
        await self._inner.aclose()
