"""The native engine computes what the reference says, for every tiny model, in two chunk sizes with the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from arch_native import library_path, native_logits

from strata.arch.plan import plan
from strata.reference.model import Reference
from strata.testing import oracle
from strata.testing.conformance import N_TOKENS, prompt, step_tokens

CHUNK = 64

pytestmark = pytest.mark.skipif(library_path() is None, reason="libstrata is not built")


def test_native_equals_reference(ours: Reference, ours_logits: np.ndarray) -> None:
    chunk, small = step_tokens(ours.bound, CHUNK), step_tokens(ours.bound, 7)
    table = plan(ours.bound, n_batch=chunk, n_outputs_max=chunk)
    native = native_logits(table, prompt(N_TOKENS), chunk)
    assert oracle.kl_divergence(ours_logits, native).max() < 1e-9
    assert np.array_equal(native, native_logits(table, prompt(N_TOKENS), small, n_threads=1))
