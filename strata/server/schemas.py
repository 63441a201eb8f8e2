"""How request bodies become structs, and what is done about fields that are wrong, unknown or not supported.

Policy: a wrong value is a 400 naming field and value. A field that the API knows but this server does not honour is
a 400 as well, unless it has the value that asks for nothing. A field that nobody knows is ignored, as
OpenAI-compatible servers do, and named in a debug log line.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from strata.errors import RequestError
from strata.server.problems import BadField

log = logging.getLogger("strata.server")

T = TypeVar("T", bound=msgspec.Struct)

_PATH = re.compile(r"^(?P<what>.*) - at `(?P<path>\$.*)`$", re.DOTALL)
_STEP = re.compile(r"(?:^|\.)(\w+)|\[(\d+)\]|\[\.\.\.\]")
_SHOWN_CHARS = 80


class Refusal(msgspec.Struct, frozen=True):
    """A known field that is honoured only as far as its `harmless` values go."""

    harmless: tuple[Any, ...]
    reason: str


def decode(body: bytes, schema: type[T], refusals: Mapping[str, Refusal] | None = None) -> tuple[T, dict[str, Any]]:
    """Return the body as `schema`, and as plain JSON values.

    Raises: BadField for a wrong or refused field, RequestError for a body that is no JSON object.
    """
    raw = _decode_json(body)
    try:
        request = msgspec.json.decode(body, type=schema)
    except msgspec.ValidationError as error:
        raise _bad_field(str(error), raw) from error
    for name, value in raw.items():
        _check_known(name, value, schema, refusals or {})
    return request, raw


def _decode_json(body: bytes) -> dict[str, Any]:
    try:
        raw = msgspec.json.decode(body)
    except RecursionError as error:
        raise RequestError("the request's body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the request's body is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise RequestError(f"the request's body is {shown(raw)}; expected a JSON object")
    return raw


def _check_known(name: str, value: Any, schema: type[msgspec.Struct], refusals: Mapping[str, Refusal]) -> None:
    refusal = refusals.get(name)
    if refusal is not None:
        if value is not None and value not in refusal.harmless:
            raise BadField(name, f"{name} is {shown(value)}, which is not supported: {refusal.reason}")
    elif name not in schema.__struct_encode_fields__:
        log.debug("an unknown field is ignored", extra={"fields": {"field": name}})


def _bad_field(message: str, raw: dict[str, Any]) -> RequestError:
    """Turn msgspec's message into one that names the field as the client wrote it, and its value."""
    match = _PATH.match(message)
    what = (match["what"] if match else message).replace("`", "")
    path = match["path"].removeprefix("$").removeprefix(".") if match else ""
    missing = re.search(r"missing required field (\w+)", what)
    if missing is not None:
        name = f"{path}.{missing[1]}" if path else missing[1]
        return BadField(name, f"{name} is missing")
    if not path:
        return RequestError(what)
    value = _look_up(raw, path)
    return BadField(path, f"{path} is {shown(value)}; {what[:1].lower()}{what[1:]}")


def _look_up(raw: Any, path: str) -> Any:
    for step in _STEP.finditer(path):
        name, index = step[1], step[2]
        if name is not None and isinstance(raw, dict):
            raw = raw.get(name)
        elif index is not None and isinstance(raw, list):
            raw = raw[int(index)]
    return raw


def shown(value: Any) -> str:
    """Return a value as short JSON, for messages."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
