"""The composition root: settings -> file -> binding -> plan -> ledger -> native model -> backend -> engine -> server.

The only module that wires the others together; commands and tests open what they need here. Nothing is allocated for
a model before its ledger has been checked.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import trio
from tqdm import tqdm

from strata import __version__
from strata.arch.bind import Binding, bind, inspect_binding
from strata.arch.bound import BoundArch, ModelFile
from strata.arch.plan import plan as make_plan
from strata.arch.plan_tables import ModelPlan
from strata.arch.registry import Registry
from strata.arch.spec import Arch
from strata.config import Config
from strata.engine.backend import Backend
from strata.engine.budget import Ledger, Line, Place, choose_ctx, gib_text, n_kv_blocks, ram_limit
from strata.engine.loop import Engine
from strata.errors import ConfigError, ModelError
from strata.ffi.library import Library
from strata.ffi.native import EngineOptions, NativeBackend, NativeModel
from strata.gguf.inventory import fingerprint
from strata.gguf.quants import GROUP_ROWS, row_bytes
from strata.gguf.reader import GgufFile, read_gguf
from strata.machine import machine_memory, resident_bytes
from strata.models import demo_model_path
from strata.server.app import build_app
from strata.server.listen import open_listener, shutdown_on_signals
from strata.server.listen import serve as serve_http
from strata.server.ports import ServedModel
from strata.telemetry.metrics import Metrics
from strata.telemetry.observer import EngineTelemetry
from strata.telemetry.tracing import open_tracing
from strata.text.chat import ChatTemplate
from strata.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from strata.synthetic import SyntheticModel

Report = Callable[[str], None]
_FILL_BYTES = 8 << 20  # of a synthetic model handed over at once
_LOGITS_BYTES_MAX = 64 << 20  # of one step's logits where every token's are wanted
_READ_BYTES = 512 << 20  # read by measure_read: several times any cache


class Source:
    """A model before it is loaded: its directory, and how to get its tokenizer and template."""

    def __init__(self, name: str, file: ModelFile, synthetic: SyntheticModel | None = None) -> None:
        self.name = name
        self.file = file
        self.synthetic = synthetic

    @property
    def label(self) -> str:
        """What the model is called in messages."""
        return str(self.file.paths[0]) if self.file.paths else self.name

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises: ModelError for a tokenizer that is missing or unknown."""
        return Tokenizer.from_metadata(self.file.metadata, self.label)

    def chat_template(self, config: Config) -> ChatTemplate | None:
        """The template of the settings, else the file's. Raises: ConfigError, ModelError."""
        given, path = config.model.chat_template, config.model.chat_template_file
        if given is not None and path is not None:
            raise ConfigError("--chat-template and --chat-template-file both name a template; give one")
        if path is not None:
            try:
                given = Path(path).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"--chat-template-file {path} cannot be read: {error}") from error
        if given is None:
            return ChatTemplate.from_metadata(self.file.metadata, self.label)
        return ChatTemplate.from_metadata({**self.file.metadata, "tokenizer.chat_template": given}, "--chat-template")

    def arch(self, config: Config) -> Arch:
        """Raises: ModelError, UnknownArch."""
        name = self.file.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise ModelError(f"{self.label}: general.architecture is {name!r}; a name was expected")
        return Registry(prefer=config.model.arch_providers).lookup(name, self.label)


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is planned and checked, but not loaded."""

    source: Source
    bound: BoundArch
    plan: ModelPlan
    ledger: Ledger
    run: EngineOptions
    n_ctx: int
    load_mode: str
    report: Report | None


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded model with its backend, for commands that drive steps themselves."""

    model: str
    backend: NativeBackend
    prepared: Prepared


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A running engine and what belongs to its model."""

    source: Source
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    template_kwargs: Mapping[str, Any]
    engine: Engine
    prepared: Prepared


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a command needs: sizes, and the number format of the cache when the settings name none."""

    kv_type: str
    max_seqs: int
    n_ctx: int | None = None  # None: the settings' or the model's own
    all_logits: bool = False  # every token's logits are wanted, not only those that are sampled from


# ---- sources ----------------------------------------------------------------------------------------------------


@contextmanager
def open_source(config: Config, synthetic: str | None, layers: int | None) -> Generator[Source]:
    """The model that the command line names: a synthetic one, a file, or the embedded demo model.

    Raises: ConfigError, BadGguf.
    """
    if synthetic is not None:
        if config.model.path is not None:
            raise ConfigError(f"--synthetic {synthetic} and the file {config.model.path} both name a model; give one")
        from strata.synthetic import SyntheticModel

        model = SyntheticModel(synthetic, layers=layers)
        yield Source(synthetic, model, model)
        return
    if layers is not None:
        raise ConfigError("--layers goes with --synthetic; a file is always run whole")
    if config.model.path is not None:
        yield Source(Path(config.model.path).stem, read_gguf(config.model.path))
        return
    with demo_model_path() as path:
        yield Source(path.stem, read_gguf(path))


