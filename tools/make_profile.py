#!/usr/bin/env python3
"""Makes an expert profile (.strp, with its sidecar) from routing traces: our own .strt files, or bare records.

tools/make_profile.py --model MODEL.gguf --out MODEL.strp A.strt B.bin
Traces are counted together. Of .strt files decoded tokens count, and prompts with --prompts; bare records, which do
not say what they are, count whole.
"""

from __future__ import annotations

import argparse
import datetime
import sys

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from strata import __version__, planning
from strata.arch.bind import bind
from strata.arch.plan import plan as make_plan
from strata.config import load_config
from strata.engine.backend import Phase
from strata.engine.bare_trace import read_bare
from strata.engine.placement import Experts, experts_of
from strata.engine.profile import Sidecar, dims_of, profile_pairs, write_profile
from strata.engine.trace import TraceReader, is_trace
from strata.errors import StrataError, TraceError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--model", metavar="FILE", help="the model of the traces (without: the embedded one)")
    parser.add_argument("--out", required=True, metavar="FILE.strp")
    parser.add_argument("--slots", type=int, default=0, metavar="N", help="cache size to note in the profile")
    parser.add_argument("--prompts", action="store_true", help="count the tokens of prompts too")
    args = parser.parse_args()
    try:
        n_tokens, n_ranked = make(args)
    except StrataError as error:
        print(f"make_profile: {error}", file=sys.stderr)
        return 1
    print(f"{args.out}: {n_ranked} experts ranked by {n_tokens} tokens")
    return 0


def make(args: argparse.Namespace) -> tuple[int, int]:
    """Count, rank, write. Raises: StrataError."""
    config = load_config({"model.path": args.model} if args.model else {})
    with planning.open_source(config, None, None) as source:
        plan = make_plan(bind(source.arch(config), source.file), n_batch=1, n_outputs_max=1)
        fingerprint, name = source.fingerprint, source.name
    experts, dims = experts_of(plan), dims_of(plan)
    if dims.n_pairs == 0:
        raise StrataError(f"{name} has no experts")
    uses = np.zeros(experts.exists.shape, np.int64)
    n_tokens = 0
    for path in args.traces:
        if is_trace(path):
            n_tokens += count_trace(path, experts, fingerprint, args.prompts, uses)
        else:
            n_tokens += count_bare(path, plan.n_layer, experts, uses)
    if n_tokens == 0:
        raise TraceError(f"{', '.join(args.traces)}: no token counts; --prompts counts those of prompts")
    pairs = profile_pairs(experts, ranking(uses))
    sidecar = Sidecar(
        fingerprint=fingerprint,
        model=name,
        tokens=n_tokens,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        tool_version=__version__,
    )
    write_profile(args.out, dims, pairs, slots=args.slots, sidecar=sidecar)
    return n_tokens, len(pairs)


def ranking(uses: NDArray[np.int64]) -> NDArray[np.int32]:
    """Every (set, expert), most used first; ties go round the sets."""
    sets, ids = np.divmod(np.arange(uses.size), uses.shape[1])
    order = np.lexsort((sets, ids, -uses.reshape(-1)))
    return np.stack([sets[order], ids[order]], axis=1).astype(np.int32)


def count_trace(path: str, experts: Experts, fingerprint: str, prompts: bool, uses: NDArray[np.int64]) -> int:
    """Add a .strt file's uses; how many tokens counted. Raises: TraceError."""
    n_tokens = 0
    with TraceReader(path, fingerprint=fingerprint) as reader:
        if reader.header.layers != experts.layers or reader.header.n_expert != experts.width:
            raise TraceError(
                f"{path}: the trace has layers {reader.header.layers} of {reader.header.n_expert} experts; "
                f"the model has {experts.layers} of {experts.width}"
            )
        with tqdm(total=len(reader), desc=path, unit="token", delay=1) as bar:
            for piece in reader.pieces():
                counted = piece.experts if prompts else piece.experts[piece.phase != Phase.PREFILL]
                for set_id in range(experts.n_sets):
                    ids = counted[:, set_id]
                    uses[set_id] += np.bincount(ids[ids >= 0], minlength=experts.width)
                n_tokens += len(counted)
                bar.update(len(piece))
    return n_tokens


def count_bare(path: str, n_layers: int, experts: Experts, uses: NDArray[np.int64]) -> int:
    """Add bare records; positions are told apart by the layers that begin anew. Raises: TraceError."""
    n_tokens, before = 0, n_layers
    for number, record in enumerate(read_bare(path, n_layers=n_layers, n_expert=experts.width)):
        if record.layer not in experts.profile_sets:
            raise TraceError(f"{path}: record {number}: layer is {record.layer}, which has no experts")
        np.add.at(uses[experts.profile_sets[record.layer]], record.experts, 1)
        n_tokens += record.layer <= before
        before = record.layer
    return n_tokens


if __name__ == "__main__":
    sys.exit(main())
