"""Numbered gates of contract C1 for a device with expert slots: the bits do not depend on what is resident.

G7 number of slots and prompt chunks, G8 a swap before every step, G9 eight sequences, G10 whole layers on the device.
A sim device stands in for the GPU here: what it proves is the protocol, the slots and the policy, not CUDA kernels.
"""

import numpy as np
import pytest
from gate_kit import MODELS, Counts, counted_logits, demo_path, expected, logits_in_company, opened, tokens

from strata.engine.offline import logits_of

SWAP_BUDGET = 1 << 30  # bytes a second; given, so that no start measures the memory


def assert_same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    differing = np.flatnonzero((found.view(np.uint32) != wanted.view(np.uint32)).any(-1))
    assert differing.size == 0, f"{differing.size} of {len(wanted)} rows differ, the first is token {differing[0]}"


_known: dict[str, int] = {}


async def n_experts(model: str) -> int:
    """Experts of all layers together."""
    if model not in _known:
        async with opened(model, backend="sim", swap_budget=SWAP_BUDGET) as backend:
            _known[model] = int(backend.cache.residency.n_resident.sum())
    return _known[model]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("share", ["none", "one", "half", "all"])
@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
async def test_g7_slots_and_chunks(model, share, chunk):
    n = await n_experts(model)
    slots = {"none": 0, "one": 1, "half": n // 2, "all": n}[share]
    found, counts = await counted_logits(
        model, tokens(), chunk, backend="sim", swap_budget=SWAP_BUDGET, expert_slots=slots, n_threads=2
    )
    assert_same_bits(found, await expected(model))
    assert (counts.misses > 0) == (slots < n)
    if slots != 1:  # one expert may be one that no token wants
        assert (counts.hits > 0) == (slots > 0)


@pytest.mark.parametrize("model", [*MODELS, demo_path()])
async def test_g8_a_swap_before_every_step(model):
    n = await n_experts(model)
    async with opened(
        model, backend="sim", swap_budget=SWAP_BUDGET, expert_slots=n // 2, swap_every_step=True
    ) as backend:
        counts = Counts(backend)
        found = np.concatenate([rows async for rows in logits_of(counts, tokens(), 3)])
        assert backend.n_swaps >= 25
    assert_same_bits(found, await expected(model))
    assert counts.hits > 0
    assert counts.misses > 0


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("model", MODELS)
async def test_g9_eight_sequences(model, kv_type):
    n = await n_experts(model)
    found = await logits_in_company(
        model, 8, kv_type, backend="sim", swap_budget=SWAP_BUDGET, expert_slots=n // 2, swap_every_step=True
    )
    assert_same_bits(found, await expected(model, kv_type))


@pytest.mark.parametrize("n_cpu_moe", [1, 2])
async def test_g10_whole_layers(n_cpu_moe):
    model = demo_path()
    found, counts = await counted_logits(model, tokens(), 16, backend="sim", n_cpu_moe=n_cpu_moe)
    assert_same_bits(found, await expected(model))
    assert counts.hits == (6 - n_cpu_moe) * counts.misses // n_cpu_moe
    found, counts = await counted_logits(model, tokens(), 16, backend="sim", cpu_moe=True)
    assert_same_bits(found, await expected(model))
    assert counts.hits == 0
