"""The streamed answer: owns its engine streams, keeps a quiet connection open, notices a reader that stopped."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Protocol

import trio

from strata.errors import StrataError
from strata.server import sse
from strata.server.exchange import Exchange, last_words
from strata.server.generation import note_usage, open_streams, pump
from strata.types import Delta, Request, Usage

log = logging.getLogger("strata.server")

_HEADERS = [
    (b"content-type", sse.CONTENT_TYPE.encode() + b"; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the stream otherwise
]


class StreamEncoder(Protocol):
    """Turns deltas into a dialect's events. Pure; b"" means nothing to send."""

    keep_alive: bytes  # sent after every start() while nothing else is

    def start(self) -> bytes: ...

    def feed(self, index: int, delta: Delta) -> bytes: ...

    def finish(self) -> bytes: ...

    def error(self, error: StrataError) -> bytes: ...


class SseResponse:
    """Streams the answer to `requests`.

    The head is sent with the first event, so a failure before it has a proper status. A later one is an `error`
    event, after which the stream ends.
    Cancellation: at any point; leaving the engine's block aborts the work.
    """

    def __init__(self, requests: Sequence[Request], encoder: StreamEncoder) -> None:
        self._requests = requests
        self._encoder = encoder
        self._usages: list[Usage | None] = [None] * len(requests)

    async def __call__(self, exchange: Exchange) -> None:
        async with open_streams(exchange, self._requests) as streams:
            writer = _Writer(exchange, self._encoder)
            failure: StrataError | None = None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.watch_stall)
                nursery.start_soon(writer.keep_open)

                async def write(index: int, delta: Delta) -> None:
                    self._usages[index] = delta.usage
                    await writer.write(self._encoder.feed(index, delta))

                try:
                    await pump(streams, write)
                    await writer.write(self._encoder.finish())
                except StrataError as error:
                    failure = error
                except Exception:
                    log.exception("a stream failed")
                    failure = StrataError("an internal error; the server's log has the details")
                if writer.has_started:
                    with last_words():
                        await writer.end(failure)
                nursery.cancel_scope.cancel()
        note_usage(exchange, self._usages)
        if failure is not None:
            raise failure  # an answer with its own status if nothing was sent; else for log and counts


class _Writer:
    """Sends one stream's bytes, one send at a time, and keeps two clocks: of a send that hangs, and of silence."""

    def __init__(self, exchange: Exchange, encoder: StreamEncoder) -> None:
        self._exchange = exchange
        self._encoder = encoder
        self._stall_s = exchange.services.config.stall_s
        self._quiet_s = exchange.services.config.keep_alive_s
        self._lock = trio.Lock()
        self._sending = trio.CancelScope()  # its deadline is when the running send counts as stalled
        self._quiet = trio.CancelScope()  # its deadline is when the next keep-alive is due
        self.has_started = False

    async def write(self, data: bytes) -> None:
        if data:
            async with self._lock:
                await self._send(data)

    async def end(self, failure: StrataError | None) -> None:
        """Send the error event, if any, and close the body."""
        async with self._lock:
            if failure is not None:
                await self._send(self._encoder.error(failure))
            await self._timed(b"", more=False)

    async def keep_open(self) -> None:
        """Send a keep-alive whenever nothing else was sent for `keep_alive_s`. Runs until cancelled."""
        while True:
            with self._quiet:
                self._quiet.deadline = trio.current_time() + self._quiet_s
                await trio.sleep_forever()
            self._quiet = trio.CancelScope()
            await self.write(self._encoder.keep_alive)

    async def watch_stall(self) -> None:
        """Wait for a send that takes longer than `stall_s`, then abort the streams.

        The server library shields its socket send, so the sending task itself cannot be cancelled; the listener's
        TCP_USER_TIMEOUT ends it later, while the engine's place is free at once.
        """
        with self._sending:
            await trio.sleep_forever()
        self._exchange.lose("stall")

    async def _send(self, data: bytes) -> None:
        if not self.has_started:
            self.has_started = True
            self._sending.deadline = trio.current_time() + self._stall_s
            await self._exchange.send_head(200, _HEADERS)
            data = self._encoder.start() + data
        await self._timed(data, more=True)
        self._quiet.deadline = trio.current_time() + self._quiet_s

    async def _timed(self, data: bytes, *, more: bool) -> None:
        self._sending.deadline = trio.current_time() + self._stall_s
        await self._exchange.send_body(data, more=more)
        self._sending.deadline = math.inf