def inspect(config: Config, source: Source) -> Binding:
    """What of the file its architecture uses. Raises: ModelError for metadata."""
    return inspect_binding(source.arch(config), source.file)


# ---- planning ---------------------------------------------------------------------------------------------------


def prepare(config: Config, source: Source, shape: Shape, report: Report | None = None) -> Prepared:
    """Bind, plan and draw up the ledger; allocates nothing. The ledger is not checked yet.

    Raises: ModelError, ConfigError.
    """
    library = Library()
    bound = bind(source.arch(config), source.file)
    kv_type = config.engine.kv_type or shape.kv_type
    n_batch, n_outputs = _step_sizes(config, shape, bound.n_vocab)
    probe = make_plan(bound, n_batch=n_batch, n_outputs_max=n_outputs)
    machine = machine_memory()
    limit, limit_source = ram_limit(machine, config.engine.ram_limit_bytes or None)
    base_bytes = resident_bytes()
    with NativeModel(library, probe) as model:
        per_block = model.measure(EngineOptions(n_threads=1, n_kv_blocks=1, kv_type=kv_type)).kv
    room = limit - probe.weights_bytes - probe.activations_bytes - base_bytes
    n_ctx, note = _context(config, shape, bound.n_ctx_train, per_block, room)
    model_plan = make_plan(bound, n_batch=n_batch, n_outputs_max=n_outputs, n_ctx=n_ctx)
    n_tokens = max(config.engine.n_kv_tokens, n_ctx) if shape.n_ctx is None else n_ctx
    run = EngineOptions(
        kv_type=kv_type,
        n_kv_blocks=n_kv_blocks(n_tokens),
        max_seqs=shape.max_seqs,
        n_threads=config.engine.n_threads or library.cpu_count,
        poison=config.engine.poison,
        spin_us=config.engine.spin_us,
    )
    with NativeModel(library, model_plan) as model:
        sizes = model.measure(run)
    mode, mapped = _load_mode(config, source, model_plan, limit - base_bytes - sizes.kv - sizes.scratch)
    weights = model_plan.weights_bytes - mapped
    lines = [
        Line(name="process", place=Place.RAM, n_bytes=base_bytes, note="Python and its libraries, tokenizer"),
        Line(name="dense weights", place=Place.RAM, n_bytes=model_plan.weights_bytes - model_plan.expert_bytes),
        Line(name="experts", place=Place.RAM, n_bytes=weights - model_plan.weights_bytes + model_plan.expert_bytes),
        Line(name="KV cache", place=Place.RAM, n_bytes=sizes.kv, note=f"{n_tokens} tokens, {kv_type}"),
        Line(name="activations", place=Place.RAM, n_bytes=sizes.activations, note=f"steps of up to {n_batch} tokens"),
        Line(name="scratch", place=Place.RAM, n_bytes=sizes.scratch, note=f"{run.n_threads} threads"),
    ]
    notes = [note] if note else []
    if mapped:
        lines.append(Line(name="experts in the file", place=Place.MAPPED, n_bytes=mapped, note="page cache"))
        notes.append("the experts stay in the mapped file in its own layout: the same bits, but slower")
    ledger = Ledger(
        lines=tuple(line for line in lines if line.n_bytes),
        ram_limit_bytes=limit,
        ram_limit_source=limit_source,
        notes=(*notes, *(source.tokenizer.notes if source.synthetic is None else ())),
    )
    return Prepared(
        source=source,
        bound=bound,
        plan=model_plan,
        ledger=ledger,
        run=run,
        n_ctx=n_ctx,
        load_mode=mode,
        report=report,
    )


def prepare_serving(config: Config, source: Source, report: Report | None = None) -> Prepared:
    """The plan that `strata serve` would run with."""
    return prepare(config, source, Shape(kv_type="f16", max_seqs=config.engine.n_parallel), report)


def plan_text(prepared: Prepared) -> str:
    """The plan as people read it."""
    plan, run = prepared.plan, prepared.run
    return "\n".join(
        (
            f"{prepared.source.label}: {plan.arch}, {plan.n_layer} layers, {len(plan.expert_sets)} with experts",
            f"  reads {gib_text(plan.read_bytes_per_token)} of weights per decoded token",
            f"  {run.n_threads} threads, context {prepared.n_ctx}, {run.max_seqs} sequences, KV {run.kv_type}",
            "memory",
            prepared.ledger.text(),
        )
    )


