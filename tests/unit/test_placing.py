"""Where experts go, from settings and room: exact numbers, budgets, whole layers, profiles, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strata import planning
from strata.config import Config, EngineConfig, load_config
from strata.errors import ConfigError
from strata.placing import Placed, op_places, place, save_profile


@pytest.fixture(scope="module", name="demo")
def _demo() -> Any:
    with planning.open_source(Config(), None, None) as source:
        yield planning.prepare(Config(), source, planning.Shape(kv_type="f16", max_seqs=1))


def placed(demo: Any, room: int | None = None, **engine: Any) -> Placed | None:
    return place(EngineConfig(**engine), demo.plan, demo.source.fingerprint, room)


def test_without_a_limit_every_expert_is_resident(demo):
    found = placed(demo)
    assert found.chosen.sum() == found.experts.exists.sum()
    assert sum(found.split.spare) == 0


@pytest.mark.parametrize("n", [1, 7, 100])
def test_exact_numbers(demo, n):
    found = placed(demo, expert_slots=n)
    assert found.chosen.sum() == n == sum(found.split.resident)


def test_none(demo):
    assert placed(demo, expert_slots=0) is None
    assert placed(demo, cpu_moe=True) is None
    assert placed(demo, room=0) is None
    assert placed(demo, room=-5) is None


def test_a_budget_is_kept(demo):
    slot = demo.plan.expert_sets[0].slot_bytes
    for room in (slot, 10 * slot, 57 * slot):
        found = placed(demo, room=room)
        assert found.split.n_bytes(found.experts) <= room + 256 * sum(found.split.slots())
        assert found.chosen.sum() > 0


def test_whole_layers(demo):
    found = placed(demo, n_cpu_moe=4)
    assert not found.adapt
    layers = np.asarray(found.experts.layers)
    assert (found.chosen.any(axis=1) == (layers >= 4)).all()
    with pytest.raises(ConfigError, match="a larger number fits"):
        placed(demo, room=1000, n_cpu_moe=4)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"cpu_moe": True, "n_cpu_moe": 2}, "--cpu-moe leaves all"),
        ({"expert_slots": 3, "n_cpu_moe": 2}, "give one"),
        ({"expert_slots": 3, "cpu_moe": True}, "give one"),
    ],
)
def test_contradictions(demo, engine, words):
    with pytest.raises(ConfigError, match=words):
        placed(demo, **engine)


def test_more_slots_than_room(demo):
    with pytest.raises(ConfigError, match="--expert-slots 50 needs"):
        placed(demo, room=5000, expert_slots=50)


def test_a_profile_decides_who_is_first(demo, tmp_path):
    path = str(tmp_path / "demo.strp")
    first = placed(demo, expert_slots=6, profile_path=path)
    assert any("does not exist yet" in note for note in first.notes)
    hot = [(s, 5) for s in range(first.experts.n_sets)]
    ids = np.full((first.experts.n_sets, 50, 1), 5, np.int32)
    first.heat.note_decoded(ids)
    save_profile(path, demo.plan, first, demo.source.fingerprint, "demo")
    again = placed(demo, expert_slots=6, profile_path=path)
    assert sorted(map(tuple, np.argwhere(again.chosen).tolist())) == sorted(hot)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("expert_slots", "5"),
        ("vram_limit_bytes", "1GiB"),
        ("n_cpu_moe", "1"),
        ("profile_path", "x"),
        ("swap_every_step", "1"),
    ],
)
def test_settings_of_a_device_are_refused_on_the_cpu(flag, value):
    config = load_config({f"engine.{flag}": "true" if flag == "swap_every_step" else value}, environ={})
    with planning.open_source(config, None, None) as source, pytest.raises(ConfigError, match="the backend is cpu"):
        planning.prepare(config, source, planning.Shape(kv_type="f16", max_seqs=1))


@pytest.mark.parametrize(
    ("engine", "experts", "others"),
    [
        ({}, "CPU", "CPU"),
        ({"backend": "cuda"}, "GPU: resident experts; CPU: missed ones", "GPU"),
        ({"backend": "cuda", "cpu_moe": True}, "CPU (no expert has a slot on the GPU)", "GPU"),
        ({"backend": "sim", "expert_slots": 0}, "CPU (no expert has a slot on the sim device)", "sim device"),
    ],
)
def test_where_ops_run(demo, engine, experts, others):
    places = {row.kind: row for row in op_places(EngineConfig(**engine), demo.plan)}
    assert places["experts"].place == experts
    assert places["experts"].n == 6
    assert {row.place for kind, row in places.items() if kind not in {"experts", "sampling"}} == {others}
    assert places["sampling"].place == "CPU"
    assert sum(row.n for row in places.values()) == len(demo.plan.ops) + 1


def test_a_profile_needs_its_folder(demo, tmp_path):
    with pytest.raises(ConfigError, match="its folder does not exist"):
        placed(demo, expert_slots=6, profile_path=str(tmp_path / "missing" / "demo.strp"))


def test_more_slots_than_experts_is_said(demo):
    found = placed(demo, expert_slots=1000)
    assert found.chosen.sum() == found.experts.exists.sum()
    assert any("--expert-slots 1000" in note for note in found.notes)


def test_a_limit_below_the_dense_parts_is_refused():
    config = load_config({"engine.backend": "sim", "engine.vram_limit_bytes": "1KiB"}, environ={})
    with planning.open_source(config, None, None) as source, pytest.raises(ConfigError, match="--vram-limit 1024"):
        planning.prepare(config, source, planning.Shape(kv_type="f16", max_seqs=1))


@pytest.mark.parametrize(
    ("name", "value"), [("handoff_deadline_s", "1e30"), ("handoff_deadline_s", "inf"), ("deadline_scale", "0")]
)
def test_deadlines_have_bounds(name, value):
    with pytest.raises(ConfigError, match=name):
        load_config({f"engine.{name}": value}, environ={})
