#!/usr/bin/env python3
"""Decode and prompt speed against llama.cpp on the same file, interleaved: both engines stay loaded, turns alternate.

    tools/bench_peer.py MODEL.gguf --library /path/to/libllama.so --threads 2 --rounds 8 --out result.json

Each round gives both engines the same forced tokens: a prompt of --n-prompt, then --n-decode tokens one by one. The
engines run in processes of their own; the one whose turn it is not sleeps. Ratios are taken round by round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from strata.cli.bench import forced_tokens


def worker_theirs(args: argparse.Namespace) -> None:
    from strata.testing.oracle import Llama

    library = Path(args.library).resolve() if args.library else None
    n_ctx = args.n_prompt + args.n_decode
    with Llama(args.model, n_ctx=n_ctx, n_threads=args.threads, exact=False, library=library) as llama:
        tokens = forced_tokens(n_ctx, llama.n_vocab)
        for _ in _turns():
            llama.forget()
            started = time.perf_counter()
            llama.feed(tokens[: args.n_prompt])
            between = time.perf_counter()
            for token in tokens[args.n_prompt :]:
                llama.feed([token])
            _answer(between - started, time.perf_counter() - between)


def worker_ours(args: argparse.Namespace) -> None:
    import trio

    from strata import planning, runtime
    from strata.cli.bench import measure_run
    from strata.config import load_config

    async def run() -> None:
        config = load_config({"model.path": args.model, "engine.n_threads": str(args.threads)}, environ={})
        n_ctx = args.n_prompt + args.n_decode
        with planning.open_source(config, None, None) as source:
            async with runtime.open_bench(config, source, n_ctx=n_ctx) as opened:
                tokens = forced_tokens(n_ctx, opened.backend.limits.n_vocab)
                for _ in _turns():
                    result = await measure_run(opened.backend, tokens[: args.n_prompt], tokens[args.n_prompt :])
                    _answer(result.prompt_s, result.decode_s)

    trio.run(run)


def _turns() -> Any:
    print("ready", flush=True)
    return sys.stdin


def _answer(prompt_s: float, decode_s: float) -> None:
    print(json.dumps([prompt_s, decode_s]), flush=True)


class Engine:
    """One worker process."""

    def __init__(self, who: str) -> None:
        command = [sys.executable, __file__, *sys.argv[1:], "--worker", who]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._expect("ready")

    def _expect(self, word: str) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line or (word and line != word):
            raise SystemExit(f"a worker ended early: {line!r}, status {self.process.poll()}")
        return line

    def turn(self) -> list[float]:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return json.loads(self._expect(""))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--library", help="libllama.so of a native build; default: the package xllamacpp (AVX2)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--n-prompt", type=int, default=64)
    parser.add_argument("--n-decode", type=int, default=16)
    parser.add_argument("--out", help="write the raw samples as JSON")
    parser.add_argument("--worker", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        (worker_ours if args.worker == "ours" else worker_theirs)(args)
        return 0
    engines = {"ours": Engine("ours"), "theirs": Engine("theirs")}
    samples: dict[str, list[list[float]]] = {who: [engine.turn()][:0] for who, engine in engines.items()}
    for i in range(args.rounds):
        for who in ("ours", "theirs") if i % 2 == 0 else ("theirs", "ours"):
            samples[who].append(engines[who].turn())
    for engine in engines.values():
        engine.close()
    report(args, samples)
    return 0


def report(args: argparse.Namespace, samples: dict[str, list[list[float]]]) -> None:
    from strata import runtime
    from strata.machine import describe_machine, source_commit

    result: dict[str, Any] = {
        "command": " ".join(sys.argv),
        "model": Path(args.model).name,
        "commit": source_commit(),
        "machine": {
            field: getattr(machine, field)
            for machine in [describe_machine(runtime.cpu_tier(), runtime.cpu_count())]
            for field in machine.__struct_fields__
        },
        "samples_s": samples,
    }
    for k, (name, n) in enumerate((("prompt", args.n_prompt), ("decode", args.n_decode))):
        ours, theirs = [s[k] for s in samples["ours"]], [s[k] for s in samples["theirs"]]
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        result[name] = {
            "ours_tok_s": n / statistics.median(ours),
            "theirs_tok_s": n / statistics.median(theirs),
            "ratio_median": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }
        print(
            f"{name}: ours {n / statistics.median(ours):.2f}, theirs {n / statistics.median(theirs):.2f} tok/s; "
            f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
