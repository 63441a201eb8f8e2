"""A deterministic backend without a model, for tests and demos of everything above the device.

The token after a sequence is a pure function of its ids, so tests know the answer in advance. The backend checks
what a real one relies on: positions without gaps, enough KV blocks, no block written by two sequences at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from strata.engine.backend import KV_BLOCK_TOKENS, BackendHealth, BackendLimits, StepBatch, StepResult
from strata.errors import EngineStopped, StrataError
from strata.types import TokenInfo, TokenLogprob

NextToken = Callable[[Sequence[int]], int]


class FakeBackend:
    """Computes `next_token(all ids of the sequence so far)`; each step lasts `step_s` of trio's clock."""

    name = "fake"

    def __init__(self, limits: BackendLimits, next_token: NextToken, *, step_s: float = 0.0) -> None:
        self.limits = limits
        self._next_token = next_token
        self.step_s = step_s
        self.batches: list[StepBatch] = []
        self.aborted: set[int] = set()
        self.fail_at_step: int | None = None
        self.fail_rows_at_step: tuple[int, tuple[int, ...]] | None = None
        self.dead = False
        self._kv: dict[int, list[int]] = {}  # block -> token ids written so far
        self._reached: dict[int, int] = {}  # state slot -> positions taken in
        self._results: dict[int, StepResult] = {}

    def submit(self, batch: StepBatch) -> int:
        if self.dead:
            raise EngineStopped("the fake device is dead")
        ticket = len(self.batches) + 1
        self.batches.append(batch)
        self._check(batch)
        tokens: list[TokenInfo | None] = []
        for row in batch.rows:
            self._write(row.blocks, row.first_pos, row.tokens)
            ids = self._read(row.blocks, row.first_pos + len(row.tokens))
            tokens.append(self._draw(row.sample is not None, ids, row.sample.params.n_logprobs if row.sample else None))
        error: Exception | None = None
        failed: tuple[int, ...] = ()
        if self.fail_at_step == ticket:
            self.dead, error = True, StrataError("planted failure")
        if self.fail_rows_at_step is not None and self.fail_rows_at_step[0] == ticket:
            failed, error = self.fail_rows_at_step[1], StrataError("planted row failure")
        self._results[ticket] = StepResult(ticket=ticket, tokens=tuple(tokens), error=error, failed_rows=failed)
        return ticket

    async def wait(self, ticket: int) -> StepResult:
        await trio.sleep(self.step_s)
        result = self._results.pop(ticket)
        if ticket in self.aborted:
            return StepResult(ticket=ticket, tokens=result.tokens, error=StrataError("aborted"))
        return result

    def abort(self, ticket: int) -> None:
        self.aborted.add(ticket)

    def kv_copy(self, from_block: int, to_block: int) -> None:
        self._kv[to_block] = list(self._kv[from_block])

    def state_copy(self, from_slot: int, to_slot: int) -> None:
        self._reached[to_slot] = self._reached[from_slot]

    def health(self) -> BackendHealth:
        return BackendHealth(
            phase="dead" if self.dead else "idle",
            heartbeat_age_s=0.0,
            layer=-1,
            steps=len(self.batches),
            tokens=sum(batch.n_tokens for batch in self.batches),
            failed_steps=0,
            weight_bytes=0,
            run_s=0.0,
        )

    async def aclose(self) -> None:
        self.dead = True
        await trio.lowlevel.checkpoint()

    def _check(self, batch: StepBatch) -> None:
        if not batch.rows or batch.n_tokens > self.limits.n_batch or len(batch.rows) > self.limits.max_seqs:
            raise AssertionError(f"a step of {batch.n_tokens} tokens in {len(batch.rows)} rows breaks the limits")
        written: set[int] = set()
        for row in batch.rows:
            end = row.first_pos + len(row.tokens)
            if len(row.blocks) * KV_BLOCK_TOKENS < end:
                raise AssertionError(f"sequence {row.seq_id}: {len(row.blocks)} blocks do not hold {end} positions")
            own = set(row.blocks[row.first_pos // KV_BLOCK_TOKENS : (end - 1) // KV_BLOCK_TOKENS + 1])
            if own & written:
                raise AssertionError(f"sequence {row.seq_id} writes to blocks {own & written} of another sequence")
            written |= own
        if self.limits.n_state_slots:
            self._check_slots(batch)

    def _check_slots(self, batch: StepBatch) -> None:
        slots = [row.state_slot for row in batch.rows]
        if len(set(slots)) != len(slots) or not all(0 <= slot < self.limits.n_state_slots for slot in slots):
            raise AssertionError(f"state slots {slots} of {self.limits.n_state_slots} are not one for each sequence")
        for row in batch.rows:
            if row.first_pos not in (0, self._reached.get(row.state_slot, 0)):
                raise AssertionError(f"sequence {row.seq_id}: position {row.first_pos} does not follow its state")
            self._reached[row.state_slot] = row.first_pos + len(row.tokens)

    def _write(self, blocks: Sequence[int], first_pos: int, tokens: Sequence[int]) -> None:
        for i, token in enumerate(tokens):
            block, at = blocks[(first_pos + i) // KV_BLOCK_TOKENS], (first_pos + i) % KV_BLOCK_TOKENS
            held = self._kv.setdefault(block, [])
            if len(held) < at:
                raise AssertionError(f"block {block} holds {len(held)} positions, position {at} is written")
            del held[at:]
            held.append(token)

    def _read(self, blocks: Sequence[int], n: int) -> list[int]:
        ids = [token for block in blocks for token in self._kv.get(block, [])][:n]
        if len(ids) != n:
            raise AssertionError(f"{n} positions are read, {len(ids)} were written")
        return ids

    def _draw(self, wanted: bool, ids: Sequence[int], n_logprobs: int | None) -> TokenInfo | None:
        if not wanted:
            return None
        token = self._next_token(ids)
        if n_logprobs is None:
            return TokenInfo(token)
        top = tuple(TokenLogprob((token + j) % self.limits.n_vocab, -0.5 - j) for j in range(n_logprobs))
        return TokenInfo(token, -0.5, top)
