"""The planner's arithmetic: liveness and rotary frequencies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.arch.bound import BoundRope
from strata.arch.plan_memory import Value, place_values, round_up
from strata.arch.plan_rope import frequencies
from strata.arch.plan_tables import Rows


def rope(**changes: object) -> BoundRope:
    numbers = {
        "style": "neox",
        "n_rot": 64,
        "base": 150000.0,
        "freq_scale": 1 / 32,
        "yarn": True,
        "n_ctx_orig": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "magnitude": 1.0,
        "magnitude_base": 1.0,
    }
    return BoundRope(**(numbers | changes))  # pyright: ignore[reportArgumentType]


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Value], list[set[int]]]:
    n = draw(st.integers(1, 12))
    values = [Value(k, draw(st.integers(1, 70)), draw(st.sampled_from(list(Rows)))) for k in range(n)]
    uses = draw(st.lists(st.sets(st.integers(0, n - 1), min_size=1, max_size=4), min_size=1, max_size=20))
    return values, uses


@settings(derandomize=True)
@given(programs(), st.integers(1, 9), st.integers(1, 9))
def test_live_values_never_share_bytes(program: tuple[list[Value], list[set[int]]], n_batch: int, n_out: int) -> None:
    values, uses = program
    n_batch = max(n_batch, n_out)
    where, buffers, n_bytes = place_values(values, uses, n_batch, n_out)
    spans: dict[int, tuple[int, int]] = {}
    for value in values:
        if where[value.id] < 0:
            assert all(value.id not in ids for ids in uses)
            continue
        buffer = buffers[where[value.id]]
        assert (buffer.width, buffer.rows) == (value.width, value.rows)
        assert buffer.offset % 64 == 0
        n_rows = n_batch if value.rows == Rows.TOKENS else n_out
        spans[value.id] = (buffer.offset, buffer.offset + 4 * round_up(value.width, 16) * n_rows)
        assert spans[value.id][1] <= n_bytes
    lives = {k: [i for i, ids in enumerate(uses) if k in ids] for k in spans}
    for a in spans:
        for b in spans:
            if a < b and lives[a][0] <= lives[b][-1] and lives[b][0] <= lives[a][-1]:
                assert spans[a][1] <= spans[b][0] or spans[b][1] <= spans[a][0]


def test_freed_space_is_used_again() -> None:
    values = [Value(k, 16, Rows.TOKENS) for k in range(40)]
    _, buffers, n_bytes = place_values(values, [{k, k + 1} for k in range(39)], 4, 1)
    assert n_bytes == 2 * 16 * 4 * 4
    assert len(buffers) == 2


def test_plain_and_linear_frequencies() -> None:
    plain = frequencies(rope(yarn=False, freq_scale=1.0))
    assert plain[0] == 1.0
    assert plain[-1] == pytest.approx(150000.0 ** (-62 / 64))
    assert frequencies(rope(yarn=False, freq_scale=0.25)) == tuple(0.25 * f for f in plain)


def test_yarn_frequencies() -> None:
    """gpt-oss's numbers: pairs 0 to 8 keep their speed, pairs from 18 on are slowed 32 times."""
    plain, yarn = np.array(frequencies(rope(yarn=False, freq_scale=1.0))), np.array(frequencies(rope()))

    def pair(turns: float) -> float:
        return 64 * math.log(4096 / (turns * 2 * math.pi)) / (2 * math.log(150000.0))

    low, high = math.floor(pair(32)), math.ceil(pair(1))
    assert (low, high) == (8, 18)
    np.testing.assert_array_equal(yarn[: low + 1], plain[: low + 1])
    np.testing.assert_allclose(yarn[high:], plain[high:] / 32, rtol=1e-15)
    slowdown = plain[low:high] / yarn[low:high]
    assert (np.diff(slowdown) > 0).all()
    assert slowdown[5] == pytest.approx(1 / (0.5 / 32 + 0.5))
