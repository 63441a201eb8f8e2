"""Typed owners of the library's objects: NativeModel (plan and weights) and NativeBackend (an engine that runs steps).

Both are opened here, closed by `close` or `aclose`, and hold no policy. A model outlives its backends.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import Any, Self

import trio

from strata.arch.plan_tables import ModelPlan
from strata.engine.backend import BackendHealth, BackendLimits, Handoffs, StepBatch, StepResult
from strata.errors import EngineStopped, NativeError, StrataError
from strata.ffi.check import error_of
from strata.ffi.completions import Completions
from strata.ffi.library import Library
from strata.ffi.options import (
    KV_TYPES,
    LOAD_MODES,
    TIERS,
    EngineBytes,
    EngineOptions,
    LoadStats,
    c_struct,
    engine_config,
)
from strata.ffi.steps import StepArrays
from strata.ffi.tables import ModelDesc

__all__ = [
    "KV_TYPES",
    "LOAD_MODES",
    "TIERS",
    "EngineBytes",
    "EngineOptions",
    "LoadStats",
    "NativeBackend",
    "NativeModel",
]

PHASES = ("idle", "step", "dead")
PROGRESS_S = 0.1
ERROR_TEXT_BYTES = 1024

OnProgress = Callable[[int, int], None]  # done and total bytes


class NativeModel:
    """A validated plan, then its weights. One caller at a time; `progress` and `cancel` from anywhere while loading."""

    def __init__(self, library: Library, plan: ModelPlan) -> None:
        """Validate the plan; allocates no weights. Raises: NativeError naming table, index, field and value."""
        self.library = library
        self.plan = plan
        self._ffi, self._lib = library.ffi, library.lib
        tables = ModelDesc(self._ffi, plan)
        out = self._ffi.new("strata_model **")
        self._check(self._lib.strata_model_open(tables.desc, out), "strata_model_open")
        self.handle: Any = out[0]

    def _check(self, status: int, where: str) -> None:
        self.library.checker.check(status, where)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the weights; idempotent. Engines on this model must be closed."""
        if self.handle is not None:
            self._lib.strata_model_close(self.handle)
            self.handle = None

    def load(
        self, *, mode: str = "direct", n_threads: int, consume_file: bool = False, on_progress: OnProgress | None = None
    ) -> LoadStats:
        """Read the weights; blocks. on_progress runs on this thread about ten times a second.

        Raises: ModelError for a short or unreadable file, NativeError otherwise. A KeyboardInterrupt ends the load.
        """
        if on_progress is None:
            return self._load(mode, n_threads, consume_file)
        with ThreadPoolExecutor(1) as executor:
            loading = executor.submit(self._load, mode, n_threads, consume_file)
            try:
                self._report_until_done(loading, on_progress)
            except BaseException:
                self.cancel()
                raise
            return loading.result()

    def _report_until_done(self, loading: Future[LoadStats], on_progress: OnProgress) -> None:
        done = False
        while not done:
            with contextlib.suppress(FutureTimeout):
                loading.exception(PROGRESS_S)
            done = loading.done()
            on_progress(*self.progress())

    async def aload(
        self, *, mode: str = "direct", n_threads: int, consume_file: bool = False, on_progress: OnProgress | None = None
    ) -> LoadStats:
        """Read the weights in a thread.

        Cancellation: the load is told to stop and waited for; nothing is left running. Raises: as `load`.
        """
        outcome: list[LoadStats | StrataError] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_load, outcome, on_progress)
            call = partial(self._load_outcome, mode, n_threads, consume_file)
            outcome.append(await trio.to_thread.run_sync(call))
            nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint_if_cancelled()
        if isinstance(outcome[0], StrataError):
            raise outcome[0]
        return outcome[0]

    async def _watch_load(self, outcome: list[LoadStats | StrataError], on_progress: OnProgress | None) -> None:
        """Report while the load runs; stop it when this task is cancelled before it ended."""
        try:
            while True:
                if on_progress is not None:
                    on_progress(*self.progress())
                await trio.sleep(PROGRESS_S)
        finally:
            if not outcome:
                self.cancel()
            elif on_progress is not None:
                on_progress(*self.progress())

    def _load_outcome(self, mode: str, n_threads: int, consume_file: bool) -> LoadStats | StrataError:
        try:
            return self._load(mode, n_threads, consume_file)
        except StrataError as error:
            return error

    def _load(self, mode: str, n_threads: int, consume_file: bool) -> LoadStats:
        config, stats = c_struct(self._ffi, "strata_load_config"), c_struct(self._ffi, "strata_load_stats")
        config.mode = self._ffi.integer_const(LOAD_MODES[mode])
        config.n_threads, config.consume_file = n_threads, int(consume_file)
        self._check(self._lib.strata_model_load(self.handle, config, stats), "strata_model_load")
        return LoadStats(
            direct_refused=bool(stats.direct_refused),
            bytes_read=stats.bytes_read,
            arena_bytes=stats.arena_bytes,
            mapped_bytes=stats.mapped_bytes,
            seconds=stats.seconds,
        )

    def progress(self) -> tuple[int, int]:
        """Bytes of the file that are in the arena, and all that will be."""
        done, total = self._ffi.new("int64_t *"), self._ffi.new("int64_t *")
        self._check(self._lib.strata_model_progress(self.handle, done, total), "strata_model_progress")
        return done[0], total[0]

    def cancel(self) -> None:
        """Make a running or later load fail, for good."""
        self._check(self._lib.strata_model_cancel(self.handle), "strata_model_cancel")

    def reserve(self) -> None:
        """Allocate the arena instead of loading a file; `fill` then brings the weights."""
        self._check(self._lib.strata_model_reserve(self.handle), "strata_model_reserve")

    def fill(self, tensor: int, mat: int, row_first: int, n_rows: int, file_bytes: Any) -> None:
        """Hand over rows of one matrix in the file's layout; file_bytes is any contiguous buffer."""
        view = self._ffi.from_buffer("uint8_t[]", file_bytes)
        status = self._lib.strata_model_fill(self.handle, tensor, mat, row_first, n_rows, view, len(view))
        self._check(status, "strata_model_fill")

    def measure(self, options: EngineOptions) -> EngineBytes:
        """Memory that an engine with these options will hold; needs no weights."""
        made = c_struct(self._ffi, "strata_engine_bytes")
        config, _alive = engine_config(self._ffi, options)
        self._check(self._lib.strata_engine_measure(self.handle, config, made), "strata_engine_measure")
        return EngineBytes(**{name: getattr(made, name) for name in EngineBytes.__struct_fields__})


