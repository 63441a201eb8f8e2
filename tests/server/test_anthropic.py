"""Anthropic's dialect, for text."""

import pytest
from fake_engine import HANG, busy, dead, end, fake_app, say

from strata.testing.clients import memory_server
from strata.types import FinishReason

BODY = {"model": "claude", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}


async def post(app, path, body, **headers):
    async with memory_server(app) as server:
        return await server.connect().post_json(path, body, headers=headers)


async def stream(app, body):
    async with memory_server(app) as server:
        answer = await server.connect().request("POST", "/v1/messages", body | {"stream": True})
        assert answer.status == 200
        return await answer.events()


async def test_whole_message():
    app, engine = fake_app([*say("hallo"), end(n_prompt=9, n_cached=4, n_generated=5)])
    system = [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
    body = BODY | {
        "system": system,
        "stop_sequences": ["X"],
        "temperature": 0.3,
        "top_k": 3,
        "metadata": {"user_id": "u"},
    }
    status, message = await post(app, "/v1/messages", body)
    assert status == 200
    assert message["content"] == [{"type": "text", "text": "hallo"}]
    assert (message["type"], message["role"], message["stop_reason"]) == ("message", "assistant", "end_turn")
    assert (message["usage"]["input_tokens"], message["usage"]["cache_read_input_tokens"]) == (5, 4)
    (request,) = engine.requests
    assert bytes(request.prompt[1:]).decode() == "[system]be brief\n[user]hi\n[assistant]"
    assert (request.max_tokens, request.stop) == (8, ("X",))
    assert (request.sampling.temperature, request.sampling.top_k) == (0.3, 3)


@pytest.mark.parametrize(
    ("last", "reason", "sequence"),
    [
        (end(), "end_turn", None),
        (end(FinishReason.LENGTH, n_generated=8), "max_tokens", None),
        (end(FinishReason.LENGTH, n_generated=7), "model_context_window_exceeded", None),
        (end(stopped_by="X"), "stop_sequence", "X"),
    ],
)
async def test_stop_reasons(last, reason, sequence):
    _, message = await post(fake_app([*say("a"), last])[0], "/v1/messages", BODY)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    events = await stream(fake_app([*say("a"), last])[0], BODY)
    delta = next(event.json() for event in events if event.name == "message_delta")
    assert delta["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


async def test_order_of_events():
    events = await stream(fake_app([*say("ab"), end(n_generated=2)])[0], BODY)
    assert [event.name for event in events] == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert all(event.json()["type"] == event.name for event in events)
    start = events[0].json()["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert start["usage"]["input_tokens"] == len("[user]hi\n[assistant]") + 1
    assert events[-2].json()["usage"]["output_tokens"] == 2


async def test_a_long_prefill_is_bridged_by_pings(autojump_clock):
    app, _ = fake_app([HANG])
    async with memory_server(app) as server:
        answer = await server.connect().request("POST", "/v1/messages", BODY | {"stream": True})
        names = [(await answer.next_event()).name for _ in range(6)]
    assert names == ["message_start", "content_block_start", "ping", "ping", "ping", "ping"]


async def test_tools_and_effort_reach_the_template():
    app, engine = fake_app([end()])
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    more = {"tools": [tool], "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}
    assert (await post(app, "/v1/messages", BODY | more))[0] == 200
    assert b"[tools]1\n[effort]high" in bytes(engine.requests[0].prompt[1:])
    assert (await post(app, "/v1/messages", BODY | more | {"tool_choice": {"type": "none"}}))[0] == 200
    assert b"[tools]" not in bytes(engine.requests[1].prompt[1:])


async def test_count_tokens():
    app, engine = fake_app([])
    body = {"model": "claude", "messages": BODY["messages"], "system": "s"}
    status, counted = await post(app, "/v1/messages/count_tokens", body)
    assert (status, counted) == (200, {"input_tokens": len("[system]s\n[user]hi\n[assistant]") + 1})
    assert engine.requests == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"max_tokens": None}, "max_tokens is null"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, 'messages[0].content[0].type is "image"'),
        ({"messages": [{"role": "robot", "content": "x"}]}, 'messages[0].role is "robot"'),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, "ends with an assistant turn"),
        ({"tool_choice": {"type": "any"}}, "tool_choice is"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 'thinking.type is "enabled"'),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format is not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, 'type is "tool_result"'),
        ({"tools": [{"name": "f"}]}, "tools[0] is"),
        ({"temperature": "hot"}, 'temperature is "hot"'),
        ({"temperature": -1}, "temperature is -1"),
    ],
)  # fmt: skip
async def test_wrong_fields_are_told_in_the_dialects_envelope(change, told):
    status, body = await post(fake_app([end()])[0], "/v1/messages", BODY | change)
    assert (status, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert told in body["error"]["message"]
    assert body["request_id"].startswith("req_")


async def test_missing_field_is_named():
    status, body = await post(fake_app([end()])[0], "/v1/messages", {"messages": BODY["messages"], "model": "m"})
    assert (status, body["error"]["message"]) == (400, "max_tokens is missing")


@pytest.mark.parametrize(
    ("error", "status", "kind"), [(busy(), 429, "rate_limit_error"), (dead(), 503, "overloaded_error")]
)
async def test_engine_errors(error, status, kind):
    app, engine = fake_app([])
    engine.refuse_with = error
    answer_status, body = await post(app, "/v1/messages", BODY)
    assert (answer_status, body["error"]["type"]) == (status, kind)


async def test_error_after_the_first_event():
    events = await stream(fake_app([*say("a"), dead()])[0], BODY)
    assert events[-1].name == "error"
    assert events[-1].json()["error"]["type"] == "overloaded_error"


async def test_dialect_of_shared_paths_follows_the_version_header():
    app, _ = fake_app([])
    async with memory_server(app) as server:
        client = server.connect()
        _, ours = await client.get_json("/v1/nothing")
        _, theirs = await client.get_json("/v1/nothing", headers={"anthropic-version": "2023-06-01"})
        _, models = await client.get_json("/v1/models", headers={"anthropic-version": "2023-06-01"})
    assert set(ours) == {"error"}
    assert (theirs["type"], theirs["error"]["type"]) == ("error", "not_found_error")
    assert (models["first_id"], models["has_more"], models["data"][0]["type"]) == ("fake", False, "model")
