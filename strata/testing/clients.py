"""An HTTP client for tests, and servers to point it at: over memory streams, or on a real socket.

The client shows what a library hides: comments in event streams, the moment at which bytes arrive, half-read answers.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import h11
import msgspec
import trio
import trio.testing

from strata.config import ServerConfig
from strata.server.app import App
from strata.server.connections import Connections
from strata.server.listen import Shutdown, http_config, open_listener, serve


class SseEvent(msgspec.Struct, frozen=True):
    """One event of a stream; comments have neither name nor data."""

    name: str | None
    data: str | None
    comment: str | None = None

    def json(self) -> Any:
        return json.loads(self.data or "null")


class HttpAnswer:
    """An answer whose head has arrived; the body is read on demand."""

    def __init__(self, client: HttpClient, head: h11.Response) -> None:
        self.status = head.status_code
        self.headers = {name.decode(): value.decode() for name, value in head.headers}
        self._client = client
        self._buffer = b""

    async def chunk(self) -> bytes:
        """Return the next bytes of the body; empty at its end. Raises: EOFError when the server cut it off."""
        event = await self._client.next_event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            return b""
        raise EOFError(f"the body ended early: {event}")

    async def body(self) -> bytes:
        while chunk := await self.chunk():
            self._buffer += chunk
        return self._buffer

    async def json(self) -> Any:
        return json.loads(await self.body())

    async def next_event(self) -> SseEvent | None:
        """Return the next event or comment of an event stream; None at its end."""
        while b"\n\n" not in self._buffer:
            chunk = await self.chunk()
            if not chunk:
                return None
            self._buffer += chunk
        block, _, self._buffer = self._buffer.partition(b"\n\n")
        return _parse_event(block.decode())

    async def events(self) -> list[SseEvent]:
        """Return what is left of an event stream."""
        found: list[SseEvent] = []
        while (event := await self.next_event()) is not None:
            found.append(event)
        return found


def _parse_event(block: str) -> SseEvent:
    name = data = comment = None
    for line in block.split("\n"):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "":
            comment = value
        elif field == "event":
            name = value
        elif field == "data":
            data = value if data is None else f"{data}\n{value}"
    return SseEvent(name, data, comment)


class HttpClient:
    """HTTP/1.1 over one connection."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """Send a request (`body` is bytes, or anything that becomes JSON) and wait for the answer's head."""
        await self.send(method, path, body, headers=headers)
        return await self.answer()

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        n_missing: int = 0,
    ) -> None:
        """Send a request without waiting for its answer; the last `n_missing` bytes it announces never come."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        all_headers = {"host": "test", "content-length": str(len(raw) + n_missing), **(headers or {})}
        events: list[h11.Event] = [h11.Request(method=method, target=path, headers=list(all_headers.items()))]
        events.append(h11.Data(data=raw))
        if not n_missing:
            events.append(h11.EndOfMessage())
        await self._stream.send_all(b"".join(self._http.send(event) or b"" for event in events))

    async def answer(self) -> HttpAnswer:
        """Wait for the head of the answer."""
        event = await self.next_event()
        while isinstance(event, h11.InformationalResponse):
            event = await self.next_event()
        if not isinstance(event, h11.Response):
            raise EOFError(f"no answer: {event}")
        return HttpAnswer(self, event)

    async def next_event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(bytes(await self._stream.receive_some(65536)))
        return event

    async def get_json(self, path: str, *, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        answer = await self.request("GET", path, headers=headers)
        return answer.status, await answer.json()

    async def post_json(self, path: str, body: Any, *, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        answer = await self.request("POST", path, body, headers=headers)
        return answer.status, await answer.json()

    async def aclose(self) -> None:
        """Hang up, at once and without a word, as a client that was killed."""
        await trio.aclose_forcefully(self._stream)


# ---- over memory ----------------------------------------------------------------------------------------------


class MemoryServer:
    """Serves an application through the real HTTP server, without sockets; connections live in `nursery`."""

    def __init__(self, app: App, nursery: trio.Nursery) -> None:
        self.app = app
        self.clients: list[HttpClient] = []
        self._nursery = nursery
        self.connections = Connections(app.asgi, http_config())

    def connect(self, *, is_narrow: bool = False) -> HttpClient:
        """Return a client on a new connection; on a narrow one each send waits until the other side has read it."""
        make_pair = trio.testing.lockstep_stream_pair if is_narrow else trio.testing.memory_stream_pair
        ours, theirs = make_pair()
        theirs.socket = SimpleNamespace(  # type: ignore[attr-defined]  # what the server asks of a socket
            family=socket.AF_INET, getpeername=lambda: ("127.0.0.1", 1), getsockname=lambda: ("127.0.0.1", 2)
        )
        self._nursery.start_soon(self.connections.handle, theirs)
        self.clients.append(HttpClient(ours))
        return self.clients[-1]


@asynccontextmanager
async def memory_server(app: App) -> AsyncGenerator[MemoryServer]:
    """Serve `app` in memory for the block; connections are cut at its end."""
    async with trio.open_nursery() as nursery:
        server = MemoryServer(app, nursery)
        try:
            yield server
        finally:  # the HTTP server shields its sends: only the other side's end interrupts one that hangs
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                for client in server.clients:
                    await client.aclose()


# ---- on a socket ----------------------------------------------------------------------------------------------


class SocketServer:
    """A server on a port of its own, or on a unix socket."""

    def __init__(self, url: str, shutdown: Shutdown) -> None:
        self.url = url
        self.shutdown = shutdown
        self._clients: list[HttpClient] = []

    async def connect(self) -> HttpClient:
        """Return a client on a new connection, which is closed with the server at the latest."""
        self._clients.append(HttpClient(await self.open_stream()))
        return self._clients[-1]

    async def open_stream(self) -> trio.SocketStream:
        """Return a bare connection, for what is no HTTP."""
        if self.url.startswith("unix:"):
            return await trio.open_unix_socket(self.url.removeprefix("unix:"))
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return await trio.open_tcp_stream(host, int(port))

    async def hang_up(self) -> None:
        """Close every client's connection."""
        for client in self._clients:
            await client.aclose()


@asynccontextmanager
async def socket_server(app: App, config: ServerConfig | None = None) -> AsyncGenerator[SocketServer]:
    """Serve `app` on a free port for the block, then shut it down in order."""
    listener = open_listener(config or ServerConfig(port=0))
    shutdown = Shutdown()
    async with trio.open_nursery() as nursery:
        url: str = await nursery.start(partial(serve, app, listener, shutdown))
        server = SocketServer(url, shutdown)
        try:
            yield server
        finally:
            with trio.CancelScope(shield=True):
                await server.hang_up()
            shutdown.request("end of test")
