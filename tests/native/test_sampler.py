"""The native sampler against naive numpy: every filter, penalties, DRY, draws, log-probabilities, failures, tiers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_kit import Plan, Rows
from sampler_kit import (
    Params,
    Sampled,
    adjust,
    draw,
    fill_sample,
    filtered,
    native_sample,
    probabilities,
    sampled,
)

E_ARGUMENT, E_NUMERIC, E_UNSUPPORTED = -1, -6, -8
TIERS = (0, 1, 2, 3)


def normal_logits(seed: int, n_vocab: int = 97, scale: float = 3.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return (np.random.default_rng(seed).standard_normal(n_vocab) * scale).astype(np.float32)


def reference(abi: Any, logits: Any, params: Params) -> int:
    """Return the token that the naive sampler draws with the native generator's numbers."""
    if params.temperature <= 0:
        return int(np.argmax(adjust(logits, params)))
    uniform = abi.strata_test_uniform(params.seed, params.counter, 0)
    candidates = filtered(logits, params, abi.strata_test_uniform(params.seed, params.counter, 1))
    off = Params()
    names = ("top_k", "top_p", "min_p", "typical_p", "top_n_sigma")
    if all(getattr(params, name) == getattr(off, name) for name in names):
        candidates.sort(key=lambda c: c[1])  # nothing to sort for: the vocabulary is walked by id
    return draw(candidates, params.temperature, uniform)


def test_philox_known_answers(abi: Any, abi_ffi: Any) -> None:
    """The three known answers that the generator's authors publish for philox4x32-10."""
    cases = [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ]
    for counter, key, expected in cases:
        out = abi_ffi.new("uint32_t[4]")
        abi.strata_test_philox(abi_ffi.new("uint32_t[4]", counter), *key, out)
        assert tuple(out) == expected


def test_uniform_is_uniform_and_streams_differ(abi: Any) -> None:
    draws = np.array([[abi.strata_test_uniform(7, counter, stream) for counter in range(4000)] for stream in (0, 1)])
    assert draws.min() >= 0
    assert draws.max() < 1
    for row in draws:
        counts = np.histogram(row, bins=20, range=(0, 1))[0]
        assert float(((counts - 200.0) ** 2 / 200.0).sum()) < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    assert abs(float(np.corrcoef(draws)[0, 1])) < 0.06


@pytest.mark.parametrize("tier", TIERS)
def test_greedy_takes_the_lowest_id_of_equals(abi: Any, abi_ffi: Any, tier: int) -> None:
    logits = np.full(300, -2.5, np.float32)
    logits[[41, 207, 299]] = 1.5
    got = native_sample(abi_ffi, abi, logits, Params(temperature=0), tier)
    if got.status == E_UNSUPPORTED:
        pytest.skip("this processor has no such tier")
    assert got.token == 41
    assert native_sample(abi_ffi, abi, logits, Params(temperature=0, bias=((41, -0.5),)), tier).token == 207
    assert native_sample(abi_ffi, abi, logits, Params(temperature=0, allowed=(3, 299)), tier).token == 299


def test_greedy_ignores_the_filters_and_xtc(abi: Any, abi_ffi: Any) -> None:
    logits = normal_logits(1)
    params = Params(temperature=0, xtc_probability=1, xtc_threshold=0.01, typical_p=0.25, top_k=3, n_logprobs=0)
    assert native_sample(abi_ffi, abi, logits, params).token == int(np.argmax(logits))


