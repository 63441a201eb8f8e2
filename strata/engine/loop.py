"""The step loop: schedule -> submit -> await -> deliver. One task, one step at a time.

`Engine` is what the server sees. Everything that decides lives in `scheduler`, everything that computes behind
`Backend`; this file only moves work between them and the streams.
"""

from __future__ import annotations

import functools
import itertools
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import trio

from strata.engine.backend import Backend, BackendHealth, BackendLimits, StepBatch, StepResult
from strata.engine.observer import NullObserver, Observer
from strata.engine.scheduler import Scheduler
from strata.engine.sequence import Sequence, State
from strata.engine.stream import Stream
from strata.errors import ContextTooLong, EngineStopped, NotReady, RequestError, StrataError
from strata.text.tokenizer import Tokenizer
from strata.types import FinishReason, Request, TokenInfo


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """State of the engine for /health, /metrics and /props."""

    n_waiting: int
    n_running: int
    n_kv_blocks: int
    n_kv_blocks_held: int
    n_kv_blocks_cached: int
    n_preempted: int
    draining: bool
    stopped: bool
    backend: BackendHealth


class Engine:
    """Runs requests on one backend. `run` must be started in a nursery that outlives every request."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        *,
        max_waiting: int = 64,
        chunk_tokens: int | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._backend = backend
        self._tokenizer = tokenizer
        self._scheduler = Scheduler(backend.limits, max_waiting=max_waiting, chunk_tokens=chunk_tokens)
        self._observer: Observer = observer or NullObserver()
        self._streams: dict[int, Stream] = {}
        self._ids = itertools.count(1)
        self._wake = trio.Event()
        self._ticket: int | None = None
        self._draining = False
        self._stopped = False
        self._breaker_ids = functools.lru_cache(maxsize=16)(self._find_breakers)

    @property
    def limits(self) -> BackendLimits:
        return self._backend.limits

    def snapshot(self) -> EngineSnapshot:
        kv = self._scheduler.kv
        return EngineSnapshot(
            n_waiting=len(self._scheduler.waiting),
            n_running=len(self._scheduler.running),
            n_kv_blocks=kv.n_blocks,
            n_kv_blocks_held=kv.n_held,
            n_kv_blocks_cached=kv.n_cached,
            n_preempted=self._scheduler.n_preempted,
            draining=self._draining,
            stopped=self._stopped,
            backend=self._backend.health(),
        )

    @asynccontextmanager
    async def open_stream(self, request: Request) -> AsyncGenerator[Stream]:
        """Queue a request; leaving the block ends it.

        Raises: NotReady while draining, EngineStopped, Overloaded, ContextTooLong, BadSampling, RequestError.
        """
        stream = self._open(request)
        try:
            yield stream
        finally:
            self._abort(stream.seq, "closed")

    def drain(self) -> None:
        """Refuse new requests; the open ones go on."""
        self._draining = True

    def abort_all(self, reason: str) -> None:
        """Abort every open request."""
        for stream in list(self._streams.values()):
            self._abort(stream.seq, reason)

    async def run(self) -> None:
        """Run steps until cancelled. Raises EngineStopped when the device fails; every stream gets it too."""
        try:
            while True:
                batch = self._scheduler.next_batch()
                if batch is None:
                    await self._wake.wait()
                    self._wake = trio.Event()
                    continue
                self._mark_started(batch)
                self._ticket = self._backend.submit(batch)
                try:
                    result = await self._backend.wait(self._ticket)
                finally:
                    self._ticket = None
                self._deliver(batch, result)
        finally:
            self._stopped = True
            self._fail_all(EngineStopped("the engine has stopped"))

    # ---- inside -----------------------------------------------------------------------------------------------

    def _open(self, request: Request) -> Stream:
        if self._stopped:
            raise EngineStopped("the engine has stopped")
        if self._draining:
            raise NotReady("the server is shutting down and takes no new requests")
        seq = self._sequence(request)
        stream = Stream(seq, self._tokenizer, self._abort)  # it may refuse, and then nothing must have been queued
        self._scheduler.add(seq)
        self._streams[seq.seq_id] = stream
        self._observer.request_queued(request)
        self._wake.set()
        return stream

    def _sequence(self, request: Request) -> Sequence:
        limits = self._backend.limits
        n_prompt = len(request.prompt)
        if n_prompt == 0:
            raise RequestError("the prompt is empty; at least one token is needed")
        for token in request.prompt:
            if not 0 <= token < limits.n_vocab:
                raise RequestError(f"the prompt holds token id {token}; accepted: 0 to {limits.n_vocab - 1}")
        if n_prompt >= limits.n_ctx:
            raise ContextTooLong(
                f"the prompt has {n_prompt} tokens; the context holds {limits.n_ctx}, one of them for the answer"
            )
        params = request.sampling.checked(limits.n_vocab)
        if request.max_tokens is not None and request.max_tokens < 1:
            raise RequestError(f"max_tokens is {request.max_tokens}; accepted: 1 or more")
        return Sequence(
            next(self._ids),
            request,
            seed=params.seed if params.seed is not None else secrets.randbits(64),
            max_tokens=min(request.max_tokens or limits.n_ctx, limits.n_ctx - n_prompt),
            breakers=self._breaker_ids(params.dry_sequence_breakers) if params.dry_multiplier else (),
        )

    def _find_breakers(self, breakers: tuple[str, ...]) -> tuple[int, ...]:
        """Ids of every token whose text contains one of the strings: they end a DRY match."""
        needles = [text.encode() for text in breakers if text]
        return tuple(i for i, raw in enumerate(self._token_bytes) if any(map(raw.__contains__, needles)))

    @functools.cached_property
    def _token_bytes(self) -> list[bytes]:
        return [self._tokenizer.token_bytes(i) for i in range(self._tokenizer.n_vocab)]

    def _abort(self, seq: Sequence, reason: str) -> None:
        stream = self._streams.pop(seq.seq_id, None)
        if stream is None:
            return
        self._scheduler.end(seq, State.ABORTED)
        stream.abort_delta()
        self._observer.request_ended(seq.request, stream.usage(), FinishReason.ABORTED)
        if self._ticket is not None and self._scheduler.in_flight_over():
            self._backend.abort(self._ticket)  # nobody is left who wants this step
        self._wake.set()

    def _mark_started(self, batch: StepBatch) -> None:
        for row in batch.rows:
            stream = self._streams[row.seq_id]
            if stream.started_at_s is None:
                stream.started()
                self._observer.request_started(stream.request, stream.seq.n_cached)

    def _deliver(self, batch: StepBatch, result: StepResult) -> None:
        self._observer.step_done(batch, result)
        if result.error is not None and not result.failed_rows:
            over = self._scheduler.in_flight_over()
            self._scheduler.discard()
            if over:
                return  # the step was aborted because everyone in it had left
            raise EngineStopped(f"a step failed: {result.error}") from result.error
        got = self._scheduler.commit(batch, result)
        for i in result.failed_rows:
            self._fail_row(batch.rows[i].seq_id, result.error)
        for seq, info in got:
            self._hand_out(self._streams[seq.seq_id], info)
        for row in batch.rows:
            stream = self._streams.get(row.seq_id)
            if stream is not None and row.sample is None:
                stream.progress()

    def _hand_out(self, stream: Stream, info: TokenInfo) -> None:
        seq = stream.seq
        is_first = stream.first_token_at_s is None
        finish = stream.push(info)
        if is_first:
            self._observer.first_token(seq.request, stream.usage())
        if finish is not None:
            del self._streams[seq.seq_id]
            self._scheduler.end(seq, State.FINISHED)
            self._observer.request_ended(seq.request, stream.usage(), finish)

    def _fail_row(self, seq_id: int, error: Exception | None) -> None:
        stream = self._streams.pop(seq_id, None)
        if stream is None:
            return
        failure = error if isinstance(error, StrataError) else StrataError(str(error))
        self._scheduler.end(stream.seq, State.ABORTED)
        stream.fail(failure)
        self._observer.request_ended(stream.request, stream.usage(), failure)

    def _fail_all(self, error: StrataError) -> None:
        for stream in self._streams.values():
            stream.fail(error)
            self._observer.request_ended(stream.request, stream.usage(), error)
        self._streams.clear()
