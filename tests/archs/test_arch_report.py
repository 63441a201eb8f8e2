"""The human views name what matters."""

from __future__ import annotations

from pathlib import Path

import pytest
from arch_cases import CASES
from arch_fake_file import changed, fake_file
from arch_sources import ALL_CASES

from strata.arch.bind import bind, inspect_binding
from strata.arch.plan import plan
from strata.arch.registry import Registry
from strata.arch.report import binding_report, kv_bytes_per_token, plan_summary
from strata.gguf.reader import read_gguf


def report(registry: Registry, name: str) -> str:
    case = CASES[name]
    return binding_report(inspect_binding(registry.lookup(case["arch"]), fake_file(case)))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("qwen3moe", ["0 to 1: GQA 4/2 heads of 32; 3 of 8 experts silu 32 by softmax", "tied to the token embedding"]),
        ("gpt-oss", ["0: GQA 4/2 heads of 32, window 24, sinks;", "1: GQA 4/2 heads of 32, sinks;"]),
        ("deepseek2", ["0: MLA absorbed, 3 heads of 40 (rotated 16) and 20, latent 40; dense silu 96"]),
        ("deepseek2", ["1 to 2: MLA absorbed", "by sigmoid, 2 of 4 groups, shared 64"]),
        ("deepseek2-legacy", ["MLA with attn_kv_b"]),
        ("deepseek2-nextn", ["21 a next-token block, which is not run"]),
        ("gpt-oss-scales", ["a scale that this architecture does not apply"]),
    ],
)
def test_binding_report(registry: Registry, name: str, lines: list[str]) -> None:
    text = report(registry, name)
    for line in lines:
        assert line in text


def test_problems_are_listed(registry: Registry) -> None:
    case = changed(CASES["qwen3moe"], drop="output_norm.weight", add={f"extra.{k}": [3] for k in range(9)})
    text = binding_report(inspect_binding(registry.lookup("qwen3moe"), fake_file(case)))
    assert "missing 1:" in text
    assert "output_norm.weight [64] is missing" in text
    assert "unexpected 9:" in text
    assert "and 3 more" in text


def test_plan_summary(case_name: str, case_path: Path, registry: Registry) -> None:
    bound = bind(registry.lookup(ALL_CASES[case_name]["arch"]), read_gguf(case_path))
    table = plan(bound, n_batch=16, n_outputs_max=2)
    text = plan_summary(table)
    assert f"{table.weights_bytes:,}" in text
    assert f"{table.read_bytes_per_token:,}" in text
    assert kv_bytes_per_token(table, "f32") == 4 * table.kv_values_per_token
