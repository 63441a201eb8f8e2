"""Runs of whole tiny models under every circumstance that must not matter (contract C1)."""

from contextlib import asynccontextmanager
from functools import cache

import msgspec
import numpy as np

from strata import planning, runtime
from strata.config import Config, EngineConfig, ModelConfig
from strata.engine.backend import BatchRow, StepBatch
from strata.engine.offline import logits_of, run_step
from strata.ffi.library import Library
from strata.ffi.native import TIERS

MODELS = ("tiny-qwen3moe", "tiny-gpt-oss", "tiny-deepseek2", "tiny-llama", "tiny-olmoe")
N_TOKENS = 90  # more than a window, more than a KV block


def tokens(n: int = N_TOKENS, salt: int = 0) -> list[int]:
    return [(i * i * 31 + i * 7 + salt * 101) % 500 for i in range(1, n + 1)]


def supported_tiers() -> list[str]:
    names = list(TIERS)[1:]
    best = Library().cpu_tier
    return names[: names.index(best) + 1] if best != "neon" else ["scalar", "neon"]


@asynccontextmanager
async def opened(
    model: str,
    *,
    n_threads: int = 1,
    tier: str = "best",
    kv_type: str = "f32",
    poison: bool = False,
    max_seqs: int = 1,
    load_mode: str = "auto",
    n_batch: int = 512,
    **engine: object,
):
    """A backend that returns every token's logits. `model`: a synthetic model's name, or a file's path."""
    is_file = model.endswith(".gguf")
    config = Config(
        model=ModelConfig(path=model if is_file else None, load_mode=load_mode),
        engine=EngineConfig(n_threads=n_threads, kv_type=kv_type, poison=poison, n_batch=n_batch, **engine),
    )
    with planning.open_source(config, None if is_file else model, None) as source:
        shape = planning.Shape(kv_type=kv_type, max_seqs=max_seqs, n_ctx=64 * 4 * max_seqs, all_logits=True)
        prepared = planning.prepare(config, source, shape)
        run = msgspec.structs.replace(prepared.run, tier=tier)
        async with runtime.open_backend(msgspec.structs.replace(prepared, run=run)) as backend:
            yield backend


async def logits(model: str, ids: list[int], *, chunk: int | None = None, **options) -> np.ndarray:
    """float32 [n_tokens, n_vocab]"""
    async with opened(model, **options) as backend:
        return np.concatenate([rows async for rows in logits_of(backend, ids, chunk)])


class Counts:
    """What the steps of a backend did in all; everything else passes through."""

    def __init__(self, inner) -> None:
        self._inner = inner
        self.hits = self.misses = 0

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    async def wait(self, ticket: int):
        result = await self._inner.wait(ticket)
        self.hits += result.expert_hits
        self.misses += result.expert_rows
        return result


async def counted_logits(model: str, ids: list[int], chunk: int, **options) -> tuple[np.ndarray, Counts]:
    """Logits as `logits`, and the counts of the steps that gave them."""
    async with opened(model, **options) as backend:
        counts = Counts(backend)
        return np.concatenate([rows async for rows in logits_of(counts, ids, chunk)]), counts


_known: dict[tuple[str, str], np.ndarray] = {}


async def expected(model: str, kv_type: str = "f32") -> np.ndarray:
    """The scalar tier, one thread, one token at a time: the bits that all others must have."""
    if (model, kv_type) not in _known:
        _known[model, kv_type] = await logits(model, tokens(), chunk=1, tier="scalar", kv_type=kv_type)
    return _known[model, kv_type]


async def logits_in_company(model: str, n_seqs: int, kv_type: str = "f32", **options) -> np.ndarray:
    """The same sequence as the middle one of n_seqs, prompts of other lengths beside it in every step."""
    ids = [tokens(N_TOKENS - 9 * abs(s - n_seqs // 2), salt=s - n_seqs // 2) for s in range(n_seqs)]
    found = []
    async with opened(model, n_threads=2, max_seqs=n_seqs, kv_type=kv_type, **options) as backend:
        for first in range(0, N_TOKENS, 11):
            rows = [
                BatchRow(
                    seq_id=s,
                    tokens=tuple(own[first : first + 11]),
                    first_pos=first,
                    blocks=tuple(range(4 * s, 4 * s + (min(first + 11, len(own)) + 63) // 64)),
                    all_logits=s == n_seqs // 2,
                )
                for s, own in enumerate(ids)
                if first < len(own)
            ]
            found.append((await run_step(backend, StepBatch(rows=tuple(rows)))).logits)
    return np.concatenate(found)


@cache
def demo_path() -> str:
    from importlib.resources import files

    return str(files("strata.models").joinpath("strata-demo.gguf"))
