"""Whoever leaves, stalls or runs out of time frees its place at once; nobody else notices."""

import pytest
import trio
from fake_engine import HANG, ByteTokenizer, Wait, end, fake_app, real_engine_app, say
from trio.testing import wait_all_tasks_blocked

from strata.config import ServerConfig
from strata.errors import EngineStopped
from strata.testing.clients import memory_server
from strata.types import PrefillProgress

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
ROUTES = {"/v1/chat/completions": CHAT, "/v1/completions": {"prompt": "p"}, "/v1/messages": CHAT | {"model": "m"}}

QUEUED = [HANG]
IN_PREFILL = [PrefillProgress(n_done=1, n_total=9, n_cached=0), HANG]
DECODING = [PrefillProgress(n_done=9, n_total=9, n_cached=0), *say("abc"), HANG]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("script", [QUEUED, IN_PREFILL, DECODING], ids=["queued", "prefill", "decoding"])
@pytest.mark.parametrize("path", ROUTES)
async def test_a_disconnect_aborts_at_once(path, script, is_stream):
    app, engine = fake_app(script)
    async with memory_server(app) as server:
        client = server.connect()
        await client.send("POST", path, ROUTES[path] | {"stream": is_stream})
        await wait_all_tasks_blocked()
        assert len(engine.open_streams) == 1
        await client.aclose()
        await wait_all_tasks_blocked()
        assert engine.aborts == [(engine.requests[0].request_id, "disconnect")]
        assert engine.open_streams == []
        assert app.services.admission.n_open == 0
    metrics = app.services.metrics.render()
    assert b'strata_http_lost_total{reason="disconnect"} 1.0' in metrics
    assert b'status="503"' not in metrics


async def test_a_disconnect_aborts_every_choice():
    app, engine = fake_app(DECODING)
    async with memory_server(app) as server:
        client = server.connect()
        await client.send("POST", "/v1/chat/completions", CHAT | {"n": 3, "stream": True})
        await wait_all_tasks_blocked()
        await client.aclose()
        await wait_all_tasks_blocked()
    assert sorted(engine.aborts) == [(request.request_id, "disconnect") for request in engine.requests]
    assert len(engine.requests) == 3


async def test_a_disconnect_before_the_bodys_end_reaches_no_engine():
    app, engine = fake_app(DECODING)
    async with memory_server(app) as server:
        client = server.connect()
        await client.send("POST", "/v1/chat/completions", b'{"messages"', n_missing=10)
        await wait_all_tasks_blocked()
        await client.aclose()
        await wait_all_tasks_blocked()
    assert engine.requests == []
    assert b'route="/v1/chat/completions",status="499"} 1.0' in app.services.metrics.render()


async def test_an_answer_read_to_its_end_is_no_disconnect():
    app, engine = fake_app([*say("abc"), end()])
    async with memory_server(app) as server:
        client = server.connect()
        for is_stream in (True, False):
            answer = await client.request("POST", "/v1/chat/completions", CHAT | {"stream": is_stream})
            await answer.body()
        await client.aclose()
        await wait_all_tasks_blocked()
    assert engine.aborts == []
    assert b"strata_http_lost_total{" not in app.services.metrics.render()


@pytest.mark.parametrize("when", ["new", "idle", "streaming", "answering"])
async def test_a_closed_connection_is_let_go_at_once(when):
    app, _ = fake_app([*say("abc"), end() if when == "idle" else HANG])
    async with memory_server(app) as server:
        client = server.connect()
        if when != "new":
            await client.send("POST", "/v1/chat/completions", CHAT | {"stream": when != "answering"})
            if when != "answering":
                answer = await client.answer()
                await (answer.body() if when == "idle" else answer.next_event())
        await wait_all_tasks_blocked()
        assert server.connections.n_open == 1
        await client.aclose()
        await wait_all_tasks_blocked()
        assert server.connections.n_open == 0


async def test_a_stalled_client_loses_its_place_while_its_send_still_hangs(autojump_clock):
    app, engine = fake_app([*say("abc"), HANG], config=ServerConfig(stall_s=0.5))
    async with memory_server(app) as server:
        client = server.connect(is_narrow=True)
        with trio.fail_after(5):
            answer = await client.request("POST", "/v1/chat/completions", CHAT | {"stream": True})
        assert answer.status == 200
        began_at_s = trio.current_time()
        while app.services.admission.n_open:  # noqa: ASYNC110  # the client reads nothing more
            await trio.sleep(0.05)
        assert trio.current_time() - began_at_s <= 0.6
        assert engine.aborts == [(engine.requests[0].request_id, "stall")]
    assert b'strata_http_lost_total{reason="stall"} 1.0' in app.services.metrics.render()


