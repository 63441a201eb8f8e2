"""Steps through the queue: what they compute, and every way a step can end."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine_kit as kit
import msgspec
import numpy as np
import pytest

from strata.engine.backend import StepBatch
from strata.errors import EngineStopped, NativeError
from strata.ffi.library import Library
from strata.ffi.native import NativeBackend, NativeModel

HOOKS = "int32_t strata_test_engine_block(void *engine, int32_t worker, int32_t hard);"


@pytest.fixture(scope="module")
def library() -> Library:
    if not kit.LIBRARY.exists():
        pytest.skip("libstrata_test is not built")
    return Library(kit.LIBRARY)


@pytest.fixture(scope="module")
def tiny(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[kit.Tiny, NativeModel]]:
    made, model = kit.loaded(library, tmp_path_factory.mktemp("tiny"))
    with model:
        yield made, model


@pytest.fixture
def engine(tiny: tuple[kit.Tiny, NativeModel]) -> Iterator[NativeBackend]:
    made = kit.backend(tiny[1], n_threads=2)
    yield made
    made.close()


def test_logits_are_the_references(tiny: tuple[kit.Tiny, NativeModel], engine: NativeBackend) -> None:
    ids = kit.tokens(20)
    np.testing.assert_allclose(kit.logits_of(engine, kit.row(ids)), tiny[0].logits(ids), atol=2e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("tier", ["scalar", "best"])
def test_bits_do_not_depend_on_threads_tier_or_chunks(
    tiny: tuple[kit.Tiny, NativeModel], threads: int, tier: str
) -> None:
    ids = kit.tokens(24)
    plain = kit.backend(tiny[1])
    want = kit.logits_of(plain, kit.row(ids))
    plain.close()
    engine = kit.backend(tiny[1], n_threads=threads, tier=tier)
    other = kit.row(kit.tokens(3, 9), 0, (5,), logits=False, seq_id=1)
    parts = [
        kit.logits_of(engine, kit.row(ids[:7]), other),
        kit.logits_of(engine, kit.row(ids[7:8], 7)),
        kit.logits_of(engine, kit.row(ids[8:], 8)),
    ]
    engine.close()
    assert np.concatenate(parts).tobytes() == want.tobytes()


def test_positions_follow_the_block_table(tiny: tuple[kit.Tiny, NativeModel], engine: NativeBackend) -> None:
    ids = kit.tokens(80)
    want = tiny[0].logits(ids)
    for first in range(0, 80, 20):
        got = kit.logits_of(engine, kit.row(ids[first : first + 20], first, (6, 2)))
        np.testing.assert_allclose(got, want[first : first + 20], atol=2e-5)


def test_copied_block_holds_the_same_prefix(engine: NativeBackend) -> None:
    ids = kit.tokens(11)
    kit.logits_of(engine, kit.row(ids[:10], 0, (0,)))
    want = kit.logits_of(engine, kit.row(ids[10:], 10, (0,)))
    kit.logits_of(engine, kit.row(ids[:10], 0, (0,)))
    engine.kv_copy(0, 3)
    kit.logits_of(engine, kit.row(kit.tokens(10, 77), 0, (0,)))
    assert kit.logits_of(engine, kit.row(ids[10:], 10, (3,))).tobytes() == want.tobytes()


def test_samples_and_logits_of_mixed_rows(engine: NativeBackend) -> None:
    rows = (
        kit.row(kit.tokens(5, 1), 0, (0,), sample=True, logits=False),
        kit.row(kit.tokens(4, 2), 0, (1,), seq_id=1),
        kit.row(kit.tokens(3, 3), 0, (2,), logits=False, seq_id=2),
        kit.row(kit.tokens(2, 4), 0, (3,), sample=True, seq_id=3),
    )
    result = engine.run_sync(StepBatch(rows=rows))
    assert isinstance(result.logits, np.ndarray)
    assert result.logits.shape == (6, kit.N_VOCAB)
    assert [token is not None for token in result.tokens] == [True, False, False, True]
    last = result.tokens[3]
    assert last is not None
    assert last.token == int(result.logits[-1].argmax())
    alone = kit.logits_of(engine, kit.row(kit.tokens(5, 1), 0, (0,)))
    first = result.tokens[0]
    assert first is not None
    assert first.token == int(alone[-1].argmax())


def test_counters_count(tiny: tuple[kit.Tiny, NativeModel], engine: NativeBackend) -> None:
    result = engine.run_sync(StepBatch(rows=(kit.row(kit.tokens(6)),)))
    assert result.expert_rows == 6 * kit.N_USED
    assert 1 <= result.experts_touched <= kit.N_EXPERT
    one = engine.run_sync(StepBatch(rows=(kit.row([1], 6),)))
    plan = tiny[0].plan
    experts = plan.expert_sets[0].slot_bytes * kit.N_USED
    dense = plan.weights_bytes - plan.expert_bytes
    assert one.experts_touched == kit.N_USED
    # One row of the embedding is read; vectors and padding make up for the rest of the difference.
    assert experts * 0.9 <= one.weight_bytes <= dense + experts
    before = engine.health()
    engine.run_sync(StepBatch(rows=(kit.row([1], 7),)))
    after = engine.health()
    assert (after.steps - before.steps, after.tokens - before.tokens) == (1, 1)
    assert after.phase == "idle"


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tokens": (kit.N_VOCAB,)}, r"step\.token\[0\] is 70; accepted: 0 to 69"),
        ({"tokens": (-1,)}, r"step\.token\[0\] is -1"),
        ({"first_pos": -1}, r"step\.pos\[0\] is -1"),
        ({"first_pos": 256}, r"step\.pos\[0\] is 256; accepted: 0 to 255"),
        ({"blocks": (8,)}, r"step\.block_table\[0\]\[0\] is 8; position 0 needs a block from 0 to 7"),
        ({"blocks": ()}, r"step\.block_table\[0\]\[0\] is -1"),
        ({"first_pos": 70, "blocks": (0,)}, r"step\.block_table\[0\]\[1\] is -1; position 70"),
    ],
)
def test_bad_rows_are_refused(engine: NativeBackend, change: dict[str, Any], text: str) -> None:
    with pytest.raises(NativeError, match=text):
        engine.submit(StepBatch(rows=(msgspec.structs.replace(kit.row([1]), **change),)))
    kit.logits_of(engine, kit.row([1]))


def test_two_sequences_may_not_write_one_block(engine: NativeBackend) -> None:
    with pytest.raises(NativeError, match="which sequence 0 of this step writes too"):
        engine.submit(StepBatch(rows=(kit.row([1], 0, (4,)), kit.row([2], 1, (4,), seq_id=1))))


def test_sizes_are_refused_before_the_library_sees_them(engine: NativeBackend) -> None:
    with pytest.raises(ValueError, match="25 tokens, planned for 24"):
        engine.submit(StepBatch(rows=(kit.row(kit.tokens(25)),)))


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("n_tokens", 0, "n_tokens is 0"),
        ("n_tokens", 25, "n_tokens is 25; accepted: 1 to 24"),
        ("n_seqs", 5, "n_seqs is 5; accepted: 1 to 4"),
        ("n_outputs", 25, "n_outputs is 25"),
        ("n_samples", 9, "n_samples is 9"),
        ("max_blocks", 0, "max_blocks is 0"),
        ("n_ints", -1, "n_ints is -1"),
        ("reserved", 1, "reserved is 1"),
        ("token", None, "token is null"),
        ("block_table", None, "block_table is null"),
        ("struct_size", 8, r"step\.struct_size is 8"),
    ],
)
def test_bad_steps_are_refused(engine: NativeBackend, field: str, value: Any, text: str) -> None:
    step = raw_step(engine)
    setattr(step, field, engine._ffi.NULL if value is None else value)
    with pytest.raises(NativeError, match=text):
        submit_raw(engine, step)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("output", 1, r"samples\[0\]\.output is 1; accepted: 0 to 0"),
        ("top_k", -1, "top_k is -1"),
        ("top_p", 1.5, "top_p is 1.5"),
        ("temperature", float("nan"), "temperature is nan"),
        ("n_logprobs", 21, "n_logprobs is 21"),
        ("min_keep", 0, "min_keep is 0"),
        ("n_history", 5, "n_history is 5; accepted: 0 to 2"),
        ("n_bias", 1, "n_bias is 1"),
        ("mask_first", 0, "mask_first is 0"),
    ],
)
def test_bad_samples_are_refused(engine: NativeBackend, field: str, value: Any, text: str) -> None:
    step = raw_step(engine)
    setattr(step.samples[0], field, value)
    with pytest.raises(NativeError, match=text):
        submit_raw(engine, step)


def test_history_must_be_tokens(engine: NativeBackend) -> None:
    step = raw_step(engine)
    step.ints[1] = kit.N_VOCAB
    step.samples[0].n_history = 2
    with pytest.raises(NativeError, match=r"step\.ints\[1\] is 70"):
        submit_raw(engine, step)


KEEP: list[Any] = []


def raw_step(engine: NativeBackend) -> Any:
    """A valid step of one token with one greedy sample, as C structs."""
    ffi = engine._ffi
    arrays = {
        name: ffi.new("int32_t[]", [value]) for name, value in (("token", 1), ("pos", 0), ("seq", 0), ("output_row", 0))
    }
    step, sample = ffi.new("strata_step *"), ffi.new("strata_sample[1]")
    sample[0].top_p = sample[0].typical_p = sample[0].repeat_penalty = 1.0
    sample[0].mask_first = sample[0].n_logprobs = -1
    sample[0].min_keep = 1
    ints, table, sampled = ffi.new("int32_t[]", [1, 2]), ffi.new("int32_t[]", [0]), ffi.new("strata_sampled[1]")
    for name, array in arrays.items():
        setattr(step, name, array)
    step.struct_size = ffi.sizeof("strata_step")
    step.n_tokens = step.n_seqs = step.n_outputs = step.n_samples = step.max_blocks = 1
    step.block_table, step.samples, step.sampled_out = table, sample, sampled
    step.ints, step.n_ints = ints, 2
    KEEP[:] = [arrays, sample, ints, table, sampled]
    return step


def submit_raw(engine: NativeBackend, step: Any) -> int:
    engine._check(engine._lib.strata_engine_submit(engine._handle, step, engine._ticket), "submit")
    return int(engine._ticket[0])


def wait_raw(engine: NativeBackend) -> Any:
    """The next completion."""
    ready = select.poll()
    ready.register(engine._fd, select.POLLIN)
    while True:
        assert ready.poll(30000)
        engine._check(engine._lib.strata_engine_poll(engine._handle, engine._polled, 1, engine._n_polled), "poll")
        if engine._n_polled[0]:
            return engine._polled[0]


def test_routing_is_reported(engine: NativeBackend) -> None:
    ffi = engine._ffi
    step = raw_step(engine)
    ids, weights = ffi.new("int32_t[3]", [7, 7, 7]), ffi.new("float[3]", [7, 7, 7])
    step.routing_out, step.routing_weights_out, step.routing_stride = ids, weights, 3
    submit_raw(engine, step)
    assert wait_raw(engine).status == 0
    assert all(0 <= ids[k] < kit.N_EXPERT for k in range(2))
    assert ids[0] != ids[1]
    assert ids[2] == -1
    assert weights[0] + weights[1] == pytest.approx(1.0, abs=1e-6)
    assert weights[0] >= weights[1]
    assert weights[2] == 0


def test_queue_is_bounded_and_eventfd_stays_readable(engine: NativeBackend) -> None:
    step = raw_step(engine)
    first = submit_raw(engine, step)
    submit_raw(engine, step)
    with pytest.raises(NativeError, match="2 steps are submitted and not yet polled"):
        submit_raw(engine, step)
    assert wait_raw(engine).ticket == first
    assert wait_raw(engine).ticket == first + 1
    ready = select.poll()
    ready.register(engine._fd, select.POLLIN)
    assert ready.poll(0) == []


# ---- failures of a step ---------------------------------------------------------------------------------------------


def test_aborted_step_is_cancelled_and_the_next_one_runs(engine: NativeBackend) -> None:
    outcomes = set()
    for _ in range(50):
        step = raw_step(engine)
        ticket = submit_raw(engine, step)
        engine.abort(ticket)
        engine.abort(0)
        outcomes.add(int(wait_raw(engine).status))
    assert outcomes <= {0, engine._ffi.integer_const("STRATA_E_CANCELLED")}
    kit.logits_of(engine, kit.row([1]))
    with pytest.raises(NativeError, match="which no submit has returned"):
        engine.abort(10**6)


def test_a_step_has_a_deadline(tiny: tuple[kit.Tiny, NativeModel]) -> None:
    engine = kit.backend(tiny[1], step_deadline_s=1e-6)
    with pytest.raises(NativeError, match=r"op \d+ [A-Z]+, layer -?\d+: the step's deadline passed"):
        kit.logits_of(engine, kit.row(kit.tokens(20)))
    assert engine.health().phase == "idle"
    assert engine.health().failed_steps == 1
    engine.close()


def test_nan_weights_name_the_op_that_met_them(library: Library, tmp_path: Path) -> None:
    tiny = kit.make(library, tmp_path)
    at = tiny.plan.tensors[tiny.names.index("ffn_norm")].file_offset
    image = bytearray(tiny.image)
    image[at : at + 4] = np.float32(np.nan).tobytes()
    (tmp_path / "tiny.bin").write_bytes(image)
    with NativeModel(library, tiny.plan) as model:
        model.load(mode="buffered", n_threads=1)
        poisoned, plain = kit.backend(model), kit.backend(model, poison=False)
        with pytest.raises(NativeError, match="op 8 NORM, layer 0, row 0: the first NaN, value 0 of vector 0 of"):
            kit.logits_of(poisoned, kit.row([1, 2]))
        with pytest.raises(NativeError, match="row 0"):
            kit.logits_of(plain, kit.row([1, 2]))
        ticket = plain.submit(StepBatch(rows=(kit.row([1, 2], sample=True, logits=False),)))
        result = None
        while result is None:
            result = plain._completions.take_nowait(ticket)
        assert result.failed_rows == (0,)
        assert result.tokens == (None,)
        poisoned.close()
        plain.close()


def test_poison_finds_what_nothing_wrote(library: Library, tmp_path: Path) -> None:
    """The norm writes 32 of the 64 values that the next op reads."""
    tiny = kit.make(library, tmp_path)
    ops = list(tiny.plan.ops)
    ops[8] = msgspec.structs.replace(ops[8], weights=(), i={"n_vec": 1, "width": 32})
    ops[1] = msgspec.structs.replace(ops[1], outs=(list(kit._BUFFERS).index("y"),))
    ops[2] = msgspec.structs.replace(ops[2], ins=(list(kit._BUFFERS).index("y"),))
    with NativeModel(library, msgspec.structs.replace(tiny.plan, ops=tuple(ops))) as model:
        model.load(mode="buffered", n_threads=1)
        engine = kit.backend(model)
        with pytest.raises(NativeError, match="op 9 LINEAR, layer 0, row 0: the first NaN"):
            kit.logits_of(engine, kit.row([1, 2]))
        engine.close()


@pytest.mark.parametrize("hard", [False, True])
def test_a_lost_worker_ends_the_engine_and_never_hangs(library: Library, tmp_path: Path, hard: bool) -> None:
    import cffi

    hooks = cffi.FFI()
    hooks.cdef(HOOKS)
    test_lib: Any = hooks.dlopen(str(kit.LIBRARY))
    _, model = kit.loaded(library, tmp_path, experts=kit.Q8_0)
    engine = kit.backend(model, n_threads=2, step_deadline_s=0.3)
    handle = hooks.cast("void *", int(engine._ffi.cast("intptr_t", engine._handle)))
    test_lib.strata_test_engine_block(handle, 1, int(hard))
    step = kit.row(kit.tokens(24))
    first, second = engine.submit(StepBatch(rows=(step,))), engine.submit(StepBatch(rows=(step,)))
    results = {}
    ready = select.poll()
    ready.register(engine._fd, select.POLLIN)
    while len(results) < 2:
        assert ready.poll(30000)
        for ticket in (first, second):
            if (found := engine._completions.take_nowait(ticket)) is not None:
                results[ticket] = found
    for result in results.values():
        assert isinstance(result.error, EngineStopped)
        assert "a worker did not come back from op" in str(result.error)
        assert "layer" in str(result.error)
    assert engine.health().phase == "dead"
    with pytest.raises(EngineStopped, match="the engine is dead"):
        engine.submit(StepBatch(rows=(step,)))
    if hard:
        with pytest.raises(EngineStopped, match="a worker is lost"):
            engine.close()
        model.close()
        test_lib.strata_test_engine_block(handle, 0, 0)  # it comes back to memory that is still there
    else:
        engine.close()
        model.close()
