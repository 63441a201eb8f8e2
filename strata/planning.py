"""From a name on the command line to a checked plan: source, binding, plan, ledger. Allocates nothing for weights."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from strata.arch.bind import Binding, bind, inspect_binding
from strata.arch.bound import BoundArch, ModelFile
from strata.arch.plan import plan as make_plan
from strata.arch.plan_tables import ModelPlan
from strata.arch.registry import Registry
from strata.arch.spec import Arch
from strata.calibration import calibrate
from strata.config import Config, EngineConfig
from strata.engine.backend import KV_BLOCK_TOKENS
from strata.engine.budget import (
    Ledger,
    Line,
    Place,
    choose_ctx,
    gib_text,
    n_kv_blocks,
    ram_limit,
)
from strata.engine.placement import hit_share
from strata.engine.prediction import Prediction, Rates, predict
from strata.errors import ConfigError, ModelError
from strata.ffi.library import Library
from strata.ffi.native import EngineBytes, EngineOptions, NativeModel
from strata.gguf.inventory import fingerprint
from strata.gguf.reader import GgufFile, read_gguf
from strata.machine import machine_memory, resident_bytes
from strata.models import demo_model_path
from strata.placing import (
    OpPlace,
    Placed,
    Placement,
    device_lines,
    device_options,
    op_places,
    place_on_device,
)
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
    rates: Rates | None  # of the machine; measured where there is a GPU
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
    room = limit - probe.weights_bytes - probe.activations_bytes - base_bytes
    n_ctx, note = _context(config, shape, bound.n_ctx_train, _kv_bytes_per_block(library, probe, kv_type), room)
    model_plan = make_plan(bound, n_batch=n_batch, n_outputs_max=n_outputs, n_ctx=n_ctx)
    n_tokens = max(config.engine.n_kv_tokens, n_ctx) if shape.n_ctx is None else n_ctx
    rates = calibrate(library, config.engine.device) if config.engine.backend == "cuda" else None
    run = EngineOptions(
        kv_type=kv_type,
        n_kv_blocks=n_kv_blocks(n_tokens),
        max_seqs=shape.max_seqs,
        n_state_slots=shape.max_seqs if model_plan.states else 0,
        n_threads=config.engine.n_threads or (rates.n_threads if rates is not None else library.cpu_count),
        poison=config.engine.poison,
        spin_us=config.engine.spin_us,
        **device_options(config.engine),
    )
    with NativeModel(library, model_plan) as model:
        placement = place_on_device(config.engine, library, model, run, source.fingerprint)
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
        rates=rates,
        report=report,
    )


def _notes(
    source: Source, shape: Shape, plan: ModelPlan, placement: Placement, note: str | None, mapped: int
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


def _lines(plan: ModelPlan, placement: Placement, sizes: EngineBytes, base_bytes: int, mapped: int) -> tuple[Line, ...]:
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
        *device_lines(run, sizes, placement.context_bytes),
        Line(name="experts in the file", place=Place.MAPPED, n_bytes=mapped, note="page cache"),
    ]
    return tuple(line for line in lines if line.n_bytes)


def prepare_serving(config: Config, source: Source, report: Report | None = None) -> Prepared:
    """The plan that `strata serve` would run with."""
    return prepare(config, source, Shape(kv_type="f16", max_seqs=config.engine.n_parallel, text=True), report)


def predicted(prepared: Prepared) -> Prediction | None:
    """How fast one sequence should decode at first; None where nothing was measured."""
    plan, placed = prepared.plan, prepared.placed
    if prepared.rates is None:
        return None
    per_token = sum(experts.n_used * experts.slot_bytes for experts in plan.expert_sets)
    share = 0.0
    if placed is not None:
        heat = placed.heat.values()
        share = hit_share(heat if heat.any() else placed.experts.exists.astype(float), placed.chosen)
    return predict(
        prepared.rates,
        dense_bytes=max(plan.read_bytes_per_token - per_token, 0),
        expert_bytes=per_token,
        hit_share=share,
        n_expert_layers=len(plan.expert_sets),
        n_ops=len(plan.ops),
    )


def plan_text(prepared: Prepared) -> str:
    """The plan as people read it."""
    plan, run = prepared.plan, prepared.run
    speed = predicted(prepared)
    return "\n".join(
        (
            f"{prepared.source.label}: {plan.arch}, {plan.n_layer} layers, {len(plan.expert_sets)} with experts",
            f"  reads {gib_text(plan.read_bytes_per_token)} of weights per decoded token",
            f"  {run.n_threads} threads, context {prepared.n_ctx}, {run.max_seqs} sequences, KV {run.kv_type}",
            *(() if speed is None else (f"  predicted at first: {speed.text()}",)),
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


def _kv_bytes_per_block(library: Library, plan: ModelPlan, kv_type: str) -> int:
    with NativeModel(library, plan) as model:
        return model.measure(EngineOptions(n_threads=1, n_kv_blocks=1, kv_type=kv_type)).kv


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
