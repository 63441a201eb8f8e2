"""The composition root: a checked plan -> native model -> backend -> engine -> server.

With `strata.planning` the only module that wires the others together; commands and tests open what they need here.
"""

from __future__ import annotations

import math
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import trio
from tqdm import tqdm

from strata import __version__
from strata.arch.plan_tables import ModelPlan
from strata.config import Config
from strata.engine.backend import Backend
from strata.engine.cached import CachedBackend, fill_slots
from strata.engine.expert_cache import ExpertCache
from strata.engine.loop import Engine
from strata.engine.swaps import LinkLoad, SwapBudget, swap_rate
from strata.engine.trace import TraceWriter
from strata.engine.traced import TracedBackend, trace_header
from strata.errors import ConfigError, StrataError
from strata.ffi.library import Library
from strata.ffi.native import NativeBackend, NativeModel
from strata.gguf.quants import GROUP_ROWS, row_bytes
from strata.placing import Placed, save_profile
from strata.planning import Prepared, Report, Shape, Source, plan_text, predicted, prepare, prepare_serving
from strata.server.access import read_keys
from strata.server.app import App, build_app
from strata.server.listen import Shutdown, open_listener, shutdown_on_signals
from strata.server.listen import serve as serve_http
from strata.server.ports import ServedModel
from strata.telemetry.metrics import Metrics
from strata.telemetry.observer import EngineTelemetry
from strata.telemetry.tracing import open_tracing
from strata.text.chat import ChatTemplate
from strata.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from strata.synthetic import SyntheticModel

_SWAP_BURST = 8  # experts whose copies the swap budget may save up
_FILL_BYTES = 8 << 20  # of a synthetic model handed over at once
_STATUS_INTERRUPTED = 130
_READ_BYTES = 512 << 20  # read by measure_read: several times any cache


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded model with its backend, for commands that drive steps themselves."""

    model: str
    backend: Backend
    prepared: Prepared


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A running engine and what belongs to its model."""

    source: Source
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    template_kwargs: Mapping[str, Any]
    engine: Engine
    prepared: Prepared


# ---- opening ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_backend(prepared: Prepared) -> AsyncGenerator[Backend]:
    """Check the ledger, load the weights with a progress bar, and open the engine.

    Raises: MemoryPlanError, NativeError. Cancellation: a running load ends within one read.
    """
    prepared.ledger.check()
    source = prepared.source
    with _open_trace(prepared) as trace, NativeModel(Library(), prepared.plan) as model:
        total = prepared.plan.weights_bytes
        with tqdm(total=total, desc="loading", unit="B", unit_scale=True, unit_divisor=1024, delay=0.5) as bar:

            def progress(done_bytes: int, total_bytes: int) -> None:
                bar.total = total_bytes
                bar.update(done_bytes - bar.n)

            if source.synthetic is not None:
                await trio.to_thread.run_sync(_fill, model, source.synthetic, prepared.run.n_threads, progress)
            else:
                n_threads = prepared.run.n_threads
                stats = await model.aload(mode=prepared.load_mode, n_threads=n_threads, on_progress=progress)
                if stats.direct_refused and prepared.report is not None:
                    prepared.report("note: direct reads were refused for this file; plain reads took their place")
        capture = trace is not None or prepared.placed is not None
        native = NativeBackend(model, prepared.run, n_ctx=prepared.n_ctx, capture_routing=capture)
        backend: Backend = native
        try:
            if prepared.placed is not None:
                backend = await _with_cache(native, prepared, prepared.placed)
            yield backend if trace is None else TracedBackend(backend, trace)
        finally:
            await backend.aclose()
            placed, profile = prepared.placed, prepared.engine.profile_path
            if placed is not None and profile is not None:  # also when an interrupt ends the block
                save_profile(profile, prepared.plan, placed, source.fingerprint, source.name)


