"""The engine with the sim device: the CPU's bits for every number of slots, while swapping, and through faults."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import cffi
import engine_kit as kit
import numpy as np
import pytest
from conftest import ROOT, declarations
from numpy.typing import NDArray

from strata.engine.backend import StepBatch, StepResult
from strata.errors import EngineStopped, NativeError
from strata.ffi.library import Library
from strata.ffi.native import NativeBackend, NativeModel

PROMPT = kit.tokens(20)
DELAY, LOST_DOORBELL, LOST_DONE, STALE_ROW, SWAPPED_PAIR, FLIPPED_BYTE = range(6)
NONE = (0, -1, 0, -1, -1, -1)  # values of no fault


@pytest.fixture(scope="module", name="library")
def _library() -> Library:
    if not kit.LIBRARY.exists():
        pytest.skip(f"{kit.LIBRARY.relative_to(kit.ROOT)} is not built")
    return Library(kit.LIBRARY)


@pytest.fixture(scope="module", name="model")
def _model(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeModel]:
    _, model = kit.loaded(library, tmp_path_factory.mktemp("sim"))
    yield model
    model.close()


@pytest.fixture(name="fault")
def _fault(library: Library) -> Iterator[Any]:
    ffi = cffi.FFI()
    ffi.cdef(declarations((ROOT / "native/include/strata_test_engine.h",)))
    hooks = ffi.dlopen(str(library.path))

    def set_fault(fault: int, value: int) -> None:
        assert hooks.strata_test_sim_fault(fault, value) == 0

    yield set_fault
    for fault, value in enumerate(NONE):
        set_fault(fault, value)


def sim(model: NativeModel, n_slots: int, **options: Any) -> NativeBackend:
    slots = (n_slots,) if n_slots else ()
    return kit.backend(model, device="sim", class_of_set=(0,), n_slots=slots, **options)


def put(engine: NativeBackend, *placed: tuple[int, int, int]) -> None:
    """Copy experts into slots and commit them."""
    numbers = [engine.copy_expert(*entry) for entry in placed]
    deadline = time.monotonic() + 10
    while numbers and engine.copied() < max(numbers):
        assert time.monotonic() < deadline
    engine.commit_experts(placed)


def step(engine: NativeBackend, *rows: Any) -> StepResult:
    return engine.run_sync(StepBatch(rows=rows))


def prompt_logits(engine: NativeBackend, chunk: int) -> NDArray[np.float32]:
    """Logits of the whole prompt, computed in chunks."""
    found = [kit.logits_of(engine, kit.row(PROMPT[at : at + chunk], at)) for at in range(0, len(PROMPT), chunk)]
    return np.concatenate(found)


@pytest.fixture(scope="module", name="expected")
def _expected(model: NativeModel) -> NDArray[np.float32]:
    engine = kit.backend(model)
    logits = prompt_logits(engine, len(PROMPT))
    engine.close()
    return logits


@pytest.mark.parametrize("n_slots", [0, 1, 2, 4])
@pytest.mark.parametrize("chunk", [1, 7, 20])
def test_logits_are_the_cpus(model: NativeModel, expected: NDArray[np.float32], n_slots: int, chunk: int) -> None:
    engine = sim(model, n_slots, n_threads=2)
    put(engine, *[(0, expert, expert) for expert in range(n_slots)])
    assert prompt_logits(engine, chunk).tobytes() == expected.tobytes()
    result = step(engine, kit.row(PROMPT))
    engine.close()
    assert result.expert_hits + result.expert_rows == len(PROMPT) * kit.N_USED
    assert (result.expert_hits == 0) == (n_slots == 0)
    assert (result.expert_rows == 0) == (n_slots == 4)
    assert result.routing is None


def test_swapping_every_step_changes_no_bit(model: NativeModel, expected: NDArray[np.float32]) -> None:
    engine = sim(model, 3)
    put(engine, (0, 0, 0), (0, 1, 1))
    seen: list[NDArray[np.float32]] = []
    hits = misses = 0
    where, spare = {0: 0, 1: 1}, 2
    for at, token in enumerate(PROMPT):
        newcomer = next(expert for expert in range(at, at + 4) if expert % 4 not in where) % 4
        victim = next(iter(where))
        number = engine.copy_expert(0, newcomer, spare)  # the copy runs beside the step
        result = step(engine, kit.row([token], at))
        seen.append(np.asarray(result.logits))
        hits, misses = hits + result.expert_hits, misses + result.expert_rows
        while engine.copied() < number:
            pass
        engine.commit_experts([(0, victim, -1), (0, newcomer, spare)])
        where[newcomer], spare = spare, where.pop(victim)
    engine.close()
    assert np.concatenate(seen).tobytes() == expected.tobytes()
    assert hits > 0 and misses > 0


def test_eight_sequences_at_once(model: NativeModel) -> None:
    rows = [kit.row(kit.tokens(3, seed), 0, (seed,), seq_id=seed) for seed in range(4)]
    plain, tiered = kit.backend(model), sim(model, 2, n_threads=2)
    put(tiered, (0, 1, 0), (0, 3, 1))
    assert kit.logits_of(plain, *rows).tobytes() == kit.logits_of(tiered, *rows).tobytes()
    plain.close()
    tiered.close()


def test_routing_is_the_cpus_whatever_is_resident(model: NativeModel) -> None:
    options: dict[str, Any] = {"n_threads": 1, "n_kv_blocks": 8, "max_seqs": 4, "kv_type": "f32"}
    found = []
    for device, slots in (("cpu", 0), ("sim", 0), ("sim", 2), ("sim", 4)):
        engine = NativeBackend(
            model,
            kit.EngineOptions(**options, device=device, class_of_set=(0,), n_slots=(slots,) if slots else ()),
            n_ctx=256,
            capture_routing=True,
        )
        put_all = [(0, expert, expert) for expert in range(slots)]
        if slots:
            put(engine, *put_all)
        routing = step(engine, kit.row(PROMPT)).routing
        assert routing is not None
        found.append((routing.ids.tobytes(), routing.weights.tobytes()))
        engine.close()
    assert len(set(found)) == 1


def test_handoffs_are_counted(model: NativeModel) -> None:
    engine = sim(model, 0)
    for at in range(4):
        step(engine, kit.row([PROMPT[at]], at))
    handoffs = engine.handoffs()
    engine.close()
    assert sum(handoffs.overhead) == sum(handoffs.compute) == sum(handoffs.wait) == 4


def test_random_delays_change_no_bit(model: NativeModel, expected: NDArray[np.float32], fault: Any) -> None:
    fault(DELAY, 300_000)
    engine = sim(model, 2, n_threads=2)
    put(engine, (0, 2, 0), (0, 0, 1))
    assert prompt_logits(engine, 1).tobytes() == expected.tobytes()
    engine.close()


@pytest.mark.parametrize(
    ("kind", "value", "slots"),
    [(STALE_ROW, 0, 0), (SWAPPED_PAIR, 0, 0), (FLIPPED_BYTE, 40, 4)],
    ids=["stale-row", "wrong-order", "flipped-byte"],
)
def test_planted_faults_are_seen(
    model: NativeModel, expected: NDArray[np.float32], fault: Any, kind: int, value: int, slots: int
) -> None:
    """Each fault changes bits: the comparison above could not pass by chance."""
    fault(kind, value)
    engine = sim(model, slots)
    put(engine, *[(0, expert, expert) for expert in range(slots)])
    assert prompt_logits(engine, 1).tobytes() != expected.tobytes()
    engine.close()


@pytest.mark.parametrize(("kind", "value"), [(LOST_DOORBELL, 0), (LOST_DONE, 1)], ids=["doorbell", "step-done"])
def test_a_lost_word_fails_the_step_in_time(
    model: NativeModel, expected: NDArray[np.float32], fault: Any, kind: int, value: int
) -> None:
    engine = sim(model, 2, handoff_deadline_s=0.1)
    fault(kind, value)
    start = time.monotonic()
    with pytest.raises(NativeError, match=r"waited in vain|did not come here in time"):
        step(engine, kit.row([PROMPT[0]]))
    assert time.monotonic() - start < 5
    fault(kind, NONE[kind])
    assert prompt_logits(engine, 7).tobytes() == expected.tobytes()  # the engine goes on
    engine.close()


def test_an_abort_ends_a_step_that_waits(model: NativeModel, expected: NDArray[np.float32], fault: Any) -> None:
    engine = sim(model, 2, handoff_deadline_s=20.0)
    fault(LOST_DOORBELL, 0)
    ticket = engine.submit(StepBatch(rows=(kit.row([PROMPT[0]]),)))
    time.sleep(0.05)
    engine.abort(ticket)
    fault(LOST_DOORBELL, -1)
    start = time.monotonic()
    with pytest.raises(NativeError, match="aborted"):
        wait(engine, ticket)
    assert time.monotonic() - start < 2
    assert prompt_logits(engine, 7).tobytes() == expected.tobytes()
    engine.close()


def wait(engine: NativeBackend, ticket: int) -> StepResult:
    while (result := engine._completions.take_nowait(ticket)) is None:
        time.sleep(0.001)
    if result.error is not None:
        raise result.error
    return result


def test_a_lost_worker_ends_the_step(model: NativeModel, library: Library) -> None:
    engine = sim(model, 0, n_threads=2, step_deadline_s=0.2, handoff_deadline_s=20.0)
    ffi = cffi.FFI()
    ffi.cdef("int32_t strata_test_engine_block(void *engine, int32_t worker, int32_t hard);")
    hooks = ffi.dlopen(str(library.path))
    handle = ffi.cast("void *", int(library.ffi.cast("intptr_t", engine._handle)))
    hooks.strata_test_engine_block(handle, 1, 0)
    with pytest.raises(EngineStopped, match="did not come back"):
        step(engine, kit.row(PROMPT))
    with pytest.raises(EngineStopped):
        engine.submit(StepBatch(rows=(kit.row([1]),)))
    engine.close()


def test_refusals_name_the_field(model: NativeModel) -> None:
    engine = sim(model, 2)
    put(engine, (0, 1, 0))
    for call, text in (
        (lambda: engine.copy_expert(0, 2, 0), "slot 0 holds expert 1 of set 0"),
        (lambda: engine.copy_expert(1, 0, 1), "set is 1; accepted: 0 to 0"),
        (lambda: engine.copy_expert(0, 4, 1), "expert is 4; accepted: 0 to 3"),
        (lambda: engine.copy_expert(0, 3, 2), "slot is 2; set 0 has the slots 0 to 1"),
        (lambda: engine.commit_experts([(0, 3, 1)]), "slot 1 does not hold expert 3"),
        (lambda: engine.commit_experts([(0, 2, 0)]), "slot 0 does not hold expert 2"),
    ):
        with pytest.raises(NativeError, match=text):
            call()
    engine.close()
    cpu = kit.backend(model)
    with pytest.raises(NativeError, match="without expert slots"):
        cpu.copy_expert(0, 0, 0)
    cpu.close()
    with pytest.raises(NativeError, match="n_classes is 1; accepted: 0 to 0"):
        kit.backend(model, class_of_set=(0,), n_slots=(1,))


def test_commits_wait_for_steps_and_copies(model: NativeModel, fault: Any) -> None:
    engine = sim(model, 2)
    fault(DELAY, 2_000_000_000)
    number = engine.copy_expert(0, 1, 0)
    if engine.copied() < number:
        with pytest.raises(NativeError, match="has not ended"):
            engine.commit_experts([(0, 1, 0)])
    fault(DELAY, 0)
    fault(LOST_DOORBELL, 0)
    ticket = engine.submit(StepBatch(rows=(kit.row([1]),)))
    with pytest.raises(NativeError, match="between steps only"):
        engine.commit_experts([])
    engine.abort(ticket)
    with pytest.raises(NativeError, match="aborted"):
        wait(engine, ticket)
    engine.close()


def test_memory_is_measured(model: NativeModel) -> None:
    options: dict[str, Any] = {"n_threads": 1, "n_kv_blocks": 8, "max_seqs": 4, "kv_type": "f32"}
    cpu = model.measure(kit.EngineOptions(**options))
    none = model.measure(kit.EngineOptions(**options, device="sim"))
    some = model.measure(kit.EngineOptions(**options, device="sim", class_of_set=(0,), n_slots=(3,)))
    slot_bytes = model.plan.expert_sets[0].slot_bytes
    assert cpu.device == cpu.slots == cpu.shared == 0
    assert none.kv == none.activations == 0 and none.shared > model.plan.activations_bytes
    assert some.slots == 3 * slot_bytes and some.device == none.device + some.slots
