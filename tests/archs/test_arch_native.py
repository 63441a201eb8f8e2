"""The native engine computes what the reference says, for every tiny model, in two chunk sizes with the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from arch_native import library_path, native_logits
from arch_sources import ALL_CASES
from arch_tiny import prompt

from strata.arch.bind import bind
from strata.arch.plan import plan
from strata.arch.registry import Registry
from strata.gguf.reader import read_gguf
from strata.reference.model import Reference
from strata.reference.weights import FileWeights
from strata.testing import oracle

N_TOKENS, CHUNK = 90, 64

pytestmark = pytest.mark.skipif(library_path() is None, reason="libstrata is not built")


def test_native_equals_reference(case_name: str, case_path: Path, registry: Registry) -> None:
    bound = bind(registry.lookup(ALL_CASES[case_name]["arch"]), read_gguf(case_path))
    table = plan(bound, n_batch=CHUNK, n_outputs_max=CHUNK)
    native = native_logits(table, prompt(N_TOKENS), CHUNK)
    wanted = Reference(bound, FileWeights(bound.paths)).logits(prompt(N_TOKENS))
    assert oracle.kl_divergence(wanted, native).max() < 1e-9
    assert np.array_equal(native, native_logits(table, prompt(N_TOKENS), 7, n_threads=1))
