"""What the step loop needs of a device: submit a batch, be told when it is done.

Backends: `ffi.native.NativeBackend` (cpu, later cuda and sim) and `engine.fake.FakeBackend`. A backend owns no
policy: which rows, which KV blocks, which samplers are the scheduler's choice.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Protocol

import msgspec

from strata.types import SamplingParams, TokenInfo

KV_BLOCK_TOKENS = 64


class Phase(IntEnum):
    """What the tokens of a row are. Only decoding says which experts the next tokens will want."""

    PREFILL = 0  # of a prompt, or computed again after a preemption
    DECODE = 1  # the newest token of an answer
    VERIFY = 2  # guessed tokens that are checked


class SampleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How the token after one output row is drawn."""

    params: SamplingParams
    seed: int
    counter: int  # index of the drawn token in its sequence: draws do not depend on batching
    history: tuple[int, ...] = ()  # prompt and generated ids, oldest first, only as far as a penalty looks back
    breakers: tuple[int, ...] = ()  # token ids that end a DRY match
    mask: bytes | None = None  # bit set of allowed tokens (constrained decoding), little-endian 32-bit words


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive tokens of one sequence within a step."""

    seq_id: int
    tokens: tuple[int, ...]
    first_pos: int
    blocks: tuple[int, ...]  # KV block of positions 64 b .. 64 b + 63, as many as the last position needs
    phase: Phase = Phase.PREFILL
    state_slot: int = 0  # of the sequence's recurrent states; without meaning where the model has none
    sample: SampleSpec | None = None  # draw the token after the last one
    all_logits: bool = False  # return logits of every token of this row (else of none)


class StepBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One step: at most one row group per sequence."""

    rows: tuple[BatchRow, ...]

    @property
    def n_tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """Which experts a step's tokens used, in router order. The arrays are the reader's own.

    The first axis counts the plan's expert sets, the second the step's tokens in batch order. A set that computes only
    rows with outputs has no experts for the other tokens.
    """

    ids: Any  # int32 ndarray [n_sets, n_tokens, n_used of the largest set]; -1: none
    weights: Any  # float32 ndarray of the same shape
    on_gpu: Any = None  # bool ndarray of the same shape; None: all on the CPU


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished step brought. `tokens[i]` belongs to rows[i]; None where nothing was drawn."""

    ticket: int
    tokens: tuple[TokenInfo | None, ...]
    logits: object | None = None  # float32 ndarray [n_rows_with_all_logits_tokens, n_vocab]
    run_s: float = 0.0
    sample_s: float = 0.0
    weight_bytes: int = 0
    expert_rows: int = 0
    experts_touched: int = 0
    expert_hits: int = 0  # (token, expert) pairs that a device computed from its slots
    handoff_wait_s: float = 0.0  # the CPU's, for doorbells
    routing: Routing | None = None  # None: the backend does not capture it, or the step failed
    error: Exception | None = None  # the step failed; `failed_rows` says for whom, empty = for all
    failed_rows: tuple[int, ...] = ()


class Handoffs(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of times of jobs with missed experts: item i counts 2^(i/4) ns .. 2^((i+1)/4) ns."""

    overhead: tuple[int, ...]  # from the device's first payload word to its last read row, less `compute`
    compute: tuple[int, ...]  # the CPU's, from the doorbell it saw to the done word
    wait: tuple[int, ...]  # the CPU's, for the doorbell


class BackendLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Fixed sizes that the scheduler plans within."""

    n_ctx: int  # positions of the longest sequence
    n_batch: int  # tokens of one step
    max_seqs: int  # sequences of one step
    n_kv_blocks: int
    n_vocab: int
    n_state_slots: int = 0  # sequences whose recurrent states are kept; 0: the model has none


class BackendHealth(msgspec.Struct, frozen=True, kw_only=True):
    """State of the native loop for /health and /metrics."""

    phase: str  # idle | step | dead
    heartbeat_age_s: float
    layer: int
    steps: int
    tokens: int
    failed_steps: int
    weight_bytes: int
    run_s: float
    pinned_bytes: int = 0  # of experts in page-locked RAM


class Backend(Protocol):
    """One device. Used by exactly one loop."""

    name: str
    limits: BackendLimits

    def submit(self, batch: StepBatch) -> int:
        """Start a step and return its ticket at once. Raises EngineStopped when the device is dead."""
        ...

    async def wait(self, ticket: int) -> StepResult:
        """Return the step's result. Cancelling the wait is immediate; the result stays readable."""
        ...

    def abort(self, ticket: int) -> None:
        """Ask for the step to end at the next op; idempotent. Its wait() then returns with an error."""
        ...

    def kv_copy(self, from_block: int, to_block: int) -> None:
        """Copy one KV block in every layer; between steps only."""
        ...

    def state_copy(self, from_slot: int, to_slot: int) -> None:
        """Copy the recurrent states of one slot over another's; between steps only."""
        ...

    def health(self) -> BackendHealth: ...

    async def aclose(self) -> None:
        """Abort what runs and free the device; bounded."""
        ...
