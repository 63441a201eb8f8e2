"""One HTTP exchange: its body, its connection's watcher, its open streams and its answer.

Every route is an `Endpoint`. While its handler works, a second task waits for the client to leave; then all streams
of the exchange are aborted at once and the handler is cancelled. This holds for streamed and whole answers alike.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import msgspec
import trio
from starlette.types import Message, Receive, Scope, Send

from strata.config import ServerConfig
from strata.errors import StrataError
from strata.server.admission import Admission
from strata.server.ports import ServedModel, Stream
from strata.server.problems import BodyTooLarge, BodyTooSlow, ClientGone, Dialect, dialect_of, error_body, error_headers
from strata.telemetry.metrics import Metrics
from strata.telemetry.tracing import Tracing

log = logging.getLogger("strata.server")

_LAST_WORDS_S = 1.0

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What every handler may use."""

    model: ServedModel
    config: ServerConfig
    admission: Admission
    metrics: Metrics
    tracing: Tracing


class Reply(Protocol):
    """An answer that knows how to send itself."""

    async def __call__(self, exchange: Exchange) -> None: ...


Handler = Callable[["Exchange"], Awaitable[Reply]]


class Exchange:
    """One request and its answer. Lives in one Endpoint call."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, services: Services, route: str) -> None:
        self.scope = scope
        self.services = services
        self.route = route
        self.dialect = dialect_of(scope)
        self.request_id = f"req_{secrets.token_hex(12)}"
        self.began_at_s = trio.current_time()
        self.body = b""
        self.status: int | None = None  # of the answer, once its head was sent
        self.is_answered = False  # the answer's last piece was handed over
        self.lost_reason: str | None = None
        self.fields: dict[str, object] = {}  # what the closing log line tells beside route, status and duration
        self._receive = receive
        self._send = send
        self._streams: list[Stream] = []
        self._places = ExitStack()

    # ---- the client's side ------------------------------------------------------------------------------------

    async def read_body(self, *, keep: bool) -> None:
        """Read the whole body, and keep it if it matters. Raises: ClientGone, BodyTooLarge, BodyTooSlow."""
        chunks: list[bytes] = []
        n_bytes, is_last = 0, False
        limit = self.services.config.max_body_bytes
        while not is_last:
            message = await self._next_message()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk: bytes = message.get("body", b"")
            n_bytes += len(chunk)
            if n_bytes > limit:
                raise BodyTooLarge(f"the request's body has more than {limit} bytes, which is the most taken here")
            if keep:
                chunks.append(chunk)
            is_last = not message.get("more_body", False)
        self.body = b"".join(chunks)

    async def _next_message(self) -> Message:
        stall_s = self.services.config.stall_s
        with trio.move_on_after(stall_s):
            return await self._receive()
        raise BodyTooSlow(f"nothing of the request's body came for {stall_s} s")

    async def watch_connection(self, handler_scope: trio.CancelScope) -> None:
        """Wait until the client leaves, then abort the streams and cancel the handler."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.is_answered:  # the end of a whole exchange is reported as a disconnect, too
            self.lose("disconnect")
            handler_scope.cancel()

    # ---- the engine's side ------------------------------------------------------------------------------------

    def admit(self, n_sequences: int) -> None:
        """Take places for the rest of this exchange. Raises: NotReady, Overloaded."""
        admission = self.services.admission
        self._places.enter_context(admission.admit(n_sequences))
        admitted_at_s = trio.current_time()
        self._places.callback(lambda: admission.note_stay(trio.current_time() - admitted_at_s))

    def leave(self) -> None:
        """Give the places back; idempotent."""
        self._places.close()  # runs what was put there once

    def own(self, stream: Stream) -> None:
        """Make `stream` end with this exchange."""
        self._streams.append(stream)
        if self.lost_reason is not None:
            stream.abort(self.lost_reason)

    def lose(self, reason: str) -> None:
        """Abort every stream because nobody reads any more; synchronous, so that no hanging send delays it."""
        if self.lost_reason is None:
            self.lost_reason = reason
        for stream in self._streams:
            stream.abort(reason)
        self.leave()

    # ---- the answer -------------------------------------------------------------------------------------------

    async def send_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        id_header = b"request-id" if self.dialect is Dialect.ANTHROPIC else b"x-request-id"
        all_headers = [(id_header, self.request_id.encode()), *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})

    async def send_body(self, body: bytes, *, more: bool) -> None:
        self.is_answered = not more
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def send_error(self, error: StrataError) -> None:
        body = error_body(error, self.dialect, self.request_id)
        await BytesReply(body, status=error.http_status, headers=error_headers(error))(self)


