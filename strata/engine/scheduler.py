"""Decides what the next step computes: admit, chunk, decode, preempt. Pure: no clock, no awaiting.

A step holds one row for each decoding sequence and at most one piece of one prompt. Decoding goes first: a long
prompt slows others down by at most the time of one chunk. When KV blocks run out, the youngest sequence gives its
blocks back and waits again with everything it has generated so far; nothing is lost, its text goes on where it was.

A model with recurrent states gives each running sequence a slot for them. Its sequences always compute their whole
prompt: cached keys and values without the state at their end are of no use (docs/decisions/0015).
"""

from __future__ import annotations

from collections import deque

from strata.engine.backend import KV_BLOCK_TOKENS, BackendLimits, BatchRow, Phase, StepBatch, StepResult
from strata.engine.kv import KvBlocks
from strata.engine.sequence import Sequence, State
from strata.errors import Overloaded
from strata.types import TokenInfo


class Scheduler:
    """All sequences of one engine. Call order per step: next_batch, (the device works), commit."""

    def __init__(self, limits: BackendLimits, *, max_waiting: int, chunk_tokens: int | None = None) -> None:
        self.limits = limits
        self.kv = KvBlocks(limits.n_kv_blocks)
        self.max_waiting = max_waiting
        self.chunk_tokens = min(chunk_tokens or limits.n_batch, limits.n_batch)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # PREFILL and DECODE, oldest first
        self.n_preempted = 0
        self._free_slots = list(range(limits.n_state_slots - 1, -1, -1))
        self._in_flight: dict[int, Sequence] = {}
        self._leaving: list[Sequence] = []  # over, but a running step still writes to their blocks

    def add(self, seq: Sequence) -> None:
        """Queue a sequence. Raises Overloaded when the queue is full."""
        if len(self.waiting) >= self.max_waiting:
            raise Overloaded(
                f"{len(self.waiting)} requests wait and {len(self.running)} run; the queue holds {self.max_waiting}",
                retry_after_s=1.0,
            )
        self.waiting.append(seq)

    def end(self, seq: Sequence, state: State) -> None:
        """Finish or abort a sequence; idempotent. Its blocks are free once no running step uses them."""
        if seq.is_over:
            return
        if seq.state is State.WAITING:
            self.waiting.remove(seq)
        else:
            self.running.remove(seq)
        seq.move(state)
        if seq.seq_id in self._in_flight:
            self._leaving.append(seq)
        else:
            self._release(seq)

    def next_batch(self) -> StepBatch | None:
        """The next step, or None when there is nothing to compute."""
        if self._in_flight:
            raise RuntimeError("next_batch before the running step was committed")
        self._admit()
        rows = self._decode_rows()
        prompt = next((seq for seq in self.running if seq.state is State.PREFILL), None)
        if prompt is not None and (row := self._prompt_row(prompt, self.limits.n_batch - len(rows))):
            rows.append(row)
        if not rows:
            return None
        by_id = {seq.seq_id: seq for seq in self.running}
        self._in_flight = {row.seq_id: by_id[row.seq_id] for row in rows}
        return StepBatch(rows=tuple(rows))

    def in_flight_over(self) -> bool:
        """Whether every sequence of the running step has ended meanwhile."""
        return bool(self._in_flight) and all(seq.is_over for seq in self._in_flight.values())

    def commit(self, batch: StepBatch, result: StepResult) -> list[tuple[Sequence, TokenInfo]]:
        """Take in a finished step; return the living sequences that got a token, in row order.

        Rows named in result.failed_rows keep their state: the caller ends those sequences.
        """
        got: list[tuple[Sequence, TokenInfo]] = []
        failed = set(result.failed_rows)
        for i, (row, token) in enumerate(zip(batch.rows, result.tokens, strict=True)):
            seq = self._in_flight[row.seq_id]
            if i in failed:
                continue
            n_before = seq.n_computed
            seq.n_computed += len(row.tokens)
            if self._keeps_prefixes and seq.n_computed // KV_BLOCK_TOKENS > n_before // KV_BLOCK_TOKENS:
                self.kv.publish(seq.blocks, seq.tokens, seq.n_computed)
            if token is not None and not seq.is_over:
                if seq.state is State.PREFILL:
                    seq.move(State.DECODE)
                seq.tokens.append(token.token)
                got.append((seq, token))
        self._settle()
        return got

    def discard(self) -> None:
        """The running step failed as a whole: nothing it computed counts."""
        self._settle()

    def _settle(self) -> None:
        self._in_flight = {}
        for seq in self._leaving:
            self._release(seq)
        self._leaving.clear()

    @property
    def _keeps_prefixes(self) -> bool:
        return self.limits.n_state_slots == 0

    def _release(self, seq: Sequence) -> None:
        self.kv.release(seq.blocks)
        if seq.state_slot is not None:
            self._free_slots.append(seq.state_slot)
            seq.state_slot = None
        seq.n_computed = 0

    def _admit(self) -> None:
        """Start waiting sequences, in order, while there are seats and blocks for the first chunk."""
        while self.waiting and len(self.running) < self.limits.max_seqs:
            if any(seq.state is State.PREFILL for seq in self.running):
                return
            seq = self.waiting[0]
            if not self._keeps_prefixes and not self._free_slots:
                return
            seq.blocks = self.kv.match(seq.tokens) if self._keeps_prefixes else []
            n_cached = len(seq.blocks) * KV_BLOCK_TOKENS
            # the whole prompt, and one block to grow for each running sequence: admission must not cause preemption
            if not self._room_for(len(seq.tokens) + 1, len(seq.blocks)):
                self.kv.release(seq.blocks)
                return
            self.waiting.popleft()
            seq.n_computed = n_cached
            if self._free_slots:
                seq.state_slot = self._free_slots.pop()
            if seq.n_preempted == 0:
                seq.n_cached = n_cached
            seq.move(State.PREFILL)
            self.running.append(seq)

    def _room_for(self, n_positions: int, n_have: int) -> bool:
        n_need = (n_positions + KV_BLOCK_TOKENS - 1) // KV_BLOCK_TOKENS - n_have
        return n_need + len(self.running) <= self.kv.n_available

    def _decode_rows(self) -> list[BatchRow]:
        rows: list[BatchRow] = []
        for seq in list(self.running):
            if seq.state is not State.DECODE or not self._grow(seq, len(seq.tokens)):
                continue
            rows.append(
                BatchRow(
                    seq_id=seq.seq_id,
                    tokens=(seq.tokens[-1],),
                    first_pos=len(seq.tokens) - 1,
                    blocks=tuple(seq.blocks),
                    phase=Phase.DECODE,
                    state_slot=seq.state_slot or 0,
                    sample=seq.sample_spec(),
                )
            )
        alive = {seq.seq_id for seq in self.running}
        return [row for row in rows if row.seq_id in alive]

    def _prompt_row(self, seq: Sequence, room: int) -> BatchRow | None:
        n = min(len(seq.tokens) - seq.n_computed, self.chunk_tokens, room)
        if n <= 0 or not self._grow(seq, seq.n_computed + n):
            return None
        end = seq.n_computed + n
        return BatchRow(
            seq_id=seq.seq_id,
            tokens=tuple(seq.tokens[seq.n_computed : end]),
            first_pos=seq.n_computed,
            blocks=tuple(seq.blocks),
            state_slot=seq.state_slot or 0,
            sample=seq.sample_spec() if end == len(seq.tokens) else None,
        )

    def _grow(self, seq: Sequence, n_positions: int) -> bool:
        """Give seq blocks for n_positions, preempting younger sequences; False when seq itself had to go."""
        while not self.kv.extend(seq.blocks, n_positions):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self._release(seq)
        seq.n_preempted += 1
        self.n_preempted += 1
        seq.move(State.WAITING)
        self.waiting.appendleft(seq)
