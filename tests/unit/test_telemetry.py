"""Logs, metrics and spans, without a server."""

import io
import json
import logging
import subprocess
import sys
import time

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from strata.engine.observer import Observer
from strata.errors import EngineStopped
from strata.telemetry.logs import configure_logs
from strata.telemetry.metrics import METRICS, Metrics
from strata.telemetry.observer import EngineTelemetry
from strata.telemetry.tracing import NoTracing, OtelTracing, open_tracing
from strata.types import FinishReason, Request, Usage

USAGE = Usage(n_prompt=9, n_prompt_cached=4, n_generated=3, queued_s=1.0, prefill_s=2.0, decode_s=4.0)


@pytest.fixture
def logger():
    yield logging.getLogger("strata")
    logging.getLogger("strata").handlers.clear()
    logging.getLogger("strata").propagate = True
    logging.getLogger("strata").setLevel(logging.NOTSET)


def test_text_logs(logger):
    out = io.StringIO()
    configure_logs("info", "text", out)
    log = logging.getLogger("strata.server")
    log.debug("hidden")
    log.info("request %s", "ended", extra={"fields": {"status": 200, "took_s": 1.23456, "why": "two words"}})
    (line,) = out.getvalue().splitlines()
    assert line[8:] == " info server: request ended  status=200 took_s=1.23 why='two words'"


def test_log_fields_cannot_forge_lines(logger):
    out = io.StringIO()
    configure_logs("info", "text", out)
    logging.getLogger("strata.server").info("x", extra={"fields": {"path": "a\n12:00:00 error server: fake"}})
    assert len(out.getvalue().splitlines()) == 1


def test_json_logs(logger):
    out = io.StringIO()
    configure_logs("debug", "json", out)
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("strata.engine").exception("failed", extra={"fields": {"n": 1, "odd": object}})
    entry = json.loads(out.getvalue())
    assert (entry["level"], entry["logger"], entry["message"], entry["n"]) == ("error", "strata.engine", "failed", 1)
    assert "ValueError: boom" in entry["exception"]


def test_metric_names_have_units_and_are_unique():
    names = [spec.name for spec in METRICS]
    assert len(names) == len(set(names))
    for spec in METRICS:
        assert spec.name.startswith("strata_")
        assert spec.name.endswith("_total") == spec.kind.endswith("counter")
        assert spec.unit != "seconds" or "_seconds" in spec.name
        assert spec.unit != "bytes" or "_bytes" in spec.name


def test_unknown_names_and_labels_are_errors():
    metrics = Metrics()
    with pytest.raises(KeyError):
        metrics.count("strata_typo_total")
    with pytest.raises(ValueError, match="label"):
        metrics.count("strata_requests_total", outcom="stop")


def test_sampled_metrics_are_read_at_each_scrape():
    metrics = Metrics()
    values = {spec.name: 1.0 for spec in METRICS if spec.kind.startswith("sampled")}
    metrics.sample_from(lambda: values)
    assert "strata_sequences_waiting 1.0" in metrics.render().decode()
    values["strata_sequences_waiting"] = 2.0
    values["strata_preemptions_total"] = 5.0
    text = metrics.render().decode()
    assert "strata_sequences_waiting 2.0" in text
    assert "strata_preemptions_total 5.0" in text


def test_the_observer_counts_sequences():
    metrics = Metrics()
    observer: Observer = EngineTelemetry(metrics)
    request = Request(request_id="r.0", prompt=(1,))
    observer.request_queued(request)
    observer.request_started(request, 4)
    observer.first_token(request, USAGE)
    observer.request_ended(request, USAGE, FinishReason.STOP)
    observer.request_ended(request, USAGE, EngineStopped("x"))
    observer.request_ended(request, USAGE, RuntimeError("x"))
    lines = metrics.render().decode().splitlines()
    for line in (
        'strata_requests_total{outcome="stop"} 1.0',
        'strata_requests_total{outcome="engine_stopped"} 1.0',
        'strata_requests_total{outcome="internal_error"} 1.0',
        "strata_prompt_tokens_total 27.0",
        "strata_prompt_tokens_cached_total 12.0",
        "strata_generated_tokens_total 9.0",
        "strata_first_token_seconds_sum 3.0",
    ):
        assert line in lines


def test_spans_of_a_request():
    exporter = InMemorySpanExporter()
    tracing = OtelTracing(SimpleSpanProcessor(exporter))
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    tracing.request_begun("req_1", "/v1/completions", {"traceparent": parent})
    before_ns = time.time_ns()
    tracing.sequence_ended("req_1.0", USAGE, FinishReason.STOP)
    tracing.request_ended("req_1", 503)
    tracing.sequence_ended("req_2.0", USAGE, FinishReason.STOP)  # not of a traced request
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert list(spans) == ["queue", "prefill", "decode", "request"]
    assert f"{spans['request'].context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert spans["request"].status.status_code is StatusCode.ERROR
    for name, seconds in (("queue", 1), ("prefill", 2), ("decode", 4)):
        assert spans[name].end_time - spans[name].start_time == seconds * 1_000_000_000
        assert spans[name].parent.span_id == spans["request"].context.span_id
    assert spans["queue"].end_time == spans["prefill"].start_time
    assert 0 <= spans["decode"].end_time - before_ns < 60 * 1_000_000_000
    assert spans["prefill"].attributes["n_prompt_cached"] == 4
    assert spans["decode"].attributes["strata.outcome"] == "stop"
    tracing.close()


def test_a_fraction_of_requests_is_traced():
    exporter = InMemorySpanExporter()
    tracing = OtelTracing(SimpleSpanProcessor(exporter), sample_frac=0.0)
    tracing.request_begun("req_1", "/x", {})
    tracing.sequence_ended("req_1.0", USAGE, FinishReason.STOP)
    tracing.request_ended("req_1", 200)
    assert exporter.get_finished_spans() == ()
    tracing.close()


def test_tracing_is_off_unless_configured_and_then_imports_nothing():
    assert isinstance(open_tracing(None), NoTracing)
    code = "import sys, strata.telemetry.tracing as t; t.open_tracing(None); print('opentelemetry' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert run.stdout.strip() == "False"


def test_a_collector_that_does_not_answer_does_not_hold_up_the_end():
    tracing = open_tracing("http://127.0.0.1:9")  # the discard port: refused
    tracing.request_begun("req_1", "/x", {})
    tracing.request_ended("req_1", 200)
    tracing.close()
