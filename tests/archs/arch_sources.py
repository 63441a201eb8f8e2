"""All cases, and registrations for them that need no installed package."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

from arch_cases import CASES
from arch_cases_gqa import GQA_CASES
from arch_cases_layers import LAYER_CASES
from arch_cases_mla import MLA_CASES
from arch_cases_state import STATE_CASES

from strata.arch.registry import Source
from strata.arch.spec import Arch

ALL_CASES = CASES | GQA_CASES | LAYER_CASES | STATE_CASES | MLA_CASES
ROOT = Path(__file__).parents[2]


def shipped_sources() -> list[Source]:
    """What the project's own entry points register, without the package being installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [
        Source(name, "strata-moe", target, lambda target=target: _value(target))
        for name, target in project["entry-points"]["strata.architectures"].items()
    ]


def _value(target: str) -> Arch:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)
