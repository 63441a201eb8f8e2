"""Flags from the settings' own descriptions, and settings from parsed flags."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from strata.config import ALWAYS_ON_FLAGS, Config, ConfigField, config_fields, load_config
from strata.errors import ConfigError

# argparse has no public names for what add_subparsers and add_argument_group return.
Commands = Any
_Group = Any
_DEST = "cfg:"


def add_settings(parser: argparse.ArgumentParser, sections: Iterable[str]) -> None:
    """Add --config and the flags of the named sections of the configuration."""
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings; flags and STRATA_* variables win")
    wanted = tuple(sections)
    for section in wanted:
        group = parser.add_argument_group(f"{section} settings")
        for field in config_fields():
            if field.section == section:
                _add(group, field)
    if "model" in wanted:
        for flag, text in ALWAYS_ON_FLAGS.items():
            parser.add_argument(flag, action="store_true", help=text)


def add_model(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add the MODEL argument and --synthetic."""
    parser.add_argument(
        "model_path",
        metavar="MODEL",
        nargs=None if required else "?",
        help="GGUF file; of a split model any part. Unset: the embedded demo model",
    )
    parser.add_argument(
        "--synthetic",
        metavar="NAME",
        help="no file: fill memory with random weights of a public model's exact shape, e.g. qwen3-30b-a3b",
    )
    parser.add_argument("--layers", type=positive, metavar="N", help="with --synthetic: only the first N layers")


def settings(args: argparse.Namespace) -> Config:
    """Merge YAML, environment and flags. Raises ConfigError."""
    values = {name[len(_DEST) :]: value for name, value in vars(args).items() if name.startswith(_DEST)}
    overrides: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    path = getattr(args, "model_path", None)
    if path is not None:
        if "model.path" in overrides and overrides["model.path"] != path:
            raise ConfigError(f"two models are named: {path} and --model {overrides['model.path']}")
        overrides["model.path"] = path
    return load_config(overrides, getattr(args, "config", None))


def read_text(path: str) -> str:
    """The text of a file that the command line names. Raises: ConfigError."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text: {error.reason} at byte {error.start}") from error


def positive(text: str) -> int:
    """argparse type: a whole number of 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def token_ids(text: str) -> tuple[int, ...]:
    """argparse type: token ids separated by commas, or @FILE holding them."""
    try:
        source = read_text(text[1:]) if text.startswith("@") else text
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    try:
        ids = tuple(int(part) for part in source.replace(",", " ").split())
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"token ids are whole numbers separated by commas: {error}") from error
    if not ids:
        raise argparse.ArgumentTypeError("at least one token id is needed")
    return ids


def _add(group: _Group, field: ConfigField) -> None:
    if not field.flags:
        return
    text = field.help.replace("%", "%%")
    dest = _DEST + field.name
    if field.kind == "bool":
        for sense in ("true", "false"):
            flags = [flag for flag in field.flags if flag.startswith("--no-") == (sense == "false")]
            if flags:
                group.add_argument(*flags, dest=dest, action="store_const", const=sense, default=None, help=text)
                text = "the opposite"
        return
    kwargs: dict[str, Any] = {"dest": dest, "default": None, "help": text}
    if field.kind == "list":
        kwargs["action"] = "append"
    if field.choices:
        kwargs["choices"] = field.choices
    else:
        kwargs["metavar"] = field.metavar or {"int": "N", "float": "X", "bytes": "BYTES"}.get(field.kind, "VALUE")
    group.add_argument(*field.flags, **kwargs)
