"""A case as the reader would give it, without a file: for tests of binding that change one thing at a time."""

from __future__ import annotations

from typing import Any

import msgspec
from arch_cases import N_VOCAB, Case

from strata.gguf.reader import Tensor

KINDS = {bool: "bool", int: "u32", float: "f32", str: "str"}


class FakeFile(msgspec.Struct):
    """Fields of GgufFile that binding reads."""

    paths: tuple[str, ...]
    metadata: dict[str, Any]
    kinds: dict[str, str]
    tensors: dict[str, Tensor]


def fake_file(case: Case, types: dict[str, int] | None = None) -> FakeFile:
    """All tensors F32 unless `types` names them; offsets are made up but apart."""
    keys = {f"{case['arch']}.{key}": value for key, value in case["keys"].items() if value is not None}
    metadata = {"general.architecture": case["arch"], "tokenizer.ggml.tokens": ["x"] * N_VOCAB} | keys
    tensors: dict[str, Tensor] = {}
    at = 4096
    for name, ne in case["tensors"].items():
        n_bytes = 4
        for n in ne:
            n_bytes *= n
        tensors[name] = Tensor(name, (types or {}).get(name, 0), tuple(ne), 0, at, n_bytes)
        at += n_bytes
    return FakeFile(("tiny.gguf",), metadata, {key: _kind(value) for key, value in metadata.items()}, tensors)


def _kind(value: Any) -> str:
    return f"[{KINDS[type(value[0])]}]" if isinstance(value, list) else KINDS[type(value)]


def changed(case: Case, *, drop: str = "", add: dict[str, list[int]] | None = None, **keys: Any) -> Case:
    """The case without one tensor, with more tensors, or with other keys (None: without the key)."""
    tensors = {name: ne for name, ne in case["tensors"].items() if name != drop} | (add or {})
    return case | {"tensors": tensors, "keys": case["keys"] | keys}
