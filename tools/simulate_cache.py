#!/usr/bin/env python3
"""Replays routing through the expert cache's policy, offline: hit share beside the best fixed choice, swaps, bytes.

tools/simulate_cache.py --synthetic gpt-oss-120b --slots-frac 0.09 --topics 800,600,600
tools/simulate_cache.py --model MODEL.gguf --trace A.strt --trace B.strt --slots-frac 0.3

Each topic, or each trace, is one conversation; its best fixed choice is known in hindsight and may use every slot,
spare ones too. Only decoded tokens count. Time is modelled from the given rates: what is shown is the policy, no speed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata import planning
from strata.arch.bind import bind
from strata.arch.plan import plan as make_plan
from strata.config import load_config
from strata.engine.backend import Phase
from strata.engine.expert_cache import ExpertCache
from strata.engine.heat import LASTING_TOKENS, PRIOR_TOKENS, RECENT_TOKENS, Heat, ShiftDetector
from strata.engine.placement import Experts, experts_of, split_slots
from strata.engine.profile import ProfileDims, dims_of, profile_ranking, read_profile
from strata.engine.swaps import LinkLoad, SwapBudget, SwapRule, swap_rate
from strata.engine.trace import TraceReader
from strata.errors import StrataError
from strata.synthetic.routing import RoutingSource
from strata.synthetic.shapes import SHAPES
from strata.testing.cache_replay import MachineRates, Replay, Window

BACK = 0.95  # of the best fixed choice
WINDOW = 25  # tokens


class Conversation(msgspec.Struct):
    """One line of the result. `warm` is everything after the first 200 tokens."""

    name: str
    n_tokens: int
    back_after_tokens: int | None  # from here on a window and the next one reach BACK
    warm_ratio: float
    warm_hit_frac: float
    warm_best_frac: float
    warm_swaps_per_token: float
    warm_link_frac: float
    link_frac: float  # of the whole conversation
    ram_frac: float
    windows: list[tuple[float, float, int]]  # of WINDOW tokens: hit share, the best fixed choice's, swaps


def main() -> int:
    args = parser().parse_args()
    try:
        print(report(args))
    except StrataError as error:
        print(f"simulate_cache: {error}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--synthetic", metavar="NAME", help="a public model's shape; without --trace its routing too")
    made.add_argument("--model", metavar="FILE", help="the model of the traces (without: the embedded one)")
    made.add_argument("--trace", action="append", default=[], metavar="FILE.strt", help="a conversation (repeatable)")
    made.add_argument("--topics", default="800,600,600", metavar="N,N", help="tokens of each synthetic topic")
    made.add_argument(
        "--moved", type=float, default=1.0, metavar="FRAC", help="experts whose popularity a topic changes"
    )
    made.add_argument(
        "--memory", type=float, default=0.3, help="correlation of a token's router input with the last one's"
    )
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--slots-frac", type=float, default=0.09, help="part of all expert bytes that the slots hold")
    made.add_argument("--profile", metavar="FILE.strp", help="start from a profile")
    made.add_argument("--static", action="store_true", help="no swaps")
    made.add_argument("--json", action="store_true", help="one JSON object")
    policy = made.add_argument_group("policy")
    rule = SwapRule()
    policy.add_argument("--recent", type=float, default=RECENT_TOKENS, help="half-life in tokens")
    policy.add_argument("--lasting", type=float, default=LASTING_TOKENS, help="half-life in tokens")
    policy.add_argument("--prior", type=float, default=PRIOR_TOKENS, help="tokens that the lasting memory weighs")
    policy.add_argument("--margin", type=float, default=rule.margin)
    policy.add_argument("--min-count", type=float, default=rule.min_count)
    policy.add_argument("--noise", type=float, default=rule.noise)
    policy.add_argument("--no-shift", action="store_true", help="changes of topic are not looked for")
    machine = made.add_argument_group("machine")
    machine.add_argument("--ram", type=float, default=105e9, metavar="BYTES_PER_S")
    machine.add_argument("--link", type=float, default=55e9, metavar="BYTES_PER_S")
    machine.add_argument("--ram-busy", type=float, default=0.85, help="share of decoding in which the CPU reads")
    machine.add_argument("--fixed-ms", type=float, default=1.4, help="of a token, beside the misses")
    return made


def report(args: argparse.Namespace) -> str:
    experts, dims, fingerprint = model(args)
    heat = Heat(
        experts.n_sets,
        experts.width,
        recent_tokens=args.recent,
        lasting_tokens=args.lasting,
        prior_tokens=args.prior,
    )
    if args.profile:
        loaded = read_profile(args.profile, dims, fingerprint=fingerprint)
        heat.seed(profile_ranking(experts, loaded.profile), experts.token_cycle)
    total = int((experts.exists.sum(axis=1) * experts.bytes_of).sum())
    split, chosen = split_slots(experts, heat.values(), int(total * args.slots_frac), spares=0 if args.static else 32)
    load = LinkLoad(
        link_bytes_per_s=args.link, link_busy_frac=0.05, ram_bytes_per_s=args.ram, ram_busy_frac=args.ram_busy
    )
    budget = SwapBudget(swap_rate(load), 32 * max(experts.slot_bytes), 0.0)
    rule = SwapRule(margin=args.margin, min_count=args.min_count, noise=args.noise)
    detector = ShiftDetector(drop=0.0) if args.no_shift else None
    cache = ExpertCache(experts, split, budget, heat=heat, rule=rule, detector=detector, adapt=not args.static)
    cache.residency.fill(chosen)
    rates = MachineRates(ram_bytes_per_s=args.ram, link_bytes_per_s=args.link, fixed_s=args.fixed_ms / 1e3)
    replay = Replay(cache, rates)
    started = time.perf_counter()
    lines = [conversation(name, replay.run(ids, WINDOW), rates) for name, ids in conversations(args, experts)]
    seconds = time.perf_counter() - started
    if args.json:
        made = {"arguments": vars(args), "split": split, "shifts": cache.n_shifts, "conversations": lines}
        return msgspec.json.encode(made).decode()
    n_tokens = sum(line.n_tokens for line in lines)
    mode = "static" if cache.static or args.static else "adaptive"
    head = (
        f"{experts.n_sets} sets of {experts.width}, {experts.token_cycle} uses a token; slots {split.resident} + spare "
        f"{split.spare} = {split.n_bytes(experts) / 1e9:.2f} GB; {mode}"
    )
    tail = f"changes of topic noticed: {cache.n_shifts}; {seconds / n_tokens * 1e6:.0f} us of policy and replay a token"
    return "\n".join([head, *(text_of(line) for line in lines), tail])


def model(args: argparse.Namespace) -> tuple[Experts, ProfileDims, str]:
    """The model's experts, its profile dimensions and its fingerprint. Raises: StrataError."""
    config = load_config({"model.path": args.model} if args.model else {})
    with planning.open_source(config, args.synthetic, None) as source:
        plan = make_plan(bind(source.arch(config), source.file), n_batch=1, n_outputs_max=1)
        return experts_of(plan), dims_of(plan), "" if args.synthetic else source.fingerprint


