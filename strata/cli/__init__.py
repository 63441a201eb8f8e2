"""The command line. `main` is the only reader of argv; each command lives in a module of its own.

Exit status: 0 done, 1 a StrataError (one line on stderr says what and what to do), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
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
        status = int(args.handler(args) or 0)
        sys.stdout.flush()  # a reader that has gone is noticed here, not by the interpreter's end
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        return _status_of(error)
    return status


def _status_of(error: BaseException) -> int:
    """Tell what ended a command, in one line, and return the exit status. Raises again what is a defect of ours."""
    causes = _causes(error)
    if any(isinstance(cause, KeyboardInterrupt) for cause in causes):
        return 130
    told = [cause for cause in causes if isinstance(cause, StrataError)]
    if len(told) == len(causes):
        print(f"strata: {told[0]}", file=sys.stderr)
        return 1
    if any(isinstance(cause, BrokenPipeError) for cause in causes):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads; what is buffered goes nowhere
        return 1
    raise error


def _causes(error: BaseException) -> list[BaseException]:
    """The exceptions themselves, out of the groups that nurseries make of them."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    nested: tuple[BaseException, ...] = error.exceptions
    return [cause for member in nested for cause in _causes(member)]
