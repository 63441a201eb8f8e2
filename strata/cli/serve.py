"""`strata serve`: one screen about the machine, the plan and the URL, then requests until a signal."""

from __future__ import annotations

import argparse
import sys

import trio

from strata import planning, runtime
from strata.cli.options import Commands, add_model, add_settings, settings
from strata.telemetry.logs import configure_logs


def add_commands(commands: Commands) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve the OpenAI and Anthropic APIs",
        description="Serve one model over HTTP. Without MODEL the embedded demo model is served.",
    )
    add_model(parser)
    add_settings(parser, ("model", "engine", "sampling", "server", "telemetry"))
    parser.set_defaults(handler=serve)


def serve(args: argparse.Namespace) -> int:
    config = settings(args)
    configure_logs(config.telemetry.log_level, config.telemetry.log_format)
    with planning.open_source(config, args.synthetic, args.layers) as source:
        return trio.run(runtime.serve, config, source, _report)


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
