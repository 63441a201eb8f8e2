"""`strata plan`, `strata inspect` and `strata archs`: what would happen, without running anything."""

from __future__ import annotations

import argparse

import msgspec

from strata import planning
from strata.arch import report
from strata.arch.registry import Registry
from strata.cli.options import Commands, add_model, add_settings, settings


def add_commands(commands: Commands) -> None:
    parser = commands.add_parser("plan", help="print the memory ledger")
    add_model(parser)
    add_settings(parser, ("model", "engine"))
    parser.add_argument("--json", action="store_true", help="the ledger as JSON")
    parser.set_defaults(handler=plan)

    parser = commands.add_parser("inspect", help="show what of a file is bound, ignored or missing, and where ops run")
    add_model(parser)
    add_settings(parser, ("model", "engine"))
    parser.add_argument("--json", action="store_true", help="the binding as JSON")
    parser.set_defaults(handler=inspect)

    parser = commands.add_parser("archs", help="list the installed architectures")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(handler=archs)


def plan(args: argparse.Namespace) -> int:
    config = settings(args)
    with planning.open_source(config, args.synthetic, args.layers) as source:
        prepared = planning.prepare_serving(config, source)
    if args.json:
        print(msgspec.json.encode(prepared.ledger).decode())
    else:
        print(planning.plan_text(prepared))
    prepared.ledger.check()
    return 0


def inspect(args: argparse.Namespace) -> int:
    config = settings(args)
    with planning.open_source(config, args.synthetic, args.layers) as source:
        binding = planning.inspect(config, source)
        broken = bool(binding.missing or binding.wrong or binding.unexpected)
        places = () if broken else planning.where_ops_run(config, source)
    if args.json:
        print(msgspec.json.encode({**msgspec.to_builtins(binding), "op_places": places}).decode())
        return int(broken)
    print(report.binding_report(binding))
    if places:
        print("where ops run")
        for row in places:
            print(f"  {row.n:>5} {row.kind:<14} {row.place}")
    return int(broken)


def archs(args: argparse.Namespace) -> int:
    rows = Registry().listing()
    if args.json:
        print(msgspec.json.encode(rows).decode())
        return 0
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        verified = "untested" if row.verification is None else row.verification.state
        state = verified if row.state == "ok" else row.state
        print(f"{row.name:<{width}}  {state:<9}  {row.distribution:<14}  {row.family:<18}  {row.detail}")
    return 0
