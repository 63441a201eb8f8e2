"""The command line. `main` is the only reader of argv; each command lives in a module of its own.

Exit status: 0 done, 1 a StrataError (one line on stderr says what and what to do), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from strata import __version__
from strata.cli import bench, info, logits, run, serve
from strata.errors import StrataError

_COMMANDS = (serve, run, bench, logits, info)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="strata",
        description="Runs Mixture-of-Experts models that are larger than the GPU.",
        epilog="`strata COMMAND --help` lists a command's flags. Without MODEL the embedded demo model is used.",
    )
    parser.add_argument("--version", action="version", version=f"strata {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit status."""
    args = build_parser().parse_args(argv)
    try:
        return int(args.handler(args) or 0)
    except StrataError as error:
        print(f"strata: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; nothing is left to say
        return 1
