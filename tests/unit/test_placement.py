"""Splitting a budget, first choices and the yardstick, against naive oracles; size classes of a real plan."""

import itertools

import numpy as np
import pytest
from cache_kit import mixed, uniform
from hypothesis import given, settings
from hypothesis import strategies as st

from strata import planning
from strata.arch.bind import bind
from strata.arch.plan import plan as make_plan
from strata.config import load_config
from strata.engine.placement import FLOOR_FRAC, best_fixed, exact_slots, experts_of, hit_share, split_slots


def heat_of(experts, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).exponential(size=experts.exists.shape) ** 3 * experts.exists


def total_bytes(experts) -> int:
    return sum(n * experts.slot_bytes[c] for n, c in zip(experts.n_expert, experts.class_of, strict=True))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.sampled_from([uniform(), mixed()]), st.integers(0, 50_000), st.integers(0, 9), st.integers(0, 1000))
def test_a_split_keeps_its_promises(experts, budget, spares, seed):
    heat = heat_of(experts, seed)
    split, chosen = split_slots(experts, heat, budget, spares=spares)
    assert split.n_bytes(experts) <= budget
    assert not (chosen & ~experts.exists).any()
    kinds = np.asarray(experts.class_of)
    held = [int(chosen[kinds == c].sum()) for c in range(experts.n_classes)]
    assert tuple(held) == split.resident
    assert all(spare <= spares for spare in split.spare)
    assert (chosen.sum(axis=1) >= split.floor).all()
    room = budget - split.n_bytes(experts)
    for c in range(experts.n_classes):
        outside = (experts.exists & ~chosen)[kinds == c]
        assert not outside.any() or room < experts.slot_bytes[c], "room for one more was left over"
    everything = sum(experts.slot_bytes) * 2
    if budget >= everything and budget < total_bytes(experts):
        assert all(split.resident), "no class is left empty"
        assert not split.note
        full = [not (experts.exists & ~chosen)[kinds == c].any() for c in range(experts.n_classes)]
        assert all(bool(spare) == (spares > 0 and not f) for spare, f in zip(split.spare, full, strict=True))
    if budget >= total_bytes(experts):
        assert chosen.sum() == experts.exists.sum()
        assert not any(split.spare)


def test_nothing_known_means_even_shares():
    experts = uniform(n_sets=4, n_expert=16, slot_bytes=100)
    split, chosen = split_slots(experts, np.zeros((4, 16)), 24 * 100, spares=0)
    assert chosen.sum(axis=1).tolist() == [6, 6, 6, 6]
    assert split.floor == (1, 1, 1, 1)
    assert FLOOR_FRAC * 6 >= 1


def test_heat_beats_evenness_down_to_the_floor():
    experts = uniform(n_sets=4, n_expert=16, slot_bytes=100)
    heat = np.zeros((4, 16))
    heat[2] = 100 - np.arange(16)
    split, chosen = split_slots(experts, heat, 19 * 100, spares=0)
    assert chosen[2].all()
    assert chosen.sum(axis=1).tolist() == [1, 1, 16, 1]
    assert split.floor == (1, 1, 1, 1)


def test_too_little_for_every_class_serves_the_hottest_and_says_so():
    experts = mixed()
    heat = np.zeros(experts.exists.shape)
    heat[1, 3] = 9.0  # of the class with 1500 bytes
    split, chosen = split_slots(experts, heat, 1600)
    assert chosen[1, 3]
    assert split.resident == (0, 1, 0)
    assert split.note == "size classes without a slot: 0, 2"
    nothing, chosen = split_slots(experts, heat, 0)
    assert nothing.resident == (0, 0, 0)
    assert not chosen.any()


@pytest.mark.parametrize("n", [0, 1, 7, 35, 36, 99])
def test_exact_numbers_of_slots(n):
    experts = mixed()
    split, chosen = exact_slots(experts, heat_of(experts, 1), n)
    assert sum(split.resident) == chosen.sum() == min(n, int(experts.exists.sum()))
    assert (n >= experts.exists.sum()) == (not any(split.spare) and n > 0)
    if n == 1:
        assert sum(split.spare) == 1, "one slot can still be swapped"


def test_the_yardstick_is_the_best_of_all_choices():
    experts = uniform(n_sets=2, n_expert=4)
    uses = np.random.default_rng(3).integers(0, 20, (2, 4)).astype(float)
    best = max(sum(c) for c in itertools.combinations(uses.reshape(-1), 3))
    chosen = best_fixed(experts, uses, (3,))
    assert chosen.sum() == 3
    assert hit_share(uses, chosen) == best / uses.sum()
    assert hit_share(np.zeros((2, 4)), chosen) == 0.0


def test_the_yardstick_keeps_to_its_classes():
    experts = mixed()
    chosen = best_fixed(experts, heat_of(experts, 2), (3, 2, 1))
    kinds = np.asarray(experts.class_of)
    assert [int(chosen[kinds == c].sum()) for c in range(3)] == [3, 2, 1]


def of_model(synthetic: str | None):
    config = load_config({})
    with planning.open_source(config, synthetic, None) as source:
        plan = make_plan(bind(source.arch(config), source.file), n_batch=1, n_outputs_max=1)
    return plan, experts_of(plan)


def test_size_classes_of_models():
    plan, experts = of_model("qwen3-30b-a3b")  # down is wider in some layers
    assert (experts.n_sets, experts.width, experts.token_cycle) == (48, 128, 384)
    assert experts.n_classes == 2
    for one, kind in zip(plan.expert_sets, experts.class_of, strict=True):
        assert one.slot_bytes <= experts.slot_bytes[kind] < one.slot_bytes + 256
        down = [
            plan.tensors[other.down].type
            for other, c in zip(plan.expert_sets, experts.class_of, strict=True)
            if c == kind
        ]
        assert set(down) == {plan.tensors[one.down].type}
    _, gpt = of_model("gpt-oss-120b")
    assert (gpt.n_sets, gpt.n_classes, gpt.token_cycle) == (36, 1, 144)
    assert gpt.slot_bytes[0] % 256 == 0
    _, dense_first = of_model("tiny-deepseek2")
    assert dense_first.layers == (1, 2)
    _, demo = of_model(None)
    assert (demo.n_sets, demo.width) == (6, 32)
