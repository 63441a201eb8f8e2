"""One request's life in the engine, as a table of states. Pure.

WAITING --admit--> PREFILL --last prompt token computed--> DECODE --finish--> FINISHED
   ^                  |                                       |
   +----- preempt ----+---------------- preempt -------------+        any --abort--> ABORTED
"""

from __future__ import annotations

from enum import StrEnum

from strata.engine.backend import SampleSpec
from strata.types import Request, SamplingParams


class State(StrEnum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    ABORTED = "aborted"


_MOVES: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.PREFILL, State.FINISHED, State.ABORTED}),
    State.PREFILL: frozenset({State.DECODE, State.WAITING, State.FINISHED, State.ABORTED}),
    State.DECODE: frozenset({State.WAITING, State.FINISHED, State.ABORTED}),
    State.FINISHED: frozenset(),
    State.ABORTED: frozenset(),
}


class Sequence:
    """A request with its tokens, its KV blocks and how far it has been computed."""

    def __init__(self, seq_id: int, request: Request, *, seed: int, max_tokens: int, breakers: tuple[int, ...]) -> None:
        self.seq_id = seq_id
        self.request = request
        self.seed = seed
        self.max_tokens = max_tokens
        self.breakers = breakers
        self.state = State.WAITING
        self.tokens = list(request.prompt)  # prompt, then what was generated
        self.n_prompt = len(request.prompt)
        self.n_computed = 0  # positions whose keys and values are in the cache
        self.n_cached = 0  # of those, taken from other sequences at the first admission
        self.n_preempted = 0
        self.blocks: list[int] = []
        self.state_slot: int | None = None  # where the recurrent states are, while it runs and the model has some

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def is_over(self) -> bool:
        return self.state in (State.FINISHED, State.ABORTED)

    def move(self, state: State) -> None:
        """Change state; an impossible move is a bug and raises RuntimeError."""
        if state not in _MOVES[self.state]:
            raise RuntimeError(f"sequence {self.seq_id}: {self.state} -> {state} is not a move")
        self.state = state

    def sample_spec(self) -> SampleSpec:
        """How the next token is drawn; the history is cut to what a penalty looks back at."""
        params = self.request.sampling
        return SampleSpec(
            params=params,
            seed=self.seed,
            counter=self.n_generated,
            history=tuple(self.tokens[-n:]) if (n := _look_back(params, len(self.tokens))) else (),
            breakers=self.breakers if params.dry_multiplier else (),
        )


def _look_back(params: SamplingParams, n_tokens: int) -> int:
    """Tokens of history that any active penalty reads."""
    n = 0
    if params.repeat_penalty != 1.0 or params.presence_penalty or params.frequency_penalty:
        n = n_tokens if params.repeat_last_n < 0 else params.repeat_last_n
    if params.dry_multiplier:
        n = max(n, n_tokens if params.dry_penalty_last_n < 0 else params.dry_penalty_last_n)
    return min(n, n_tokens)
