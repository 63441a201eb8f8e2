"""One task per connection, and the border that keeps a connection's failure from everyone else.

HTTP itself is hypercorn's, whose own accept loop is not used: in it an exception of the protocol code ends the whole
server, and a request can cause one (hypercorn 0.18, an `upgrade: h2c` with an `http2-settings` that is no base64).
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import hypercorn.config
import hypercorn.trio.tcp_server
import hypercorn.trio.worker_context
import hypercorn.utils
import trio
from hypercorn.typing import ConnectionState
from starlette.types import ASGIApp

log = logging.getLogger("strata.server")


class _Connection(hypercorn.trio.tcp_server.TCPServer):
    """One connection. By itself it would stay open, its client long gone, until it has been idle for long enough."""

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()


class Connections:
    """Speaks HTTP on streams for one application. `handle` runs in a task per connection."""

    def __init__(self, asgi: ASGIApp, config: hypercorn.config.Config) -> None:
        app: Any = asgi  # the two libraries spell the same protocol in different types
        self._app = hypercorn.utils.wrap_app(app, config.wsgi_max_body_size, "asgi")
        self._config = config
        self._context = hypercorn.trio.worker_context.WorkerContext(None)
        self.n_open = 0

    async def handle(self, stream: Any) -> None:
        """Serve one connection to its end. stream: trio's, with a `socket`. Raises: nothing but cancellation."""
        self.n_open += 1
        try:
            await _Connection(self._app, self._config, self._context, ConnectionState({}), stream)
        except* Exception as failures:
            log.warning("a connection failed and was closed: %s", _causes(failures))
        finally:
            self.n_open -= 1

    async def wind_down(self) -> None:
        """Let idle connections go, and close the others after their answers."""
        await self._context.terminated.set()


def _causes(failures: BaseExceptionGroup[Any]) -> str:
    """The innermost exceptions, on one line."""
    names: list[str] = []
    for failure in failures.exceptions:
        nested = isinstance(failure, BaseExceptionGroup)
        names.append(_causes(failure) if nested else f"{type(failure).__name__}: {failure}")
    return "; ".join(names)


async def serve_connections(
    asgi: ASGIApp,
    config: hypercorn.config.Config,
    listener: socket.socket,
    until: Callable[[], Awaitable[object]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept connections until `until` returns, then give those that are open `graceful_timeout` to end.

    listener: listening; owned from here on. task_status: started once connections are taken.
    """
    connections = Connections(asgi, config)
    async with trio.open_nursery() as open_connections:
        async with trio.open_nursery() as accepting:
            source = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
            accept = partial(trio.serve_listeners, handler_nursery=open_connections)
            await accepting.start(accept, connections.handle, [source])
            task_status.started()
            await until()
            accepting.cancel_scope.cancel()
        await connections.wind_down()
        open_connections.cancel_scope.deadline = trio.current_time() + config.graceful_timeout
