"""The loop and its streams over the fake backend: what a request's owner sees, and what is left behind."""

import pytest
import trio

from strata.engine.backend import BackendLimits
from strata.engine.fake import FakeBackend
from strata.engine.loop import Engine
from strata.errors import (
    ContextTooLong,
    DeadlineExceeded,
    EngineStopped,
    NotReady,
    Overloaded,
    RequestError,
    StrataError,
)
from strata.types import Delta, FinishReason, PrefillProgress, Request, SamplingParams


class Letters:
    """A tokenizer of 26 letters, one of them split over two tokens (26, 27 = one two-byte character), 30 = end."""

    n_vocab = 32
    eog_ids = frozenset({30})

    def token_bytes(self, token: int) -> bytes:
        return {26: b"\xc3", 27: b"\xa9", 28: b" ", 30: b""}.get(token, bytes([97 + token % 26]))

    def is_hidden(self, token: int) -> bool:
        return token == 30

    add_space_prefix = False


LIMITS = BackendLimits(n_ctx=512, n_batch=16, max_seqs=4, n_kv_blocks=16, n_vocab=32)


def request(prompt=(1, 2, 3), **fields) -> Request:
    fields.setdefault("max_tokens", 8)
    return Request(request_id="r", prompt=tuple(prompt), **fields)


def script(*tokens: int):
    """Next token by how many ids there are beyond a prompt of three."""
    return lambda ids: tokens[(len(ids) - 3) % len(tokens)]


async def collect(stream) -> tuple[str, list[Delta]]:
    deltas = [piece async for piece in stream if isinstance(piece, Delta)]
    return "".join(delta.text for delta in deltas), deltas


class Running:
    """An engine with its loop, as `async with`."""

    def __init__(self, next_token=None, **options) -> None:
        step_s = options.pop("step_s", 0.0)
        self.backend = FakeBackend(options.pop("limits", LIMITS), next_token or script(0, 1, 2), step_s=step_s)
        self.engine = Engine(self.backend, Letters(), **options)

    async def __aenter__(self) -> "Running":
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self.engine.run)
        return self

    async def __aexit__(self, *exc) -> None:
        self._nursery.cancel_scope.cancel()
        await self._manager.__aexit__(*exc)


async def test_answer_ends_at_max_tokens_with_usage():
    async with Running() as run, run.engine.open_stream(request(max_tokens=5)) as stream:
        text, deltas = await collect(stream)
    assert text == "abcab"
    assert deltas[-1].finish is FinishReason.LENGTH
    assert deltas[-1].usage.n_prompt == 3
    assert deltas[-1].usage.n_generated == 5
    assert sum(len(delta.tokens) for delta in deltas) == 5


async def test_end_token_stops_and_is_not_text():
    async with Running(script(0, 1, 30)) as run, run.engine.open_stream(request()) as stream:
        text, deltas = await collect(stream)
    assert text == "ab"
    assert deltas[-1].finish is FinishReason.STOP
    assert deltas[-1].stopped_by is None


async def test_ignore_eos_goes_on():
    async with (
        Running(script(0, 30, 1)) as run,
        run.engine.open_stream(request(ignore_eos=True, max_tokens=3)) as stream,
    ):
        _, deltas = await collect(stream)
    assert deltas[-1].usage.n_generated == 3


async def test_stop_string_across_tokens_is_cut_and_named():
    async with Running(script(0, 1, 2, 3, 4)) as run, run.engine.open_stream(request(stop=("cd",))) as stream:
        text, deltas = await collect(stream)
    assert text == "ab"
    assert (deltas[-1].finish, deltas[-1].stopped_by) == (FinishReason.STOP, "cd")
    assert deltas[-1].usage.n_generated == 4


async def test_held_back_text_comes_out_when_the_stop_does_not_complete():
    async with Running(script(0, 1, 2)) as run, run.engine.open_stream(request(stop=("abcx",), max_tokens=3)) as stream:
        text, _ = await collect(stream)
    assert text == "abc"


async def test_no_delta_ends_inside_a_character():
    async with Running(script(0, 26, 27, 1)) as run, run.engine.open_stream(request(max_tokens=4)) as stream:
        _, deltas = await collect(stream)
    assert [delta.text for delta in deltas if delta.text] == ["a", "é", "b"]


async def test_long_prompt_reports_progress_before_the_first_token():
    prompt = [i % 26 for i in range(40)]
    async with Running() as run, run.engine.open_stream(request(prompt, max_tokens=1)) as stream:
        pieces = [piece async for piece in stream]
    progress = [piece.n_done for piece in pieces if isinstance(piece, PrefillProgress)]
    assert progress == [16, 32]


