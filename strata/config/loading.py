"""Settings from a YAML file, the environment and the command line: the later one wins.

Every value remembers where it came from, so that an error names the file and line, the variable or the flag.
"""

from __future__ import annotations

import difflib
import os
import re
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from strata.config.fields import ENV_PREFIX, ConfigField, config_fields, fields_by_name, section_names
from strata.config.schema import Config
from strata.errors import BadSampling, ConfigError
from strata.types import SamplingParams

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B?)\s*", re.IGNORECASE)
_SIZE_SHIFT = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 2
_SECRETS = frozenset({"server.api_keys"})  # never repeated in messages
# Kubernetes gives every pod such variables for a service that is called "strata".
_SERVICE_LINK = re.compile(r"STRATA_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)")


class Setting(msgspec.Struct, frozen=True):
    """One raw value and the place it was found at."""

    name: str  # dotted path, known or not
    value: Any
    origin: str  # "configs/laptop.yaml:12", "STRATA_SERVER_PORT", "--port"


def load_config(
    argv_overrides: Mapping[str, Any] | None = None,
    yaml_path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Return the settings of this process: defaults < YAML file < environment (STRATA_*) < command line.

    argv_overrides: dotted field name -> value as text (or a list of texts for repeated flags); None is skipped.
    environ: the process environment unless given.
    Raises: ConfigError listing every problem, each with its place.
    """
    problems: list[str] = []
    settings = [
        *_from_yaml(yaml_path, problems),
        *_from_environ(os.environ if environ is None else environ),
        *_from_argv(argv_overrides or {}),
    ]
    values: dict[str, dict[str, Any]] = {section: {} for section in section_names()}
    for setting in settings:
        field = fields_by_name().get(setting.name)
        if field is None:
            problems.append(_unknown(setting))
            continue
        try:
            value = _convert(field, setting.value)
        except (ConfigError, ValueError) as error:
            shown = "wrong" if field.name in _SECRETS else _SHORT.repr(setting.value)
            problems.append(f"{setting.origin}: {field.name} is {shown}; {error}")
            continue
        values[field.section][field.name.partition(".")[2]] = value
    if problems:
        raise ConfigError("\n".join(problems))
    return msgspec.convert(values, Config)


# ---- sources --------------------------------------------------------------------------------------------------


def _from_yaml(path: str | Path | None, problems: list[str]) -> Iterator[Setting]:
    if path is None:
        return
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the configuration file cannot be read: {error}") from error
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is not None:
            yield from _sections(loader, root, str(path), problems)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise ConfigError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from error
    finally:
        loader.dispose()


def _sections(loader: yaml.SafeLoader, root: yaml.Node, path: str, problems: list[str]) -> Iterator[Setting]:
    for section, node, line in _pairs(loader, root, path, "the file", problems):
        if section not in section_names():
            yield Setting(section, None, f"{path}:{line}")
        elif not _is_null(node):
            for key, leaf, leaf_line in _pairs(loader, node, path, f"section {section}", problems):
                yield Setting(f"{section}.{key}", loader.construct_object(leaf, deep=True), f"{path}:{leaf_line}")


def _pairs(
    loader: yaml.SafeLoader, node: yaml.Node, path: str, what: str, problems: list[str]
) -> Iterator[tuple[str, yaml.Node, int]]:
    if not isinstance(node, yaml.MappingNode):
        problems.append(f"{path}:{node.start_mark.line + 1}: {what} must be a mapping of keys to values")
        return
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        key, line = str(loader.construct_object(key_node)), key_node.start_mark.line + 1
        if key in seen:
            problems.append(f"{path}:{line}: {key} was given already in line {seen[key]}")
            continue
        seen[key] = line
        yield key, value_node, line


def _is_null(node: yaml.Node) -> bool:
    return node.tag == "tag:yaml.org,2002:null"


def _from_environ(environ: Mapping[str, str]) -> Iterator[Setting]:
    known = {field.env: field.name for field in config_fields()}
    for variable in sorted(environ):
        if variable in known:
            yield Setting(known[variable], environ[variable], variable)
        elif variable.startswith(ENV_PREFIX) and not _SERVICE_LINK.fullmatch(variable):
            yield Setting(variable, environ[variable], variable)


def _from_argv(overrides: Mapping[str, Any]) -> Iterator[Setting]:
    for name, value in overrides.items():
        if value is not None:
            field = fields_by_name().get(name)
            yield Setting(name, value, field.flags[-1] if field else "command line")


# ---- values ---------------------------------------------------------------------------------------------------


def _convert(field: ConfigField, raw: Any) -> Any:
    """Return `raw` as the field's type. Raises ValueError (msgspec.ValidationError included) or ConfigError."""
    value = _parse(field, raw) if isinstance(raw, str) else raw
    if field.kind == "list" and isinstance(raw, list | tuple):
        value = [item for part in raw for item in _parse_list(part)]
    parts: list[Any] = raw if isinstance(raw, list) else [raw]
    if field.name in _SECRETS and "" in parts:
        raise ConfigError("a key is empty, and would leave the door open; leave the setting out if that is meant")
    if field.kind == "float" and type(value) is int:
        value = float(value)
    if field.optional and value == "":
        value = None
    value = msgspec.convert(value, field.type, strict=not isinstance(raw, str))
    name = field.name.removeprefix("sampling.")
    if field.section == "sampling" and name != "max_tokens" and (name, value) != ("seed", -1):
        try:
            SamplingParams(**{name: value}).checked(1)
        except BadSampling as error:
            raise ConfigError(str(error).partition("; ")[2]) from error
    return value


def _parse(field: ConfigField, text: str) -> Any:
    if field.kind == "bytes":
        return parse_bytes(text)
    if field.kind == "list":
        return _parse_list(text)
    if field.kind == "map":
        return _parse_map(text)
    return text


def _parse_list(text: Any) -> list[Any]:
    if not isinstance(text, str):
        return [text]
    if text.startswith("["):
        return msgspec.json.decode(text, type=list[str])
    return [part.strip() if len(part) > 1 else part for part in text.split(",") if part]


def _parse_map(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        return msgspec.json.decode(text, type=dict[str, Any])
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not equals for _, equals, _ in pairs):
        raise ConfigError("expected a JSON object, or KEY=VALUE pairs separated by commas")
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_bytes(text: str) -> int:
    """Return a size such as "8GiB", "512M" or "4096" in bytes; the letters count in powers of 1024."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError("expected a number of bytes, or one with K, M, G or T behind it (powers of 1024)")
    size = float(match[1]) * (1 << _SIZE_SHIFT[match[2].upper()])
    if size >= 1 << 63:
        raise ConfigError("expected less than 2^63 bytes")
    return int(size)


# ---- suggestions ----------------------------------------------------------------------------------------------


def _unknown(setting: Setting) -> str:
    """Say that a key is unknown, and which one was probably meant."""
    name = setting.name
    if name.startswith(ENV_PREFIX):
        near = difflib.get_close_matches(name, [field.env for field in config_fields()], n=1)
    else:
        near = _near(name)
    hint = f"; did you mean {near[0]}?" if near else f"; sections are {', '.join(section_names())}"
    return f"{setting.origin}: unknown setting {name}{hint}"


def _near(name: str) -> list[str]:
    names = [*fields_by_name(), *section_names()]
    leaf = name.rpartition(".")[2]
    same_leaf = [known for known in fields_by_name() if known.rpartition(".")[2] == leaf]
    by_flag = [field.name for field in config_fields() if f"--{leaf.replace('_', '-')}" in field.flags]
    by_leaf = difflib.get_close_matches(leaf, [known.rpartition(".")[2] for known in fields_by_name()], n=1)
    from_leaf = [known for known in fields_by_name() if known.rpartition(".")[2] in by_leaf]
    return same_leaf or by_flag or difflib.get_close_matches(name, names, n=1, cutoff=0.75) or from_leaf
