"""Real sockets, signals and the order of a shutdown."""

import math
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from fake_engine import HANG, end, fake_app, say
from trio.testing import wait_all_tasks_blocked

from strata.config import ServerConfig
from strata.errors import ConfigError
from strata.server.listen import open_listener, serve, shutdown_on_signals, url_of
from strata.testing.clients import socket_server

CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


async def test_a_stream_over_a_real_socket():
    app, engine = fake_app([*say("héllo"), end()])
    async with socket_server(app) as server:
        client = await server.connect()
        for _ in range(2):  # the connection is kept
            answer = await client.request("POST", "/v1/chat/completions", CHAT)
            events = await answer.events()
            assert events[-1].data == "[DONE]"
    assert engine.aborts == []


async def test_a_disconnect_over_a_real_socket():
    app, engine = fake_app([*say("a"), HANG])
    async with socket_server(app) as server:
        client = await server.connect()
        answer = await client.request("POST", "/v1/chat/completions", CHAT)
        await answer.next_event()
        stream = engine.open_streams[0]
        await client.aclose()
        with trio.fail_after(5):
            await stream.aborted.wait()
    assert engine.aborts == [(engine.requests[0].request_id, "disconnect")]


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /health HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade\r\nhttp2-settings: AAA\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: !\r\n\r\n" + b"\xff" * 64,
    ],
    ids=["h2c", "h2", "tls", "websocket"],
)
async def test_a_connection_that_fails_takes_nobody_with_it(raw):
    app, _ = fake_app([*say("a"), end()])
    async with socket_server(app) as server:
        neighbour = await server.connect()
        assert (await neighbour.get_json("/health"))[0] == 200
        rude = await server.open_stream()
        await rude.send_all(raw)
        with trio.move_on_after(5):
            while await rude.receive_some(4096):
                pass
        await trio.aclose_forcefully(rude)
        for client in (neighbour, await server.connect()):
            assert (await client.get_json("/health"))[0] == 200


@pytest.mark.parametrize(
    ("stall_s", "stall_ms"), [(7, 7000), (1e-9, 1), (1e30, 2_000_000_000), (math.inf, 2_000_000_000)]
)
async def test_accepted_connections_time_out_when_nothing_is_taken(stall_s, stall_ms):
    listener = open_listener(ServerConfig(port=0, stall_s=stall_s))
    listener.listen()
    with socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == stall_ms
        accepted.close()
    listener.close()


def test_addresses_that_cannot_be_used():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1:{port}: it is in use by another process"):
            open_listener(ServerConfig(port=port))
    with pytest.raises(ConfigError, match="cannot be resolved"):
        open_listener(ServerConfig(host="no.such.host.invalid"))
    with pytest.raises(ConfigError, match="this machine has no such address"):
        open_listener(ServerConfig(host="203.0.113.7", port=0))


async def test_an_address_taken_while_the_model_loaded():
    late = open_listener(ServerConfig(port=0))
    port = late.getsockname()[1]
    with socket.socket() as early:
        early.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        early.bind(("127.0.0.1", port))
        early.listen()
        async with shutdown_on_signals() as shutdown:
            with pytest.raises(ConfigError, match="in use by another process"):
                await serve(fake_app([])[0], late, shutdown)
    late.close()


async def test_a_unix_socket(tmp_path):
    path = tmp_path / "s.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()  # a process that has ended leaves its path behind
    config = ServerConfig(host=str(path))
    app, _ = fake_app([*say("a"), end()], config=config)
    async with socket_server(app, config) as server:
        assert server.url == f"unix:{path}"
        with pytest.raises(ConfigError, match="in use by another process"):
            open_listener(config)
        assert (await (await server.connect()).get_json("/health"))[0] == 200
    assert not path.exists()
    path.write_text("not a socket")
    with pytest.raises(ConfigError, match="is not a socket"):
        open_listener(config)


def test_urls():
    with socket.socket() as any_address:
        any_address.bind(("0.0.0.0", 0))
        assert url_of(any_address) == f"http://127.0.0.1:{any_address.getsockname()[1]}"


async def test_shutdown_lets_requests_finish_and_takes_no_new_ones():
    app, engine = fake_app([*say("ab"), HANG, end()])
    async with socket_server(app) as server:
        client = await server.connect()
        answer = await client.request("POST", "/v1/chat/completions", CHAT)
        await answer.next_event()
        other = await server.connect()
        server.shutdown.request("test")
        await wait_all_tasks_blocked(0.01)
        assert (await other.get_json("/ready"))[0] == 503
        status, body = await other.post_json("/v1/chat/completions", CHAT)
        assert (status, body["error"]["code"]) == (503, "not_ready")
        assert engine.draining
        assert engine.aborts == []
        engine.open_streams[0].finish_waiting()
        events = await answer.events()
        assert events[-1].data == "[DONE]"


async def test_shutdown_aborts_what_does_not_finish():
    app, engine = fake_app([*say("ab"), HANG], config=ServerConfig(drain_s=0.05))
    async with socket_server(app) as server:
        client = await server.connect()
        whole = await server.connect()
        answer = await client.request("POST", "/v1/chat/completions", CHAT)
        await whole.send("POST", "/v1/chat/completions", CHAT | {"stream": False})
        while len(engine.open_streams) < 2:
            await trio.lowlevel.checkpoint()
        server.shutdown.request("test")
        events = await answer.events()
        assert events[-1].name == "error"
        assert "shutting down" in events[-1].json()["error"]["message"]
        assert (await whole.answer()).status == 503
    assert sorted(engine.aborts) == sorted((request.request_id, "shutdown") for request in engine.requests)


async def test_the_first_signal_asks_and_the_second_ends():
    codes = []
    async with shutdown_on_signals(exit_now=codes.append) as shutdown:
        os.kill(os.getpid(), signal.SIGTERM)
        await shutdown.requested.wait()
        assert shutdown.reason == "SIGTERM"
        await wait_all_tasks_blocked()
        assert codes == []
        os.kill(os.getpid(), signal.SIGINT)
        with trio.fail_after(5):
            while not codes:  # noqa: ASYNC110
                await trio.sleep(0.001)
    assert codes == [130]


SCRIPT = """
import sys, trio
sys.path.insert(0, {tests!r})
from fake_engine import HANG, fake_app
from strata.config import ServerConfig
from strata.server.listen import open_listener, serve, shutdown_on_signals

async def main():
    app, _ = fake_app([HANG], config=ServerConfig(drain_s=1000))
    async with shutdown_on_signals() as shutdown, trio.open_nursery() as nursery:
        print(await nursery.start(serve, app, open_listener(ServerConfig(port=0)), shutdown), flush=True)

trio.run(main)
"""


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_signals_to_a_whole_process(signals):
    script = SCRIPT.format(tests=str(Path(__file__).parent))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=env) as process:
        port = int(process.stdout.readline().rpartition(":")[2])
        if len(signals) == 1:  # nothing is open: the first signal suffices
            process.send_signal(signals[0])
            assert process.wait(20) == 0
            return
        with socket.create_connection(("127.0.0.1", port)) as client:
            body = b'{"prompt": "x"}'
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
            )
            with socket.create_connection(("127.0.0.1", port)) as probe:  # answered after the request was taken
                probe.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                probe.recv(1000)
            process.send_signal(signals[0])
            with socket.create_connection(("127.0.0.1", port)) as probe:
                answer = b""
                while b"503" not in answer:  # until the first signal has been heard
                    probe.sendall(b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n")
                    answer = probe.recv(1000)
            process.send_signal(signals[1])
            assert process.wait(20) == 130