def _step_sizes(config: Config, shape: Shape, n_vocab: int) -> tuple[int, int]:
    """(tokens, rows of logits) of the largest step."""
    n_batch = config.engine.n_batch
    if shape.all_logits:
        n_batch = max(1, min(n_batch, _LOGITS_BYTES_MAX // (4 * n_vocab), shape.n_ctx or n_batch))
        return n_batch, n_batch
    return max(n_batch, shape.max_seqs), shape.max_seqs


def _context(config: Config, shape: Shape, n_ctx_train: int, per_block: int, room: int) -> tuple[int, str | None]:
    if shape.n_ctx is not None:
        return shape.n_ctx, None
    return choose_ctx(n_ctx_train, config.engine.n_ctx or None, per_block, room)


def _load_mode(config: Config, source: Source, plan: ModelPlan, room_bytes: int) -> tuple[str, int]:
    """How weights are read, and the bytes of experts that then stay in the file."""
    wish = config.model.load_mode
    if source.synthetic is not None:
        if wish == "mapped":
            raise ConfigError("--load-mode mapped needs a file; a synthetic model has none")
        return "direct", 0
    if wish == "mapped" or (wish == "auto" and plan.weights_bytes + plan.activations_bytes > room_bytes):
        return "mapped", plan.expert_bytes
    return ("direct" if wish == "auto" else wish), 0


# ---- opening ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_backend(prepared: Prepared) -> AsyncGenerator[NativeBackend]:
    """Check the ledger, load the weights with a progress bar, and open the engine.

    Raises: MemoryPlanError, NativeError. Cancellation: a running load ends within one read.
    """
    prepared.ledger.check()
    source = prepared.source
    with NativeModel(Library(), prepared.plan) as model:
        total = prepared.plan.weights_bytes
        with tqdm(total=total, desc="loading", unit="B", unit_scale=True, unit_divisor=1024, delay=0.5) as bar:

            def progress(done_bytes: int, total_bytes: int) -> None:
                bar.total = total_bytes
                bar.update(done_bytes - bar.n)

            if source.synthetic is not None:
                await trio.to_thread.run_sync(_fill, model, source.synthetic, progress)
            else:
                n_threads = prepared.run.n_threads
                stats = await model.aload(mode=prepared.load_mode, n_threads=n_threads, on_progress=progress)
                if stats.direct_refused and prepared.report is not None:
                    prepared.report("note: direct reads were refused for this file; plain reads took their place")
        backend = NativeBackend(model, prepared.run, n_ctx=prepared.n_ctx)
        try:
            yield backend
        finally:
            await backend.aclose()


def _fill(model: NativeModel, source: SyntheticModel, progress: Callable[[int, int], None]) -> None:
    """Generate a synthetic model's weights straight into the arena, piece by piece."""
    model.reserve()
    total, done = model.plan.weights_bytes, 0
    for index, tensor in enumerate(model.plan.tensors):
        row = row_bytes(tensor.type, tensor.n_cols)
        first = (tensor.file_offset - source.tensors[tensor.name].offset) // row
        n_rows = max(min(tensor.n_rows, _FILL_BYTES // row // GROUP_ROWS * GROUP_ROWS), GROUP_ROWS)
        for mat in range(tensor.n_mats):
            start = first + mat * (tensor.file_stride_bytes // row)
            for at in range(0, tensor.n_rows, n_rows):
                n = min(n_rows, tensor.n_rows - at)
                model.fill(index, mat, at, n, source.tensor_bytes(tensor.name, start + at, n))
                done += n * row
                progress(done, total)
                trio.from_thread.check_cancelled()


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


@asynccontextmanager
async def open_engine(
    config: Config, prepared: Prepared, telemetry: EngineTelemetry | None = None
) -> AsyncGenerator[Served]:
    """A running engine. Leaving the block aborts what is open; a failed device ends it with EngineStopped."""
    source = prepared.source
    tokenizer, template = source.tokenizer, source.chat_template(config)
    async with open_backend(prepared) as backend, trio.open_nursery() as nursery:
        engine = Engine(backend, tokenizer, max_waiting=config.server.max_waiting, observer=telemetry)
        nursery.start_soon(engine.run)
        yield Served(
            source=source,
            tokenizer=tokenizer,
            chat_template=template,
            template_kwargs=config.model.chat_template_kwargs,
            engine=engine,
            prepared=prepared,
        )
        nursery.cancel_scope.cancel()


# ---- serving ----------------------------------------------------------------------------------------------------


async def serve(config: Config, source: Source, report: Report) -> int:
    """Serve until a signal. Raises: StrataError when the model cannot be opened or the engine has failed."""
    metrics = Metrics()
    tracing = open_tracing(config.telemetry.otlp_endpoint, config.telemetry.trace_sample_frac)
    report(f"Strata {__version__}")
    listener = open_listener(config.server)  # an address in use is found before a minute of loading
    try:
        async with shutdown_on_signals() as shutdown:
            prepared = prepare_serving(config, source, report)
            report(plan_text(prepared))
            async with open_engine(config, prepared, EngineTelemetry(metrics, tracing)) as served:
                app = build_app(_served_model(config, served), config.server, metrics=metrics, tracing=tracing)
                async with trio.open_nursery() as nursery:
                    url = await nursery.start(serve_http, app, listener, shutdown)
                    report(f"serving {app.services.model.id} on {url} (OpenAI: {url}/v1, Anthropic: {url})")
    finally:
        listener.close()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(tracing.close)
    return 0


def _served_model(config: Config, served: Served) -> ServedModel:
    prepared, source = served.prepared, served.source
    file = source.file
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
            "fingerprint": fingerprint(file) if isinstance(file, GgufFile) else None,
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
