"""Shared by the architecture tests: the registry of the shipped plugins, and tiny files made once a session."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from cases import CASES
from tiny import write_case
from words import WORD_CASES, WORDS

from strata.arch.registry import Registry, Source
from strata.arch.spec import Arch

ALL_CASES = CASES | WORD_CASES
ROOT = Path(__file__).parents[2]


def shipped_sources() -> list[Source]:
    """What the project's own entry points register, without the package being installed, and the tests' own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Source(name, "tests", name, lambda arch=arch: arch) for name, arch in WORDS.items()] + [
        Source(name, "strata-moe", target, lambda target=target: _value(target))
        for name, target in project["entry-points"]["strata.architectures"].items()
    ]


def _value(target: str) -> Arch:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


@pytest.fixture(scope="session")
def registry() -> Registry:
    """The shipped architectures and those of words.py."""
    return Registry(sources=shipped_sources())


@pytest.fixture(scope="session", params=list(ALL_CASES))
def case_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def case_path(case_name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(ALL_CASES[case_name], tmp_path_factory.mktemp("tiny") / f"{case_name}.gguf")
