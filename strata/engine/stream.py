"""One request's output: tokens come in from the loop, deltas go out to the request's owner.

The channel holds a whole answer, so the loop never waits for a reader: a slow client can block only itself.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable

import trio

from strata.engine.sequence import Sequence
from strata.errors import DeadlineExceeded, StrataError
from strata.text.detokenizer import Detokenizer
from strata.text.stops import StopMatcher
from strata.text.tokenizer import Tokenizer
from strata.types import Delta, FinishReason, PrefillProgress, TokenInfo, Usage


class Stream:
    """Output of one sequence. Made by the engine, owned by the `async with` of open_stream."""

    def __init__(self, seq: Sequence, tokenizer: Tokenizer, on_abort: Callable[[Sequence, str], None]) -> None:
        request = seq.request
        self.seq = seq
        self.request = request
        self._on_abort = on_abort
        self._eog = frozenset[int]() if request.ignore_eos else tokenizer.eog_ids
        self._detokenizer = Detokenizer(tokenizer, special=request.include_special)
        self._stops = StopMatcher(request.stop)
        self._send, self._receive = trio.open_memory_channel[Delta | PrefillProgress](math.inf)
        self._pending: list[TokenInfo] = []  # tokens whose text is still held back
        self._error: StrataError | None = None
        self.started_at_s: float | None = None
        self.first_token_at_s: float | None = None
        self.queued_at_s = trio.current_time()
        self.ended_at_s: float | None = None
        self._deadline_at_s = math.inf if request.deadline_s is None else self.queued_at_s + request.deadline_s

    # ---- called by the loop -----------------------------------------------------------------------------------

    def started(self) -> None:
        if self.started_at_s is None:
            self.started_at_s = trio.current_time()

    def progress(self) -> None:
        """Report a finished prompt chunk."""
        self._send.send_nowait(
            PrefillProgress(n_done=self.seq.n_computed, n_total=self.seq.n_prompt, n_cached=self.seq.n_cached)
        )

    def push(self, info: TokenInfo) -> FinishReason | None:
        """Take one generated token; return the finish reason when it was the last one."""
        if self.first_token_at_s is None:
            self.first_token_at_s = trio.current_time()
        if info.token in self._eog:
            return self._finish(FinishReason.STOP, "", None, tail=self._detokenizer.flush())
        self._pending.append(info)
        result = self._stops.feed(self._detokenizer.feed([info.token]))
        if result.stopped_by is not None:
            return self._finish(FinishReason.STOP, result.emit, result.stopped_by, flush=False)
        if self.seq.n_generated >= self.seq.max_tokens:
            return self._finish(FinishReason.LENGTH, result.emit, None, tail=self._detokenizer.flush())
        if result.emit:
            self._emit(result.emit)
        return None

    def abort_delta(self) -> None:
        """End the stream as aborted."""
        if self.ended_at_s is None:
            self._close(Delta(finish=FinishReason.ABORTED, tokens=tuple(self._pending), usage=self._end()))

    def fail(self, error: StrataError) -> None:
        """End the stream with an error that its reader gets once."""
        if self.ended_at_s is None:
            self._error = error
            self._end()
            self._send.close()

    def usage(self) -> Usage:
        """Counts and times so far."""
        now = self.ended_at_s if self.ended_at_s is not None else trio.current_time()
        started = self.started_at_s if self.started_at_s is not None else now
        first = self.first_token_at_s if self.first_token_at_s is not None else now
        return Usage(
            n_prompt=self.seq.n_prompt,
            n_prompt_cached=self.seq.n_cached,
            n_generated=self.seq.n_generated,
            queued_s=started - self.queued_at_s,
            prefill_s=first - started,
            decode_s=now - first,
        )

    # ---- called by the owner ----------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Stop the work for this request at the next step border; idempotent, never waits."""
        self._on_abort(self.seq, reason)

    def __aiter__(self) -> AsyncIterator[Delta | PrefillProgress]:
        return self

    async def __anext__(self) -> Delta | PrefillProgress:
        """Return the next piece.

        Raises: StopAsyncIteration after the delta with `finish`; DeadlineExceeded; the engine's error, once.
        Cancellation: immediate; nothing is lost.
        """
        with trio.move_on_at(self._deadline_at_s) as scope:
            try:
                return await self._receive.receive()
            except trio.EndOfChannel:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error from None
                raise StopAsyncIteration from None
        if scope.cancelled_caught:
            self.abort("deadline")
            raise DeadlineExceeded(f"the request took longer than its deadline of {self.request.deadline_s} s")
        raise AssertionError("unreachable")

    # ---- inside -----------------------------------------------------------------------------------------------

    def _emit(self, text: str) -> None:
        self._send.send_nowait(Delta(text=text, tokens=tuple(self._pending)))
        self._pending.clear()

    def _finish(
        self, finish: FinishReason, text: str, stopped_by: str | None, *, tail: str = "", flush: bool = True
    ) -> FinishReason:
        if tail:
            result = self._stops.feed(tail)
            text, stopped_by, flush = text + result.emit, result.stopped_by, result.stopped_by is None
        if flush:
            text += self._stops.flush()
        delta = Delta(text=text, tokens=tuple(self._pending), finish=finish, stopped_by=stopped_by, usage=self._end())
        self._pending.clear()
        self._close(delta)
        return finish

    def _close(self, delta: Delta) -> None:
        self._send.send_nowait(delta)
        self._send.close()

    def _end(self) -> Usage:
        self.ended_at_s = trio.current_time()
        return self.usage()
