"""What a file holds, counted: sizes by type, and the fingerprint that ties profiles to a model."""

from __future__ import annotations

import hashlib
from collections import Counter

from strata.gguf.quants import type_name
from strata.gguf.reader import GgufFile

_EDGE_BYTES = 1 << 20


def bytes_by_type(file: GgufFile) -> dict[str, int]:
    """Bytes of tensor data by type name, largest first."""
    sums: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sums[type_name(tensor.type)] += tensor.n_bytes
    return dict(sums.most_common())


def fingerprint(file: GgufFile) -> str:
    """Hex SHA-256 over the tensor directory and the first and last MiB of the data.

    The directory counts by name, type, shape and size, so that splitting a file changes nothing there; the data's
    first MiB is the first shard's, its last MiB the last shard's.
    """
    digest = hashlib.sha256()
    for name in sorted(file.tensors):
        tensor = file.tensors[name]
        digest.update(f"{name}\0{tensor.type}\0{tensor.ne}\0{tensor.n_bytes}\n".encode("utf-8", "surrogateescape"))
    with file.paths[0].open("rb") as first:
        first.seek(file.data_offsets[0])
        digest.update(first.read(_EDGE_BYTES))
    with file.paths[-1].open("rb") as last:
        last.seek(max(file.data_offsets[-1], file.file_bytes[-1] - _EDGE_BYTES))
        digest.update(last.read(_EDGE_BYTES))
    return digest.hexdigest()
