"""What is asked of the library's loader and engine, and what they report, as plain structs; and their C forms."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = [
    "DEVICES",
    "KV_TYPES",
    "LOAD_MODES",
    "TIERS",
    "EngineBytes",
    "EngineOptions",
    "LoadStats",
    "c_struct",
    "engine_config",
]

KV_TYPES = {"f32": "STRATA_KV_F32", "f16": "STRATA_KV_F16", "q8_0": "STRATA_KV_Q8_0"}
LOAD_MODES = {"direct": "STRATA_LOAD_DIRECT", "buffered": "STRATA_LOAD_BUFFERED", "mapped": "STRATA_LOAD_MAPPED"}
DEVICES = {"cpu": "STRATA_DEVICE_CPU", "sim": "STRATA_DEVICE_SIM", "cuda": "STRATA_DEVICE_CUDA"}
TIERS = {"best": -1, "scalar": 0, "avx2": 1, "avx512": 2, "neon": 3}


class LoadStats(msgspec.Struct, frozen=True, kw_only=True):
    """What loading did. arena_bytes are resident, mapped_bytes stay in the file."""

    direct_refused: bool
    bytes_read: int
    arena_bytes: int
    mapped_bytes: int
    seconds: float


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """strata_engine_config, as strata.h explains it."""

    n_threads: int
    n_kv_blocks: int
    max_seqs: int = 1
    n_state_slots: int = 0
    kv_type: str = "f16"
    poison: bool = False
    tier: str = "best"
    spin_us: int = -1
    queue_steps: int = 2
    step_deadline_s: float = 0.0
    device: str = "cpu"  # key of DEVICES; the others need one
    ordinal: int = 0
    class_of_set: tuple[int, ...] = ()
    n_slots: tuple[int, ...] = ()  # by class; empty: no expert has a slot
    handoff_deadline_s: float = 0.0
    vram_limit_bytes: int = 0
    pin_limit_bytes: int = 0
    nvrtc_path: str | None = None
    cubin_cache: str | None = None


class EngineBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that an engine will hold."""

    activations: int
    kv: int
    scratch: int
    state: int
    device: int = 0  # on the device, slots included
    slots: int = 0
    shared: int = 0  # host memory that CPU and device see


def engine_config(ffi: Any, options: EngineOptions) -> tuple[Any, list[Any]]:
    """The strata_engine_config of some options, and what must live as long as it."""
    config = c_struct(ffi, "strata_engine_config")
    config.n_threads, config.n_kv_blocks, config.max_seqs = options.n_threads, options.n_kv_blocks, options.max_seqs
    config.kv_type = ffi.integer_const(KV_TYPES[options.kv_type])
    config.poison, config.tier = int(options.poison), TIERS[options.tier]
    config.n_state_slots = options.n_state_slots
    config.spin_us, config.queue_steps = options.spin_us, options.queue_steps
    config.step_deadline_us = round(options.step_deadline_s * 1e6)
    config.device, config.ordinal = ffi.integer_const(DEVICES[options.device]), options.ordinal
    config.handoff_deadline_us = max(round(options.handoff_deadline_s * 1e6), int(options.handoff_deadline_s > 0))
    config.vram_limit_bytes, config.pin_limit_bytes = options.vram_limit_bytes, options.pin_limit_bytes
    alive: list[Any] = []

    def keep(made: Any) -> Any:
        alive.append(made)
        return made

    if options.n_slots:
        config.n_classes = len(options.n_slots)
        config.class_of_set = keep(ffi.new("int32_t[]", list(options.class_of_set)))
        config.n_slots = keep(ffi.new("int32_t[]", list(options.n_slots)))
    for name in ("nvrtc_path", "cubin_cache"):
        path = getattr(options, name)
        setattr(config, name, ffi.NULL if path is None else keep(ffi.new("char[]", path.encode())))
    return config, alive


def c_struct(ffi: Any, name: str) -> Any:
    """A zeroed struct with its size in place."""
    made = ffi.new(f"{name} *")
    made.struct_size = ffi.sizeof(name)
    return made
