"""Plans are reproducible, well laid out, and speak the header's numbers."""

from __future__ import annotations

import re
from enum import IntEnum
from itertools import pairwise
from pathlib import Path

import arch_golden
import msgspec
import pytest
from arch_sources import ALL_CASES, ROOT, shipped_sources

from strata.arch import plan_tables
from strata.arch.bind import bind
from strata.arch.plan import plan
from strata.arch.plan_tables import ModelPlan, Role, Rows
from strata.arch.registry import Registry
from strata.gguf.quants import packed_bytes
from strata.gguf.reader import read_gguf
from strata.testing.conformance import write_case

ENUMS = {
    "Act": "ACT",
    "Role": "ROLE",
    "Rows": "ROWS",
    "RopeStyle": "ROPE",
    "NormKind": "NORM",
    "Glu": "GLU",
    "Scores": "SCORES",
    "WindowKind": "WINDOW",
}


@pytest.fixture(scope="module")
def header() -> dict[str, str]:
    text = (ROOT / "native/include/strata.h").read_text()
    return dict(re.findall(r"#define STRATA_(\w+)\s+(?:\\\s+)?(-?\d+)", text))


@pytest.fixture(scope="module")
def table(case_name: str, case_path: Path, registry: Registry) -> ModelPlan:
    bound = bind(registry.lookup(ALL_CASES[case_name]["arch"]), read_gguf(case_path))
    return plan(bound, n_batch=48, n_outputs_max=5)


@pytest.mark.parametrize("name", arch_golden.GOLDEN)
def test_golden(name: str, tmp_path: Path) -> None:
    made = arch_golden.made(name, write_case(ALL_CASES[name], tmp_path / f"tiny-{name}.gguf"))
    stored = arch_golden.golden_path(name).read_text()
    assert arch_golden.text(made) == stored, "if the change is meant: python tests/archs/arch_golden.py"
    assert msgspec.json.decode(stored, type=ModelPlan) == made


def test_every_architecture_has_a_golden_plan() -> None:
    assert {source.name for source in shipped_sources()} == set(arch_golden.GOLDEN)


@pytest.mark.parametrize("name", ENUMS)
def test_enums_are_the_headers(name: str, header: dict[str, str]) -> None:
    enum: type[IntEnum] = getattr(plan_tables, name)
    assert {m.name: str(m.value) for m in enum} == {m.name: header[f"{ENUMS[name]}_{m.name}"] for m in enum}


def test_enums_are_all_checked() -> None:
    enums = {name for name, one in vars(plan_tables).items() if isinstance(one, type) and issubclass(one, IntEnum)}
    assert enums - {"IntEnum"} == set(ENUMS)


def test_ops_use_the_headers_words(table: ModelPlan, header: dict[str, str]) -> None:
    for op in table.ops:
        word = op.kind.upper()
        assert f"OP_{word}" in header
        assert all(f"{word}_I_{name.upper()}" in header for name in op.i), op
        assert all(f"{word}_F_{name.upper()}" in header for name in op.f), op
        assert len(op.ins) <= 4
        assert len(op.outs) <= 4
        assert len(op.weights) <= 12


def test_every_tensor_of_the_file_is_in_the_plan_once(table: ModelPlan, case_path: Path, registry: Registry) -> None:
    file = read_gguf(case_path)
    bound = bind(registry.lookup(file.metadata["general.architecture"]), file)
    planned = {tensor.name for tensor in table.tensors}
    other_length = {name for name in file.tensors if name.startswith("rope_factors") and name not in planned}
    assert planned | set(bound.ignored) | other_length == set(file.tensors)
    assert len(other_length) <= 1
    assert planned.isdisjoint(bound.ignored)


def test_weights_do_not_overlap(table: ModelPlan) -> None:
    spans: list[tuple[int, int]] = []
    for tensor in table.tensors:
        vector = tensor.role in (Role.VECTOR, Role.EXPERT_VECTOR)
        n_bytes = 4 * tensor.n_cols if vector else packed_bytes(tensor.type, tensor.n_rows, tensor.n_cols)
        assert tensor.arena_offset % 64 == 0
        for m in range(tensor.n_mats):
            begin = tensor.arena_offset + m * tensor.mat_stride_bytes
            spans.append((begin, begin + n_bytes))
    spans.sort()
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert spans[-1][1] <= table.weights_bytes


def test_slots_hold_their_parts_in_order(table: ModelPlan) -> None:
    for one in table.expert_sets:
        at = one.arena_offset
        for part in ("gate", "up", "down", "gate_bias", "up_bias", "down_bias", "gate_scale", "up_scale", "down_scale"):
            if getattr(one, part) < 0:
                continue
            tensor = table.tensors[getattr(one, part)]
            assert tensor.arena_offset == at
            assert tensor.mat_stride_bytes == one.slot_bytes
            matrix = tensor.role == Role.EXPERT_MATRIX
            size = packed_bytes(tensor.type, tensor.n_rows, tensor.n_cols) if matrix else 4 * tensor.n_cols
            at += (size + 63) // 64 * 64
        assert at == one.arena_offset + one.slot_bytes


def test_no_op_writes_over_what_it_reads(table: ModelPlan) -> None:
    rows = {Rows.TOKENS: table.n_batch, Rows.OUTPUTS: table.n_outputs_max}

    def span(buffer_id: int) -> tuple[int, int]:
        buffer = table.buffers[buffer_id]
        assert buffer.offset % 64 == 0
        end = buffer.offset + 4 * buffer.row_stride * rows[Rows(buffer.rows)]
        assert end <= table.activations_bytes
        return buffer.offset, end

    for op in table.ops:
        for out in op.outs:
            others = {k for k in (*op.ins, *op.outs) if k >= 0 and k != out}
            (begin, end) = span(out)
            assert all(span(k)[1] <= begin or end <= span(k)[0] for k in others), op


def test_one_cache_for_each_attention(table: ModelPlan) -> None:
    used = [
        op.i.get("kv_layer", 0)
        for op in table.ops
        if op.kind == "index" or (op.kind == "attention" and len(op.ins) > 1)
    ]
    assert used == list(range(len(table.kv_layers)))
    assert table.kv_values_per_token == sum(
        kv.n_head_kv * (kv.head_k + (0 if kv.v_in_k else kv.head_v)) for kv in table.kv_layers
    )


def test_sizes_out_of_range_are_refused(case_path: Path, registry: Registry) -> None:
    file = read_gguf(case_path)
    bound = bind(registry.lookup(file.metadata["general.architecture"]), file)
    with pytest.raises(ValueError, match="n_outputs_max is 9"):
        plan(bound, n_batch=8, n_outputs_max=9)
