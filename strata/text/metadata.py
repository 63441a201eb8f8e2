"""Typed reads of `tokenizer.*` metadata: a wrong value is an error that names source, key and value.

`Metadata` maps GGUF keys to Python values; arrays may be any sequence, numpy's included. Nothing here knows the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any, cast

from strata.errors import ModelError

__all__ = ["Metadata", "read_array", "read_bool", "read_int", "read_str"]

Metadata = Mapping[str, Any]


def _wrong(source: str, key: str, value: object, accepted: str) -> ModelError:
    shown = repr(value)
    return ModelError(f"{source}: {key} is {shown[:80]}{'...' if len(shown) > 80 else ''}; accepted: {accepted}")


def read_str(meta: Metadata, source: str, key: str) -> str | None:
    """The string at `key`, or None when it is missing. Raises: ModelError for another type."""
    value = meta.get(key)
    if value is None or isinstance(value, str):
        return value
    raise _wrong(source, key, value, "a string")


def read_bool(meta: Metadata, source: str, key: str, *, default: bool) -> bool:
    """The boolean at `key`. Raises: ModelError for another type."""
    value = meta.get(key)
    if value is None:
        return default
    # numpy's boolean is no bool; its class has had both names
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise _wrong(source, key, value, "true or false")


def read_int(meta: Metadata, source: str, key: str) -> int | None:
    """The integer at `key`, or None when it is missing. Raises: ModelError for another type."""
    value = meta.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(source, key, value, "an integer")
    return int(value)


def read_array(meta: Metadata, source: str, key: str, length: int | None = None) -> list[Any] | None:
    """The array at `key` as a list, or None when it is missing.

    Raises: ModelError when it is no array, or shorter than `length` (longer is cut, as padding at the end is).
    """
    value = meta.get(key)
    if value is None:
        return None
    if isinstance(value, str | bytes) or not isinstance(value, Sized) or not isinstance(value, Iterable):
        raise _wrong(source, key, value, "an array")
    to_list = getattr(value, "tolist", None)  # numpy: Python numbers instead of numpy scalars
    items = cast("list[Any]", to_list() if to_list is not None else list(value))
    if length is not None and len(items) < length:
        raise ModelError(f"{source}: {key} has {len(items)} entries, tokenizer.ggml.tokens has {length}")
    return items if length is None else items[:length]