async def _with_cache(native: NativeBackend, prepared: Prepared, placed: Placed) -> CachedBackend:
    """The backend with its first experts resident, their copies behind a progress bar."""
    config, threads, rates = prepared.engine, prepared.run.n_threads, prepared.rates
    rate = config.swap_budget
    if rate == 0 and placed.adapt:
        read = rates.ram if rates is not None else await trio.to_thread.run_sync(measure_read, threads)
        link = rates.link if rates is not None else read
        load = LinkLoad(link_bytes_per_s=link, link_busy_frac=0.0, ram_bytes_per_s=read, ram_busy_frac=1.0)
        rate = round(swap_rate(load))
    largest = max(placed.experts.slot_bytes)
    cache = ExpertCache(
        placed.experts,
        placed.split,
        SwapBudget(float(rate), _SWAP_BURST * largest, time.monotonic()),
        heat=placed.heat,
        adapt=placed.adapt,
    )
    backend = CachedBackend(native, cache, swap_every_step=config.swap_every_step, predicted=predicted(prepared))
    n_first = int(placed.chosen.sum())
    with tqdm(total=n_first, desc="filling slots", unit="expert", delay=0.5) as bar:

        def filled(n: int) -> None:
            bar.update(n - bar.n)

        await fill_slots(native, cache, placed.chosen, filled)
    return backend


@contextmanager
def _open_trace(prepared: Prepared) -> Generator[TraceWriter | None]:
    """The routing trace that the settings ask for. Raises: ConfigError, TraceError."""
    if prepared.trace_path is None:
        yield None
        return
    if not prepared.plan.expert_sets:
        raise ConfigError(f"--trace {prepared.trace_path}: the model has no experts whose use could be recorded")
    with TraceWriter(prepared.trace_path, trace_header(prepared.plan, prepared.source.fingerprint)) as trace:
        yield trace


def _fill(model: NativeModel, source: SyntheticModel, n_threads: int, progress: Callable[[int, int], None]) -> None:
    """Generate a synthetic model's weights straight into the arena, piece by piece, on several threads."""
    model.reserve()
    total, done = model.plan.weights_bytes, 0
    with ThreadPoolExecutor(n_threads) as executor:
        under_way: deque[Future[int]] = deque()
        try:
            for piece in _pieces(model.plan, source):
                under_way.append(executor.submit(_fill_piece, model, source, piece))
                if len(under_way) >= 2 * n_threads:
                    done += under_way.popleft().result()
                    progress(done, total)
                    trio.from_thread.check_cancelled()
            for future in under_way:
                done += future.result()
                progress(done, total)
        finally:
            executor.shutdown(cancel_futures=True)


_Piece = tuple[int, int, int, int, int]  # tensor, matrix, its first row, rows, first row in the synthetic tensor


