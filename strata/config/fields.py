"""The settings as a flat list: what the command line, the environment and the documentation are built from."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from strata.config.schema import Config

ENV_PREFIX = "STRATA_"

Kind = Literal["str", "int", "float", "bool", "list", "map", "bytes"]

# Flags of llama-server whose effect is always on here: taken, and explained, but without a setting of their own.
ALWAYS_ON_FLAGS = {"--jinja": "chat templates are always rendered by the Jinja engine"}


class ConfigField(msgspec.Struct, frozen=True, kw_only=True):
    """One setting. `name` is its dotted path, and the key in `load_config`'s argv_overrides."""

    name: str
    kind: Kind
    type: Any  # what msgspec converts to, range included
    default: Any
    help: str
    flags: tuple[str, ...]
    choices: tuple[str, ...] = ()
    metavar: str = ""
    optional: bool = False  # may be unset (null)
    limits: str = ""  # accepted range in words

    @property
    def section(self) -> str:
        return self.name.partition(".")[0]

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.replace(".", "_").upper()


@cache
def config_fields() -> tuple[ConfigField, ...]:
    """Return every setting, in the order of the schema."""
    return tuple(_walk())


@cache
def fields_by_name() -> dict[str, ConfigField]:
    return {field.name: field for field in config_fields()}


def section_names() -> tuple[str, ...]:
    return Config.__struct_fields__


def _walk() -> Iterator[ConfigField]:
    for section, section_type in get_type_hints(Config).items():
        hints = get_type_hints(section_type, include_extras=True)
        for info in msgspec.structs.fields(section_type):
            yield _describe(f"{section}.{info.name}", hints[info.name], info)


def _describe(name: str, hint: Any, info: msgspec.structs.FieldInfo) -> ConfigField:
    plain, meta = get_args(hint)
    members = _members(plain)
    choices = tuple(str(value) for member in members if get_origin(member) is Literal for value in get_args(member))
    default = info.default_factory() if info.default is msgspec.NODEFAULT else info.default
    return ConfigField(
        name=name,
        kind="bytes" if meta.extra.get("unit") == "bytes" else _kind(members[0]),
        type=hint,
        default=default,
        help=meta.description,
        flags=meta.extra["flags"],
        choices=choices,
        metavar=meta.extra["metavar"],
        optional=type(None) in get_args(plain),
        limits=_limits(meta),
    )


def _members(plain: Any) -> list[Any]:
    is_union = get_origin(plain) in {types.UnionType, typing.Union}
    return [member for member in (get_args(plain) if is_union else (plain,)) if member is not type(None)]


def _kind(member: Any) -> Kind:
    kinds: dict[Any, Kind] = {bool: "bool", int: "int", float: "float", tuple: "list", dict: "map"}
    return kinds.get(get_origin(member) or member, "str")


def _limits(meta: msgspec.Meta) -> str:
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    return ", ".join(f"{word} {getattr(meta, key)}" for key, word in words.items() if getattr(meta, key) is not None)
