"""Typed reads of an architecture's metadata: every `Key` of a declaration becomes a number, a flag or a name here.

A missing required key, a value of the wrong type, an array of the wrong length and a number out of range are BindErrors
that name file, key and value. Only `bind` and its parts use this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from strata.arch.bound import ModelFile
from strata.arch.spec import Case, Dim, Key, Power, Scalar
from strata.errors import BindError

__all__ = ["MAX_COUNT", "Keys"]

MAX_COUNT = 2**31 - 1  # counts travel as int32; larger ones cannot be a model's
_SHOWN = 80
# GGUF types that the format prescribes; a number of another width is as wrong as a string
INTEGERS, REALS, FLAGS, NAMES = ("u32", "[u32]", "[i32]"), ("f32", "[f32]"), ("bool",), ("str",)
PATTERNS = ("u32", "[bool]", "[u32]", "[i32]")


class Keys:
    """The metadata of one file under its architecture's prefix. `dims` grows while binding; Dim defaults read it."""

    def __init__(self, file: ModelFile, prefix: str) -> None:
        self.file_name = str(file.paths[0]) if file.paths else "(no file)"
        self.dims: dict[str, int] = {}
        self.heads: list[tuple[int, int]] = []  # by block: n_head, n_head_kv
        self._metadata: Mapping[str, Any] = file.metadata
        self._kinds: Mapping[str, str] = file.kinds
        self._prefix = prefix
        self._read: set[str] = set()

    def error(self, name: str, value: object, accepted: str) -> BindError:
        """The refusal of one value."""
        text = repr(value)
        text = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
        return BindError(f"{self.file_name}: {self._prefix}.{name} is {text}; accepted: {accepted}")

    def raw(self, name: str, kinds: tuple[str, ...]) -> Any:
        """The stored value as plain Python, or None when missing. `kinds`: the GGUF types it may have."""
        self._read.add(name)
        full = f"{self._prefix}.{name}"
        value = self._metadata.get(full)
        kind = self._kinds.get(full)
        if value is not None and kind not in kinds:
            raise self.error(name, value, f"a value of type {' or '.join(kinds)}, not {kind}")
        return value

    def has(self, name: str) -> bool:
        """Whether the file holds the key."""
        return f"{self._prefix}.{name}" in self._metadata

    def n_vocab(self) -> int:
        """Entries of the token list; vocab_size where a file has no list."""
        if self._kinds.get("tokenizer.ggml.tokens") == "[str]":
            return len(self._metadata["tokenizer.ggml.tokens"])
        return self.integer(Key("vocab_size"), minimum=1)

    def unread(self) -> tuple[str, ...]:
        """Keys under the prefix that nothing asked for."""
        lead = self._prefix + "."
        names = (key[len(lead) :] for key in self._metadata if key.startswith(lead))
        return tuple(sorted(name for name in names if name not in self._read))

    def integer(self, key: Key, minimum: int = 0, maximum: int = MAX_COUNT) -> int:
        """A whole number. A per-layer array is accepted when all its entries are equal."""
        value = self._value(key, INTEGERS)
        if isinstance(value, list):
            value = self._uniform(key, cast("list[Any]", value))
        return self._checked_int(key.name, value, minimum, maximum)

    def per_layer_int(self, key: Key, minimum: int = 0, maximum: int = MAX_COUNT) -> list[int]:
        """One number a block (next-token blocks included), from a scalar or an array of that length."""
        value = self._value(key, INTEGERS)
        n_block = self.dims["n_block"]
        items = cast("list[Any]", value) if isinstance(value, list) else [value] * n_block
        self._check_length(key, items)
        return [self._checked_int(key.name, item, minimum, maximum) for item in items]

    def real(self, key: Key, minimum: float = -math.inf, maximum: float = math.inf) -> float:
        """A finite number."""
        value = self._value(key, REALS)
        if isinstance(value, list):
            value = self._uniform(key, cast("list[Any]", value))
        if not math.isfinite(value) or not minimum <= value <= maximum:
            raise self.error(key.name, value, f"a finite number, {minimum:g} to {maximum:g}")
        return float(value)

    def per_layer_real(self, key: Key) -> list[float]:
        """One finite number a block, from a scalar or an array of that length."""
        value = self._value(key, REALS)
        items = cast("list[Any]", value) if isinstance(value, list) else [value] * self.dims["n_block"]
        self._check_length(key, items)
        if not all(math.isfinite(item) for item in items):
            raise self.error(key.name, value, "finite numbers")
        return [float(item) for item in items]

    def counts(self, key: Key, n: int) -> list[int]:
        """n whole numbers, from an array of that length or from one for all."""
        value = self._value(key, INTEGERS)
        items = cast("list[Any]", value) if isinstance(value, list) else [value] * n
        if len(items) != n:
            raise self.error(key.name, value, f"{n} numbers")
        return [self._checked_int(key.name, item, 0, MAX_COUNT) for item in items]

    def flags(self, key: Key) -> list[bool]:
        """One flag a block, from a boolean or an array of that length."""
        value = self._value(key, (*FLAGS, *PATTERNS[1:]))
        items = cast("list[Any]", value) if isinstance(value, list) else [value] * self.dims["n_block"]
        self._check_length(key, items)
        return [bool(item) for item in items]

    def flag(self, key: Key) -> bool:
        """A boolean."""
        return bool(self._value(key, FLAGS))

    def choice(self, key: Key, names: Mapping[int, str] | tuple[str, ...]) -> str:
        """A name; with a mapping the file stores its number."""
        stored_by_number = isinstance(names, Mapping)
        value = self._value(key, INTEGERS if stored_by_number else NAMES)
        if stored_by_number and isinstance(value, int) and value in names:
            return names[value]
        accepted = names.values() if stored_by_number else names
        if isinstance(value, str) and value in accepted:
            return value
        shown = (f"{number} ({name})" for number, name in names.items()) if stored_by_number else names
        raise self.error(key.name, value, ", ".join(shown))

    def recurrent_flags(self, default: int) -> list[bool]:
        """One flag a block: attention.recurrent_layers, else all but each m-th, m = full_attention_interval."""
        name, n_block, n_layer = "attention.recurrent_layers", self.dims["n_block"], self.dims["n_layer"]
        value = self.raw(name, PATTERNS)
        if value is None:
            period = self.integer(Key("full_attention_interval", default), minimum=1)
            return [i < n_layer and (i + 1) % period != 0 for i in range(n_block)]
        items = cast("list[Any]", value) if isinstance(value, list) else [value] * n_block
        self._check_length(Key(name), items)
        return [bool(item) for item in items]

    def window_flags(self, key: Key, form: str) -> list[bool]:
        """One flag a block from an array (booleans or numbers) or from a period."""
        value = self._value(key, PATTERNS)
        n_block, n_layer = self.dims["n_block"], self.dims["n_layer"]
        if isinstance(value, list):
            items = cast("list[Any]", value)
            self._check_length(key, items)
            return [bool(item) for item in items]
        if form == "flags":
            raise self.error(key.name, value, f"an array of block_count ({n_block}) flags")
        period = self._checked_int(key.name, value, 0, MAX_COUNT)
        if period == 0:
            return [i < n_layer for i in range(n_block)]
        dense = period - 1 if form == "dense-last" else 0  # the place of the layer without a window in each period
        return [i < n_layer and i % period != dense for i in range(n_block)]

    def _value(self, key: Key, kinds: tuple[str, ...]) -> Any:
        """The stored value, or what the declaration says for this shape."""
        fixed = self._case(key.fixed)
        if fixed is not None:
            self._read.add(key.name)
            return fixed
        value = self.raw(key.name, kinds)
        if value is not None and (isinstance(value, list) or value not in key.unset):
            if key.accepted and value not in key.accepted:
                raise self.error(key.name, value, ", ".join(map(str, key.accepted)))
            return value
        by_shape = self._case(key.cases)
        if by_shape is not None:
            return by_shape
        if isinstance(key.default, Dim):
            return self._dim(key, key.default)
        if isinstance(key.default, Key):
            return self._value(key.default, kinds)
        if isinstance(key.default, Power):
            return key.default.factor * self.dims[key.default.name] ** key.default.exponent
        if key.default is None:
            stored = "missing" if value is None else repr(value)
            raise BindError(f"{self.file_name}: {self._prefix}.{key.name} is {stored}; this architecture needs it")
        return key.default

    def _case(self, cases: tuple[Case, ...]) -> Scalar | None:
        for case in cases:
            layers = not case.n_layer or self.dims["n_layer"] in case.n_layer
            vocab = not case.n_vocab or self.dims["n_vocab"] in case.n_vocab
            if layers and vocab:
                return case.value
        return None

    def _dim(self, key: Key, dim: Dim) -> int:
        numbers = [self.dims.get(name, 0) for name in (dim.name, dim.over) if name is not None]
        if 0 in numbers or (len(numbers) == 2 and numbers[0] % numbers[1] != 0):
            rule = dim.name if dim.over is None else f"{dim.name} / {dim.over}"
            raise BindError(
                f"{self.file_name}: {self._prefix}.{key.name} is missing, and its default {rule} is not a whole number"
                f" ({' / '.join(map(str, numbers))})"
            )
        return numbers[0] // numbers[1] if len(numbers) == 2 else numbers[0]

    def _uniform(self, key: Key, items: list[Any]) -> Any:
        self._check_length(key, items)
        if any(item != items[0] for item in items):
            raise self.error(key.name, items, "one value for all layers")
        return items[0]

    def _check_length(self, key: Key, items: list[Any]) -> None:
        n_block = self.dims.get("n_block")
        if n_block is None:
            raise self.error(key.name, items, "one value")
        if len(items) != n_block:
            raise self.error(key.name, items, f"one value, or an array of block_count ({n_block}) values")

    def _checked_int(self, name: str, value: Any, minimum: int, maximum: int) -> int:
        if not minimum <= value <= maximum:
            raise self.error(name, value, f"{minimum} to {maximum}")
        return value
