"""The engine streams of one exchange: opened together, read in order of arrival, always closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import trio

from strata.errors import NotReady, StrataError
from strata.server.exchange import Exchange
from strata.server.ports import Stream
from strata.types import Delta, FinishReason, PrefillProgress, Request, TokenInfo, Usage

Sink = Callable[[int, Delta], Awaitable[None]]


@dataclass(slots=True)
class Answer:
    """Everything one sequence said."""

    text: str = ""
    tokens: list[TokenInfo] = field(default_factory=list[TokenInfo])
    finish: FinishReason | None = None
    stopped_by: str | None = None
    usage: Usage | None = None

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.tokens.extend(delta.tokens)
        if delta.finish is not None:
            self.finish, self.stopped_by, self.usage = delta.finish, delta.stopped_by, delta.usage


@asynccontextmanager
async def open_streams(exchange: Exchange, requests: Sequence[Request]) -> AsyncGenerator[list[Stream]]:
    """Open one stream per request, all or none; leaving the block ends them.

    Raises: what `Engine.open_stream` raises.
    """
    engine = exchange.services.model.engine
    async with AsyncExitStack() as stack:
        streams: list[Stream] = []
        for request in requests:
            stream = await stack.enter_async_context(engine.open_stream(request))
            exchange.own(stream)
            streams.append(stream)
        yield streams


async def pump(streams: Sequence[Stream], sink: Sink) -> None:
    """Hand each delta of every stream to `sink` with its stream's index, until all have finished.

    Raises: the first stream's StrataError; the others are left to the caller's block. NotReady when the engine
    aborted a stream, which it does on its own only while shutting down.
    """
    if len(streams) == 1:
        await _pump_one(0, streams[0], sink)
        return
    failures: list[StrataError] = []

    async def pump_into_nursery(index: int, stream: Stream) -> None:
        try:
            await _pump_one(index, stream, sink)
        except StrataError as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for index, stream in enumerate(streams):
            nursery.start_soon(pump_into_nursery, index, stream)
    if failures:
        raise failures[0]


async def _pump_one(index: int, stream: Stream, sink: Sink) -> None:
    has_finished = False
    async for item in stream:
        if isinstance(item, PrefillProgress):
            continue  # shows in the metrics; quiet streams are kept open by their writer
        if item.finish is FinishReason.ABORTED:
            raise NotReady("the server is shutting down; the answer was cut off")
        has_finished = item.finish is not None
        await sink(index, item)
    if not has_finished:
        raise StrataError("the engine ended a stream without saying why")


async def collect(exchange: Exchange, requests: Sequence[Request]) -> list[Answer]:
    """Run the requests to their ends and return the whole answers, in order."""
    answers = [Answer() for _ in requests]

    async def add(index: int, delta: Delta) -> None:
        answers[index].add(delta)

    async with open_streams(exchange, requests) as streams:
        await pump(streams, add)
    return answers


def engine_deadline_s(exchange: Exchange, wanted_s: float | None) -> float | None:
    """Return what is left of the request's time; reading its body and tokenizing have used some. None: no limit."""
    limit_s = exchange.services.admission.deadline_s(wanted_s)
    return None if limit_s is None else max(0.0, limit_s - (trio.current_time() - exchange.began_at_s))


def note_usage(exchange: Exchange, usages: Sequence[Usage | None]) -> None:
    """Put the token counts into the exchange's closing log line."""
    known = [usage for usage in usages if usage is not None]
    exchange.fields["n_prompt"] = sum(usage.n_prompt for usage in known)
    exchange.fields["n_generated"] = sum(usage.n_generated for usage in known)