def _pieces(plan: ModelPlan, source: SyntheticModel) -> Generator[_Piece]:
    for index, tensor in enumerate(plan.tensors):
        row = row_bytes(tensor.type, tensor.n_cols)
        first = (tensor.file_offset - source.tensors[tensor.name].offset) // row
        n_rows = max(min(tensor.n_rows, _FILL_BYTES // row // GROUP_ROWS * GROUP_ROWS), GROUP_ROWS)
        for mat in range(tensor.n_mats):
            start = first + mat * (tensor.file_stride_bytes // row)
            for at in range(0, tensor.n_rows, n_rows):
                yield index, mat, at, min(n_rows, tensor.n_rows - at), start + at


def _fill_piece(model: NativeModel, source: SyntheticModel, piece: _Piece) -> int:
    index, mat, at, n, first = piece
    rows = source.tensor_bytes(model.plan.tensors[index].name, first, n)
    model.fill(index, mat, at, n, rows)
    return rows.nbytes


@asynccontextmanager
async def open_offline(config: Config, source: Source, *, n_ctx: int) -> AsyncGenerator[Backend]:
    """A backend that gives every token's logits, with a float32 cache unless the settings say otherwise."""
    shape = Shape(kv_type="f32", max_seqs=1, n_ctx=n_ctx, all_logits=True)
    async with open_backend(prepare(config, source, shape)) as backend:
        yield backend


@asynccontextmanager
async def open_bench(config: Config, source: Source, *, n_ctx: int) -> AsyncGenerator[Opened]:
    """A backend for measured steps of one sequence."""
    prepared = prepare(config, source, Shape(kv_type="f16", max_seqs=1, n_ctx=n_ctx))
    async with open_backend(prepared) as backend:
        yield Opened(model=source.name, backend=backend, prepared=prepared)


def make_engine(
    config: Config, prepared: Prepared, backend: Backend, telemetry: EngineTelemetry | None = None
) -> Served:
    """An engine whose loop is not running yet. Raises: ModelError for a tokenizer or template that cannot be used."""
    source = prepared.source
    return Served(
        source=source,
        tokenizer=source.tokenizer,
        chat_template=source.chat_template(config),
        template_kwargs=config.model.chat_template_kwargs,
        engine=Engine(backend, source.tokenizer, max_waiting=config.server.max_waiting, observer=telemetry),
        prepared=prepared,
    )


@asynccontextmanager
async def open_engine(config: Config, prepared: Prepared) -> AsyncGenerator[Served]:
    """A running engine. Leaving the block aborts what is open; a failed device ends it with EngineStopped."""
    prepared.source.chat_template(config)  # one that cannot be used is refused before a minute of loading
    async with open_backend(prepared) as backend, trio.open_nursery() as nursery:
        served = make_engine(config, prepared, backend)
        nursery.start_soon(served.engine.run)
        yield served
        nursery.cancel_scope.cancel()


# ---- serving ----------------------------------------------------------------------------------------------------


async def serve(config: Config, source: Source, report: Report) -> int:
    """Serve until a signal; return the exit status. A signal while the model loads ends the load.

    Raises: StrataError when the model cannot be opened, or once clients have been told that the engine has failed.
    """
    metrics = Metrics()
    tracing = open_tracing(config.telemetry.otlp_endpoint, config.telemetry.trace_sample_frac)
    report(f"Strata {__version__}")
    listener = open_listener(config.server)  # an address in use is found before a minute of loading
    loaded = trio.Event()
    failure: StrataError | None = None
    try:
        async with shutdown_on_signals() as shutdown, trio.open_nursery() as nursery:

            async def end_load() -> None:
                await shutdown.requested.wait()
                if not loaded.is_set():
                    nursery.cancel_scope.cancel()

            nursery.start_soon(end_load)
            read_keys(config.server)
            source.chat_template(config)  # what cannot be used is refused before a minute of loading
            prepared = prepare_serving(config, source, report)
            report(plan_text(prepared))
            async with open_backend(prepared) as backend:
                loaded.set()
                served = make_engine(config, prepared, backend, EngineTelemetry(metrics, tracing))
                app = build_app(_served_model(config, served), config.server, metrics=metrics, tracing=tracing)
                failure = await _serve(app, served.engine, listener, shutdown, report)
            nursery.cancel_scope.cancel()
    finally:
        listener.close()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(tracing.close)
    if failure is not None:
        raise failure
    return 0 if loaded.is_set() else _STATUS_INTERRUPTED


async def _serve(
    app: App, engine: Engine, listener: socket.socket, shutdown: Shutdown, report: Report
) -> StrataError | None:
    """Run engine and HTTP until a shutdown; an engine that fails causes one, so that clients are told first."""
    failures: list[StrataError] = []

    async def run_engine() -> None:
        try:
            await engine.run()
        except StrataError as error:
            failures.append(error)
            shutdown.request("the engine has failed")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_engine)
        async with trio.open_nursery() as http:
            url = await http.start(serve_http, app, listener, shutdown)
            report(f"serving {app.services.model.id} on {url} (OpenAI: {url}/v1, Anthropic: {url})")
        nursery.cancel_scope.cancel()
    return failures[0] if failures else None


def _served_model(config: Config, served: Served) -> ServedModel:
    prepared, source = served.prepared, served.source
    sampling = config.sampling
    return ServedModel(
        id=config.model.alias or source.name,
        created=math.floor(time.time()),
        tokenizer=served.tokenizer,
        chat_template=served.chat_template,
        engine=served.engine,
        n_ctx=prepared.n_ctx,
        defaults=sampling.params(),
        max_tokens=None if sampling.max_tokens < 0 else sampling.max_tokens,
        template_kwargs=served.template_kwargs,
        meta={
            "architecture": prepared.plan.arch,
            "model_path": source.label,
            "fingerprint": source.fingerprint,
            "n_ctx_train": prepared.plan.n_ctx_train,
            "n_layer": prepared.plan.n_layer,
            "kv_type": prepared.run.kv_type,
            "n_threads": prepared.run.n_threads,
            "load_mode": prepared.load_mode,
            "memory": msgspec.to_builtins(prepared.ledger),
            "notes": list(prepared.ledger.notes),
        },
    )


def measure_read(n_threads: int) -> float:
    """Bytes per second that this machine's memory gives to n_threads readers. Blocks for about a second."""
    return Library().measure_read(n_threads, _READ_BYTES)


def cpu_count() -> int:
    """Processors that this process may use."""
    return Library().cpu_count


def cpu_tier() -> str:
    """Name of this processor's best instruction-set tier."""
    return Library().cpu_tier
