"""OpenTelemetry spans: request -> queue, prefill, decode. Off unless a collector is configured.

The SDK is imported only when tracing is on. Spans of the engine's phases are made when a sequence ends, from its
measured times, so nothing is traced while tokens are produced.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from strata import __version__
from strata.types import FinishReason, Usage

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span

_NS = 1_000_000_000


class Tracing(Protocol):
    """What the server and the engine's observer report; every call returns at once."""

    def request_begun(self, request_id: str, route: str, headers: Mapping[str, str]) -> None: ...

    def request_ended(self, request_id: str, status: int) -> None: ...

    def sequence_ended(self, sequence_id: str, usage: Usage, outcome: FinishReason | Exception) -> None: ...

    def close(self) -> None:
        """Send what is pending; bounded by a few seconds. Blocks: call it in a thread."""
        ...


class NoTracing:
    """Tracing switched off."""

    def request_begun(self, request_id: str, route: str, headers: Mapping[str, str]) -> None:
        pass

    def request_ended(self, request_id: str, status: int) -> None:
        pass

    def sequence_ended(self, sequence_id: str, usage: Usage, outcome: FinishReason | Exception) -> None:
        pass

    def close(self) -> None:
        pass


class OtelTracing:
    """Spans through the OpenTelemetry SDK.

    A sequence belongs to the request whose id is its own id up to the first dot.
    """

    def __init__(self, processor: SpanProcessor, *, sample_frac: float = 1.0, close_s: float = 3.0) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        self._provider: TracerProvider = TracerProvider(
            resource=Resource({"service.name": "strata", "service.version": __version__}),
            sampler=ParentBased(TraceIdRatioBased(sample_frac)),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("strata", __version__)
        self._spans: dict[str, Span] = {}
        self._close_s = close_s

    def request_begun(self, request_id: str, route: str, headers: Mapping[str, str]) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(dict(headers))
        attributes = {"http.route": route, "strata.request_id": request_id}
        self._spans[request_id] = self._tracer.start_span(
            "request", context=parent, kind=SpanKind.SERVER, attributes=attributes
        )

    def request_ended(self, request_id: str, status: int) -> None:
        from opentelemetry.trace import StatusCode

        span = self._spans.pop(request_id)
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end()

    def sequence_ended(self, sequence_id: str, usage: Usage, outcome: FinishReason | Exception) -> None:
        from opentelemetry.trace import set_span_in_context

        parent = self._spans.get(sequence_id.partition(".")[0])
        if parent is None or not parent.is_recording():
            return
        context = set_span_in_context(parent)
        outcome_text = outcome.value if isinstance(outcome, FinishReason) else type(outcome).__name__
        common: dict[str, Any] = {"strata.sequence_id": sequence_id, "strata.outcome": outcome_text}
        start_ns = time.time_ns() - round((usage.queued_s + usage.prefill_s + usage.decode_s) * _NS)
        phases: tuple[tuple[str, float, dict[str, Any]], ...] = (
            ("queue", usage.queued_s, {}),
            ("prefill", usage.prefill_s, {"n_prompt": usage.n_prompt, "n_prompt_cached": usage.n_prompt_cached}),
            ("decode", usage.decode_s, {"n_generated": usage.n_generated}),
        )
        for name, duration_s, counts in phases:
            span = self._tracer.start_span(name, context=context, start_time=start_ns, attributes=common | counts)
            start_ns += round(duration_s * _NS)
            span.end(end_time=start_ns)

    def close(self) -> None:
        self._provider.force_flush(round(self._close_s * 1000))
        self._provider.shutdown()


def open_tracing(otlp_endpoint: str | None, sample_frac: float = 1.0) -> Tracing:
    """Return the tracing of this process; `otlp_endpoint` is the collector's base URL or its full traces URL."""
    if otlp_endpoint is None:
        return NoTracing()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    endpoint = otlp_endpoint.rstrip("/")
    if not endpoint.endswith("/v1/traces"):
        endpoint += "/v1/traces"
    return OtelTracing(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=3)), sample_frac=sample_frac)
