"""Loading: every mode gives the same bits, and what goes wrong says where."""

from __future__ import annotations

import os
from pathlib import Path

import engine_kit as kit
import msgspec
import numpy as np
import pytest
import trio

from strata.arch.plan_tables import ModelPlan, PlanSource
from strata.errors import ModelError, NativeError
from strata.ffi.library import Library
from strata.ffi.native import NativeModel

replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def library() -> Library:
    if not kit.LIBRARY.exists():
        pytest.skip("libstrata_test is not built")
    return Library(kit.LIBRARY)


def run(model: NativeModel) -> bytes:
    engine = kit.backend(model)
    bits = kit.logits_of(engine, kit.row(kit.tokens(16))).tobytes()
    engine.close()
    return bits


def bits_of(library: Library, plan: ModelPlan, mode: str, n_threads: int = 1) -> bytes:
    with NativeModel(library, plan) as model:
        model.load(mode=mode, n_threads=n_threads)
        return run(model)


@pytest.mark.parametrize("experts", [kit.F32, kit.Q8_0])
def test_all_modes_give_the_same_bits(library: Library, tmp_path: Path, experts: int) -> None:
    tiny = kit.make(library, tmp_path, experts=experts)
    want = bits_of(library, tiny.plan, "buffered")
    assert bits_of(library, tiny.plan, "direct") == want
    assert bits_of(library, tiny.plan, "direct", 3) == want
    assert bits_of(library, tiny.plan, "mapped") == want
    synthetic = kit.make(library, experts=experts)
    with NativeModel(library, synthetic.plan) as model:
        model.reserve()
        fill(model, tiny)
        assert run(model) == want


def fill(model: NativeModel, tiny: kit.Tiny) -> None:
    """Hand over every matrix in two runs of rows where it has more than one group."""
    for index, tensor in enumerate(tiny.plan.tensors):
        n_bytes = kit.row_bytes(tensor.type, tensor.n_cols)
        for mat in range(tensor.n_mats):
            start = tensor.file_offset + mat * tensor.file_stride_bytes
            for first, end in ((0, min(16, tensor.n_rows)), (16, tensor.n_rows)):
                if end > first:
                    model.fill(
                        index, mat, first, end - first, tiny.image[start + first * n_bytes : start + end * n_bytes]
                    )


def test_stats_and_progress(library: Library, tmp_path: Path) -> None:
    tiny = kit.make(library, tmp_path)
    wanted = sum(t.n_mats * t.n_rows * kit.row_bytes(t.type, t.n_cols) for t in tiny.plan.tensors)
    seen: list[tuple[int, int]] = []
    with NativeModel(library, tiny.plan) as model:
        stats = model.load(mode="buffered", n_threads=2, on_progress=lambda done, total: seen.append((done, total)))
        assert model.progress() == (wanted, wanted)
    assert seen[-1] == (wanted, wanted)
    assert not stats.direct_refused
    assert stats.mapped_bytes == 0
    assert wanted <= stats.bytes_read <= len(tiny.image)
    assert 0 < stats.arena_bytes <= tiny.plan.weights_bytes
    with NativeModel(library, tiny.plan) as model:
        stats = model.load(mode="mapped", n_threads=1)
    experts = [t for t in tiny.plan.tensors if t.role == kit.EXPERT_MATRIX]
    assert stats.mapped_bytes == sum(t.n_mats * t.n_rows * kit.row_bytes(t.type, t.n_cols) for t in experts)


def test_experts_may_come_one_tensor_each(library: Library, tmp_path: Path) -> None:
    tiny = kit.make(library, tmp_path)
    want = bits_of(library, tiny.plan, "buffered")
    gate = tiny.names.index("gate")
    row = tiny.plan.tensors[gate]
    order = [2, 0, 3, 1]
    second = b"".join(tiny.image[row.file_offset + e * row.file_stride_bytes :][: row.file_stride_bytes] for e in order)
    (tmp_path / "second.bin").write_bytes(b"\0" * 5 + second)
    sources = tuple(PlanSource(shard=1, file_offset=5 + order.index(e) * row.file_stride_bytes) for e in range(4))
    tensors = list(tiny.plan.tensors)
    tensors[gate] = replace(row, source_first=0, file_offset=0)
    plan = replace(
        tiny.plan, tensors=tuple(tensors), sources=sources, paths=(*tiny.plan.paths, str(tmp_path / "second.bin"))
    )
    for mode in ("buffered", "direct", "mapped"):
        assert bits_of(library, plan, mode) == want


