"""`strata bench`: prompt and decode speed with forced tokens, beside what the memory gives.

Decoding reads every active weight once a token, so its floor is bytes over bandwidth; the report says which share of
the measured read rate was reached. Tokens are forced from a fixed list: a random model's own output would loop.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import msgspec
import numpy as np
import trio
from tqdm import tqdm

from strata import planning, runtime
from strata.cli.options import Commands, add_model, add_settings, positive, settings
from strata.config import Config
from strata.engine.backend import KV_BLOCK_TOKENS, Backend, BatchRow, Handoffs, Phase, SampleSpec, StepBatch
from strata.engine.cached import CachedBackend
from strata.engine.offline import run_step
from strata.engine.placement import best_fixed, hit_share
from strata.engine.traced import TracedBackend
from strata.ffi.native import NativeBackend
from strata.machine import Machine, describe_machine, source_commit
from strata.types import SamplingParams

GREEDY = SampleSpec(params=SamplingParams(temperature=0.0), seed=0, counter=0)


class SlotFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The expert cache in the last run's decoding."""

    n_slots: int  # of residents; spare ones come on top
    hit_share: float
    best_fixed_share: float  # what the best choice that never changes would have hit, known in hindsight
    n_swaps: int  # since the start
    swap_bytes: int


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line of JSON. Rates are medians over the repetitions; bytes are of one decoded token."""

    model: str
    backend: str
    kv_type: str
    n_threads: int
    n_prompt: int
    n_decode: int
    prompt_tok_s: float
    decode_tok_s: float
    prompt_samples: tuple[float, ...]
    decode_samples: tuple[float, ...]
    read_bytes_per_tok: int
    read_bytes_per_s: float
    memory_bytes_per_s: float
    bandwidth_frac: float
    slots: SlotFigures | None  # None: no expert has a slot
    handoff_us: dict[str, dict[str, float]] | None  # of the whole bench, see Handoffs: median and 99th percentile
    machine: Machine
    commit: str


def add_commands(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="measure prompt and decode speed", description=__doc__)
    add_model(parser)
    parser.add_argument("-p", "--n-prompt", type=positive, default=512, metavar="N", help="prompt tokens (512)")
    parser.add_argument("-n", "--n-decode", type=positive, default=128, metavar="N", help="decoded tokens (128)")
    parser.add_argument("-r", "--repetitions", type=positive, default=3, metavar="N", help="measured runs (3)")
    parser.add_argument("--mailbox", action="store_true", help="print the histogram of hand-offs between GPU and CPU")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on one last line")
    add_settings(parser, ("model", "engine"))
    parser.set_defaults(handler=bench)


def forced_tokens(n: int, n_vocab: int, first: int = 1) -> tuple[int, ...]:
    """A fixed list of n token ids, spread over the vocabulary (multiplicative hashing, Knuth's constant)."""
    return tuple((i * 2654435761 % 2**32 >> 4) % n_vocab for i in range(first, first + n))


def bench(args: argparse.Namespace) -> int:
    config = settings(args)
    with planning.open_source(config, args.synthetic, args.layers) as source:
        return trio.run(_bench, args, config, source)


async def _bench(args: argparse.Namespace, config: Config, source: planning.Source) -> int:
    n_ctx = args.n_prompt + args.n_decode
    async with runtime.open_bench(config, source, n_ctx=n_ctx) as opened:
        tokens = forced_tokens(n_ctx, opened.backend.limits.n_vocab)
        others = forced_tokens(n_ctx, opened.backend.limits.n_vocab, n_ctx + 1)  # to warm up with
        runs: list[RunTimes] = []
        with tqdm(total=args.repetitions + 1, desc="bench", unit="run") as bar:
            for i in range(args.repetitions + 1):
                ids = tokens if i > 0 else others
                run = await measure_run(opened.backend, ids[: args.n_prompt], ids[args.n_prompt :])
                if i > 0:
                    runs.append(run)
                bar.update()
        memory_bytes_per_s = await trio.to_thread.run_sync(runtime.measure_read, opened.prepared.run.n_threads)
        handoffs = _handoffs(_untraced(opened.backend))
        result = _result(args, opened, runs, memory_bytes_per_s, handoffs)
    print(
        f"{result.model}: prompt {result.prompt_tok_s:.1f} tok/s, decode {result.decode_tok_s:.2f} tok/s, "
        f"{result.read_bytes_per_tok / 1e6:.1f} MB read per token = {result.read_bytes_per_s / 1e9:.1f} of "
        f"{result.memory_bytes_per_s / 1e9:.1f} GB/s ({result.bandwidth_frac:.0%}), {result.n_threads} threads"
    )
    if result.slots is not None:
        slots = result.slots
        print(
            f"{slots.n_slots} expert slots: {slots.hit_share:.1%} of the decoded uses hit (the best fixed choice: "
            f"{slots.best_fixed_share:.1%}), {slots.n_swaps} swaps of {slots.swap_bytes / 1e6:.0f} MB"
        )
    if args.mailbox:
        print(_mailbox_text(handoffs))
    if args.json:
        print(msgspec.json.encode(result).decode())
    return 0


class RunTimes(msgspec.Struct, frozen=True):
    """One measured run, in seconds; the bytes are those of decoding."""

    prompt_s: float
    decode_s: float
    decode_weight_bytes: int
    hits: int
    uses: Any  # float64 [n_sets, width] of the decoded tokens; None where routing is not captured


async def measure_run(backend: Backend, prompt: tuple[int, ...], forced: tuple[int, ...]) -> RunTimes:
    """Compute a prompt in the largest steps, then forced tokens one by one, in a sequence of its own."""
    blocks = tuple(range((len(prompt) + len(forced) + KV_BLOCK_TOKENS - 1) // KV_BLOCK_TOKENS))

    def step(tokens: tuple[int, ...], first_pos: int, phase: Phase) -> StepBatch:
        held = blocks[: (first_pos + len(tokens) + KV_BLOCK_TOKENS - 1) // KV_BLOCK_TOKENS]
        row = BatchRow(seq_id=0, tokens=tokens, first_pos=first_pos, blocks=held, phase=phase, sample=GREEDY)
        return StepBatch(rows=(row,))

    started = time.perf_counter()
    for first in range(0, len(prompt), backend.limits.n_batch):
        await run_step(backend, step(prompt[first : first + backend.limits.n_batch], first, Phase.PREFILL))
    between = time.perf_counter()
    n_bytes = hits = 0
    used: list[Any] = []
    for i, token in enumerate(forced):
        result = await run_step(backend, step((token,), len(prompt) + i, Phase.DECODE))
        n_bytes += result.weight_bytes
        hits += result.expert_hits
        if result.routing is not None:
            used.append(result.routing.ids)
    seconds = time.perf_counter() - between
    return RunTimes(between - started, seconds, n_bytes, hits, np.concatenate(used, axis=1) if used else None)


def _untraced(backend: Backend) -> Backend:
    return backend.inner if isinstance(backend, TracedBackend) else backend


def _slot_figures(backend: Backend, run: RunTimes) -> SlotFigures | None:
    if not isinstance(backend, CachedBackend) or run.uses is None:
        return None
    residency = backend.cache.residency
    counts = np.zeros((residency.experts.n_sets, residency.experts.width))
    for set_id, ids in enumerate(run.uses):
        counts[set_id] += np.bincount(ids[ids >= 0], minlength=counts.shape[1])
    best = best_fixed(residency.experts, counts, residency.split.resident)
    return SlotFigures(
        n_slots=sum(residency.split.resident),
        hit_share=run.hits / max(float(counts.sum()), 1.0),
        best_fixed_share=hit_share(counts, best),
        n_swaps=backend.n_swaps,
        swap_bytes=backend.n_swap_bytes,
    )


def _quantile_us(counts: tuple[int, ...], share: float) -> float:
    """Upper end of the bin that holds the quantile, in microseconds; 0 without counts."""
    wanted, seen = share * sum(counts), 0
    for i, count in enumerate(counts):
        seen += count
        if seen >= wanted > 0:
            return 2.0 ** ((i + 1) / 4) / 1e3
    return 0.0


def _handoffs(backend: Backend) -> Handoffs | None:
    return backend.handoffs() if isinstance(backend, CachedBackend | NativeBackend) and backend.name != "cpu" else None


def _handoff_quantiles(handoffs: Handoffs) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name in Handoffs.__struct_fields__:
        counts = getattr(handoffs, name)
        found[name] = {"p50": _quantile_us(counts, 0.5), "p99": _quantile_us(counts, 0.99)}
    return found


def _mailbox_text(handoffs: Handoffs | None) -> str:
    """A line for each octave of each kind of time."""
    if handoffs is None:
        return "no hand-offs: the CPU computes everything"
    lines = ["hand-offs with missed experts: times between powers of two, in microseconds"]
    for name in Handoffs.__struct_fields__:
        counts = getattr(handoffs, name)
        total = sum(counts)
        lines.append(f"{name}: {total}, median {_quantile_us(counts, 0.5):.2f}, p99 {_quantile_us(counts, 0.99):.2f}")
        for first in range(0, len(counts), 4):
            n = sum(counts[first : first + 4])
            if n:
                lines.append(f"  {2.0 ** (first / 4) / 1e3:>10.2f} {n:>8} {'#' * max(1, round(50 * n / total))}")
    return "\n".join(lines)


def _result(
    args: argparse.Namespace,
    opened: runtime.Opened,
    runs: list[RunTimes],
    memory_bytes_per_s: float,
    handoffs: Handoffs | None,
) -> BenchResult:
    prompt = tuple(args.n_prompt / run.prompt_s for run in runs)
    decode = tuple(args.n_decode / run.decode_s for run in runs)
    per_token = runs[-1].decode_weight_bytes / args.n_decode
    decode_tok_s = statistics.median(decode)
    return BenchResult(
        model=opened.model,
        backend=opened.backend.name,
        kv_type=opened.prepared.run.kv_type,
        n_threads=opened.prepared.run.n_threads,
        n_prompt=args.n_prompt,
        n_decode=args.n_decode,
        prompt_tok_s=statistics.median(prompt),
        decode_tok_s=decode_tok_s,
        prompt_samples=prompt,
        decode_samples=decode,
        read_bytes_per_tok=round(per_token),
        read_bytes_per_s=per_token * decode_tok_s,
        memory_bytes_per_s=memory_bytes_per_s,
        bandwidth_frac=per_token * decode_tok_s / memory_bytes_per_s,
        slots=_slot_figures(_untraced(opened.backend), runs[-1]),
        handoff_us=None if handoffs is None else _handoff_quantiles(handoffs),
        machine=describe_machine(runtime.cpu_tier(), runtime.cpu_count()),
        commit=source_commit(),
    )