async def test_sequences_share_steps_and_keep_their_own_answers():
    answers = {}

    async def one(run: Running, name: int) -> None:
        async with run.engine.open_stream(request((name, name, name), max_tokens=6)) as stream:
            answers[name], _ = await collect(stream)

    async with Running(lambda ids: ids[0], step_s=0.001) as run, trio.open_nursery() as nursery:
        for name in range(4):
            nursery.start_soon(one, run, name)
    assert answers == {name: chr(97 + name) * 6 for name in range(4)}
    assert max(len(batch.rows) for batch in run.backend.batches) == 4


async def test_leaving_the_block_frees_everything_at_once(autojump_clock):
    async with Running(step_s=1.0) as run:
        async with run.engine.open_stream(request(max_tokens=400)):
            await trio.sleep(2.5)
        await trio.sleep(1.0)
        assert run.engine.snapshot().n_kv_blocks_held == 0
        n = len(run.backend.batches)
        await trio.sleep(10)
        assert len(run.backend.batches) == n
        assert run.backend.aborted == {n}  # nobody was left in the running step


async def test_abort_while_queued_in_prefill_and_decoding(autojump_clock):
    limits = BackendLimits(n_ctx=512, n_batch=16, max_seqs=1, n_kv_blocks=16, n_vocab=32)
    async with Running(step_s=1.0, limits=limits) as run:
        async with run.engine.open_stream(request([1] * 100, max_tokens=50)) as prefilling:
            async with run.engine.open_stream(request()) as queued:
                await trio.sleep(2.5)
                queued.abort("test")
                assert run.engine.snapshot().n_waiting == 0
                _, deltas = await collect(queued)
                assert deltas[-1].finish is FinishReason.ABORTED
            prefilling.abort("test")
            prefilling.abort("again")
        await trio.sleep(1.0)
        async with run.engine.open_stream(request(max_tokens=2)) as stream:
            assert (await collect(stream))[0] == "ab"
        assert run.engine.snapshot().n_kv_blocks_held == 0


async def test_deadline_ends_the_request_with_an_error(autojump_clock):
    async with Running(step_s=1.0) as run:
        async with run.engine.open_stream(request(max_tokens=100, deadline_s=3.5)) as stream:
            with pytest.raises(DeadlineExceeded):
                await collect(stream)
        await trio.sleep(2)
        assert run.engine.snapshot().n_kv_blocks_held == 0


async def test_one_failing_row_fails_one_stream():
    async with Running() as run:
        run.backend.fail_rows_at_step = (2, (0,))
        async with run.engine.open_stream(request()) as stream:
            with pytest.raises(StrataError, match="planted row failure"):
                await collect(stream)
        async with run.engine.open_stream(request(max_tokens=2)) as stream:
            assert (await collect(stream))[0] == "ab"


async def test_device_failure_reaches_every_stream_and_ends_the_engine():
    backend = FakeBackend(LIMITS, script(0), step_s=0.001)
    backend.fail_at_step = 2
    engine = Engine(backend, Letters())
    seen: list[Exception] = []

    async def noting(work) -> None:
        try:
            await work()
        except EngineStopped as error:
            seen.append(error)

    async def client() -> None:
        async with engine.open_stream(request()) as stream:
            await collect(stream)

    async with trio.open_nursery() as nursery:
        for work in (client, client, engine.run):
            nursery.start_soon(noting, work)
    assert len(seen) == 3
    assert any("planted failure" in str(error) for error in seen)
    with pytest.raises(EngineStopped):
        async with engine.open_stream(request()):
            pass


async def test_refusals_name_the_value():
    async with Running(max_waiting=0) as run:
        with pytest.raises(Overloaded):
            async with run.engine.open_stream(request()):
                pass
    async with Running() as run:
        for bad, error, words in (
            (request(()), RequestError, "empty"),
            (request((99,)), RequestError, "99"),
            (request([1] * 512), ContextTooLong, "512"),
            (request(max_tokens=0), RequestError, "max_tokens is 0"),
            (request(sampling=SamplingParams(top_p=2.0)), RequestError, "top_p is 2.0"),
        ):
            with pytest.raises(error, match=words):
                async with run.engine.open_stream(bad):
                    pass
        run.engine.drain()
        with pytest.raises(NotReady):
            async with run.engine.open_stream(request()):
                pass


async def test_seed_and_counter_reach_the_backend():
    async with (
        Running() as run,
        run.engine.open_stream(request(max_tokens=3, sampling=SamplingParams(seed=7))) as stream,
    ):
        await collect(stream)
    specs = [row.sample for batch in run.backend.batches for row in batch.rows]
    assert [(spec.seed, spec.counter) for spec in specs] == [(7, 0), (7, 1), (7, 2)]


async def test_dry_breakers_become_token_ids():
    params = SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=(" ", "b"))
    async with Running() as run, run.engine.open_stream(request(max_tokens=1, sampling=params)) as stream:
        await collect(stream)
    spec = run.backend.batches[0].rows[0].sample
    assert set(spec.breakers) == {1, 28}
