"""StepBatch <-> strata_step: arrays that are allocated once and reused, and what comes back in them.

numpy enters here and in native.py only. Arrays are borrowed by the library from submit until the completion is polled;
one StepArrays serves one step at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.engine.backend import KV_BLOCK_TOKENS, BackendLimits, BatchRow, Routing, SampleSpec, StepBatch
from strata.types import TokenInfo, TokenLogprob

__all__ = ["StepArrays"]

_POOL_MIN = 4096


class _Pool:
    """A growing run of 4-byte values that samples index into."""

    def __init__(self, dtype: str) -> None:
        self.values: NDArray[Any] = np.zeros(_POOL_MIN, dtype)
        self.n = 0

    def add(self, values: Sequence[Any] | NDArray[Any]) -> int:
        """Append; the index of the first."""
        first, self.n = self.n, self.n + len(values)
        if self.n > len(self.values):
            self.values = np.resize(self.values, max(self.n, 2 * len(self.values)))
        self.values[first : self.n] = values
        return first


class StepArrays:
    """The arrays behind one strata_step, for batches within `limits` and up to n_outputs_max outputs."""

    def __init__(
        self, ffi: Any, limits: BackendLimits, n_outputs_max: int, routing: tuple[int, int] | None = None
    ) -> None:
        """routing: (expert sets, experts of a token in the largest of them) where the routing is to be captured."""
        self._ffi = ffi
        self._limits = limits
        self._n_outputs_max = n_outputs_max
        self._max_blocks = (limits.n_ctx + KV_BLOCK_TOKENS - 1) // KV_BLOCK_TOKENS
        self._token = np.zeros(limits.n_batch, np.int32)
        self._pos = np.zeros(limits.n_batch, np.int32)
        self._seq = np.zeros(limits.n_batch, np.int32)
        self._blocks = np.full((limits.max_seqs, self._max_blocks), -1, np.int32)
        self._state_slot = np.zeros(limits.max_seqs, np.int32)
        self._output_row = np.zeros(n_outputs_max, np.int32)
        self._n_samples_max = min(limits.max_seqs, n_outputs_max)
        self._samples: Any = ffi.new("strata_sample[]", self._n_samples_max)
        self._sampled: Any = ffi.new("strata_sampled[]", self._n_samples_max)
        self._ints = _Pool("int32")
        self._floats = _Pool("float32")
        self._logits: NDArray[np.float32] | None = None
        self._logits_outputs: list[int] = []
        self._sampled_rows: list[int] = []
        self._n_rows = 0
        self._n_tokens = 0
        self._routing = routing
        n_chosen = routing[0] * limits.n_batch * routing[1] if routing else 0
        self._expert_ids = np.zeros(n_chosen, np.int32)
        self._expert_weights = np.zeros(n_chosen, np.float32)
        self.step: Any = ffi.new("strata_step *")

    def fill(self, batch: StepBatch) -> Any:
        """Write the batch into the arrays; the strata_step to submit.

        Raises: ValueError when the batch does not fit the arrays; what they hold is checked by the library.
        """
        self._check_fits(batch)
        self._ints.n = self._floats.n = 0
        self._logits_outputs, self._sampled_rows = [], []
        self._n_rows = len(batch.rows)
        n_tokens = n_outputs = 0
        for index, row in enumerate(batch.rows):
            self._fill_row(index, row, n_tokens)
            first_output = n_outputs
            n = len(row.tokens) if row.all_logits else int(row.sample is not None)
            end = n_tokens + len(row.tokens)
            self._output_row[first_output : first_output + n] = range(end - n, end)
            n_outputs += n
            if row.all_logits:
                self._logits_outputs.extend(range(first_output, n_outputs))
            if row.sample is not None:
                self._fill_sample(self._samples[len(self._sampled_rows)], row.sample, n_outputs - 1)
                self._sampled_rows.append(index)
            n_tokens = end
        self._point(n_tokens, n_outputs)
        return self.step

    def _check_fits(self, batch: StepBatch) -> None:
        n_outputs = sum(len(row.tokens) if row.all_logits else row.sample is not None for row in batch.rows)
        for name, value, most in (
            ("tokens", batch.n_tokens, self._limits.n_batch),
            ("sequences", len(batch.rows), self._limits.max_seqs),
            ("outputs", n_outputs, self._n_outputs_max),
            ("blocks of a sequence", max((len(row.blocks) for row in batch.rows), default=0), self._max_blocks),
        ):
            if value > most:
                raise ValueError(f"the step has {value} {name}, planned for {most}")

    def _fill_row(self, index: int, row: BatchRow, first: int) -> None:
        end = first + len(row.tokens)
        self._token[first:end] = row.tokens
        self._pos[first:end] = np.arange(row.first_pos, row.first_pos + len(row.tokens))
        self._seq[first:end] = index
        self._state_slot[index] = row.state_slot
        self._blocks[index, : len(row.blocks)] = row.blocks
        self._blocks[index, len(row.blocks) :] = -1

    def _fill_sample(self, sample: Any, spec: SampleSpec, output: int) -> None:
        p = spec.params
        sample.output, sample.seed, sample.counter = output, spec.seed, spec.counter
        sample.temperature, sample.top_k = p.temperature, p.top_k
        sample.top_p, sample.min_p, sample.typical_p = p.top_p, p.min_p, p.typical_p
        sample.top_n_sigma = p.top_n_sigma
        sample.xtc_probability, sample.xtc_threshold = p.xtc_probability, p.xtc_threshold
        sample.repeat_penalty = p.repeat_penalty
        sample.presence_penalty, sample.frequency_penalty = p.presence_penalty, p.frequency_penalty
        sample.penalty_last_n = p.repeat_last_n
        sample.dry_multiplier, sample.dry_base = p.dry_multiplier, p.dry_base
        sample.dry_allowed_length, sample.dry_last_n = p.dry_allowed_length, p.dry_penalty_last_n
        sample.n_logprobs = -1 if p.n_logprobs is None else p.n_logprobs
        sample.min_keep = p.min_keep
        sample.n_history, sample.history_first = len(spec.history), self._ints.add(spec.history)
        sample.n_breakers, sample.breakers_first = len(spec.breakers), self._ints.add(spec.breakers)
        sample.n_bias = len(p.logit_bias)
        sample.bias_first = self._ints.add([token for token, _ in p.logit_bias])
        sample.bias_value_first = self._floats.add([value for _, value in p.logit_bias])
        sample.mask_first = -1 if spec.mask is None else self._ints.add(np.frombuffer(spec.mask, "<i4"))

    def _point(self, n_tokens: int, n_outputs: int) -> None:
        """Set the step's counts and pointers; pools may have moved."""
        ffi, step = self._ffi, self.step
        step.struct_size = ffi.sizeof("strata_step")
        step.n_tokens, step.n_seqs, step.n_outputs = n_tokens, self._n_rows, n_outputs
        step.n_samples = len(self._sampled_rows)
        step.max_blocks = self._max_blocks
        step.n_ints, step.n_floats = self._ints.n, self._floats.n
        step.token, step.pos, step.seq = self._ints_of(self._token), self._ints_of(self._pos), self._ints_of(self._seq)
        step.block_table, step.output_row = self._ints_of(self._blocks), self._ints_of(self._output_row)
        step.state_slot = self._ints_of(self._state_slot)
        step.ints = self._ints_of(self._ints.values)
        step.floats = self._floats_of(self._floats.values)
        step.samples, step.sampled_out = self._samples, self._sampled
        self._n_tokens = n_tokens
        if self._routing is not None:
            step.routing_out, step.routing_stride = self._ints_of(self._expert_ids), self._routing[1]
            step.routing_weights_out = self._floats_of(self._expert_weights)
        self._logits = None
        step.logits_out = ffi.NULL
        if self._logits_outputs:
            self._logits = np.empty((n_outputs, self._limits.n_vocab), np.float32)
            step.logits_out = self._floats_of(self._logits)

    def _ints_of(self, array: NDArray[Any]) -> Any:
        return self._ffi.from_buffer("int32_t[]", array)

    def _floats_of(self, array: NDArray[Any]) -> Any:
        return self._ffi.from_buffer("float[]", array)

    def logits(self) -> NDArray[np.float32] | None:
        """float32 [tokens of rows with all_logits, n_vocab], in batch order; None when no row asked."""
        if self._logits is None or len(self._logits_outputs) == len(self._logits):
            return self._logits
        return self._logits[self._logits_outputs]

    def routing(self) -> Routing | None:
        """A copy of what the routers chose; None when it is not captured."""
        if self._routing is None:
            return None
        n_sets, n_used = self._routing
        shape, n = (n_sets, self._n_tokens, n_used), n_sets * self._n_tokens * n_used
        return Routing(
            ids=self._expert_ids[:n].reshape(shape).copy(), weights=self._expert_weights[:n].reshape(shape).copy()
        )

    def tokens(self) -> tuple[TokenInfo | None, ...]:
        """The drawn token of each row of the batch; None where nothing was asked or nothing could be drawn."""
        drawn: list[TokenInfo | None] = [None] * self._n_rows
        for k, row in enumerate(self._sampled_rows):
            sampled = self._sampled[k]
            if sampled.token >= 0:
                drawn[row] = self._info(sampled, self._samples[k].n_logprobs >= 0)
        return tuple(drawn)

    def failed_rows(self) -> tuple[int, ...]:
        """Rows that asked for a token and got none."""
        return tuple(row for k, row in enumerate(self._sampled_rows) if self._sampled[k].token < 0)

    def _info(self, sampled: Any, logprobs: bool) -> TokenInfo:
        if not logprobs:
            return TokenInfo(int(sampled.token))
        top = tuple(
            TokenLogprob(int(sampled.top_token[j]), float(sampled.top_logprob[j])) for j in range(sampled.n_top)
        )
        return TokenInfo(int(sampled.token), float(sampled.logprob), top)
