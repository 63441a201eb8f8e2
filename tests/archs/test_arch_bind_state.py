"""Binding of recurrent layers: which ones they are, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from arch_cases import N_EMBD, Case
from arch_cases_state import STATE_CASES
from arch_fake_file import changed, fake_file

from strata.arch.bind import bind, inspect_binding
from strata.arch.bound import BoundArch, BoundGqa
from strata.arch.plan import plan
from strata.arch.registry import Registry
from strata.arch.report import binding_report, plan_summary
from strata.errors import BindError

LFM = STATE_CASES["lfm2moe"]


def bound_of(registry: Registry, case: Case) -> BoundArch:
    return bind(registry.lookup(case["arch"]), fake_file(case))


def kinds(bound: BoundArch) -> str:
    """A for attention, r for a recurrent layer."""
    return "".join("A" if isinstance(layer.attention, BoundGqa) else "r" for layer in bound.layers)


def key(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


def test_layers_without_kv_heads_are_recurrent(registry: Registry) -> None:
    assert kinds(bound_of(registry, LFM)) == "rArr"


def test_head_counts_may_be_given_by_layer(registry: Registry) -> None:
    by_layer = changed(LFM, **key("attention.head_count", [0, 2, 0, 0]))
    assert bound_of(registry, by_layer).layers == bound_of(registry, LFM).layers


BAD_KEYS: list[tuple[Case, str, Any, str]] = [
    (LFM, "shortconv.l_cache", 1, "l_cache is 1; accepted: 2 to 64"),
    (LFM, "shortconv.l_cache", None, "l_cache is missing"),
    (LFM, "attention.head_count_kv", [0, 1], "array of block_count"),
    (LFM, "attention.head_count_kv", [0, 3, 0, 0], "accepted: 0 to 2"),
    (LFM, "attention.head_count", [2, 0, 2, 2], "head_count_kv is 1; accepted: a divisor of head_count"),
    (LFM, "attention.head_count", 0, r"head_count is \[0, 0, 0, 0\]; accepted: 1"),
]


@pytest.mark.parametrize(("case", "name", "value", "message"), BAD_KEYS, ids=[f"{b[1]}-{b[2]}" for b in BAD_KEYS])
def test_bad_key(registry: Registry, case: Case, name: str, value: Any, message: str) -> None:
    with pytest.raises(BindError, match=message):
        bound_of(registry, changed(case, **key(name, value)))


BAD_TENSORS: list[tuple[Case, dict[str, Any], str]] = [
    (LFM, {"drop": "blk.0.shortconv.conv.weight"}, r"blk.0.shortconv.conv.weight \[3, 64\] is missing"),
    (LFM, {"add": {"blk.0.shortconv.in_proj.weight": [N_EMBD, N_EMBD]}}, r"expected \[64, 192\]"),
    (LFM, {"add": {"blk.1.shortconv.conv.weight": [3, N_EMBD]}}, "blk.1.shortconv.conv.weight"),
    (LFM, {"drop": "token_embd_norm.weight"}, "token_embd_norm.weight"),
]


@pytest.mark.parametrize(("case", "change", "message"), BAD_TENSORS, ids=[str(b[1]) for b in BAD_TENSORS])
def test_bad_tensor(registry: Registry, case: Case, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BindError, match=message):
        bound_of(registry, changed(case, **change))


def test_reports_name_the_mixer_and_its_states(registry: Registry) -> None:
    text = binding_report(inspect_binding(registry.lookup("lfm2moe"), fake_file(LFM)))
    assert "0: short convolution of 64 channels over 3 tokens; dense silu 96" in text
    table = plan(bound_of(registry, LFM), n_batch=8, n_outputs_max=1)
    assert [state.n_floats for state in table.states] == [2 * N_EMBD] * 3
    assert f"states         {4 * 3 * 2 * N_EMBD:,} bytes a sequence" in plan_summary(table)
