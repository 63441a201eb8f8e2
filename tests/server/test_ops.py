"""Health, metrics, properties, and text routes."""

import pytest
from fake_engine import HANG, end, fake_app, real_engine_app, say
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from trio.testing import wait_all_tasks_blocked

from strata.config import ServerConfig
from strata.telemetry.metrics import METRICS
from strata.telemetry.tracing import OtelTracing
from strata.testing.clients import memory_server

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("changes", "status", "word", "is_ready"),
    [
        ({}, 200, "ok", True),
        ({"phase": "step", "heartbeat_age_s": 1.0}, 200, "ok", True),
        ({"phase": "step", "heartbeat_age_s": 31.0}, 503, "stalled", False),
        ({"phase": "idle", "heartbeat_age_s": 3100.0}, 200, "ok", True),
        ({"phase": "dead"}, 503, "stopped", False),
        ({"stopped": True}, 503, "stopped", False),
        ({"draining": True}, 200, "draining", False),
    ],
)
async def test_health_and_readiness(changes, status, word, is_ready):
    app, engine = fake_app([])
    for name, value in changes.items():
        setattr(engine, name, value)
    async with memory_server(app) as server:
        client = server.connect()
        answer_status, body = await client.get_json("/health")
        assert (answer_status, body["status"]) == (status, word)
        assert (body["phase"], body["heartbeat_age_s"]) == (engine.phase, engine.heartbeat_age_s)
        assert await client.get_json("/ready") == (200 if is_ready else 503, {"ready": is_ready, "status": word})


async def test_health_answers_while_a_request_hangs():
    app, _ = fake_app([HANG])
    async with memory_server(app) as server:
        await server.connect().send("POST", "/v1/chat/completions", CHAT)
        await wait_all_tasks_blocked()
        assert (await server.connect().get_json("/health"))[1]["sequences_running"] == 1


async def test_every_listed_metric_is_served_and_counts_what_happened(autojump_clock):
    async with real_engine_app(lambda ids: 97, step_s=0.5) as (app, _, _), memory_server(app) as server:
        client = server.connect()
        await client.post_json("/v1/completions", {"prompt": "abc", "max_tokens": 3})
        await client.post_json("/v1/completions", {"prompt": 5})
        answer = await client.request("GET", "/metrics")
        text = (await answer.body()).decode()
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    for spec in METRICS:
        assert f"# HELP {spec.name}" in text
    for line in (
        'strata_http_requests_total{route="/v1/completions",status="200"} 1.0',
        'strata_http_requests_total{route="/v1/completions",status="400"} 1.0',
        'strata_requests_total{outcome="length"} 1.0',
        "strata_prompt_tokens_total 4.0",
        "strata_generated_tokens_total 3.0",
        'strata_steps_total{outcome="ok"} 3.0',
        "strata_step_tokens_total 6.0",
        "strata_first_token_seconds_sum 0.5",
        "strata_decode_seconds_sum 1.0",
        "strata_ready 1.0",
    ):
        assert line in text.splitlines()


async def test_two_servers_count_apart():
    apps = [fake_app([end()])[0] for _ in range(2)]
    async with memory_server(apps[0]) as server:
        await server.connect().post_json("/v1/chat/completions", CHAT)
    assert b'status="200"} 1.0' in apps[0].services.metrics.render()
    assert b'status="200"' not in apps[1].services.metrics.render()


async def test_props():
    app, _ = fake_app([], meta={"model_path": "/models/x.gguf", "architecture": "tiny"})
    async with memory_server(app) as server:
        status, body = await server.connect().get_json("/props")
    assert status == 200
    assert body["total_slots"] == 4
    assert body["default_generation_settings"]["n_ctx"] == 64
    assert body["default_generation_settings"]["params"]["temperature"] == 0.8
    assert (body["bos_token"], body["eos_token"]) == ("<s>", "</s>")
    assert body["chat_template"].startswith("{{ bos_token }}")
    assert body["architecture"] == "tiny"


