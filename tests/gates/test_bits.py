"""Numbered gates of contract C1: the bits of the logits do not depend on how they were computed.

G1 threads, G2 prompt chunks, G3 instruction-set tiers, G4 company in the batch, G5 where the experts lie, G6 poison mode,
G0 shows that the comparison can fail.
"""

import numpy as np
import pytest
from gate_kit import MODELS, demo_path, expected, logits, logits_in_company, opened, supported_tiers, tokens

from strata.engine.backend import BatchRow, StepBatch
from strata.engine.offline import run_step


def assert_same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    assert np.isfinite(wanted).all()
    differing = np.flatnonzero((found.view(np.uint32) != wanted.view(np.uint32)).any(-1))
    assert differing.size == 0, f"{differing.size} of {len(wanted)} rows differ, the first is token {differing[0]}"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("n_threads", [1, 2])
async def test_g1_threads(model, n_threads):
    assert_same_bits(await logits(model, tokens(), n_threads=n_threads), await expected(model))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
async def test_g2_chunks(model, chunk):
    assert_same_bits(await logits(model, tokens(), chunk=chunk, n_threads=2), await expected(model))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tier", supported_tiers())
async def test_g3_tiers(model, tier):
    assert_same_bits(await logits(model, tokens(), tier=tier, chunk=16), await expected(model))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0"])
async def test_g4_company(model, kv_type):
    assert_same_bits(await logits_in_company(model, 8, kv_type), await expected(model, kv_type))


@pytest.mark.parametrize("load_mode", ["direct", "buffered", "mapped"])
async def test_g5_where_the_experts_lie(load_mode):
    model = demo_path()
    assert_same_bits(await logits(model, tokens(), load_mode=load_mode, n_threads=2), await expected(model))


@pytest.mark.parametrize("model", MODELS)
async def test_g6_poison_finds_nothing(model):
    assert_same_bits(await logits(model, tokens(), poison=True, chunk=13, n_threads=2), await expected(model))


async def test_g0_a_changed_token_changes_later_rows_only():
    wanted = await expected("tiny-qwen3moe")
    ids = tokens()
    ids[40] = (ids[40] + 1) % 500
    found = await logits("tiny-qwen3moe", ids)
    assert_same_bits(found[:40], wanted[:40])
    with pytest.raises(AssertionError, match="rows differ"):
        assert_same_bits(found[40:], wanted[40:])


async def test_g0_a_stale_cache_row_is_seen():
    """Positions 64.. of the first 65 are read from a block that another sequence filled."""
    wanted = await expected("tiny-qwen3moe")
    ids = tokens()
    async with opened("tiny-qwen3moe", max_seqs=2) as backend:
        for seq, own, blocks in ((0, ids, (0, 1)), (1, tokens(salt=5), (2, 3))):
            row = BatchRow(seq_id=seq, tokens=tuple(own[:80]), first_pos=0, blocks=blocks)
            await run_step(backend, StepBatch(rows=(row,)))
        row = BatchRow(seq_id=0, tokens=tuple(ids[80:]), first_pos=80, blocks=(0, 3), all_logits=True)
        found = (await run_step(backend, StepBatch(rows=(row,)))).logits
    with pytest.raises(AssertionError, match="rows differ"):
        assert_same_bits(found, wanted[80:])
