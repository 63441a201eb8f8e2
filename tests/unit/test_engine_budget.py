"""The ledger's arithmetic: what fits, what is refused and with which words."""

import pytest

from strata.engine.budget import (
    DEFAULT_CTX_MAX,
    GIB,
    MIB,
    Ledger,
    Line,
    MachineMemory,
    Place,
    choose_ctx,
    gpu_context_bytes,
    n_kv_blocks,
    ram_limit,
    vram_limit,
)
from strata.errors import MemoryPlanError


def ledger(limit: int, **sizes: int) -> Ledger:
    lines = tuple(Line(name=name, place=Place.RAM, n_bytes=n) for name, n in sizes.items())
    mapped = Line(name="experts in the file", place=Place.MAPPED, n_bytes=100 * GIB)
    return Ledger(lines=(*lines, mapped), ram_limit_bytes=limit, ram_limit_source="--ram-limit")


def test_a_plan_that_fits_passes_and_mapped_files_do_not_count():
    ledger(8 * GIB, weights=5 * GIB, cache=3 * GIB).check()


def test_a_refusal_shows_the_sum_and_what_helps():
    with pytest.raises(MemoryPlanError) as caught:
        ledger(7 * GIB, weights=5 * GIB, cache=3 * GIB).check()
    text = str(caught.value)
    for words in ("8.00 GiB", "weights 5.00 GiB", "cache 3.00 GiB", "7.00 GiB", "1.00 GiB too much", "--ctx-size"):
        assert words in text


def test_the_printed_plan_adds_up():
    text = ledger(8 * GIB, weights=5 * GIB, cache=1 * GIB).text()
    assert "6.00 GiB" in text
    assert "100.00 GiB" in text


@pytest.mark.parametrize(
    ("asked", "cgroup", "wanted", "words"),
    [
        (3 * GIB, None, 3 * GIB, "--ram-limit"),
        (None, 16 * GIB, 16 * GIB - int(0.8 * GIB), "cgroup"),
        (None, 256 * GIB, 20 * GIB - int(6.4 * GIB), "available"),
        (None, None, 20 * GIB - int(6.4 * GIB), "available"),
    ],
)
def test_where_the_limit_comes_from(asked, cgroup, wanted, words):
    machine = MachineMemory(total_bytes=64 * GIB, available_bytes=20 * GIB, cgroup_limit_bytes=cgroup)
    limit, source = ram_limit(machine, asked)
    assert limit == pytest.approx(wanted, abs=4)
    assert words in source


def test_context_follows_wish_model_and_room():
    assert choose_ctx(4096, 100_000, 1, 0) == (100_000, None)
    assert choose_ctx(4096, None, 1 << 20, 64 * GIB) == (4096, None)
    n_ctx, note = choose_ctx(131072, None, 1 << 20, 64 * GIB)
    assert n_ctx == DEFAULT_CTX_MAX
    assert "131072" in note
    n_ctx, note = choose_ctx(131072, None, 16 << 20, 1 * GIB)
    assert n_ctx == 32 * 64
    assert "half of the room" in note


def test_blocks_are_whole():
    assert [n_kv_blocks(n) for n in (1, 64, 65)] == [1, 1, 2]


def test_the_gpu_has_a_limit_of_its_own():
    lines = (
        Line(name="slots", place=Place.VRAM, n_bytes=5 * GIB),
        Line(name="dense parts", place=Place.VRAM, n_bytes=2 * GIB),
        Line(name="weights", place=Place.RAM, n_bytes=1 * GIB),
    )
    fits = Ledger(
        lines=lines, ram_limit_bytes=GIB, ram_limit_source="x", vram_limit_bytes=7 * GIB, vram_limit_source="y"
    )
    fits.check()
    assert "7.00 GiB" in fits.text()
    tight = Ledger(
        lines=lines,
        ram_limit_bytes=GIB,
        ram_limit_source="x",
        vram_limit_bytes=6 * GIB,
        vram_limit_source="--vram-limit",
    )
    with pytest.raises(MemoryPlanError) as caught:
        tight.check()
    for words in ("7.00 GiB on the GPU", "slots 5.00 GiB", "dense parts 2.00 GiB", "--vram-limit", "1.00 GiB too much"):
        assert words in str(caught.value)
    assert "weights" not in str(caught.value)


def test_vram_limits_keep_a_reserve_and_count_the_context():
    assert vram_limit(7 * GIB, 8 * GIB, 4 * GIB) == (4 * GIB, "--vram-limit")
    limit, source = vram_limit(8 * GIB - 500 * MIB, 8 * GIB, None)
    assert limit == 8 * GIB - 384 * MIB
    assert "display" in source
    assert 500 * MIB < gpu_context_bytes(8 * GIB - 500 * MIB, 8 * GIB) < 700 * MIB
    assert gpu_context_bytes(2 * GIB, 24 * GIB) < 1200 * MIB  # what other programs hold is not ours
