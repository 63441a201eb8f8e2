"""An engine that says what a test wrote down, and a tokenizer and model around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from strata.config import ServerConfig
from strata.engine.backend import BackendHealth, BackendLimits
from strata.engine.fake import FakeBackend
from strata.engine.loop import Engine, EngineSnapshot
from strata.errors import EngineStopped, NotReady, Overloaded, StrataError
from strata.server.app import App, build_app
from strata.server.ports import ServedModel
from strata.telemetry.metrics import Metrics
from strata.telemetry.observer import EngineTelemetry
from strata.telemetry.tracing import Tracing
from strata.text.chat import ChatTemplate
from strata.types import Delta, FinishReason, PrefillProgress, Request, TokenInfo, TokenLogprob, Usage

BOS, EOS = 256, 257
N_VOCAB = 258
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if tools %}[tools]{{ tools | length }}\n{% endif %}"
    "{% if reasoning_effort is defined %}[effort]{{ reasoning_effort }}\n{% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


class ByteTokenizer:
    """One token a byte, and two control tokens."""

    n_vocab = N_VOCAB
    bos_id = BOS
    eog_ids = frozenset({EOS})
    control_texts = ("<s>", "</s>")

    def encode(self, text: str, *, add_special: bool, parse_special: bool, literal_spans=()) -> list[int]:
        ids: list[int] = [BOS] if add_special else []
        at = 0
        while at < len(text):
            special = next((s for s in self.control_texts if parse_special and text.startswith(s, at)), None)
            if special is not None and not any(start <= at < end for start, end in literal_spans):
                ids.append(BOS + self.control_texts.index(special))
                at += len(special)
            else:
                ids.extend(text[at].encode())
                at += 1
        return ids

    def encode_prompt(self, text: str, *, literal_spans: Sequence[tuple[int, int]] = ()) -> list[int]:
        ids = self.encode(text, add_special=False, parse_special=True, literal_spans=literal_spans)
        return ids if ids[:1] == [BOS] else [BOS, *ids]

    def token_text(self, token: int) -> str:
        return self.control_texts[token - BOS] if token >= BOS else chr(token)

    def token_bytes(self, token: int) -> bytes:
        return self.control_texts[token - BOS].encode() if token >= BOS else bytes([token])

    def is_hidden(self, token: int) -> bool:
        return token >= BOS

    @property
    def add_space_prefix(self) -> bool:
        return False

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return b"".join(self.token_bytes(i) for i in ids if special or i < BOS).decode("utf-8", "replace")


class Wait:
    """A pause in a script, of trio's clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


HANG = Wait(float("inf"))  # until an abort, or finish_waiting
Script = Sequence[Delta | PrefillProgress | Wait | Exception]


def say(text: str, *, n_logprobs: int | None = None) -> list[Delta]:
    """One delta for each character; with logprobs, each token's is minus its place."""
    return [
        Delta(text=c, tokens=tuple(_info(b, -float(i), n_logprobs) for b in c.encode())) for i, c in enumerate(text)
    ]


def _info(token: int, logprob: float, n_logprobs: int | None) -> TokenInfo:
    if n_logprobs is None:
        return TokenInfo(token)
    top = (TokenLogprob(token, logprob), TokenLogprob((token + 1) % 256, float("-inf")))
    return TokenInfo(token, logprob, top[:n_logprobs])


def end(
    finish: FinishReason = FinishReason.STOP, *, text: str = "", stopped_by: str | None = None, n_prompt: int = 5,
    n_cached: int = 0, n_generated: int = 3,
) -> Delta:  # fmt: skip
    usage = Usage(n_prompt=n_prompt, n_prompt_cached=n_cached, n_generated=n_generated, prefill_s=0.5, decode_s=1.0)
    return Delta(text=text, finish=finish, stopped_by=stopped_by, usage=usage)


class FakeStream:
    def __init__(self, engine: FakeEngine, request: Request, script: Script) -> None:
        self._engine = engine
        self._script = iter(script)
        self.request = request
        self.aborted = trio.Event()
        self._waits_no_more = trio.Event()
        self.is_over = False

    def abort(self, reason: str) -> None:
        if not self.aborted.is_set() and not self.is_over:
            self.aborted.set()
            self._waits_no_more.set()
            self._engine.aborts.append((self.request.request_id, reason))

    def finish_waiting(self) -> None:
        """End every pause of the script."""
        self._waits_no_more.set()

    def __aiter__(self) -> AsyncIterator[Delta | PrefillProgress]:
        return self

    async def __anext__(self) -> Delta | PrefillProgress:
        await trio.lowlevel.checkpoint()
        item = next(self._script, None)
        while isinstance(item, Wait):
            with trio.move_on_after(item.seconds):
                await self._waits_no_more.wait()
            item = next(self._script, None)
        if self.is_over:
            raise StopAsyncIteration
        if self.aborted.is_set():
            item = Delta(finish=FinishReason.ABORTED, usage=Usage(n_prompt=len(self.request.prompt)))
        self.is_over = (
            item is None or isinstance(item, Exception) or (isinstance(item, Delta) and item.finish is not None)
        )
        if isinstance(item, Exception):
            raise item
        if item is None:
            raise StopAsyncIteration
        return item


