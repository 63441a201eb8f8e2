"""What is asked of the library's loader and engine, and what they report, as plain structs; and their C forms."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["KV_TYPES", "LOAD_MODES", "TIERS", "EngineBytes", "EngineOptions", "LoadStats", "c_struct", "engine_config"]

KV_TYPES = {"f32": "STRATA_KV_F32", "f16": "STRATA_KV_F16", "q8_0": "STRATA_KV_Q8_0"}
LOAD_MODES = {"direct": "STRATA_LOAD_DIRECT", "buffered": "STRATA_LOAD_BUFFERED", "mapped": "STRATA_LOAD_MAPPED"}
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


class EngineBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that an engine will hold."""

    activations: int
    kv: int
    scratch: int
    state: int


def engine_config(ffi: Any, options: EngineOptions) -> Any:
    """The strata_engine_config of some options."""
    config = c_struct(ffi, "strata_engine_config")
    config.n_threads, config.n_kv_blocks, config.max_seqs = options.n_threads, options.n_kv_blocks, options.max_seqs
    config.kv_type = ffi.integer_const(KV_TYPES[options.kv_type])
    config.poison, config.tier = int(options.poison), TIERS[options.tier]
    config.n_state_slots = options.n_state_slots
    config.spin_us, config.queue_steps = options.spin_us, options.queue_steps
    config.step_deadline_us = round(options.step_deadline_s * 1e6)
    return config


def c_struct(ffi: Any, name: str) -> Any:
    """A zeroed struct with its size in place."""
    made = ffi.new(f"{name} *")
    made.struct_size = ffi.sizeof(name)
    return made
