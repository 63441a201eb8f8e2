"""Shared by the architecture tests: the registry of the shipped plugins, and tiny files made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest
from arch_sources import ALL_CASES, shipped_sources
from arch_tiny import write_case

from strata.arch.registry import Registry


@pytest.fixture(scope="session")
def registry() -> Registry:
    """The shipped architectures and those of arch_words.py."""
    return Registry(sources=shipped_sources())


@pytest.fixture(scope="session", params=list(ALL_CASES))
def case_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def case_path(case_name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(ALL_CASES[case_name], tmp_path_factory.mktemp("tiny") / f"{case_name}.gguf")