async def test_a_slow_client_that_reads_is_left_alone(autojump_clock):
    app, engine = fake_app([*say("abcdef"), end()], config=ServerConfig(stall_s=0.5))
    async with memory_server(app) as server:
        client = server.connect(is_narrow=True)
        answer = await client.request("POST", "/v1/chat/completions", CHAT | {"stream": True})
        while await answer.next_event() is not None:  # noqa: ASYNC110
            await trio.sleep(0.2)  # the first piece holds two events
    assert engine.aborts == []


async def test_keep_alive_comments_bridge_queue_and_prefill(autojump_clock):
    app, _ = fake_app([Wait(25), *IN_PREFILL[:1], Wait(25), *say("a"), end()], config=ServerConfig(keep_alive_s=10))
    # a Wait that runs out goes on with the script
    async with memory_server(app) as server:
        answer = await server.connect().request("POST", "/v1/chat/completions", CHAT | {"stream": True})
        events = await answer.events()
    comments = [event for event in events if event.comment is not None]
    assert len(comments) == 5
    assert events[0].json()["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1].data == "[DONE]"


async def test_silence_never_delays_text(autojump_clock):
    app, _ = fake_app([*[x for c in "abc" for x in (*say(c), Wait(9))], end()], config=ServerConfig(keep_alive_s=10))
    async with memory_server(app) as server:
        answer = await server.connect().request("POST", "/v1/chat/completions", CHAT | {"stream": True})
        assert [event.comment for event in await answer.events()] == [None] * 6


# ---- on the real engine ---------------------------------------------------------------------------------------


def next_letter(ids):
    return 97 + (len(ids) % 26)


async def test_queued_prefilling_and_decoding_sequences_free_the_engine(autojump_clock):
    async with (
        real_engine_app(next_letter, step_s=1.0, max_seqs=1) as (app, engine, backend),
        memory_server(app) as server,
    ):
        decoding, queued = server.connect(), server.connect()
        answer = await decoding.request("POST", "/v1/chat/completions", CHAT | {"stream": True, "max_tokens": 200})
        await answer.next_event()
        await queued.send("POST", "/v1/chat/completions", CHAT)
        await wait_all_tasks_blocked()
        assert (engine.snapshot().n_running, engine.snapshot().n_waiting) == (1, 1)
        await queued.aclose()
        await wait_all_tasks_blocked()
        assert (engine.snapshot().n_running, engine.snapshot().n_waiting) == (1, 0)
        await decoding.aclose()
        await trio.sleep(1.1)  # the step that ran
        n_steps = len(backend.batches)
        assert (engine.snapshot().n_running, engine.snapshot().n_kv_blocks_held) == (0, 0)
        await trio.sleep(10)
        assert len(backend.batches) == n_steps
        prefilling = server.connect()
        await prefilling.send("POST", "/v1/completions", {"prompt": "x" * 100})
        await trio.sleep(2.5)
        await prefilling.aclose()
        await trio.sleep(1.1)
        assert (engine.snapshot().n_running, engine.snapshot().n_kv_blocks_held) == (0, 0)
        assert 2 <= len(backend.batches) - n_steps <= 4  # of the seven chunks
    assert b'status="503"' not in app.services.metrics.render()  # an abort by the client is no failure of the server


@pytest.mark.parametrize("is_stream", [False, True])
async def test_deadlines(autojump_clock, is_stream):
    config = ServerConfig(deadline_s=5.0, keep_alive_s=100)
    async with (
        real_engine_app(next_letter, step_s=1.0, config=config) as (app, engine, _),
        memory_server(app) as server,
    ):
        for wanted in ({"deadline_s": 2.5}, {"deadline_s": 60}, {}):
            began_at_s = trio.current_time()
            answer = await server.connect().request(
                "POST", "/v1/chat/completions", CHAT | wanted | {"stream": is_stream}
            )
            if is_stream:
                error = (await answer.events())[-1].json()["error"]
            else:
                assert answer.status == 504
                error = (await answer.json())["error"]
            assert error["code"] == "deadline_exceeded"
            assert trio.current_time() - began_at_s == pytest.approx(
                wanted.get("deadline_s", 5) if wanted.get("deadline_s") != 60 else 5
            )
            assert engine.snapshot().n_running == 0


async def test_a_full_queue_answers_429_with_a_time_to_come_back(autojump_clock):
    config = ServerConfig(max_waiting=1)
    async with (
        real_engine_app(next_letter, step_s=1.0, max_seqs=1, config=config) as (app, _, _),
        memory_server(app) as server,
    ):
        first, second, third = (server.connect() for _ in range(3))
        for client in (first, second):
            await client.send("POST", "/v1/chat/completions", CHAT | {"max_tokens": 3})
        await wait_all_tasks_blocked()
        answer = await third.request("POST", "/v1/chat/completions", CHAT)
        assert (answer.status, (await answer.json())["error"]["code"]) == (429, "overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        for client in (first, second):
            assert (await client.answer()).status == 200
        assert (await third.post_json("/v1/chat/completions", CHAT | {"max_tokens": 1}))[0] == 200


async def test_a_multi_choice_request_is_admitted_whole_or_not_at_all():
    app, engine = fake_app([end()], max_seqs=2, config=ServerConfig(max_waiting=1))
    async with memory_server(app) as server:
        status, body = await server.connect().post_json("/v1/chat/completions", CHAT | {"n": 4})
        assert (status, body["error"]["code"]) == (400, "invalid_request")  # coming back would not help
        with app.services.admission.admit(1):
            assert (await server.connect().post_json("/v1/chat/completions", CHAT | {"n": 3}))[0] == 429
        assert engine.requests == []
        assert (await server.connect().post_json("/v1/chat/completions", CHAT | {"n": 3}))[0] == 200


async def test_characters_cut_by_tokens_and_stop_strings_through_the_whole_stack(autojump_clock):
    said = "grüße 👋🏽 aus Köln STOP nie gesagt".encode()
    n_prompt = len(ByteTokenizer().encode_prompt("<s>[user]hi\n[assistant]"))

    def next_token(ids):
        return said[len(ids) - n_prompt]

    async with real_engine_app(next_token) as (app, _, _), memory_server(app) as server:
        body = CHAT | {"stop": ["STOP"], "temperature": 0}
        _, whole = await server.connect().post_json("/v1/chat/completions", body)
        assert whole["choices"][0]["message"]["content"] == "grüße 👋🏽 aus Köln "
        assert whole["choices"][0]["finish_reason"] == "stop"
        answer = await server.connect().request("POST", "/v1/chat/completions", body | {"stream": True})
        chunks = [event.json() for event in (await answer.events())[:-1]]
        pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
        assert "".join(pieces) == "grüße 👋🏽 aus Köln "
        assert not any("\ufffd" in piece for piece in pieces)
        _, message = await server.connect().post_json(
            "/v1/messages", {"model": "m", "max_tokens": 99, "messages": CHAT["messages"], "stop_sequences": ["STOP"]}
        )
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "STOP")


async def test_a_dying_device_ends_every_stream_with_an_error(autojump_clock):
    failures = []
    async with (
        real_engine_app(next_letter, step_s=1.0, failures=failures) as (app, _, backend),
        memory_server(app) as server,
    ):
        streamed, whole = server.connect(), server.connect()
        answer = await streamed.request("POST", "/v1/chat/completions", CHAT | {"stream": True})
        await whole.send("POST", "/v1/chat/completions", CHAT)
        await answer.next_event()
        backend.fail_at_step = len(backend.batches) + 2
        events = await answer.events()
        assert events[-1].name == "error"
        assert events[-1].json()["error"]["code"] == "engine_stopped"
        assert (await whole.answer()).status == 503
        assert [type(failure).__name__ for failure in failures] == ["EngineStopped"]
        status, health = await server.connect().get_json("/health")
        assert (status, health["status"]) == (503, "stopped")
        assert (await server.connect().post_json("/v1/chat/completions", CHAT))[0] == 503


async def test_the_engines_end_takes_the_server_with_it_but_clients_are_told(autojump_clock):
    answers = []
    with pytest.raises(ExceptionGroup) as ended:  # noqa: PT012  # the block is what ends
        async with real_engine_app(next_letter, step_s=1.0) as (app, _, backend), memory_server(app) as server:
            streamed, whole = server.connect(), server.connect()
            answers.append(await streamed.request("POST", "/v1/chat/completions", CHAT | {"stream": True}))
            await whole.send("POST", "/v1/chat/completions", CHAT)
            await answers[0].next_event()
            backend.fail_at_step = len(backend.batches) + 2
            with trio.CancelScope(shield=True):
                answers.append(await whole.answer())
                answers.append(await answers[0].events())
    assert ended.group_contains(EngineStopped)
    assert answers[1].status == 503
    assert answers[2][-1].json()["error"]["code"] == "engine_stopped"