def test_large_matrices_are_read_in_pieces(library: Library, tmp_path: Path) -> None:
    """A head of 20 MiB: several reads, each of whole row groups, by several threads."""
    n_vocab = 81_923
    tiny = kit.make(library, tmp_path)
    head = (np.random.default_rng(5).standard_normal((n_vocab, kit.N_EMBD)) / 8).astype(np.float32)
    (tmp_path / "tiny.bin").write_bytes(tiny.image + head.tobytes())
    tensors = list(tiny.plan.tensors)
    at = tiny.plan.weights_bytes
    for name in ("head", "embed"):
        index = tiny.names.index(name)
        n_bytes = library.packed_bytes(kit.F32, n_vocab, kit.N_EMBD)
        tensors[index] = replace(
            tensors[index], n_rows=n_vocab, file_offset=len(tiny.image), arena_offset=at, mat_stride_bytes=n_bytes
        )
        at += n_bytes
    buffers = list(tiny.plan.buffers)
    start = tiny.plan.activations_bytes
    buffers[-1] = replace(buffers[-1], width=n_vocab, row_stride=n_vocab, offset=start)
    plan = replace(
        tiny.plan,
        n_vocab=n_vocab,
        tensors=tuple(tensors),
        buffers=tuple(buffers),
        weights_bytes=at,
        activations_bytes=start + n_vocab * 4 * kit.N_BATCH,
    )
    values = {**tiny.values, "head": head[None], "embed": head[None]}
    ids = [5, n_vocab - 1, 40_000]
    with NativeModel(library, plan) as model:
        stats = model.load(mode="direct", n_threads=3)
        assert stats.bytes_read >= head.nbytes
        engine = kit.backend(model, n_threads=2)
        np.testing.assert_allclose(kit.logits_of(engine, kit.row(ids)), kit.reference(values, ids), atol=1e-4)
        engine.close()


# ---- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["buffered", "direct", "mapped"])
def test_short_files_are_refused_by_name_and_offset(library: Library, tmp_path: Path, mode: str) -> None:
    tiny = kit.make(library, tmp_path)
    path = tmp_path / "tiny.bin"
    end = tiny.plan.tensors[-1].file_offset + 4 * tiny.plan.tensors[-1].file_stride_bytes
    os.truncate(path, end - 1)
    with NativeModel(library, tiny.plan) as model:
        with pytest.raises(ModelError, match=rf"tiny\.bin: the file ends at {end - 1}, tensor 13 matrix 3 lies at"):
            model.load(mode=mode, n_threads=2)
        path.write_bytes(tiny.image)
        model.load(mode=mode, n_threads=2)  # a failed load may be repeated


def test_missing_files_are_named(library: Library, tmp_path: Path) -> None:
    tiny = kit.make(library, tmp_path)
    (tmp_path / "tiny.bin").unlink()
    with NativeModel(library, tiny.plan) as model, pytest.raises(ModelError, match=r"tiny\.bin: No such file"):
        model.load(mode="direct", n_threads=1)
    (tmp_path / "tiny.bin").mkdir()
    with NativeModel(library, tiny.plan) as model, pytest.raises(ModelError, match=r"tiny\.bin: not a regular file"):
        model.load(mode="direct", n_threads=1)


