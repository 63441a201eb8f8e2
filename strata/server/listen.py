"""Sockets, signals, and the life of the HTTP server from its first connection to its orderly end.

Shutdown, by the first SIGINT or SIGTERM:
  1  new requests get 503 and /ready turns red;
  2  running requests may finish, for up to `drain_s`;
  3  whatever is left is aborted; its clients get an error;
  4  the caller closes the engine, after `serve` has returned.
A second signal ends the process at once, at any point.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import hypercorn.config
import trio

from strata.config import ServerConfig
from strata.errors import ConfigError
from strata.server.app import App
from strata.server.connections import serve_connections

log = logging.getLogger("strata.server")

# Time for aborted requests to tell their clients, and for connections to close.
_LAST_WORDS_S = 2.0
_BACKLOG = 512
_STALL_MAX_S = 2_000_000.0  # what the socket option can say; more is as good as never


# ---- sockets --------------------------------------------------------------------------------------------------


def open_listener(config: ServerConfig) -> socket.socket:
    """Bind the address of the configuration. Raises: ConfigError when it is in use, or cannot be bound.

    A TCP port refuses connections until `serve` listens, so that nobody waits while a model loads; a unix socket
    lets them wait, because a bound path that nobody answers would be taken for a dead process's.
    """
    if config.host.endswith(".sock"):
        return _bind_unix(Path(config.host))
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"the host {config.host!r} cannot be resolved: {error.strerror}") from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # a name with both kinds of addresses: IPv4
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Accepted connections inherit it: ends a send to a client that takes nothing, which no cancellation can.
    stall_ms = max(1, round(min(config.stall_s, _STALL_MAX_S) * 1000))  # 0 would mean the system's own limit
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
    return _bind(listener, address, f"{config.host}:{config.port}")


def _bind_unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if path.exists():
        if not stat.S_ISSOCK(path.stat().st_mode):
            listener.close()
            raise ConfigError(f"{path} exists and is not a socket")
        if _is_answered(path):
            listener.close()
            raise ConfigError(f"{path} is in use by another process")
        path.unlink()  # left behind by a process that has ended
    bound = _bind(listener, str(path), str(path))
    bound.listen(_BACKLOG)
    return bound


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _bind(listener: socket.socket, address: object, name: str) -> socket.socket:
    try:
        listener.bind(address)  # pyright: ignore[reportArgumentType]
    except OSError as error:
        listener.close()
        raise _cannot_listen(name, error) from error
    return listener


def _cannot_listen(name: str, error: OSError) -> ConfigError:
    hints = {
        errno.EADDRINUSE: "it is in use by another process; choose another --port, or 0 for a free one",
        errno.EACCES: "no permission; ports below 1024 are the system's",
        errno.EADDRNOTAVAIL: "this machine has no such address",
    }
    return ConfigError(f"cannot listen on {name}: {hints.get(error.errno or 0, error.strerror or error)}")


def url_of(listener: socket.socket) -> str:
    """Return the URL under which a client of this machine reaches the listener."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host: str = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name[0]) or name[0]
    return f"http://[{host}]:{name[1]}" if ":" in host else f"http://{host}:{name[1]}"


# ---- signals --------------------------------------------------------------------------------------------------


class Shutdown:
    """The wish that the process ends; anyone may express it, once."""

    def __init__(self) -> None:
        self.requested = trio.Event()
        self.reason = ""

    def request(self, reason: str) -> None:
        if not self.requested.is_set():
            self.reason = reason
            self.requested.set()


@asynccontextmanager
async def shutdown_on_signals(exit_now: Callable[[int], object] = os._exit) -> AsyncGenerator[Shutdown]:
    """Turn the first SIGINT or SIGTERM into a shutdown, and the second one into the process's immediate end.

    The block should hold everything that the process does, so that the second signal works to the very end.
    """
    shutdown = Shutdown()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:

        async def watch() -> None:
            async for number in signals:
                name = signal.Signals(number).name
                if shutdown.requested.is_set():
                    log.warning("%s again: ending at once", name)
                    exit_now(128 + number)
                log.info("%s: shutting down; once more ends at once", name)
                shutdown.request(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            yield shutdown
            nursery.cancel_scope.cancel()


# ---- serving --------------------------------------------------------------------------------------------------


async def serve(
    app: App,
    listener: socket.socket,
    shutdown: Shutdown,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until a shutdown is requested, then take its steps 1 to 3. Owns the listener from here on.

    task_status: started with the listener's URL once connections are taken.
    Raises: ConfigError when another process has begun to listen on the address since it was bound.
    Cancellation: connections are cut; a send to a stalled client ends with TCP_USER_TIMEOUT.
    """
    url, path = url_of(listener), listener.getsockname() if listener.family == socket.AF_UNIX else None
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        raise _cannot_listen(url, error) from error
    is_over = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_connections, app.asgi, http_config(), listener, is_over.wait)
            task_status.started(url)
            await shutdown.requested.wait()
            await _wind_down(app)
            is_over.set()
    finally:
        if path is not None:
            _remove(path)


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def http_config() -> hypercorn.config.Config:
    """Return how HTTP itself is spoken."""
    config = hypercorn.config.Config()
    config.accesslog = None  # each exchange writes a line of its own
    errors = logging.getLogger("strata.http")
    errors.setLevel(logging.WARNING)
    config.errorlog = errors
    config.include_server_header = False
    config.graceful_timeout = _LAST_WORDS_S
    config.keep_alive_timeout = 75.0  # clients reuse connections for a minute and dislike losing that race
    config.keep_alive_max_requests = 1_000_000
    return config


async def _wind_down(app: App) -> None:
    services, idle = app.services, trio.Event()
    engine = services.model.engine
    services.admission.drain(idle.set)
    engine.drain()
    with trio.move_on_after(services.config.drain_s):
        await idle.wait()
    if not idle.is_set():
        log.warning("aborting %d open sequences", services.admission.n_open)
        engine.abort_all("shutdown")
        with trio.move_on_after(_LAST_WORDS_S):
            await idle.wait()
