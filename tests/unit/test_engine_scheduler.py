"""The scheduler against a device that is a dictionary: every sequence gets exactly its own tokens, whatever happens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.engine.backend import BackendLimits, StepBatch, StepResult
from strata.engine.scheduler import Scheduler
from strata.engine.sequence import Sequence, State
from strata.errors import Overloaded
from strata.types import Request, SamplingParams, TokenInfo


def limits(n_kv_blocks: int = 16, n_batch: int = 32, max_seqs: int = 4, n_state_slots: int = 0) -> BackendLimits:
    return BackendLimits(
        n_ctx=n_kv_blocks * 64,
        n_batch=n_batch,
        max_seqs=max_seqs,
        n_kv_blocks=n_kv_blocks,
        n_vocab=1000,
        n_state_slots=n_state_slots,
    )


def sequence(seq_id: int, n_prompt: int, max_tokens: int = 5, **sampling: object) -> Sequence:
    request = Request(
        request_id=str(seq_id),
        prompt=tuple((seq_id * 37 + i) % 1000 for i in range(n_prompt)),
        sampling=SamplingParams(**sampling),
    )
    return Sequence(seq_id, request, seed=seq_id, max_tokens=max_tokens, breakers=())


def next_token(ids: list[int]) -> int:
    return (sum(ids) * 31 + len(ids)) % 1000


class Device:
    """Positions by block; reading a position that nobody wrote fails. `states`: ids by slot, which must go on."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], int] = {}
        self.states: dict[int, list[int]] | None = None

    def run(self, batch: StepBatch) -> StepResult:
        tokens = []
        for row in batch.rows:
            for i, token in enumerate(row.tokens):
                pos = row.first_pos + i
                self.cells[row.blocks[pos // 64], pos % 64] = token
            end = row.first_pos + len(row.tokens)
            ids = [self.cells[row.blocks[pos // 64], pos % 64] for pos in range(end)]
            if self.states is not None:
                before = self.states[row.state_slot] if row.first_pos else []
                assert before == ids[: row.first_pos], "the state is another sequence's"
                self.states[row.state_slot] = ids
            tokens.append(TokenInfo(next_token(ids)) if row.sample else None)
        return StepResult(ticket=1, tokens=tuple(tokens))


def run_all(scheduler: Scheduler, device: Device | None = None, max_steps: int = 2000) -> list[StepBatch]:
    device, batches = device or Device(), []
    for _ in range(max_steps):
        batch = scheduler.next_batch()
        if batch is None:
            return batches
        batches.append(batch)
        for seq, _ in scheduler.commit(batch, device.run(batch)):
            if seq.n_generated >= seq.max_tokens:
                scheduler.end(seq, State.FINISHED)
        scheduler.kv.check_integrity()
    raise AssertionError("the scheduler does not come to an end")


def expected(seq: Sequence) -> list[int]:
    ids = list(seq.request.prompt)
    for _ in range(seq.max_tokens):
        ids.append(next_token(ids))
    return ids


def test_prompt_goes_in_chunks_and_then_decodes_one_by_one():
    scheduler = Scheduler(limits(n_batch=32), max_waiting=4)
    seq = sequence(1, 70, max_tokens=3)
    scheduler.add(seq)
    batches = run_all(scheduler)
    assert [batch.n_tokens for batch in batches] == [32, 32, 6, 1, 1]
    assert seq.tokens == expected(seq)
    assert seq.state is State.FINISHED


def test_decoding_rows_ride_along_with_one_prompt_chunk():
    scheduler = Scheduler(limits(n_batch=16), max_waiting=4)
    a, b = sequence(1, 4, max_tokens=10), sequence(2, 40, max_tokens=2)
    scheduler.add(a)
    scheduler.add(b)
    batches = run_all(scheduler)
    mixed = [batch for batch in batches if len(batch.rows) == 2 and len(batch.rows[1].tokens) > 1]
    assert mixed, "no step mixed decoding and prompt"
    assert all(batch.n_tokens <= 16 for batch in batches)
    assert a.tokens == expected(a)
    assert b.tokens == expected(b)


def test_a_second_prompt_with_the_same_beginning_computes_only_the_rest():
    scheduler = Scheduler(limits(n_batch=256), max_waiting=4)
    first, device = sequence(1, 140, max_tokens=1), Device()
    scheduler.add(first)
    run_all(scheduler, device)
    second = sequence(1, 140, max_tokens=4)
    scheduler.add(second)
    batches = run_all(scheduler, device)
    assert batches[0].n_tokens == 140 - 128
    assert second.n_cached == 128
    assert second.tokens == expected(second)


def test_a_model_with_states_computes_every_prompt_whole():
    scheduler = Scheduler(limits(n_batch=256, n_state_slots=4), max_waiting=4)
    device = Device()
    device.states = {}
    for max_tokens in (1, 4):
        seq = sequence(1, 140, max_tokens=max_tokens)
        scheduler.add(seq)
        assert run_all(scheduler, device)[0].n_tokens == 140
        assert seq.n_cached == 0
        assert seq.tokens == expected(seq)
    assert scheduler.kv.n_cached == 0


def test_queue_limit_is_an_error_with_a_retry_time():
    scheduler = Scheduler(limits(), max_waiting=1)
    scheduler.add(sequence(1, 3))
    with pytest.raises(Overloaded) as caught:
        scheduler.add(sequence(2, 3))
    assert caught.value.retry_after_s > 0


def test_preemption_loses_nothing():
    scheduler = Scheduler(limits(n_kv_blocks=4, max_seqs=3), max_waiting=8)
    seqs = [sequence(i, 50, max_tokens=100) for i in (1, 2, 3)]
    for seq in seqs:
        scheduler.add(seq)
    run_all(scheduler)
    assert scheduler.n_preempted > 0
    for seq in seqs:
        assert seq.tokens == expected(seq)


def test_blocks_of_an_aborted_sequence_stay_until_its_step_is_committed():
    scheduler = Scheduler(limits(), max_waiting=4)
    seq = sequence(1, 10)
    scheduler.add(seq)
    batch = scheduler.next_batch()
    assert batch is not None
    scheduler.end(seq, State.ABORTED)
    assert scheduler.in_flight_over()
    assert scheduler.kv.n_held == 1
    assert scheduler.commit(batch, Device().run(batch)) == []
    assert scheduler.kv.n_held == 0
    assert scheduler.next_batch() is None


def test_history_is_cut_to_what_the_penalties_read():
    seq = sequence(1, 100, repeat_penalty=1.1, repeat_last_n=10)
    assert seq.sample_spec().history == tuple(seq.tokens[-10:])
    assert sequence(1, 100).sample_spec().history == ()
    assert len(sequence(1, 100, dry_multiplier=0.5).sample_spec().history) == 100


@given(
    shapes=st.lists(st.tuples(st.integers(1, 150), st.integers(1, 80)), min_size=1, max_size=8),
    n_kv_blocks=st.integers(4, 12),
    n_batch=st.integers(4, 64),
    max_seqs=st.integers(1, 4),
    has_states=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_every_sequence_gets_its_own_answer(shapes, n_kv_blocks, n_batch, max_seqs, has_states):
    scheduler = Scheduler(limits(n_kv_blocks, n_batch, max_seqs, max_seqs if has_states else 0), max_waiting=100)
    device = Device()
    device.states = {} if has_states else None
    seqs = [sequence(i % 3, n, max_tokens=m) for i, (n, m) in enumerate(shapes)]
    for i, seq in enumerate(seqs):
        seq.seq_id = i
        scheduler.add(seq)
    batches = run_all(scheduler, device)
    assert all(batch.n_tokens <= n_batch and len(batch.rows) <= max_seqs for batch in batches)
    assert all(sum(len(row.tokens) > 1 for row in batch.rows) <= 1 for batch in batches)
    for seq in seqs:
        assert seq.tokens == expected(seq)
    assert scheduler.kv.n_held == 0
