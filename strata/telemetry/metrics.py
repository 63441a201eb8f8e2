"""The list of every metric, and the registry that counts them. `docs/metrics.md` is generated from the list.

A registry belongs to one server object, never to the process, so that two servers in one test do not share counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client import disable_created_metrics as _disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_disable_created_metrics()  # one more series per counter, which nothing here reads

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class MetricSpec(msgspec.Struct, frozen=True):
    """One metric. "sampled" ones are read from the engine when /metrics is asked, the others counted as they occur."""

    name: str
    kind: Literal["counter", "histogram", "sampled_gauge", "sampled_counter"]
    unit: str
    help: str
    labels: tuple[str, ...] = ()


METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("strata_http_requests_total", "counter", "requests", "Answered HTTP requests", ("route", "status")),
    MetricSpec(
        "strata_http_request_seconds",
        "histogram",
        "seconds",
        "Time from the request's first byte to the answer's last byte",
        ("route",),
    ),
    MetricSpec(
        "strata_http_lost_total",
        "counter",
        "requests",
        "Requests whose client left (disconnect) or stopped reading (stall) before the answer's end",
        ("reason",),
    ),
    MetricSpec(
        "strata_requests_total",
        "counter",
        "sequences",
        "Ended sequences by outcome: stop, length, aborted, or the code of the error",
        ("outcome",),
    ),
    MetricSpec("strata_prompt_tokens_total", "counter", "tokens", "Prompt tokens of ended sequences"),
    MetricSpec(
        "strata_prompt_tokens_cached_total", "counter", "tokens", "Prompt tokens that were found in the KV cache"
    ),
    MetricSpec("strata_generated_tokens_total", "counter", "tokens", "Generated tokens of ended sequences"),
    MetricSpec(
        "strata_queue_seconds", "histogram", "seconds", "Wait of a sequence from its admission to its first step"
    ),
    MetricSpec("strata_prefill_seconds", "histogram", "seconds", "From a sequence's first step to its first token"),
    MetricSpec("strata_decode_seconds", "histogram", "seconds", "From a sequence's first token to its last"),
    MetricSpec(
        "strata_first_token_seconds", "histogram", "seconds", "From admission to the first token, queue and prefill"
    ),
    MetricSpec("strata_steps_total", "counter", "steps", "Steps of the engine", ("outcome",)),
    MetricSpec("strata_step_tokens_total", "counter", "tokens", "Tokens that went through steps, prompts included"),
    MetricSpec(
        "strata_step_run_seconds",
        "histogram",
        "seconds",
        "Native time of one step, without its wait for the engine thread",
    ),
    MetricSpec("strata_step_sample_seconds_total", "counter", "seconds", "Native time of drawing tokens"),
    MetricSpec("strata_weight_read_bytes_total", "counter", "bytes", "Weight bytes that steps read from RAM"),
    MetricSpec("strata_expert_rows_total", "counter", "rows", "Token rows that went through routed experts on the CPU"),
    MetricSpec(
        "strata_expert_hits_total", "counter", "rows", "Token rows that went through experts in the GPU's slots"
    ),
    MetricSpec(
        "strata_experts_touched_total", "counter", "experts", "Different experts that steps used on the CPU, summed"
    ),
    MetricSpec("strata_handoff_wait_seconds_total", "counter", "seconds", "Time the CPU waited for the GPU in steps"),
    MetricSpec("strata_sequences_waiting", "sampled_gauge", "sequences", "Sequences that wait for a place"),
    MetricSpec("strata_sequences_running", "sampled_gauge", "sequences", "Sequences in prefill or decode"),
    MetricSpec("strata_kv_blocks", "sampled_gauge", "blocks", "KV blocks of the pool"),
    MetricSpec("strata_kv_blocks_held", "sampled_gauge", "blocks", "KV blocks that running sequences hold"),
    MetricSpec("strata_kv_blocks_cached", "sampled_gauge", "blocks", "KV blocks kept for reuse by later prompts"),
    MetricSpec(
        "strata_preemptions_total", "sampled_counter", "sequences", "Sequences put back because KV blocks ran out"
    ),
    MetricSpec("strata_ready", "sampled_gauge", "bool", "1 while new requests are taken"),
    MetricSpec(
        "strata_engine_heartbeat_age_seconds", "sampled_gauge", "seconds", "Age of the native loop's last heartbeat"
    ),
)

Sample = Callable[[], Mapping[str, float]]  # metric name -> value, for the "sampled" metrics


class _Sampled(Collector):
    """Reads the sampled metrics at scrape time."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def describe(self) -> Iterable[Metric]:
        return []  # registering must not ask the engine

    def collect(self) -> Iterator[Metric]:
        values = self._sample()
        for spec in METRICS:
            if spec.kind == "sampled_gauge":
                yield GaugeMetricFamily(spec.name, spec.help, value=values[spec.name])
            elif spec.kind == "sampled_counter":
                yield CounterMetricFamily(spec.name, spec.help, value=values[spec.name])


class Metrics:
    """Counts by metric name; a name or label that is not in METRICS is a programming error (KeyError, ValueError)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for spec in METRICS:
            if spec.kind == "counter":
                self._counters[spec.name] = Counter(spec.name, spec.help, spec.labels, registry=self.registry)
            elif spec.kind == "histogram":
                self._histograms[spec.name] = Histogram(
                    spec.name, spec.help, spec.labels, registry=self.registry, buckets=_SECONDS
                )
        ProcessCollector(registry=self.registry)

    def sample_from(self, sample: Sample) -> None:
        """Read the sampled metrics from `sample`, which must name all of them."""
        self.registry.register(_Sampled(sample))

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def observe(self, name: str, value: float, **labels: str) -> None:
        histogram = self._histograms[name]
        (histogram.labels(**labels) if labels else histogram).observe(value)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