def test_states_are_checked(library: Library, tmp_path: Path) -> None:
    tiny = kit.make(library, tmp_path)
    with NativeModel(library, tiny.plan) as model:
        with pytest.raises(NativeError, match="weights are not loaded"):
            kit.backend(model)
        with pytest.raises(NativeError, match="needs a reserved model"):
            model.fill(0, 0, 0, 16, b"")
        model.load(mode="buffered", n_threads=1)
        with pytest.raises(NativeError, match="loaded already"):
            model.load(mode="buffered", n_threads=1)
        with pytest.raises(NativeError, match="loaded already"):
            model.reserve()
    synthetic = kit.make(library)
    with NativeModel(library, synthetic.plan) as model:
        with pytest.raises(NativeError, match="the model has no file"):
            model.load(mode="buffered", n_threads=1)
        with pytest.raises(NativeError, match="n_threads is 0"):
            model.load(mode="buffered", n_threads=0)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ((99, 0, 0, 16), "tensor is 99; accepted: 0 to 13"),
        ((0, 1, 0, 16), "mat is 1; accepted: 0 to 0"),
        ((0, 0, 8, 16), "rows 8 to 24 of 70; whole groups of 16"),
        ((0, 0, 0, 15), "rows 0 to 15 of 70"),
        ((0, 0, 64, 7), "rows 64 to 71 of 70"),
        ((0, 0, 0, 16), "n_bytes is 3; these rows have 4096"),
    ],
)
def test_bad_fills_are_refused(library: Library, call: tuple[int, int, int, int], text: str) -> None:
    with NativeModel(library, kit.make(library).plan) as model:
        model.reserve()
        with pytest.raises(NativeError, match=text):
            model.fill(*call, b"abc")


def consume(model: NativeModel) -> None:
    """Load and free the file, or skip the test where the file system has no holes."""
    try:
        model.load(mode="buffered", n_threads=2, consume_file=True)
    except NativeError as error:
        if "consume_file cannot free pieces of this file" not in str(error):
            raise
        pytest.skip("this file system has no holes")


def test_consumed_files_are_freed(library: Library, tmp_path: Path) -> None:
    tiny = kit.make(library, tmp_path)
    path = tmp_path / "tiny.bin"
    want = bits_of(library, tiny.plan, "buffered")
    with NativeModel(library, tiny.plan) as model:
        consume(model)
        assert run(model) == want
    data = path.read_bytes()
    assert len(data) == len(tiny.image)
    row = tiny.plan.tensors[0]
    assert not any(data[row.file_offset : row.file_offset + 70 * 256])
    with NativeModel(library, tiny.plan) as model, pytest.raises(NativeError, match="a mapped file is still needed"):
        model.load(mode="mapped", n_threads=1, consume_file=True)


def test_two_tensors_of_one_range_survive_consumption(library: Library, tmp_path: Path) -> None:
    """The head reads the embedding's bytes: they may be freed only when both have them."""
    tiny = kit.make(library, tmp_path)
    tensors = list(tiny.plan.tensors)
    head = tiny.names.index("head")
    tensors[head] = replace(tensors[head], file_offset=tensors[0].file_offset)
    plan = replace(tiny.plan, tensors=tuple(tensors))
    want = bits_of(library, plan, "buffered")
    with NativeModel(library, plan) as model:
        consume(model)
        assert run(model) == want


def test_cancelled_loads_end_for_good(library: Library, tmp_path: Path) -> None:
    tiny = kit.make(library, tmp_path)
    with NativeModel(library, tiny.plan) as model:
        model.cancel()
        with pytest.raises(NativeError, match="loading was cancelled after 0 bytes"):
            model.load(mode="buffered", n_threads=2)


async def test_async_load_reports_and_honours_cancellation(library: Library, tmp_path: Path) -> None:
    tiny = kit.make(library, tmp_path)
    seen: list[tuple[int, int]] = []
    with NativeModel(library, tiny.plan) as model:
        await model.aload(mode="buffered", n_threads=1, on_progress=lambda done, total: seen.append((done, total)))
        assert seen[-1][0] == seen[-1][1] > 0
        run(model)
    with NativeModel(library, tiny.plan) as model:
        with trio.CancelScope() as scope:
            scope.cancel()
            await model.aload(mode="buffered", n_threads=1)
        assert scope.cancelled_caught
    (tmp_path / "tiny.bin").unlink()
    with NativeModel(library, tiny.plan) as model, pytest.raises(ModelError, match="No such file"):
        await model.aload(mode="buffered", n_threads=1)
