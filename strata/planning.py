"""From a name on the command line to a checked plan: source, binding, plan, ledger. Allocates nothing for weights."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from strata.arch.bind import Binding, bind, inspect_binding
from strata.arch.bound import BoundArch, ModelFile
from strata.arch.plan import plan as make_plan
from strata.arch.plan_tables import ModelPlan
from strata.arch.registry import Registry
from strata.arch.spec import Arch
from strata.config import Config, EngineConfig
from strata.engine.backend import KV_BLOCK_TOKENS
from strata.engine.budget import (
    Ledger,
    Line,
    Place,
    choose_ctx,
    gib_text,
    gpu_context_bytes,
    n_kv_blocks,
    pin_limit,
    ram_limit,
    vram_limit,
)
from strata.errors import ConfigError, ModelError
from strata.ffi.library import Library
from strata.ffi.native import EngineBytes, EngineOptions, NativeModel
from strata.gguf.inventory import fingerprint
from strata.gguf.reader import GgufFile, read_gguf
from strata.machine import kernel_cache, machine_memory, nvrtc_folder, resident_bytes
from strata.models import demo_model_path
from strata.placing import OpPlace, Placed, op_places, place
from strata.text.chat import RESERVED_VARIABLES, ChatTemplate
from strata.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from strata.synthetic import SyntheticModel

Report = Callable[[str], None]
_LOGITS_BYTES_MAX = 64 << 20  # of one step's logits where every token's are wanted


class Source:
    """A model before it is loaded: its directory, and how to get its tokenizer and template."""

    def __init__(
        self, name: str, file: ModelFile, synthetic: SyntheticModel | None = None, pre: str | None = None
    ) -> None:
        """pre: replaces the pre-tokenizer that the file names."""
        self._pre = pre
        self.name = name
        self.file = file
        self.synthetic = synthetic

    @property
    def label(self) -> str:
        """What the model is called in messages."""
        return str(self.file.paths[0]) if self.file.paths else self.name

    @cached_property
    def fingerprint(self) -> str:
        """What ties profiles and traces to this model; a synthetic one has that of the file it would be written to."""
        if self.synthetic is not None:
            return self.synthetic.fingerprint()
        assert isinstance(self.file, GgufFile)
        return fingerprint(self.file)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises: ModelError for a tokenizer that is missing or unknown."""
        return Tokenizer.from_metadata(self.file.metadata, self.label, pre=self._pre)

    def chat_template(self, config: Config) -> ChatTemplate | None:
        """The template of the settings, else the file's. Raises: ConfigError, ModelError."""
        for name in RESERVED_VARIABLES:
            if name in config.model.chat_template_kwargs:
                raise ConfigError(f"--chat-template-kwargs holds {name}, which is not a template's to be given")
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
    trace_path: str | None  # where the routing of every step goes
    engine: EngineConfig
    placed: Placed | None  # None: no expert has a slot
    report: Report | None


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a command needs: sizes, and the number format of the cache when the settings name none."""

    kv_type: str
    max_seqs: int
    n_ctx: int | None = None  # None: the settings' or the model's own
    all_logits: bool = False  # every token's logits are wanted, not only those that are sampled from
    text: bool = False  # texts are read or written: the tokenizer must be usable


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
        yield Source(Path(config.model.path).stem, read_gguf(config.model.path), pre=config.model.tokenizer_pre)
        return
    with demo_model_path() as path:
        yield Source(path.stem, read_gguf(path), pre=config.model.tokenizer_pre)


def inspect(config: Config, source: Source) -> Binding:
    """What of the file its architecture uses. Raises: ModelError for metadata."""
    return inspect_binding(source.arch(config), source.file)


def where_ops_run(config: Config, source: Source) -> tuple[OpPlace, ...]:
    """Of a file whose tensors fit its architecture. Raises: ModelError."""
    return op_places(config.engine, make_plan(bind(source.arch(config), source.file), n_batch=1, n_outputs_max=1))


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
    if shape.text:
        _ = source.tokenizer  # part of what the process holds
    limit, limit_source = ram_limit(machine_memory(), config.engine.ram_limit_bytes or None)
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
        n_state_slots=shape.max_seqs if model_plan.states else 0,
        n_threads=config.engine.n_threads or library.cpu_count,
        poison=config.engine.poison,
        spin_us=config.engine.spin_us,
        **_device_options(config.engine),
    )
    with NativeModel(library, model_plan) as model:
        placement = _place(config.engine, library, model, run, source)
        run = placement.run
        sizes = model.measure(run)
    beside = sizes.kv + sizes.state + sizes.scratch + sizes.shared + (sizes.device if run.device == "sim" else 0)
    mode, mapped = _load_mode(config, source, model_plan, limit - base_bytes - beside)
    if mapped and placement.placed is not None:
        raise ConfigError("experts that stay in the mapped file cannot be copied to a device; use --cpu-moe")
    notes = _notes(source, shape, model_plan, placement, note, mapped)
    ledger = Ledger(
        lines=_lines(model_plan, placement, sizes, base_bytes, mapped),
        ram_limit_bytes=limit,
        ram_limit_source=limit_source,
        vram_limit_bytes=placement.limit_bytes,
        vram_limit_source=placement.limit_source,
        notes=tuple(notes),
    )
    return Prepared(
        source=source,
        bound=bound,
        plan=model_plan,
        ledger=ledger,
        run=run,
        n_ctx=n_ctx,
        load_mode=mode,
        trace_path=config.engine.trace_path,
        engine=config.engine,
        placed=placement.placed,
        report=report,
    )


def _notes(
    source: Source, shape: Shape, plan: ModelPlan, placement: _Placement, note: str | None, mapped: int
) -> list[str]:
    """What the user should know about the plan."""
    notes = [*([note] if note else []), *(placement.placed.notes if placement.placed is not None else ())]
    if plan.states:
        notes.append("the model has recurrent states: each prompt is computed whole, earlier ones are not reused")
    if mapped:
        notes.append("the experts stay in the mapped file in its own layout: the same bits, but slower")
    if shape.text:
        notes.extend(source.tokenizer.notes)
    return notes


class _Placement(msgspec.Struct, frozen=True, kw_only=True):
    run: EngineOptions
    placed: Placed | None = None
    limit_bytes: int = 0  # of the GPU
    limit_source: str = ""
    context_bytes: int = 0  # the driver's own


def _device_options(config: EngineConfig) -> dict[str, Any]:
    """The fields of EngineOptions that say what computes beside the CPU."""
    options: dict[str, Any] = {
        "device": config.backend,
        "ordinal": config.device,
        "vram_limit_bytes": config.vram_limit_bytes,
        "handoff_deadline_s": config.handoff_deadline_s * config.deadline_scale,
    }
    if config.backend == "cuda":
        options["nvrtc_path"] = config.nvrtc_path or nvrtc_folder()
        options["cubin_cache"] = kernel_cache()
    return options


def _place(
    config: EngineConfig, library: Library, model: NativeModel, run: EngineOptions, source: Source
) -> _Placement:
    """Where experts go. Raises: ConfigError, ProfileError, NativeError without a GPU."""
    if run.device == "cpu":
        _refuse_device_settings(config)
        return _Placement(run=run)
    asked = config.vram_limit_bytes or None
    if run.device == "cuda":
        gpu = library.gpu(run.ordinal)
        limit, limit_source = vram_limit(gpu.free_bytes, gpu.total_bytes, asked)
        context = gpu_context_bytes(gpu.free_bytes, gpu.total_bytes)
        sizes = model.measure(run)
        room = limit - context - sizes.device
        memory = machine_memory()
        ram_bytes = min(memory.total_bytes, memory.cgroup_limit_bytes or memory.total_bytes)
        run = msgspec.structs.replace(run, pin_limit_bytes=pin_limit(ram_bytes, sizes.shared))
    else:
        limit, limit_source, context = 0, "", 0
        room = None if asked is None else asked - model.measure(run).device
    placed = place(config, model.plan, source.fingerprint, room)
    if placed is not None:
        run = msgspec.structs.replace(run, class_of_set=placed.experts.class_of, n_slots=placed.split.slots())
    return _Placement(run=run, placed=placed, limit_bytes=limit, limit_source=limit_source, context_bytes=context)


def _refuse_device_settings(config: EngineConfig) -> None:
    """Settings that would silently do nothing on the CPU alone."""
    given = {
        "--vram-limit": config.vram_limit_bytes,
        "--expert-slots": max(config.expert_slots, 0),
        "--n-cpu-moe": config.n_cpu_moe,
        "--profile": config.profile_path,
        "--swap-every-step": config.swap_every_step,
    }
    for flag, value in given.items():
        if value:
            raise ConfigError(f"{flag} {value} is for a device that holds experts; the backend is cpu (--backend cuda)")


def _lines(
    plan: ModelPlan, placement: _Placement, sizes: EngineBytes, base_bytes: int, mapped: int
) -> tuple[Line, ...]:
    """Who holds how much; owners of nothing are left out."""
    run = placement.run
    n_tokens = run.n_kv_blocks * KV_BLOCK_TOKENS
    lines = [
        Line(name="process", place=Place.RAM, n_bytes=base_bytes, note="Python and its libraries"),
        Line(name="dense weights", place=Place.RAM, n_bytes=plan.weights_bytes - plan.expert_bytes),
        Line(name="experts", place=Place.RAM, n_bytes=plan.expert_bytes - mapped),
        Line(name="KV cache", place=Place.RAM, n_bytes=sizes.kv, note=f"{n_tokens} tokens, {run.kv_type}"),
        Line(name="recurrent states", place=Place.RAM, n_bytes=sizes.state, note=f"{run.n_state_slots} sequences"),
        Line(
            name="activations", place=Place.RAM, n_bytes=sizes.activations, note=f"steps of up to {plan.n_batch} tokens"
        ),
        Line(name="scratch", place=Place.RAM, n_bytes=sizes.scratch, note=f"{run.n_threads} threads"),
        *_device_lines(run, sizes, placement.context_bytes),
        Line(name="experts in the file", place=Place.MAPPED, n_bytes=mapped, note="page cache"),
    ]
    return tuple(line for line in lines if line.n_bytes)


def _device_lines(run: EngineOptions, sizes: EngineBytes, context_bytes: int) -> list[Line]:
    if run.device == "sim":
        note = f"{sum(run.n_slots)} expert slots"
        return [
            Line(name="sim device", place=Place.RAM, n_bytes=sizes.device, note=note),
            Line(name="mailbox", place=Place.RAM, n_bytes=sizes.shared),
        ]
    if run.device == "cpu":
        return []
    return [
        Line(name="mailbox", place=Place.PINNED, n_bytes=sizes.shared),
        Line(name="GPU context", place=Place.VRAM, n_bytes=context_bytes, note="the driver's, kernels and graphs"),
        Line(
            name="dense parts",
            place=Place.VRAM,
            n_bytes=sizes.device - sizes.slots,
            note="weights, KV cache, activations",
        ),
        Line(name="expert slots", place=Place.VRAM, n_bytes=sizes.slots, note=f"{sum(run.n_slots)} slots"),
    ]


def prepare_serving(config: Config, source: Source, report: Report | None = None) -> Prepared:
    """The plan that `strata serve` would run with."""
    return prepare(config, source, Shape(kv_type="f16", max_seqs=config.engine.n_parallel, text=True), report)


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
