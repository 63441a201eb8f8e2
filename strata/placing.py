"""Which experts get slots at the start: from the settings, the model's sizes and perhaps a profile."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from strata import __version__
from strata.arch.plan_tables import ModelPlan
from strata.config import EngineConfig
from strata.engine.budget import Line, Place, gpu_context_bytes, pin_limit, vram_limit
from strata.engine.heat import Heat
from strata.engine.placement import Experts, Mask, Split, exact_slots, experts_of, split_slots
from strata.engine.profile import Sidecar, dims_of, profile_pairs, profile_ranking, read_profile, write_profile
from strata.errors import ConfigError
from strata.ffi.library import Library
from strata.ffi.native import EngineBytes, EngineOptions, NativeModel
from strata.machine import cache_folder, machine_memory, nvrtc_folder

__all__ = [
    "OpPlace",
    "Placed",
    "Placement",
    "device_lines",
    "device_options",
    "op_places",
    "place",
    "place_on_device",
    "save_profile",
]


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """The first choice, and what the cache starts from."""

    experts: Experts
    split: Split
    chosen: Mask
    heat: Heat
    adapt: bool
    notes: tuple[str, ...] = ()


def place(config: EngineConfig, plan: ModelPlan, fingerprint: str, room_bytes: int | None) -> Placed | None:
    """Divide the device's room among the experts; None: no expert gets a slot.

    room_bytes: what is left for slots; None: not limited. Raises: ConfigError, ProfileError.
    """
    n_layers_on_cpu = _layers_on_cpu(config, plan)
    if not plan.expert_sets or n_layers_on_cpu == plan.n_layer or config.expert_slots == 0:
        return None
    experts = experts_of(plan)
    heat = Heat(experts.n_sets, experts.width)
    notes: list[str] = []
    if config.profile_path is not None and Path(config.profile_path).exists():
        loaded = read_profile(config.profile_path, dims_of(plan), fingerprint=fingerprint)
        heat.seed(profile_ranking(experts, loaded.profile), experts.token_cycle)
        notes.extend(loaded.notes)
    elif config.profile_path is not None:
        if not Path(config.profile_path).parent.is_dir():
            raise ConfigError(f"--profile {config.profile_path} cannot be written: its folder does not exist")
        notes.append(f"{config.profile_path} does not exist yet; it is written when the engine is closed")
    if n_layers_on_cpu:
        split, chosen = _whole_layers(experts, n_layers_on_cpu, room_bytes)
        return Placed(experts=experts, split=split, chosen=chosen, heat=heat, adapt=False, notes=tuple(notes))
    n_all = sum(experts.n_expert)
    if config.expert_slots > n_all:
        notes.append(f"--expert-slots {config.expert_slots}: the model has {n_all} experts, and all are resident")
    if config.expert_slots >= 0:
        split, chosen = exact_slots(experts, heat.values(), config.expert_slots)
        if room_bytes is not None and split.n_bytes(experts) > room_bytes:
            raise ConfigError(
                f"--expert-slots {config.expert_slots} needs {split.n_bytes(experts)} bytes with its spare slots; "
                f"{room_bytes} are left on the device"
            )
    else:
        room = sum(n * int(size) for n, size in zip(experts.n_expert, experts.bytes_of, strict=True))
        split, chosen = split_slots(experts, heat.values(), room if room_bytes is None else max(room_bytes, 0))
    if split.note:
        notes.append(split.note)
    if not sum(split.slots()):
        return None
    return Placed(experts=experts, split=split, chosen=chosen, heat=heat, adapt=config.adapt, notes=tuple(notes))


def _layers_on_cpu(config: EngineConfig, plan: ModelPlan) -> int:
    if config.cpu_moe and config.n_cpu_moe:
        raise ConfigError("--cpu-moe leaves all experts to the CPU; --n-cpu-moe beside it has no meaning")
    if (config.cpu_moe or config.n_cpu_moe) and config.expert_slots >= 0:
        raise ConfigError("--expert-slots and --cpu-moe or --n-cpu-moe both say where experts go; give one")
    return plan.n_layer if config.cpu_moe else min(config.n_cpu_moe, plan.n_layer)


def _whole_layers(experts: Experts, n_on_cpu: int, room_bytes: int | None) -> tuple[Split, Mask]:
    """All experts of the layers from n_on_cpu on, none of the others, for good."""
    on_device = np.asarray(experts.layers) >= n_on_cpu
    chosen = experts.exists & on_device[:, None]
    kinds = np.asarray(experts.class_of)
    resident = tuple(int(chosen[kinds == kind].sum()) for kind in range(experts.n_classes))
    split = Split(resident, (0,) * experts.n_classes, tuple(int(n) for n in chosen.sum(axis=1)))
    if room_bytes is not None and split.n_bytes(experts) > room_bytes:
        raise ConfigError(
            f"--n-cpu-moe {n_on_cpu} leaves experts of {split.n_bytes(experts)} bytes to the device, which has "
            f"room for {room_bytes}; a larger number fits"
        )
    return split, chosen


def save_profile(path: str, plan: ModelPlan, placed: Placed, fingerprint: str, model: str) -> None:
    """Write what was learned, for the next start. Raises: ProfileError."""
    pairs = profile_pairs(placed.experts, placed.heat.ranking())
    sidecar = Sidecar(
        fingerprint=fingerprint,
        model=model,
        tokens=placed.heat.n_decoded,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        tool_version=__version__,
    )
    write_profile(path, dims_of(plan), pairs, slots=sum(placed.split.resident), sidecar=sidecar)


class OpPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where one kind of op runs. n: ops of the plan."""

    kind: str
    n: int
    place: str