FILTERS = {
    "none": {},
    "top-k": {"top_k": 5},
    "top-k of more than all": {"top_k": 1000},
    "top-p": {"top_p": 0.75},
    "top-p, flat": {"top_p": 0.96875},
    "top-p of 0": {"top_p": 0.0},
    "min-p": {"min_p": 0.0625},
    "typical": {"typical_p": 0.5},
    "typical after top-k": {"typical_p": 0.75, "top_k": 12},
    "sigma": {"top_n_sigma": 1.0},
    "sigma and top-p": {"top_n_sigma": 1.5, "top_p": 0.875},
    "sigma, top-k, min-keep": {"top_n_sigma": 0.25, "top_k": 20, "min_keep": 9},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.0625},
    "xtc after top-k": {"xtc_probability": 1.0, "xtc_threshold": 0.125, "top_k": 10},
    "xtc and min-keep": {"xtc_probability": 1.0, "xtc_threshold": 0.0625, "top_k": 4, "min_keep": 3},
    "all": {"top_n_sigma": 2.0, "top_k": 30, "typical_p": 0.9375, "top_p": 0.875, "min_p": 0.03125},
    "min-keep": {"top_p": 0.125, "min_p": 0.5, "min_keep": 6},
    "min-p and min-keep": {"min_p": 0.875, "min_keep": 8},
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("scale", [0.25, 2.0, 6.0])
def test_each_filter_draws_what_the_naive_sampler_draws(abi: Any, abi_ffi: Any, name: str, scale: float) -> None:
    logits = normal_logits(len(name), scale=scale)
    logits[[5, 17]] = -np.inf
    seen = set()
    for counter in range(60):
        params = Params(seed=99, counter=counter, temperature=1.25, **FILTERS[name])
        got = native_sample(abi_ffi, abi, logits, params)
        assert (got.status, got.token) == (0, reference(abi, logits, params)), counter
        seen.add(got.token)
    if name not in ("top-p of 0",) and scale < 6:
        assert len(seen) > 1  # the filter left a choice


def test_a_vocabulary_of_several_partial_sums(abi: Any, abi_ffi: Any) -> None:
    """Draws from all of it, and from the head of a flat distribution."""
    logits = normal_logits(5, 5000, 0.5)
    for counter in range(40):
        for fields in ({}, {"top_p": 0.9375}, {"min_p": 0.25}, {"top_k": 300}):
            params = Params(seed=3, counter=counter, **fields)
            assert native_sample(abi_ffi, abi, logits, params).token == reference(abi, logits, params)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_parameters_draw_what_the_naive_sampler_draws(abi: Any, abi_ffi: Any, data: Any) -> None:
    n_vocab = data.draw(st.integers(2, 60))
    logits = normal_logits(data.draw(st.integers(0, 2**32)), n_vocab, data.draw(st.sampled_from([0.5, 2.0, 5.0])))
    tokens = st.integers(0, n_vocab - 1)
    params = Params(
        temperature=data.draw(st.sampled_from([0.0, 0.25, 1.0, 1.75])),
        top_k=data.draw(st.sampled_from([0, 0, 1, 4, 40])),
        top_p=data.draw(st.sampled_from([1.0, 1.0, 0.5, 0.9375])),
        min_p=data.draw(st.sampled_from([0.0, 0.0, 0.0625, 0.5])),
        typical_p=data.draw(st.sampled_from([1.0, 1.0, 0.25, 0.875])),
        top_n_sigma=data.draw(st.sampled_from([0.0, 0.0, 0.5, 1.5])),
        xtc_probability=data.draw(st.sampled_from([0.0, 0.0, 0.5, 1.0])),
        xtc_threshold=data.draw(st.sampled_from([0.015625, 0.125, 0.75])),
        repeat_penalty=data.draw(st.sampled_from([1.0, 1.25, 0.5])),
        presence_penalty=data.draw(st.sampled_from([0.0, 0.75, -0.5])),
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.375])),
        penalty_last_n=data.draw(st.sampled_from([-1, 0, 3, 64])),
        dry_multiplier=data.draw(st.sampled_from([0.0, 0.75])),
        dry_allowed_length=data.draw(st.integers(1, 3)),
        dry_last_n=data.draw(st.sampled_from([-1, 0, 8])),
        seed=data.draw(st.integers(0, 2**64 - 1)),
        counter=data.draw(st.integers(0, 2**40)),
        min_keep=data.draw(st.sampled_from([1, 1, 3])),
        history=data.draw(st.lists(st.integers(0, min(3, n_vocab - 1)), max_size=30)),
        breakers=data.draw(st.lists(tokens, max_size=2)),
        bias=data.draw(st.lists(st.tuples(tokens, st.sampled_from([-math.inf, -1.5, 2.25])), max_size=3)),
        allowed=data.draw(st.none() | st.lists(tokens, min_size=1)),
    )
    got = native_sample(abi_ffi, abi, logits, params)
    if bool(np.all(np.isneginf(adjust(logits, params)))):
        assert (got.status, got.token) == (E_ARGUMENT, -1)
    else:
        assert (got.status, got.token) == (0, reference(abi, logits, params))


