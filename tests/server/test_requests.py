"""What is refused, and in which words."""

import pytest
from fake_engine import busy, dead, end, fake_app, say

from strata.config import ServerConfig
from strata.errors import ContextTooLong, NativeError
from strata.testing.clients import memory_server

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


async def post(app, path, body, **headers):
    async with memory_server(app) as server:
        return await server.connect().post_json(path, body, headers=headers)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b'{"messages": [', "not valid JSON"),
        (b'{"messages": [],}', "not valid JSON"),
        (b'{"a": "\xff\xfe"}', "not valid JSON"),
        (b'{"a": "\\ud800"}', "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[1, 2]", "expected a JSON object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"messages": 5}', "messages is 5; expected array, got int"),
        (b'{"messages": [{"role": "user", "content": 7}]}', "messages[0].content is 7"),
        (b'{"messages": [{"content": "x"}]}', "messages[0].role is missing"),
        (b"{}", "messages is missing"),
        (b'{"messages": []}', "messages is empty"),
    ],
)
async def test_malformed_bodies(raw, told):
    status, body = await post(fake_app([end()])[0], "/v1/chat/completions", raw)
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert told in body["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("max_tokens", "many", 'max_tokens is "many"'),
        ("max_tokens", 0, "max_tokens is 0; accepted: 1 or more"),
        ("temperature", [1], "temperature is [1]"),
        ("temperature", -0.5, "temperature is -0.5"),
        ("top_p", 1.5, "top_p is 1.5; accepted: 0 to 1"),
        ("n", 0, "n is 0; accepted: 1 to"),
        ("n", 1000, "n is 1000"),
        ("stop", "", "empty string"),
        ("stop", ["a"] * 65, "65 strings"),
        ("stop", [1], "stop[0] is 1"),
        ("seed", -2, "seed is -2"),
        ("logit_bias", {"x": 1}, 'logit_bias names "x"'),
        ("logit_bias", {"999": 1}, "logit_bias names token 999"),
        ("logit_bias", [[1, "a"]], 'logit_bias of 1 is "a"'),
        ("logit_bias", 3, "logit_bias is 3"),
        ("logit_bias", {"9" * 5000: 1}, 'logit_bias names "9999'),
        ("logit_bias", [[token, False] for token in range(258)], "logit_bias excludes every token"),
        ("stop", ["a" * 1025], "stop holds a string of 1025 characters; accepted: up to 1024"),
        ("dry_sequence_breakers", ["a"] * 65, "dry_sequence_breakers has 65 texts"),
        ("dry_sequence_breakers", ["a" * 257], "a text of 257 characters"),
        ("top_k", -1, "top_k is -1; accepted: 0 to 2147483647"),
        ("top_logprobs", 3, "needs logprobs"),
        ("deadline_s", 0, "deadline_s is 0"),
        ("tool_choice", "required", 'tool_choice is "required", which is not supported'),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}, "tool_choice is"),
        ("response_format", {"type": "json_schema", "json_schema": {}}, "response_format is"),
        ("response_format", {"type": "json_object"}, "constrained output"),
        ("grammar", "root ::= x", "grammar is"),
        ("mirostat", 2, "mirostat is 2"),
        ("functions", [{"name": "f"}], "use tools"),
        ("reasoning_effort", "extreme", 'reasoning_effort is "extreme"'),
        ("chat_template_kwargs", {"messages": []}, "chat_template_kwargs holds messages"),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], 'messages[0].content[0].type is "image_url"'),
        ("stream_options", {"include_usage": "yes"}, 'stream_options.include_usage is "yes"'),
    ],
)  # fmt: skip
async def test_wrong_and_unsupported_fields_are_named_with_their_value(field, value, told):
    app, engine = fake_app([end()])
    status, body = await post(app, "/v1/chat/completions", CHAT | {field: value})
    assert status == 400
    assert told in body["error"]["message"]
    assert engine.requests == []
    assert app.services.admission.n_open == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"suffix": "end"}, 'suffix is "end", which is not supported'),
        ({"echo": True, "logprobs": 1}, "logprobs together with echo"),
        ({"best_of": 3}, "best_of is 3"),
        ({"logprobs": 21}, "logprobs is 21; accepted: 0 to 20"),
        ({"prompt": [1, "a", 2.5]}, "prompt is"),
        ({"prompt": [999]}, "token id 999"),
        ({"prompt": []}, "prompt is []"),
    ],
)
async def test_wrong_completion_fields(change, told):
    status, body = await post(fake_app([end()])[0], "/v1/completions", {"prompt": "p"} | change)
    assert status == 400
    assert told in body["error"]["message"]


async def test_harmless_values_nulls_and_unknown_fields_are_taken():
    body = CHAT | {
        "tool_choice": "auto", "response_format": {"type": "text"}, "grammar": "", "mirostat": 0, "temperature": None,
        "stop": None, "logprobs": None, "n": None, "user": "u", "metadata": {}, "store": True, "cache_prompt": True,
        "no_such_field": 1,
    }  # fmt: skip
    status, _ = await post(fake_app([end()])[0], "/v1/chat/completions", body)
    assert status == 200


