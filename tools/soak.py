"""Mixed requests with aborts, for as long as wanted: no hang, no leak, no wrong bit.

Greedy answers to fixed prompts are computed on the CPU alone first; then clients ask for them again and again on the
backend under test, leave at random, and compare what they got. Usage: soak.py --seconds 600 --backend cuda [MODEL]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import trio

from strata import planning, runtime
from strata.config import Config, load_config
from strata.machine import resident_bytes
from strata.types import Delta, Request, SamplingParams

N_PROMPTS = 24
N_CLIENTS = 12
HANG_S = 60.0  # without a single answer
LEAK_BYTES = 64 << 20
GREEDY = SamplingParams(temperature=0.0)


@dataclass
class State:
    wanted: dict[int, list[int]] = field(default_factory=dict)
    n_answers: int = 0
    n_left: int = 0
    wrong: list[str] = field(default_factory=list)
    last_s: float = 0.0


def request(index: int, n_vocab: int, n_batch: int) -> Request:
    """The index-th prompt: lengths from one token to more than a step holds."""
    rng = random.Random(index)
    n = (1, 5, 9, 33, 70, 130, n_batch + 7)[index % 7]
    prompt = tuple(rng.randrange(n_vocab) for _ in range(n))
    return Request(
        request_id=f"soak-{index}", prompt=prompt, max_tokens=8 + index, sampling=GREEDY, stop=(), ignore_eos=True
    )


async def answer(engine: Any, wanted: Request, leave_after: int | None) -> list[int] | None:
    """The answer's token ids; None when the client left before its end."""
    ids: list[int] = []
    async with engine.open_stream(wanted) as stream:
        async for piece in stream:
            if isinstance(piece, Delta):
                ids.extend(token.token for token in piece.tokens)
            if leave_after is not None and len(ids) >= leave_after:
                return None
    return ids


async def client(number: int, engine: Any, state: State, sizes: tuple[int, int], until_s: float) -> None:
    rng = random.Random(1000 + number)
    while time.monotonic() < until_s and not state.wrong:
        index = rng.randrange(N_PROMPTS)
        leave = rng.randrange(8 + index) if rng.random() < 0.3 else None
        with trio.move_on_after(rng.uniform(0.0, 0.2) if rng.random() < 0.1 else 1e9) as scope:
            got = await answer(engine, request(index, *sizes), leave)
            state.last_s = time.monotonic()
            if got is None:
                state.n_left += 1
                continue
            state.n_answers += 1
            if got != state.wanted[index]:
                state.wrong.append(f"prompt {index}: {got} instead of {state.wanted[index]}")
        state.n_left += scope.cancelled_caught


async def run(config: Config, seconds: float, state: State) -> int:
    """One engine: the reference's answers when `state` has none yet, else the soak. Returns the bytes it grew by."""
    with planning.open_source(config, None, None) as source:
        prepared = planning.prepare(config, source, planning.Shape(kv_type="f16", max_seqs=8, text=True))
        async with runtime.open_engine(config, prepared) as served:
            sizes = served.tokenizer.n_vocab, served.engine.limits.n_batch
            if not state.wanted:
                for index in range(N_PROMPTS):
                    got = await answer(served.engine, request(index, *sizes), None)
                    assert got is not None
                    state.wanted[index] = got
                return 0
            return await soak(served.engine, state, sizes, seconds)


async def soak(engine: Any, state: State, sizes: tuple[int, int], seconds: float) -> int:
    state.last_s = started = time.monotonic()
    warm_bytes = 0
    async with trio.open_nursery() as nursery:
        for number in range(N_CLIENTS):
            nursery.start_soon(client, number, engine, state, sizes, started + seconds)
        while nursery.child_tasks:
            await trio.sleep(1.0)
            now = time.monotonic()
            if warm_bytes == 0 and now - started > min(30.0, seconds / 4):
                warm_bytes = resident_bytes()
            if now - state.last_s > HANG_S:
                state.wrong.append(f"no answer for {HANG_S:.0f} s")
                nursery.cancel_scope.cancel()
            if int(now - started) % 30 == 0:
                print(f"{now - started:6.0f} s: {state.n_answers} answers, {state.n_left} left early", flush=True)
    return resident_bytes() - warm_bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--backend", default="sim")
    parser.add_argument("--expert-slots", default="60")
    args = parser.parse_args()
    base = {"engine.n_ctx": "1024", "engine.n_batch": "96", "engine.n_parallel": "8"}
    if args.model is not None:
        base["model.path"] = args.model
    state = State()
    trio.run(run, load_config(base, environ={}), 0.0, state)
    device = {"engine.backend": args.backend, "engine.expert_slots": args.expert_slots}
    grown = trio.run(run, load_config({**base, **device}, environ={}), args.seconds, state)
    print(f"{state.n_answers} answers equal, {state.n_left} clients left early, {grown / 2**20:.1f} MiB grown")
    for text in state.wrong:
        print(text, file=sys.stderr)
    if grown > LEAK_BYTES:
        print(f"the process grew by {grown} bytes; {LEAK_BYTES} are accepted", file=sys.stderr)
    return int(bool(state.wrong) or grown > LEAK_BYTES or state.n_answers == 0)


if __name__ == "__main__":
    sys.exit(main())
