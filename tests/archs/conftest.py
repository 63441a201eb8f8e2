"""Shared by the architecture tests: the registry of the shipped plugins, and tiny files made once a session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from arch_sources import ALL_CASES, shipped_sources

from strata.arch.bind import bind
from strata.arch.registry import Registry
from strata.gguf.reader import read_gguf
from strata.reference.model import Reference
from strata.reference.weights import FileWeights
from strata.testing.conformance import N_TOKENS, prompt, write_case


@pytest.fixture(scope="session")
def registry() -> Registry:
    """The shipped architectures."""
    return Registry(sources=shipped_sources())


@pytest.fixture(scope="session", params=list(ALL_CASES))
def case_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def case_path(case_name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(ALL_CASES[case_name], tmp_path_factory.mktemp("tiny") / f"{case_name}.gguf")


@pytest.fixture(scope="session")
def ours(case_name: str, case_path: Path, registry: Registry) -> Reference:
    """The reference of a tiny model, which has seen the prompt of `ours_logits` last."""
    bound = bind(registry.lookup(ALL_CASES[case_name]["arch"]), read_gguf(case_path))
    return Reference(bound, FileWeights(bound.paths))


@pytest.fixture(scope="session")
def ours_logits(ours: Reference) -> np.ndarray:
    """The reference's logits of the first N_TOKENS tokens."""
    return ours.logits(prompt(N_TOKENS))
