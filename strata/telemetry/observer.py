"""Turns the engine's events into metrics and spans; implements `strata.engine.observer.Observer`."""

from __future__ import annotations

from typing import Protocol

from strata.errors import StrataError
from strata.telemetry.metrics import Metrics
from strata.telemetry.tracing import NoTracing, Tracing
from strata.types import FinishReason, Request, Usage


class Batch(Protocol):
    """What is read of a StepBatch."""

    @property
    def n_tokens(self) -> int: ...


class Result(Protocol):
    """What is read of a StepResult."""

    @property
    def run_s(self) -> float: ...
    @property
    def sample_s(self) -> float: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def expert_rows(self) -> int: ...
    @property
    def experts_touched(self) -> int: ...
    @property
    def expert_hits(self) -> int: ...
    @property
    def handoff_wait_s(self) -> float: ...
    @property
    def error(self) -> Exception | None: ...


class EngineTelemetry:
    """One per engine."""

    def __init__(self, metrics: Metrics, tracing: Tracing | None = None) -> None:
        self._metrics = metrics
        self._tracing: Tracing = tracing or NoTracing()

    def request_queued(self, request: Request) -> None:
        pass  # the waiting line is sampled

    def request_started(self, request: Request, n_cached: int) -> None:
        pass  # the cached tokens are counted at the end

    def first_token(self, request: Request, usage: Usage) -> None:
        self._metrics.observe("strata_queue_seconds", usage.queued_s)
        self._metrics.observe("strata_prefill_seconds", usage.prefill_s)
        self._metrics.observe("strata_first_token_seconds", usage.queued_s + usage.prefill_s)

    def request_ended(self, request: Request, usage: Usage, outcome: FinishReason | Exception) -> None:
        self._metrics.count("strata_requests_total", outcome=_word(outcome))
        self._metrics.count("strata_prompt_tokens_total", usage.n_prompt)
        self._metrics.count("strata_prompt_tokens_cached_total", usage.n_prompt_cached)
        self._metrics.count("strata_generated_tokens_total", usage.n_generated)
        if usage.n_generated:
            self._metrics.observe("strata_decode_seconds", usage.decode_s)
        self._tracing.sequence_ended(request.request_id, usage, outcome)

    def step_done(self, batch: Batch, result: Result) -> None:
        self._metrics.count("strata_steps_total", outcome="ok" if result.error is None else "failed")
        self._metrics.count("strata_step_tokens_total", batch.n_tokens)
        self._metrics.observe("strata_step_run_seconds", result.run_s)
        self._metrics.count("strata_step_sample_seconds_total", result.sample_s)
        self._metrics.count("strata_weight_read_bytes_total", result.weight_bytes)
        self._metrics.count("strata_expert_rows_total", result.expert_rows)
        self._metrics.count("strata_experts_touched_total", result.experts_touched)
        self._metrics.count("strata_expert_hits_total", result.expert_hits)
        self._metrics.count("strata_handoff_wait_seconds_total", result.handoff_wait_s)


def _word(outcome: FinishReason | Exception) -> str:
    if isinstance(outcome, FinishReason):
        return outcome.value
    return outcome.code if isinstance(outcome, StrataError) else StrataError.code
