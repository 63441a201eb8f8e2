"""What a model file holds: metadata and tensors, sizes by type, the fingerprint that ties profiles to a model."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from strata.gguf.quants import type_name

EDGE_BYTES = 1 << 20  # of the data's beginning and end that the fingerprint reads


class Tensor(msgspec.Struct, frozen=True):
    """One entry of the tensor directory. `ne`: fastest dimension first; `offset`: absolute in shard `shard`."""

    name: str
    type: int
    ne: tuple[int, ...]
    shard: int
    offset: int
    n_bytes: int

    @property
    def n_rows(self) -> int:
        """Rows of ne[0] values, those of all matrices of a stack counted through."""
        return math.prod(self.ne[1:])

    @property
    def row_bytes(self) -> int:
        return self.n_bytes // self.n_rows

    @property
    def matrix_bytes(self) -> int:
        """Of one matrix of a stack: expert e of ne [n_cols, n_rows, n_expert] begins at offset + e * matrix_bytes."""
        return self.n_bytes // math.prod(self.ne[2:])


class GgufFile(msgspec.Struct, frozen=True, kw_only=True):
    """A model's metadata and tensor directory, all shards together.

    Metadata values are plain Python: int, float, bool, str, list. `kinds` has each key's GGUF type ("u32", "[str]").
    Strings that are not UTF-8 are kept with surrogate escapes (token texts may be cut inside a character).
    """

    paths: tuple[Path, ...]
    version: int
    alignment: int
    metadata: Mapping[str, Any]
    kinds: Mapping[str, str]
    tensors: Mapping[str, Tensor]
    data_offsets: tuple[int, ...]  # of each shard
    file_bytes: tuple[int, ...]


def bytes_by_type(file: GgufFile) -> dict[str, int]:
    """Bytes of tensor data by type name, largest first."""
    sums: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sums[type_name(tensor.type)] += tensor.n_bytes
    return dict(sums.most_common())


def fingerprint(file: GgufFile) -> str:
    """Hex SHA-256 over the tensor directory and the first and last MiB of the data.

    The data's first MiB is the first shard's, its last MiB the last shard's.
    """
    with file.paths[0].open("rb") as first:
        first.seek(file.data_offsets[0])
        head = first.read(EDGE_BYTES)
    with file.paths[-1].open("rb") as last:
        last.seek(max(file.data_offsets[-1], file.file_bytes[-1] - EDGE_BYTES))
        return fingerprint_of(file.tensors, head, last.read(EDGE_BYTES))


def fingerprint_of(tensors: Mapping[str, Tensor], head: bytes, tail: bytes) -> str:
    """The fingerprint of a directory and the data's edges, wherever they come from.

    The directory counts by name, type, shape and size, so that splitting a file changes nothing there.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}\0{tensor.type}\0{tensor.ne}\0{tensor.n_bytes}\n".encode("utf-8", "surrogateescape"))
    digest.update(head)
    digest.update(tail)
    return digest.hexdigest()
