"""Runs a plan on the native engine, poisoned, with a float32 KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from arch_sources import ROOT
from numpy.typing import NDArray

from strata.arch.plan_tables import ModelPlan
from strata.engine.backend import KV_BLOCK_TOKENS, BatchRow, StepBatch
from strata.errors import StrataError
from strata.ffi.library import Library, find
from strata.ffi.native import EngineOptions, NativeBackend, NativeModel

TEST_BUILD = ROOT / "build/native-tests/libstrata.so"


def library_path() -> Path | None:
    """The test build, else the installed library, else None."""
    if TEST_BUILD.is_file():
        return TEST_BUILD
    try:
        return find()
    except StrataError:
        return None


def native_logits(plan: ModelPlan, tokens: Sequence[int], chunk: int, **options: Any) -> NDArray[np.float32]:
    """Logits of every token, float32 [n_tokens, n_vocab], `chunk` tokens a step."""
    n_blocks = len(tokens) // KV_BLOCK_TOKENS + 1
    settings = {"n_threads": 2, "n_kv_blocks": n_blocks, "n_state_slots": 1, "kv_type": "f32", "poison": True} | options
    parts: list[NDArray[np.float32]] = []
    with NativeModel(Library(library_path()), plan) as model:
        model.load(mode="buffered", n_threads=1)
        backend = NativeBackend(model, EngineOptions(**settings), n_ctx=n_blocks * KV_BLOCK_TOKENS)
        try:
            for first in range(0, len(tokens), chunk):
                part = tuple(tokens[first : first + chunk])
                row = BatchRow(
                    seq_id=0,
                    tokens=part,
                    first_pos=first,
                    blocks=tuple(range((first + len(part) - 1) // KV_BLOCK_TOKENS + 1)),
                    all_logits=True,
                )
                parts.append(np.array(backend.run_sync(StepBatch(rows=(row,))).logits))
        finally:
            backend.close()
    return np.concatenate(parts)