async def test_no_chat_template():
    status, body = await post(fake_app([end()], chat_template=None)[0], "/v1/chat/completions", CHAT)
    assert status == 400
    assert "no chat template" in body["error"]["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (busy(), 429, "overloaded"),
        (dead(), 503, "engine_stopped"),
        (ContextTooLong("too long"), 400, "context_length_exceeded"),
        (NativeError(-5, "submit", "boom"), 500, "native_error"),
        (RuntimeError("a bug"), 500, "internal_error"),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_engine_errors_before_the_first_byte_have_their_status(error, status, code, is_stream):
    app, engine = fake_app([error])
    async with memory_server(app) as server:
        answer = await server.connect().request("POST", "/v1/chat/completions", CHAT | {"stream": is_stream})
        body = await answer.json()
    assert (answer.status, body["error"]["code"]) == (status, code)
    assert answer.headers.get("retry-after") == ("3" if status == 429 else None)
    assert engine.open_streams == []


async def test_an_error_after_the_first_byte_is_an_event_and_the_streams_end():
    app, _ = fake_app([*say("a"), dead()])
    async with memory_server(app) as server:
        client = server.connect()
        answer = await client.request("POST", "/v1/chat/completions", CHAT | {"stream": True})
        events = await answer.events()
        assert answer.status == 200
        assert events[-1].name == "error"
        assert events[-1].json()["error"]["code"] == "engine_stopped"
        assert "[DONE]" not in [event.data for event in events]
        assert (await client.get_json("/health"))[0] == 200  # the connection goes on


async def test_a_stream_that_just_stops_is_an_error():
    app, _ = fake_app(say("a"))
    async with memory_server(app) as server:
        answer = await server.connect().request("POST", "/v1/chat/completions", CHAT | {"stream": True})
        assert [event.name for event in await answer.events()] == [None, None, "error"]
    assert (await post(app, "/v1/chat/completions", CHAT))[0] == 500


async def test_one_failing_choice_ends_the_others():
    def script(request):
        return [*say("a"), dead()] if request.sampling.seed == 2 else [*say("bbbbbbb"), end()]

    app, engine = fake_app(script)
    status, body = await post(app, "/v1/chat/completions", CHAT | {"n": 3, "seed": 1})
    assert (status, body["error"]["code"]) == (503, "engine_stopped")
    assert engine.open_streams == []
    assert app.services.admission.n_open == 0


async def test_paths_and_methods_that_do_not_exist():
    app, _ = fake_app([])
    async with memory_server(app) as server:
        client = server.connect()
        answer = await client.request("GET", "/v1/chat/completions")
        body = await answer.json()
        assert (answer.status, body["error"]["code"]) == (405, "method_not_allowed")
        assert answer.headers["allow"] == "POST"
        status, body = await client.post_json("/v2/chat", {})
        assert (status, body["error"]["message"]) == (404, "there is nothing under /v2/chat")
        status, body = await client.get_json("/v1/messages")
        assert (status, body["type"]) == (405, "error")


async def test_body_limit():
    config = ServerConfig(max_body_bytes=100)
    small, large = {"content": "x" * 50}, {"content": "x" * 101}
    assert (await post(fake_app([], config=config)[0], "/tokenize", small))[0] == 200
    status, body = await post(fake_app([], config=config)[0], "/tokenize", large)
    assert (status, body["error"]["code"]) == (413, "request_too_large")


async def test_a_body_that_stops_coming(autojump_clock):
    app, _ = fake_app([])
    async with memory_server(app) as server:
        client = server.connect()
        await client.send("POST", "/tokenize", b"{", n_missing=5)
        answer = await client.answer()
        assert (answer.status, (await answer.json())["error"]["code"]) == (408, "request_timeout")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Basic key-1"}, 401),
        ({"x-api-key": "key-"}, 401),
        ({"authorization": "Bearer key-1"}, 200),
        ({"authorization": "bearer schlüssel".encode().decode("latin-1")}, 200),
        ({"x-api-key": "key-1"}, 200),
        ({"authorization": "Bearer wrong", "x-api-key": "key-1"}, 200),
    ],
)
async def test_api_keys(headers, status, tmp_path):
    (tmp_path / "keys").write_text("# comment\nschlüssel\n")
    config = ServerConfig(api_keys=("key-1",), api_key_file=str(tmp_path / "keys"))
    app, engine = fake_app([end()], config=config)
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    async with memory_server(app) as server:
        answer = await server.connect().request("POST", "/v1/chat/completions", CHAT, headers=raw)
        assert answer.status == status
        if status == 401:
            assert (await answer.json())["error"]["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
            assert engine.requests == []
        assert (await server.connect().get_json("/health"))[0] == 200


async def test_cors():
    origin = {"origin": "http://page.example"}
    ask = origin | {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    app, _ = fake_app([end()], config=ServerConfig(api_keys=("k",), cors_origins=("http://page.example",)))
    async with memory_server(app) as server:
        preflight = await server.connect().request("OPTIONS", "/v1/chat/completions", headers=ask)
        assert preflight.status == 200
        assert preflight.headers["access-control-allow-origin"] == "http://page.example"
        refused = await server.connect().request("POST", "/v1/chat/completions", CHAT, headers=origin)
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, "http://page.example")
    app, _ = fake_app([end()])
    async with memory_server(app) as server:
        answer = await server.connect().request("POST", "/v1/chat/completions", CHAT, headers=origin)
        assert "access-control-allow-origin" not in answer.headers