def test_dry_punishes_the_continuation_of_the_longest_repeat(abi: Any, abi_ffi: Any) -> None:
    """History a b c d x a b c: d would continue a repeat of three; a breaker inside cuts it to one."""
    logits = np.zeros(12, np.float32)
    logits[4] = 2.0
    history = [1, 2, 3, 4, 9, 1, 2, 3]
    off = Params(temperature=0, history=history)
    on = replace(off, dry_multiplier=0.75, dry_base=2.0, dry_allowed_length=2)  # 0.75 * 2 ** (3 - 2) = 1.5 < 2
    assert native_sample(abi_ffi, abi, logits, off).token == 4
    assert native_sample(abi_ffi, abi, logits, on).token == 4
    assert native_sample(abi_ffi, abi, logits, replace(on, dry_multiplier=1.25)).token == 0  # 2.5 > 2
    assert native_sample(abi_ffi, abi, logits, replace(on, dry_multiplier=9, breakers=(2,))).token == 4
    assert native_sample(abi_ffi, abi, logits, replace(on, dry_multiplier=9, dry_last_n=4)).token == 4


def test_long_dry_penalty_stays_finite(abi: Any, abi_ffi: Any) -> None:
    params = Params(history=[5] * 3000, dry_multiplier=0.8, dry_base=1.75, top_k=3, n_logprobs=0)
    got = native_sample(abi_ffi, abi, normal_logits(2), params)
    assert got.status == 0
    assert got.token != 5


@pytest.mark.parametrize("n", [0, 1, 5, 20])
def test_logprobs_are_those_of_the_raw_distribution(abi: Any, abi_ffi: Any, n: int) -> None:
    logits = normal_logits(8, 3000)
    params = Params(n_logprobs=n, bias=((4, 50.0),), temperature=0.5, top_k=1)
    got = native_sample(abi_ffi, abi, logits, params)
    x = logits.astype(np.float64)
    expected = x - x.max() - math.log(float(np.exp(x - x.max()).sum()))
    assert got.token == 4
    assert got.logprob == pytest.approx(expected[4], abs=1e-5)
    best = np.argsort(-expected, kind="stable")[:n]
    assert [token for token, _ in got.top] == best.tolist()
    np.testing.assert_allclose([value for _, value in got.top], expected[best], atol=1e-5)


def test_draws_follow_the_distribution(abi: Any, abi_ffi: Any) -> None:
    logits = normal_logits(11, 12, 1.0)
    for fields in ({}, {"top_k": 12}, {"top_p": 0.875, "temperature": 0.75}):
        params = Params(seed=5, **fields)
        n = 4000
        counts = Counter(native_sample(abi_ffi, abi, logits, replace(params, counter=i)).token for i in range(n))
        kept = filtered(logits, params)
        p = probabilities([(logit / params.temperature, i) for logit, i in kept])
        assert set(counts) <= {i for _, i in kept}
        chi = sum((counts[i] - n * q) ** 2 / (n * q) for q, (_, i) in zip(p, kept, strict=True))
        assert chi < 31.3  # 11 degrees of freedom, p = 0.001


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 96, 40])
def test_broken_logits_fail_the_sample(abi: Any, abi_ffi: Any, bad: float, at: int) -> None:
    logits = normal_logits(3)
    logits[at] = bad
    for params in (Params(temperature=0), Params(top_k=4), Params(n_logprobs=3)):
        got = native_sample(abi_ffi, abi, logits, params)
        assert (got.status, got.token) == (E_NUMERIC, -1)