_DEVICE_NAMES = {"cuda": "GPU", "sim": "sim device"}


def op_places(config: EngineConfig, plan: ModelPlan) -> tuple[OpPlace, ...]:
    """Where the plan's ops run with these settings, in the order in which their kinds appear; sampling last."""
    device = _DEVICE_NAMES.get(config.backend)
    counts: dict[str, int] = {}
    for op in plan.ops:
        counts[op.kind] = counts.get(op.kind, 0) + 1
    places: list[OpPlace] = []
    for kind, n in counts.items():
        where = device or "CPU"
        if kind == "experts" and device is not None:
            none = config.cpu_moe or config.expert_slots == 0 or config.n_cpu_moe >= plan.n_layer
            where = (
                f"CPU (no expert has a slot on the {device})"
                if none
                else f"{device}: resident experts; CPU: missed ones"
            )
        places.append(OpPlace(kind=kind, n=n, place=where))
    return (*places, OpPlace(kind="sampling", n=1, place="CPU"))


# ---- devices ----------------------------------------------------------------------------------------------------


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    run: EngineOptions
    placed: Placed | None = None
    limit_bytes: int = 0  # of the GPU
    limit_source: str = ""
    context_bytes: int = 0  # the driver's own


def device_options(config: EngineConfig) -> dict[str, Any]:
    """The fields of EngineOptions that say what computes beside the CPU."""
    options: dict[str, Any] = {
        "device": config.backend,
        "ordinal": config.device,
        "vram_limit_bytes": config.vram_limit_bytes,
        "handoff_deadline_s": config.handoff_deadline_s * config.deadline_scale,
    }
    if config.backend == "cuda":
        options["nvrtc_path"] = config.nvrtc_path or nvrtc_folder()
        options["cubin_cache"] = str(cache_folder("kernels"))
    return options


def place_on_device(
    config: EngineConfig, library: Library, model: NativeModel, run: EngineOptions, fingerprint: str
) -> Placement:
    """Where experts go. Raises: ConfigError, ProfileError, NativeError without a GPU."""
    if run.device == "cpu":
        _refuse_device_settings(config)
        return Placement(run=run)
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
        dense_bytes = model.measure(run).device
        room = None if asked is None else asked - dense_bytes
        if room is not None and room < 0:
            raise ConfigError(
                f"--vram-limit {asked} is less than the {dense_bytes} bytes that the device needs without slots"
            )
    placed = place(config, model.plan, fingerprint, room)
    if placed is not None:
        run = msgspec.structs.replace(run, class_of_set=placed.experts.class_of, n_slots=placed.split.slots())
    return Placement(run=run, placed=placed, limit_bytes=limit, limit_source=limit_source, context_bytes=context)


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


def device_lines(run: EngineOptions, sizes: EngineBytes, context_bytes: int) -> list[Line]:
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
