"""Heat against a naive oracle, and the detector of topics."""

import numpy as np
import pytest
from cache_kit import mixed, skewed, uniform
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.engine.heat import PROFILE_TOKENS, SHIFT_KEEP_FRAC, Counts, Heat, ShiftDetector

STEPS = st.lists(
    st.lists(st.lists(st.integers(-1, 3), min_size=2, max_size=2), min_size=1, max_size=4), min_size=1, max_size=12
)


def as_ids(step: list[list[int]]) -> np.ndarray:
    """[n_sets = 2, n_tokens, k = 1] from one pair of ids a token."""
    return np.asarray(step, np.int32).T[:, :, None]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(STEPS, st.floats(0.5, 50))
def test_counts_are_those_of_the_definition(steps, half_life):
    counts = Counts((2, 4), half_life)
    heat = Heat(2, 4, recent_tokens=half_life, prior_tokens=0)
    age = 0
    seen: list[tuple[int, int, int]] = []  # set, expert, age when seen
    for step in steps:
        ids = as_ids(step)
        age += ids.shape[1]
        flat = [s * 4 + e for token in step for s, e in enumerate(token) if e >= 0]
        seen += [(i // 4, i % 4, age) for i in flat]
        counts.add(np.asarray(flat, np.intp), len(step))
        heat.note_decoded(ids)
    expected = np.zeros((2, 4))
    for s, e, at in seen:
        expected[s, e] += 0.5 ** ((age - at) / half_life)
    assert np.allclose(counts.values(), expected, rtol=1e-9, atol=1e-12)
    assert np.allclose(heat.values(), expected, rtol=1e-9, atol=1e-12)


def test_long_runs_stay_finite_and_reach_the_known_limit():
    counts = Counts((1, 1), 2.0)
    for _ in range(1000):  # the unit doubles every two tokens: 2^500 without rescaling
        counts.add(np.asarray([0]), 1)
    limit = 1 / (1 - 0.5**0.5)
    assert counts.values()[0, 0] == pytest.approx(limit)
    assert counts.mass == pytest.approx(limit)
    with pytest.raises(ValueError, match="half-life of 0"):
        Counts((1, 1), 0)


def test_prompts_are_kept_apart():
    experts = uniform()
    heat = Heat(experts.n_sets, experts.width)
    heat.note_prompt(skewed(experts, 50, 1))
    assert heat.n_prompt == 50
    assert heat.prompt.sum() == 50 * experts.token_cycle
    assert heat.n_decoded == 0
    assert not heat.values().any(), "a prompt gives no reason to swap"


def test_the_lasting_memory_steadies_and_gives_way_after_a_change():
    heat = Heat(1, 4, recent_tokens=8, lasting_tokens=1e6, prior_tokens=10)
    for _ in range(1000):
        heat.note_decoded(np.asarray([[[0]]], np.int32))
    for _ in range(64):
        heat.note_decoded(np.asarray([[[1]]], np.int32))
    before = heat.values()[0]
    assert before[0] == pytest.approx(10 * 1000 / 1064 + heat.recent.values()[0, 0], rel=1e-3)
    heat.shift()
    after = heat.values()[0]
    assert np.allclose(after, before * SHIFT_KEEP_FRAC)
    for _ in range(5000):
        heat.note_decoded(np.asarray([[[2]]], np.int32))
    assert heat.values()[0, 0] == pytest.approx(10 * 1000 / 6064, rel=0.02), "trust comes back"


def test_a_ranking_warms_the_heat_and_comes_back():
    experts = mixed()
    rng = np.random.default_rng(5)
    ranking = rng.permutation(np.argwhere(experts.exists)).astype(np.int32)
    heat = Heat(experts.n_sets, experts.width)
    heat.seed(ranking, experts.token_cycle)
    values = heat.values()[ranking[:, 0], ranking[:, 1]]
    assert (np.diff(values) < 0).all()
    assert heat.lasting.values().sum() == pytest.approx(PROFILE_TOKENS * experts.token_cycle)
    assert heat.lasting.values().max() <= PROFILE_TOKENS, "nobody is used more than once a token"
    again = heat.ranking()
    assert len(again) == experts.exists.size
    assert np.array_equal(again[: len(ranking)], ranking)
    empty = Heat(2, 3)
    empty.seed(np.zeros((0, 2), np.int32), 4)
    assert not empty.values().any()


def test_equal_heat_is_ranked_by_prompts_then_round_the_sets():
    heat = Heat(2, 2)
    assert heat.ranking().tolist() == [[0, 0], [1, 0], [0, 1], [1, 1]]
    heat.note_prompt(np.asarray([[[1]], [[-1]]], np.int32))
    assert heat.ranking().tolist()[0] == [0, 1]


def noisy(rng: np.random.Generator, share: float, uses: int) -> int:
    return int(rng.binomial(uses, share))


@pytest.mark.parametrize("uses", [24, 144, 384])
def test_steady_hits_are_no_change_of_topic(uses):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        detector = ShiftDetector()
        assert not any(detector.note(noisy(rng, 0.45, uses), uses) for _ in range(1000))


@pytest.mark.parametrize(("uses", "after"), [(24, 0.15), (144, 0.25), (384, 0.3)])
def test_a_change_is_noticed_once_and_soon(uses, after):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        detector = ShiftDetector()
        for _ in range(200):
            assert not detector.note(noisy(rng, 0.45, uses), uses)
        noticed = [i for i in range(200) if detector.note(noisy(rng, after, uses), uses)]
        assert len(noticed) == 1
        assert noticed[0] < 20


def test_a_rise_and_empty_steps_are_no_change():
    detector = ShiftDetector()
    assert not any(detector.note(10, 100) for _ in range(200))
    assert not any(detector.note(90, 100) for _ in range(200))
    assert not any(detector.note(0, 0) for _ in range(200))