def conversations(args: argparse.Namespace, experts: Experts) -> Iterator[tuple[str, NDArray[np.int32]]]:
    """(name, ids [n_sets, n_tokens, k]) of each."""
    for path in args.trace:
        with TraceReader(path) as reader:
            if reader.header.n_sets != experts.n_sets or reader.header.n_expert != experts.width:
                raise StrataError(
                    f"{path}: {reader.header.n_sets} sets of {reader.header.n_expert} experts; the model has "
                    f"{experts.n_sets} of {experts.width}"
                )
            decoded = [piece.experts[piece.phase != Phase.PREFILL] for piece in reader.pieces()]
        yield path, np.moveaxis(np.concatenate(decoded), 0, 1)
    if not args.trace:
        shape = SHAPES[args.synthetic]
        source = RoutingSource(shape, seed=args.seed, moved_frac=args.moved, memory=args.memory)
        for topic, n in enumerate(int(part) for part in args.topics.split(",")):
            yield f"topic {topic}", source.tokens(topic, n)


def conversation(name: str, windows: list[Window], rates: MachineRates) -> Conversation:
    ratios = [window.ratio for window in windows]
    back = next((w.first for i, w in enumerate(windows) if all(ratio >= BACK for ratio in ratios[i : i + 2])), None)
    warm = [window for window in windows if window.first >= 200] or windows
    hit, best = (
        statistics.fmean([getattr(w, field) for w in warm], [w.n_tokens for w in warm])
        for field in ("hit_frac", "best_frac")
    )
    rate = sum(w.swap_bytes for w in windows) / sum(w.seconds for w in windows)
    return Conversation(
        name=name,
        n_tokens=sum(w.n_tokens for w in windows),
        back_after_tokens=back,
        warm_ratio=hit / best,
        warm_hit_frac=hit,
        warm_best_frac=best,
        warm_swaps_per_token=sum(w.n_swaps for w in warm) / sum(w.n_tokens for w in warm),
        warm_link_frac=sum(w.swap_bytes for w in warm) / sum(w.seconds for w in warm) / rates.link_bytes_per_s,
        link_frac=rate / rates.link_bytes_per_s,
        ram_frac=rate / rates.ram_bytes_per_s,
        windows=[(round(w.hit_frac, 4), round(w.best_frac, 4), w.n_swaps) for w in windows],
    )


def text_of(line: Conversation) -> str:
    back = "never" if line.back_after_tokens is None else str(line.back_after_tokens)
    return (
        f"{line.name}: {line.n_tokens} tokens; {BACK:.0%} of the best fixed choice after {back}; then hits "
        f"{line.warm_hit_frac:.3f} of best {line.warm_best_frac:.3f} = {line.warm_ratio:.3f}; "
        f"{line.warm_swaps_per_token:.2f} swaps a token, {line.warm_link_frac:.2%} of the link; whole conversation "
        f"{line.link_frac:.2%} of the link, {line.ram_frac:.2%} of RAM"
    )


if __name__ == "__main__":
    sys.exit(main())