async def test_tokenize_and_back():
    app, _ = fake_app([])
    async with memory_server(app) as server:
        client = server.connect()
        _, body = await client.post_json("/tokenize", {"content": "a</s>é"})
        assert body == {"tokens": [97, 257, 0xC3, 0xA9]}
        assert await client.post_json("/detokenize", body) == (200, {"content": "a</s>é"})
        _, body = await client.post_json("/tokenize", {"content": "<s>é", "add_special": True, "parse_special": False})
        assert body == {"tokens": [256, *b"<s>", 0xC3, 0xA9]}
        _, body = await client.post_json("/tokenize", {"content": "aé", "with_pieces": True})
        assert body["tokens"] == [
            {"id": 97, "piece": "a"},
            {"id": 0xC3, "piece": [0xC3]},
            {"id": 0xA9, "piece": [0xA9]},
        ]
        status, body = await client.post_json("/detokenize", {"tokens": [97, 258]})
        assert (status, body["error"]["message"]) == (400, "tokens[1] is 258; accepted: 0 to 257")
        status, body = await client.post_json("/tokenize", {"content": 5})
        assert (status, body["error"]["message"]) == (400, "content is 5; expected str, got int")


async def test_a_long_text_is_tokenized_off_the_loop_with_the_same_result():
    app, engine = fake_app([end()])
    text = "äb " * 20_000
    async with memory_server(app) as server:
        _, body = await server.connect().post_json("/tokenize", {"content": text})
        assert body["tokens"] == list(text.encode())
        await server.connect().post_json("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]})
    assert bytes(engine.requests[0].prompt[1:]).decode() == f"[user]{text}\n[assistant]"


async def test_apply_template():
    app, _ = fake_app([])
    async with memory_server(app) as server:
        client = server.connect()
        _, body = await client.post_json("/apply-template", CHAT)
        assert body == {"prompt": "<s>[user]hi\n[assistant]"}
        _, body = await client.post_json("/apply-template", CHAT | {"add_generation_prompt": False})
        assert body == {"prompt": "<s>[user]hi\n"}


async def test_each_exchange_writes_one_log_line(caplog):
    app, engine = fake_app([*say("a"), end()], config=ServerConfig())
    with caplog.at_level("INFO", logger="strata"):
        async with memory_server(app) as server:
            await server.connect().post_json("/v1/chat/completions", CHAT | {"unknown_field": 1})
            await server.connect().get_json("/health")
    (record,) = [record for record in caplog.records if record.levelname == "INFO"]
    assert record.getMessage() == "POST /v1/chat/completions"
    assert record.fields["status"] == 200
    assert (record.fields["n_prompt"], record.fields["n_generated"]) == (5, 3)
    assert engine.requests[0].request_id == record.fields["id"] + ".0"


async def test_spans_of_requests_on_the_real_engine(autojump_clock):
    exporter = InMemorySpanExporter()
    tracing = OtelTracing(SimpleSpanProcessor(exporter))
    async with (
        real_engine_app(lambda ids: 97, step_s=1.0, tracing=tracing) as (app, _, _),
        memory_server(app) as server,
    ):
        await server.connect().post_json("/v1/completions", {"prompt": "abc", "max_tokens": 3, "n": 2})
        client = server.connect()
        answer = await client.request("POST", "/v1/completions", {"prompt": "abc", "max_tokens": 99, "stream": True})
        await answer.next_event()
        await client.aclose()
        await wait_all_tasks_blocked()
        await server.connect().get_json("/health")
    names = [span.name for span in exporter.get_finished_spans()]
    phases = ["queue", "prefill", "decode"]
    assert names == [*phases, *phases, "request", *phases, "request", "request"]
    assert [s.attributes["strata.outcome"] for s in exporter.get_finished_spans() if s.name == "decode"] == [
        "length", "length", "aborted",
    ]  # fmt: skip
    tracing.close()