def last_words() -> trio.CancelScope:
    """Return the scope in which an answer is ended: a dying engine cancels the server that is about to tell of it."""
    return trio.CancelScope(shield=True, deadline=trio.current_time() + _LAST_WORDS_S)


class BytesReply:
    """A whole answer."""

    def __init__(
        self,
        body: bytes,
        *,
        status: int = 200,
        content_type: str = "application/json",
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        self.body = body
        self.status = status
        self.headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", str(len(body)).encode()),
            *(headers or []),
        ]

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.send_head(self.status, self.headers)
        await exchange.send_body(self.body, more=False)


class JsonReply(BytesReply):
    """A whole answer from one JSON value."""

    def __init__(self, value: object, *, status: int = 200) -> None:
        super().__init__(_encode(value), status=status)


class Endpoint:
    """ASGI application of one route.

    Cancellation: by the client's leaving and by the server's end; the streams of the exchange are aborted first.
    """

    def __init__(
        self,
        handler: Handler,
        services: Services,
        route: str,
        *,
        log_level: int = logging.INFO,
        keeps_body: bool = True,
    ) -> None:
        self._handler = handler
        self._services = services
        self._route = route
        self._log_level = log_level
        self._keeps_body = keeps_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._services, self._route)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._services.tracing.request_begun(exchange.request_id, self._route, headers)
        try:
            await self._run(exchange)
        finally:
            self._close(exchange)

    async def _run(self, exchange: Exchange) -> None:
        try:
            await exchange.read_body(keep=self._keeps_body)
        except ClientGone:
            exchange.lose("disconnect")
            return
        except (BodyTooLarge, BodyTooSlow) as error:
            await exchange.send_error(error)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.watch_connection, nursery.cancel_scope)
            await self._answer(exchange)
            nursery.cancel_scope.cancel()

    async def _answer(self, exchange: Exchange) -> None:
        try:
            reply = await self._handler(exchange)
            await reply(exchange)
        except StrataError as error:
            if exchange.lost_reason is not None:
                return  # its streams were aborted for want of a reader; there is nothing to report, and nobody to tell
            if error.http_status >= 500:
                log.error("%s failed: %s", exchange.route, error)
            await self._report(exchange, error)
        except Exception:
            log.exception("%s failed", exchange.route)
            await self._report(exchange, StrataError("an internal error; the server's log has the details"))

    async def _report(self, exchange: Exchange, error: StrataError) -> None:
        exchange.fields["error"] = error.code
        if exchange.status is None:
            with last_words():
                await exchange.send_error(error)

    def _close(self, exchange: Exchange) -> None:
        exchange.leave()
        services, duration_s = self._services, trio.current_time() - exchange.began_at_s
        status = exchange.status or 499  # 499: the client left before the head; a number for logs and counts only
        services.metrics.count("strata_http_requests_total", route=exchange.route, status=str(status))
        services.metrics.observe("strata_http_request_seconds", duration_s, route=exchange.route)
        if exchange.lost_reason is not None:
            services.metrics.count("strata_http_lost_total", reason=exchange.lost_reason)
            exchange.fields["lost"] = exchange.lost_reason
        services.tracing.request_ended(exchange.request_id, status)
        fields = {"status": status, "duration_s": duration_s, "id": exchange.request_id, **exchange.fields}
        log.log(self._log_level, "%s %s", exchange.scope["method"], exchange.route, extra={"fields": fields})
