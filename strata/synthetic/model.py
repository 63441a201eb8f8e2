"""A model that exists only as a rule: metadata, tensor directory, and the bytes of any rows on demand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.errors import ConfigError
from strata.gguf.inventory import EDGE_BYTES, fingerprint_of
from strata.gguf.quants import GgmlType, row_bytes
from strata.gguf.reader import Tensor
from strata.synthetic.blocks import float_bytes
from strata.synthetic.layout import QUANTS, Entry, entries, metadata
from strata.synthetic.shapes import SHAPES
from strata.synthetic.weights import WeightSource

ALIGNMENT = 32


class SyntheticModel:
    """Looks like an opened GGUF file without paths. Equal arguments give equal bytes."""

    def __init__(self, name: str, *, layers: int | None = None, quant: str | None = None, seed: int = 0) -> None:
        """layers: keep the first N. quant: another mix than the published files'. Raises: ConfigError."""
        if name not in SHAPES:
            raise ConfigError(f"no synthetic model is called {name!r}; there are {', '.join(SHAPES)}")
        shape = SHAPES[name]
        if layers is not None:
            if not 1 <= layers <= shape.n_layer:
                raise ConfigError(f"{name} has {shape.n_layer} layers, {layers} were asked for")
            if layers in shape.not_layers:
                raise ConfigError(f"{name} with {layers} layers would be read as another {shape.arch} model")
            shape = msgspec.structs.replace(shape, n_layer=layers, n_dense=min(shape.n_dense, layers))
        if quant is not None and quant not in QUANTS:
            raise ConfigError(f"quantisation {quant!r} is unknown; accepted: {', '.join(QUANTS)}")
        self.name = name
        self.shape = shape
        self.paths: tuple[Path, ...] = ()
        self.typed_metadata = metadata(shape, name)
        self.metadata: Mapping[str, Any] = {
            key: float(np.float32(value)) if kind == "f32" else value
            for key, (kind, value) in self.typed_metadata.items()
        }
        self.kinds: Mapping[str, str] = {key: kind for key, (kind, _) in self.typed_metadata.items()}
        self._entries = {entry.name: entry for entry in entries(shape, quant or shape.quant)}
        self.tensors: Mapping[str, Tensor] = self._place()
        self._weights = WeightSource(seed)

    @property
    def n_bytes(self) -> int:
        """Of all tensor data, with the padding between tensors."""
        last = list(self.tensors.values())[-1]
        return last.offset + last.n_bytes

    def fingerprint(self) -> str:
        """That of the file that the model would be written to (strata.gguf.inventory)."""
        end = self.n_bytes + -self.n_bytes % ALIGNMENT
        return fingerprint_of(self.tensors, self._data(0, EDGE_BYTES), self._data(max(end - EDGE_BYTES, 0), end))

    def _data(self, first: int, end: int) -> bytes:
        """Bytes first <= b < end of the tensor data as a file holds it, padding included."""
        made = bytearray()
        for tensor in self.tensors.values():
            lo, hi = max(first, tensor.offset), min(end, tensor.offset + tensor.n_bytes)
            if lo < hi:
                row = (lo - tensor.offset) // tensor.row_bytes
                n_rows = -(-(hi - tensor.offset) // tensor.row_bytes) - row
                rows = self.tensor_bytes(tensor.name, row, n_rows).tobytes()
                start = lo - tensor.offset - row * tensor.row_bytes
                made += rows[start : start + hi - lo]
            padded = tensor.offset + tensor.n_bytes + -tensor.n_bytes % ALIGNMENT
            made += bytes(max(min(end, padded) - max(first, tensor.offset + tensor.n_bytes), 0))
        return bytes(made)

    def tensor_bytes(self, name: str, first_row: int, n_rows: int) -> NDArray[np.uint8]:
        """Rows of a tensor in the file's layout, uint8 [n_rows, row_bytes]; rows of all matrices are counted through.

        Raises: KeyError for an unknown name, IndexError for rows that the tensor does not have.
        """
        entry = self._entries[name]
        total = math.prod(entry.ne[1:])
        if not 0 <= first_row <= first_row + n_rows <= total:
            raise IndexError(f"{name} has {total} rows; {first_row} to {first_row + n_rows} were asked for")
        span = (first_row, first_row + n_rows)
        if entry.fill == "random" and entry.type is not GgmlType.F32:
            return self._weights.rows(name, entry.type, entry.ne[0], entry.deviation, span)
        if entry.fill == "random":
            return self._weights.rows(name, GgmlType.F32, entry.ne[0], entry.deviation, span)
        return float_bytes(self._special(entry, span), entry.type)

    def _special(self, entry: Entry, span: tuple[int, int]) -> NDArray[np.float32]:
        first, end = span
        if entry.fill == "ones":
            return np.ones((end - first, entry.ne[0]), np.float32)
        if entry.fill == "router ranks":
            return (-entry.deviation * np.log(self._ranks(entry))).astype(np.float32).reshape(1, -1)
        rows = self._weights.rows(entry.name, GgmlType.F32, entry.ne[0], entry.deviation, span).view(np.float32)
        if entry.fill == "router rows":
            rows = rows * (self._ranks(entry)[first:end] ** -0.3).astype(np.float32)[:, None]
        return rows

    def _ranks(self, entry: Entry) -> NDArray[np.float64]:
        """Popularity rank of each expert of a layer, 1 the most wanted, in a random order per layer."""
        order = self._weights.generator("ranks", entry.name.rsplit(".", 1)[0]).permutation(self.shape.n_expert)
        return order.astype(np.float64) + 1.0

    def _place(self) -> dict[str, Tensor]:
        placed: dict[str, Tensor] = {}
        at = 0
        for entry in self._entries.values():
            n_bytes = row_bytes(entry.type, entry.ne[0]) * math.prod(entry.ne[1:])
            placed[entry.name] = Tensor(entry.name, int(entry.type), entry.ne, 0, at, n_bytes)
            at += -(-n_bytes // ALIGNMENT) * ALIGNMENT
        return placed
