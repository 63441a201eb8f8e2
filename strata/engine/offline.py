"""Whole sequences without a server: every token's logits, in order. Used by `strata logits`, `perplexity` and tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from strata.engine.backend import KV_BLOCK_TOKENS, Backend, BatchRow, StepBatch, StepResult
from strata.errors import ContextTooLong, RequestError


async def logits_of(backend: Backend, tokens: Sequence[int], chunk: int | None) -> AsyncIterator[Any]:
    """Yield float32 [n, n_vocab] pieces that together have one row per token.

    chunk: tokens per step, None for the largest; it changes no bit (contract C1).
    Raises: RequestError for ids outside the vocabulary, ContextTooLong, and whatever a failed step carries.
    """
    limits = backend.limits
    for token in tokens:
        if not 0 <= token < limits.n_vocab:
            raise RequestError(f"token id {token} is out of range; accepted: 0 to {limits.n_vocab - 1}")
    if len(tokens) > limits.n_ctx:
        raise ContextTooLong(f"{len(tokens)} tokens do not fit the context of {limits.n_ctx}")
    n_step = min(chunk or limits.n_batch, limits.n_batch)
    blocks = tuple(range((len(tokens) + KV_BLOCK_TOKENS - 1) // KV_BLOCK_TOKENS))
    for first in range(0, len(tokens), n_step):
        piece = tuple(tokens[first : first + n_step])
        n_blocks = (first + len(piece) + KV_BLOCK_TOKENS - 1) // KV_BLOCK_TOKENS
        row = BatchRow(seq_id=0, tokens=piece, first_pos=first, blocks=blocks[:n_blocks], all_logits=True)
        result = await run_step(backend, StepBatch(rows=(row,)))
        yield result.logits


async def run_step(backend: Backend, batch: StepBatch) -> StepResult:
    """One step to its end. Raises what it failed with."""
    result = await backend.wait(backend.submit(batch))
    if result.error is not None:
        raise result.error
    return result