class FakeEngine:
    """Plays `script(request)` for each request."""

    def __init__(self, script: Callable[[Request], Script] | Script, *, max_seqs: int = 4) -> None:
        self._script = script if callable(script) else lambda request: script
        self.limits = BackendLimits(n_ctx=64, n_batch=16, max_seqs=max_seqs, n_kv_blocks=8, n_vocab=N_VOCAB)
        self.requests: list[Request] = []
        self.aborts: list[tuple[str, str]] = []  # request id, reason
        self.open_streams: list[FakeStream] = []
        self.refuse_with: StrataError | None = None
        self.draining = False
        self.stopped = False
        self.phase = "idle"
        self.heartbeat_age_s = 0.01

    @asynccontextmanager
    async def open_stream(self, request: Request) -> AsyncIterator[FakeStream]:
        if self.refuse_with is not None:
            raise self.refuse_with
        if self.draining:
            raise NotReady("draining")
        self.requests.append(request)
        stream = FakeStream(self, request, self._script(request))
        self.open_streams.append(stream)
        try:
            yield stream
        finally:
            self.open_streams.remove(stream)
            stream.abort("closed")

    def drain(self) -> None:
        self.draining = True

    def abort_all(self, reason: str) -> None:
        for stream in list(self.open_streams):
            stream.abort(reason)

    def snapshot(self) -> EngineSnapshot:
        health = BackendHealth(
            phase=self.phase, heartbeat_age_s=self.heartbeat_age_s, layer=-1, steps=7, tokens=70, failed_steps=0,
            weight_bytes=0, run_s=0.0,
        )  # fmt: skip
        return EngineSnapshot(
            n_waiting=0, n_running=len(self.open_streams), n_kv_blocks=8, n_kv_blocks_held=0, n_kv_blocks_cached=0,
            n_preempted=0, draining=self.draining, stopped=self.stopped, backend=health,
        )  # fmt: skip


def make_model(engine, **changes) -> ServedModel:
    settings = {
        "id": "fake",
        "created": 1_700_000_000,
        "tokenizer": ByteTokenizer(),
        "chat_template": ChatTemplate({"default": TEMPLATE}, "fake", bos_token="<s>"),
        "engine": engine,
        "n_ctx": engine.limits.n_ctx,
    }
    return ServedModel(**(settings | changes))


def fake_app(script, *, config: ServerConfig | None = None, max_seqs: int = 4, **changes) -> tuple[App, FakeEngine]:
    """An application whose engine follows a script."""
    engine = FakeEngine(script, max_seqs=max_seqs)
    return build_app(make_model(engine, **changes), config or ServerConfig()), engine


@asynccontextmanager
async def real_engine_app(
    next_token,
    *,
    config: ServerConfig | None = None,
    step_s: float = 0.0,
    max_seqs: int = 2,
    failures: list[StrataError] | None = None,
    tracing: Tracing | None = None,
) -> AsyncIterator[tuple[App, Engine, FakeBackend]]:
    """An application on the real engine, scheduler included, over the backend without a model.

    failures: takes the engine's end instead of raising it, so that the server's last words can be heard.
    """
    limits = BackendLimits(n_ctx=256, n_batch=16, max_seqs=max_seqs, n_kv_blocks=32, n_vocab=N_VOCAB)
    backend = FakeBackend(limits, next_token, step_s=step_s)
    metrics = Metrics()
    engine = Engine(backend, ByteTokenizer(), observer=EngineTelemetry(metrics, tracing))

    async def run() -> None:
        try:
            await engine.run()
        except StrataError as error:
            if failures is None:
                raise
            failures.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        app = build_app(make_model(engine), config or ServerConfig(), metrics=metrics, tracing=tracing)
        yield app, engine, backend
        nursery.cancel_scope.cancel()


def busy() -> Overloaded:
    return Overloaded("the queue is full", retry_after_s=2.5)


def dead() -> EngineStopped:
    return EngineStopped("the engine has stopped")
