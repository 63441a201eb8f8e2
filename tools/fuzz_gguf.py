#!/usr/bin/env python3
"""Fuzzes everything that reads model files before a weight is loaded: reader, binding, tokenizer, chat template.

tools/fuzz_gguf.py --seconds 600 [--seed 1] [MODEL.gguf ...]

Each damaged file must be read or refused with a ModelError, in under a second and without much memory. Without a file
the embedded model and one tiny model of every kind are damaged. What fails is written to --keep, with its seed.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from strata.arch.bind import inspect_binding
from strata.arch.registry import Registry
from strata.errors import ModelError
from strata.gguf.inventory import bytes_by_type, fingerprint
from strata.gguf.reader import read_gguf
from strata.models import demo_model_path
from strata.synthetic import SHAPES, SyntheticModel
from strata.synthetic.writer import write_gguf
from strata.testing.mutations import mutated
from strata.text.chat import ChatTemplate
from strata.text.tokenizer import Tokenizer

LIMIT_S = 1.0
LIMIT_KIB = 256 << 10
DATA_KEPT = 1 << 20  # bytes


def open_all(path: Path, registry: Registry) -> str:
    """Read a file as a command would; the outcome's name. Raises what the parts raise."""
    try:
        file = read_gguf(path)
        fingerprint(file)
        bytes_by_type(file)
        inspect_binding(registry.of_file(file), file)
        ChatTemplate.from_metadata(file.metadata, str(path))
        tokenizer = Tokenizer.from_metadata(file.metadata, str(path))
        tokenizer.decode(tokenizer.encode("Twice two is four.\n", add_special=True, parse_special=True))
    except ModelError as error:
        return type(error).__name__
    return "read"


class Original(NamedTuple):
    """A file to damage. `content`: the first MiB of data and all before; the rest, `n_rest` bytes, counts as zeros."""

    name: str
    content: bytes
    n_header: int
    n_rest: int


def originals(paths: list[Path], folder: Path) -> list[Original]:
    if paths:
        return [original(path) for path in paths]
    for name in (name for name in SHAPES if name.startswith("tiny-")):
        paths.append(folder / f"{name}.gguf")
        write_gguf(SyntheticModel(name), paths[-1], progress=False)
    with demo_model_path() as demo:
        return [original(path) for path in (*paths, demo)]


def original(path: Path) -> Original:
    n_header = read_gguf(path).data_offsets[0]
    with path.open("rb") as file:
        content = file.read(n_header + DATA_KEPT)
    return Original(path.name, content, n_header, path.stat().st_size - len(content))


def write_damaged(path: Path, source: Original, rng: random.Random) -> None:
    damaged = mutated(source.content, rng, source.n_header)
    path.write_bytes(damaged)
    was_cut_short = len(damaged) < len(source.content) - 256
    if not was_cut_short:
        os.truncate(path, len(damaged) + source.n_rest)  # a hole costs nothing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first damaged file; the next has the next one")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), metavar="FOLDER")
    args = parser.parse_args()
    registry, outcomes, n_failed = Registry(), Counter[str](), 0
    with tempfile.TemporaryDirectory() as name, tqdm(unit=" files", desc="fuzz") as bar:
        folder = Path(name)
        sources, seed = originals(list(args.models), folder), args.seed
        end = time.monotonic() + args.seconds
        while time.monotonic() < end:
            rng = random.Random(seed)
            source, target = rng.choice(sources), folder / "damaged.gguf"
            write_damaged(target, source, rng)
            outcome = judged(target, registry)
            outcomes[outcome.splitlines()[0]] += 1
            if outcome.startswith("FAILED"):
                n_failed += 1
                args.keep.mkdir(parents=True, exist_ok=True)
                target.replace(args.keep / f"seed-{seed}.gguf")
                bar.write(f"seed {seed} of {source.name}: {outcome}")
            seed += 1
            bar.update()
    print(", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common()))
    return int(n_failed > 0)


def judged(path: Path, registry: Registry) -> str:
    """The outcome, beginning with FAILED where a file did harm."""
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        outcome = open_all(path, registry)
    except Exception:
        return f"FAILED with {traceback.format_exc(limit=-3)}"
    taken = time.process_time() - started
    if taken > LIMIT_S:
        return f"FAILED: {outcome} took {taken:.1f} s"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return f"FAILED: {outcome} took {grown >> 10} MiB" if grown > LIMIT_KIB else outcome


if __name__ == "__main__":
    sys.exit(main())
