"""Which native library the architecture tests run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from arch_sources import ROOT

from strata.arch.plan_tables import ModelPlan
from strata.errors import StrataError
from strata.ffi.library import find
from strata.testing import conformance

TEST_BUILD = ROOT / "build/native-tests/libstrata.so"


def library_path() -> Path | None:
    """The test build, else the installed library, else None."""
    if TEST_BUILD.is_file():
        return TEST_BUILD
    try:
        return find()
    except StrataError:
        return None


def native_logits(plan: ModelPlan, tokens: Sequence[int], chunk: int, **options: Any) -> np.ndarray:
    """Logits of every token, float32 [n_tokens, n_vocab], `chunk` tokens a step."""
    return conformance.native_logits(plan, tokens, chunk, library_path(), **options)