def test_nothing_allowed_and_unknown_tokens_are_refused(abi: Any, abi_ffi: Any) -> None:
    logits = normal_logits(3)
    for params in (
        Params(allowed=()),
        Params(allowed=(4,), bias=((4, -math.inf),)),
        Params(history=(97,), repeat_penalty=1.5),
        Params(bias=((-1, 1.0),)),
        Params(history=(1, 2), breakers=(2**30,), dry_multiplier=1),
    ):
        got = native_sample(abi_ffi, abi, logits, params)
        assert (got.status, got.token) == (E_ARGUMENT, -1)
    forced = native_sample(abi_ffi, abi, logits, Params(bias=((9, math.inf),), top_k=5))
    assert (forced.status, forced.token) == (0, 9)


def test_tiers_and_neighbours_change_nothing(abi: Any, abi_ffi: Any) -> None:
    """The same token and the same bits of every log-probability from all tiers of this processor."""
    logits = normal_logits(21, 2500, 1.0)
    tiers = 0
    for counter in range(30):
        for fields in ({}, {"top_k": 40}, {"top_p": 0.9375}, {"typical_p": 0.75}, {"temperature": 0.0}):
            params = Params(seed=1, counter=counter, n_logprobs=5, repeat_penalty=1.1, history=(1, 2, 3), **fields)
            results: list[Sampled] = [native_sample(abi_ffi, abi, logits, params, tier) for tier in TIERS]
            results = [result for result in results if result.status != E_UNSUPPORTED]
            assert all(result == results[0] for result in results)
            tiers = max(tiers, len(results))
    assert tiers >= 1


def test_samples_of_one_step_do_not_touch_each_other(abi: Any, abi_ffi: Any) -> None:
    """Six samples of one step, drawn by one or several threads: each as if alone. NaN in one row fails that sample only."""
    table = np.stack([normal_logits(seed, 64) for seed in range(6)])
    many = [
        Params(temperature=0, n_logprobs=2),
        Params(seed=1, top_k=9),
        Params(seed=2, bias=((3, 2.5), (9, -1.0)), history=(4, 4, 5), repeat_penalty=1.5),
        Params(seed=3, top_p=0.75, allowed=range(1, 64, 2), n_logprobs=20),
        Params(seed=4, history=[1, 2, 3, 1, 2], dry_multiplier=2, bias=((7, 1.0),)),
        Params(seed=5, typical_p=0.5),
    ]
    alone = [native_sample(abi_ffi, abi, row, params) for row, params in zip(table, many, strict=True)]
    samples = abi_ffi.new("strata_sample[]", len(many))
    ints, floats = [0], [0.0]
    for i, params in enumerate(many):
        samples[i].output = i
        fill_sample(samples[i], params, 64, ints, floats)
    pools = {"samples": samples, "ints": abi_ffi.new("int32_t[]", ints), "floats": abi_ffi.new("float[]", floats)}
    for broken in (None, 2):
        rows = table.copy()
        if broken is not None:
            rows[broken, 11] = np.nan
        plan = Plan(abi_ffi, abi)
        plan.result(plan.inputs(rows, 64))
        with plan.model() as model:
            for n_threads in (1, 2, 6):
                with plan.engine(model, n_threads=n_threads, poison=0) as engine:
                    if broken is None:
                        engine.step(Rows(range(6)), **pools)
                    else:
                        with pytest.raises(RuntimeError, match="-6: sample 2: the logits of row 2 hold NaN"):
                            engine.step(Rows(range(6)), **pools)
                    for i, want in enumerate(alone):
                        got = sampled(engine.sampled[i], engine.sampled[i].status)
                        assert got == (want if i != broken else Sampled(E_NUMERIC, -1, 0.0))
