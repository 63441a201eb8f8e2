"""Two readings of every tiny model agree: ours against llama.cpp's, and the plan against the bound architecture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from strata.arch.bound import BoundMoe
from strata.arch.plan import plan
from strata.reference.model import Reference
from strata.reference.walk import PlanWalk
from strata.reference.weights import FileWeights
from strata.testing import oracle
from strata.testing.conformance import N_TOKENS, agree, prompt, step_tokens

CHUNK = 37


@pytest.mark.peer
def test_reference_equals_llama_cpp(case_path: Path, ours: Reference, ours_logits: np.ndarray) -> None:
    theirs = oracle.logits(case_path, prompt(N_TOKENS), n_threads=1)
    assert 0.8 < theirs.std() < 12
    assert agree(theirs, ours_logits, ours.bound)


def test_plan_equals_reference(ours: Reference, ours_logits: np.ndarray) -> None:
    chunk = step_tokens(ours.bound, CHUNK)
    table = plan(ours.bound, n_batch=chunk, n_outputs_max=chunk)
    walked = PlanWalk(table, FileWeights(table.paths)).logits(prompt(N_TOKENS), chunk)
    np.testing.assert_allclose(walked, ours_logits, rtol=0, atol=1e-9)


def test_router_spreads(ours: Reference, ours_logits: np.ndarray) -> None:
    """A routing that always takes the same experts would hide mistakes."""
    assert len(ours_logits) == N_TOKENS
    chosen = {expert for _, ids in ours.routing for expert in ids}
    assert len(chosen) >= 6 or not any(isinstance(layer.ffn, BoundMoe) for layer in ours.bound.layers)