class NativeBackend:
    """An engine behind the Backend protocol, plus `run_sync` for commands without an event loop."""

    def __init__(
        self, model: NativeModel, options: EngineOptions, *, n_ctx: int, capture_routing: bool = False
    ) -> None:
        """Start the engine's threads. n_ctx: positions of the longest sequence.

        capture_routing: every result says which experts its tokens used. Raises: NativeError.
        """
        self._model = model
        self._ffi, self._lib = model.library.ffi, model.library.lib
        plan = model.plan
        self.limits = BackendLimits(
            n_ctx=n_ctx,
            n_batch=plan.n_batch,
            max_seqs=options.max_seqs,
            n_kv_blocks=options.n_kv_blocks,
            n_vocab=plan.n_vocab,
            n_state_slots=options.n_state_slots if plan.states else 0,
        )
        self.name = options.device
        out = self._ffi.new("strata_engine **")
        config, _alive = engine_config(self._ffi, options)
        self._check(self._lib.strata_engine_open(model.handle, config, out), "strata_engine_open")
        self._handle: Any = out[0]
        self._fd = int(self._lib.strata_engine_eventfd(self._handle))
        sets = plan.expert_sets
        routing = (len(sets), max(one.n_used for one in sets)) if capture_routing and sets else None
        self._free = [
            StepArrays(self._ffi, self.limits, plan.n_outputs_max, routing) for _ in range(options.queue_steps)
        ]
        self._running: dict[int, StepArrays] = {}
        self._polled = self._ffi.new("strata_completion[]", options.queue_steps)
        self._n_polled = self._ffi.new("int32_t *")
        self._ticket = self._ffi.new("uint64_t *")
        self._copy = self._ffi.new("uint64_t *")
        self._stats = c_struct(self._ffi, "strata_engine_stats")
        self._completions = Completions(self._fd, self._collect)
        # Statuses that concern single rows: NaN logits, or masks and biases that allow no token.
        names = ("STRATA_E_NUMERIC", "STRATA_E_ARGUMENT")
        self._row_failures = {self._ffi.integer_const(name) for name in names}

    def _check(self, status: int, where: str) -> None:
        self._model.library.checker.check(status, where)

    def submit(self, batch: StepBatch) -> int:
        """Start a step. Raises: EngineStopped when the engine is dead or closed, NativeError for a bad batch."""
        if self._handle is None:
            raise EngineStopped("the engine is closed")
        if not self._free:
            raise NativeError(
                self._ffi.integer_const("STRATA_E_BUSY"), "submit", "as many steps as queue_steps are running"
            )
        arrays = self._free[-1]
        status = self._lib.strata_engine_submit(self._handle, arrays.fill(batch), self._ticket)
        if status == self._ffi.integer_const("STRATA_E_STATE"):
            raise EngineStopped(self._ffi.string(self._lib.strata_last_error()).decode("utf-8", "replace"))
        self._check(status, "strata_engine_submit")
        self._free.pop()
        self._running[int(self._ticket[0])] = arrays
        return int(self._ticket[0])

    async def wait(self, ticket: int) -> StepResult:
        """Return the step's result. Cancellation: immediate; the result stays readable."""
        return await self._completions.wait(ticket)

    def run_sync(self, batch: StepBatch) -> StepResult:
        """Run one step and block until it is done; a KeyboardInterrupt aborts it. Raises: the step's error."""
        ticket = self.submit(batch)
        readable = select.poll()
        readable.register(self._fd, select.POLLIN)
        try:
            while (result := self._completions.take_nowait(ticket)) is None:
                readable.poll()
        except BaseException:
            self.abort(ticket)
            raise
        if result.error is not None:
            raise result.error
        return result

    def abort(self, ticket: int) -> None:
        """Ask the step to end between two ops; idempotent."""
        if self._handle is not None:
            self._check(self._lib.strata_engine_abort(self._handle, ticket), "strata_engine_abort")

    def kv_copy(self, from_block: int, to_block: int) -> None:
        """Copy one KV block in every layer. Raises: NativeError while a step runs."""
        self._check(self._lib.strata_engine_kv_copy(self._handle, from_block, to_block), "strata_engine_kv_copy")

    def state_copy(self, from_slot: int, to_slot: int) -> None:
        """Copy the recurrent states of one slot. Raises: NativeError while a step runs."""
        self._check(self._lib.strata_engine_state_copy(self._handle, from_slot, to_slot), "strata_engine_state_copy")

    def copy_expert(self, set_id: int, expert: int, slot: int) -> int:
        """Start copying an expert into a slot that the table does not name; returns the copy's number.

        Never blocks, and may run beside steps. Raises: NativeError.
        """
        status = self._lib.strata_experts_copy(self._handle, set_id, expert, slot, self._copy)
        self._check(status, "strata_experts_copy")
        return int(self._copy[0])

    def copied(self) -> int:
        """Number of the newest copy that has ended with all before it."""
        self._check(self._lib.strata_experts_copied(self._handle, self._copy), "strata_experts_copied")
        return int(self._copy[0])

    def commit_experts(self, entries: Sequence[tuple[int, int, int]]) -> None:
        """Change entries (set, expert, slot or -1) of the slot table, all or none; between steps only.

        Raises: NativeError while a step runs, or for a slot that does not hold the expert.
        """
        rows = self._ffi.new("strata_slot_entry[]", [tuple(entry) for entry in entries])
        self._check(self._lib.strata_experts_commit(self._handle, rows, len(entries)), "strata_experts_commit")

    def handoffs(self) -> Handoffs:
        """Histograms of the hand-offs so far."""
        bins = self._ffi.new("int64_t[]", self._ffi.integer_const("STRATA_HANDOFF_BINS"))
        found: dict[str, tuple[int, ...]] = {}
        for name in Handoffs.__struct_fields__:
            kind = self._ffi.integer_const(f"STRATA_HANDOFF_{name.upper()}")
            self._check(self._lib.strata_engine_handoffs(self._handle, kind, bins), "strata_engine_handoffs")
            found[name] = tuple(self._ffi.unpack(bins, len(bins)))
        return Handoffs(**found)

    def health(self) -> BackendHealth:
        if self._handle is None:
            return BackendHealth(
                phase="dead",
                heartbeat_age_s=0.0,
                layer=-1,
                steps=0,
                tokens=0,
                failed_steps=0,
                weight_bytes=0,
                run_s=0.0,
            )
        stats = self._stats
        self._check(self._lib.strata_engine_stats_read(self._handle, stats), "strata_engine_stats_read")
        return BackendHealth(
            phase=PHASES[stats.phase],
            heartbeat_age_s=stats.heartbeat_age_ns / 1e9,
            layer=stats.layer,
            steps=stats.steps,
            tokens=stats.tokens,
            failed_steps=stats.failed_steps,
            weight_bytes=stats.weight_bytes,
            run_s=stats.run_ns / 1e9,
            pinned_bytes=stats.pinned_bytes,
        )

    async def aclose(self) -> None:
        """Abort what runs and free the engine, in a thread; bounded by the running op. Idempotent.

        Tasks that still wait get EngineStopped. Cancellation: the engine is closed all the same.
        """
        handle, self._handle = self._handle, None
        if handle is None:
            await trio.lowlevel.checkpoint()
            return
        trio.lowlevel.notify_closing(self._fd)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._close, handle)

    def close(self) -> None:
        """As `aclose`, blocking. Raises: EngineStopped when a lost worker keeps the engine's memory."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._close(handle)

    def _close(self, handle: Any) -> None:
        self._check(self._lib.strata_engine_close(handle), "strata_engine_close")

    def _collect(self) -> Iterator[tuple[int, StepResult]]:
        """Poll the library; the results of steps that have finished, their arrays free again."""
        if self._handle is None:
            raise EngineStopped("the engine is closed")
        status = self._lib.strata_engine_poll(self._handle, self._polled, len(self._polled), self._n_polled)
        self._check(status, "strata_engine_poll")
        for k in range(self._n_polled[0]):
            completion = self._polled[k]
            ticket = int(completion.ticket)
            arrays = self._running.pop(ticket)
            yield ticket, self._result(completion, arrays)
            self._free.append(arrays)

    def _result(self, completion: Any, arrays: StepArrays) -> StepResult:
        error, failed = None, ()
        if completion.status < 0:
            error = error_of(self._ffi, completion.status, "step", self._error_text(completion.ticket))
            if completion.status in self._row_failures:
                failed = arrays.failed_rows()
        return StepResult(
            ticket=int(completion.ticket),
            tokens=arrays.tokens(),
            logits=arrays.logits(),
            run_s=completion.run_ns / 1e9,
            sample_s=completion.sample_ns / 1e9,
            weight_bytes=completion.weight_bytes,
            expert_rows=completion.expert_rows,
            experts_touched=completion.experts_touched,
            expert_hits=completion.expert_hits,
            handoff_wait_s=completion.handoff_wait_ns / 1e9,
            routing=arrays.routing() if error is None or failed else None,
            error=error,
            failed_rows=failed,
        )

    def _error_text(self, ticket: int) -> str:
        text = self._ffi.new("char[]", ERROR_TEXT_BYTES)
        self._check(self._lib.strata_engine_error(self._handle, ticket, text, ERROR_TEXT_BYTES), "strata_engine_error")
        return self._ffi.string(text).decode("utf-8", "replace")
