"""What the engine tells telemetry: plain calls at fixed points, made by the loop, never awaited."""

from __future__ import annotations

from typing import Protocol

from strata.engine.backend import StepBatch, StepResult
from strata.types import FinishReason, Request, Usage


class Observer(Protocol):
    """Receives events of requests and steps. Calls must return at once and never raise."""

    def request_queued(self, request: Request) -> None: ...

    def request_started(self, request: Request, n_cached: int) -> None: ...

    def first_token(self, request: Request, usage: Usage) -> None: ...

    def request_ended(self, request: Request, usage: Usage, outcome: FinishReason | Exception) -> None: ...

    def step_done(self, batch: StepBatch, result: StepResult) -> None: ...


class NullObserver:
    """Telemetry switched off."""

    def request_queued(self, request: Request) -> None:
        pass

    def request_started(self, request: Request, n_cached: int) -> None:
        pass

    def first_token(self, request: Request, usage: Usage) -> None:
        pass

    def request_ended(self, request: Request, usage: Usage, outcome: FinishReason | Exception) -> None:
        pass

    def step_done(self, batch: StepBatch, result: StepResult) -> None:
        pass
