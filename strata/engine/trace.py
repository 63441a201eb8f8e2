"""Routing traces: which experts each token used. Our own `.strt` files, and the bare records that other tools write.

docs/formats.md describes both byte by byte. A `.strt` file is a header and records of one size, appended whole, so
that it may be read while it grows; a last record that is cut off is not there yet. Pure: files and arrays only.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from io import BufferedReader, FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.engine.backend import Phase
from strata.errors import TraceError

__all__ = ["NO_EXPERT", "TraceHeader", "TraceReader", "TraceRecords", "TraceWriter", "is_trace"]

MAGIC = b"STRT"
VERSION = 1
MAX_LAYERS = 1 << 12
MAX_EXPERTS = 1 << 15
MAX_USED = 1 << 10
MAX_RECORD_BYTES = 1 << 26
PIECE_BYTES = 8 << 20  # read at once
NO_EXPERT = 0xFFFF
ON_CPU, ON_GPU, NOWHERE = 0, 1, 0xFF
_HAS_WEIGHTS = 1
_HEAD = struct.Struct("<4sIIIIIIII32s")  # magic, version, header and record bytes, flags, 4 dimensions, fingerprint


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a `.strt` file begins with. Array axes of records: [set, k]."""

    fingerprint: str  # hex SHA-256 of the model, as strata.gguf.inventory makes it
    n_layers: int  # blocks of the model
    n_expert: int  # of the set that has most
    k: int  # experts of a token, of the set that uses most
    layers: tuple[int, ...]  # block of each expert set, ascending
    has_weights: bool = True

    @property
    def n_sets(self) -> int:
        return len(self.layers)

    @property
    def n_bytes(self) -> int:
        """Of the header in the file."""
        return (_HEAD.size + 2 * self.n_sets + 7) // 8 * 8

    @property
    def record(self) -> np.dtype[Any]:
        """Layout of one record, little-endian and packed."""
        grid = (self.n_sets, self.k)
        fields: list[Any] = [
            ("step", "<u8"),
            ("seq_id", "<u8"),
            ("position", "<u4"),
            ("phase", "u1"),
            ("reserved", "u1", (3,)),
            ("experts", "<u2", grid),
            ("place", "u1", grid),
        ]
        return np.dtype([*fields, ("weights", "<f4", grid)] if self.has_weights else fields)

    def check(self, where: str) -> None:
        """Raise TraceError naming the first field that is out of range."""
        for name, value, least, most in (
            ("n_layers", self.n_layers, 1, MAX_LAYERS),
            ("n_expert", self.n_expert, 1, MAX_EXPERTS),
            ("k", self.k, 1, min(self.n_expert, MAX_USED)),
            ("n_sets", self.n_sets, 1, 2 * MAX_LAYERS),
            ("record_bytes", self.n_sets * self.k, 1, MAX_RECORD_BYTES // 8),
        ):
            if not least <= value <= most:
                raise TraceError(f"{where}: {name} is {value}; accepted: {least} to {most}")
        before = 0
        for i, layer in enumerate(self.layers):
            if not before <= layer < self.n_layers:
                raise TraceError(f"{where}: layers[{i}] is {layer}; accepted: {before} to {self.n_layers - 1}")
            before = layer

    def encode(self) -> bytes:
        head = _HEAD.pack(
            MAGIC,
            VERSION,
            self.n_bytes,
            self.record.itemsize,
            _HAS_WEIGHTS if self.has_weights else 0,
            self.n_layers,
            self.n_expert,
            self.k,
            self.n_sets,
            bytes.fromhex(self.fingerprint),
        )
        return (head + np.asarray(self.layers, "<u2").tobytes()).ljust(self.n_bytes, b"\0")


class TraceRecords(msgspec.Struct, frozen=True, kw_only=True):
    """n records, column by column."""

    step: NDArray[np.uint64]  # [n], never falling
    seq_id: NDArray[np.uint64]  # [n]
    position: NDArray[np.uint32]  # [n] in its sequence
    phase: NDArray[np.uint8]  # [n] strata.engine.backend.Phase
    experts: NDArray[np.int32]  # [n, n_sets, k] in router order, -1 after the last
    on_gpu: NDArray[np.bool_]  # [n, n_sets, k]
    weights: NDArray[np.float32] | None  # [n, n_sets, k]

    def __len__(self) -> int:
        return len(self.step)


class TraceWriter:
    """Appends records to a new file. Each `write` reaches the file before it returns."""

    def __init__(self, path: str | Path, header: TraceHeader) -> None:
        """Create the file, or empty it. Raises: TraceError."""
        header.check(str(path))
        self.path = Path(path)
        self.header = header
        self.n_records = 0
        self._dtype = header.record
        try:
            self._file = self.path.open("wb", buffering=0)
        except OSError as error:
            raise self._failed(error) from error
        self._append(header.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def write(self, records: TraceRecords) -> None:
        """Append records. Raises: TraceError when the disk refuses; ValueError for arrays of another shape."""
        made = np.zeros(len(records), self._dtype)
        made["step"], made["seq_id"] = records.step, records.seq_id
        made["position"], made["phase"] = records.position, records.phase
        used = records.experts >= 0
        made["experts"] = np.where(used, records.experts, NO_EXPERT)
        made["place"] = np.where(used, np.where(records.on_gpu, ON_GPU, ON_CPU), NOWHERE)
        if self.header.has_weights:
            if records.weights is None:
                raise ValueError("the trace was opened for weights; these records have none")
            made["weights"] = np.where(used, records.weights, 0)
        self._append(made.tobytes())
        self.n_records += len(records)

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> TraceError:
        return TraceError(f"{self.path}: the trace cannot be written: {error.strerror or error}")


class TraceReader:
    """A `.strt` file, also one that is still being written. Every record is checked as it is read."""

    def __init__(self, path: str | Path, *, fingerprint: str | None = None) -> None:
        """fingerprint: the model that the trace must be of. Raises: TraceError."""
        self.path = Path(path)
        try:
            self._file: FileIO = self.path.open("rb", buffering=0)
        except OSError as error:
            raise TraceError(f"{self.path} cannot be read: {error.strerror or error}") from error
        try:
            self.header = _read_header(self._file, str(self.path))
            if fingerprint is not None and fingerprint != self.header.fingerprint:
                raise TraceError(f"{self.path}: fingerprint is {self.header.fingerprint}, the model's is {fingerprint}")
        except BaseException:
            self._file.close()
            raise
        self._dtype = self.header.record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def __len__(self) -> int:
        """Whole records that the file holds now."""
        return max(os.fstat(self._file.fileno()).st_size - self.header.n_bytes, 0) // self._dtype.itemsize

    def pieces(self, first: int = 0) -> Iterator[TraceRecords]:
        """Records from number `first` to the end that the file has when it is reached, several MiB at a time.

        Raises: TraceError naming the record and the field.
        """
        n = max(PIECE_BYTES // self._dtype.itemsize, 1)
        while first < len(self):
            piece = self.read(first, n)
            yield piece
            first += len(piece)

    def read(self, first: int, n: int) -> TraceRecords:
        """Up to n records from number `first`; fewer where the file ends. Raises: TraceError."""
        n = min(n, max(len(self) - first, 0))
        size = self._dtype.itemsize
        raw = os.pread(self._file.fileno(), n * size, self.header.n_bytes + first * size)
        made = np.frombuffer(raw[: len(raw) // size * size], self._dtype)
        self._check(made, first)
        used = made["experts"] != NO_EXPERT
        return TraceRecords(
            step=made["step"].astype(np.uint64),
            seq_id=made["seq_id"].astype(np.uint64),
            position=made["position"].astype(np.uint32),
            phase=made["phase"].copy(),
            experts=np.where(used, made["experts"].astype(np.int32), -1),
            on_gpu=made["place"] == ON_GPU,
            weights=made["weights"].astype(np.float32) if self.header.has_weights else None,
        )

    def _check(self, made: NDArray[Any], first: int) -> None:
        experts, place = made["experts"], made["place"]
        used = experts != NO_EXPERT
        ordered = np.sort(experts, axis=-1)
        again = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] != NO_EXPERT)
        n_expert, phases = self.header.n_expert, len(Phase) - 1
        self._refuse(first, "phase", f"0 to {phases}", made["phase"], made["phase"] > phases)
        self._refuse(first, "reserved", "0", made["reserved"], made["reserved"] != 0)
        self._refuse(first, "expert", f"0 to {n_expert - 1}", experts, used & (experts >= n_expert))
        self._refuse(first, "expert", "none after the set's last", experts[..., 1:], used[..., 1:] & ~used[..., :-1])
        self._refuse(first, "expert", "each only once", ordered[..., 1:], again)
        allowed = np.where(used, place <= ON_GPU, place == NOWHERE)
        self._refuse(first, "place", "0 CPU, 1 GPU, 255 where there is no expert", place, ~allowed)
        step = made["step"]
        falls = np.zeros(len(step), bool)
        falls[1:] = step[1:] < step[:-1]
        self._refuse(first, "step", "not below the record before", step, falls)

    def _refuse(self, first: int, field: str, accepted: str, values: NDArray[Any], bad: NDArray[np.bool_]) -> None:
        if bad.any():
            at = np.unravel_index(int(np.argmax(bad)), bad.shape)
            raise TraceError(
                f"{self.path}: record {first + int(at[0])}: {field} is {int(values[at])}; accepted: {accepted}"
            )


def is_trace(path: str | Path) -> bool:
    """Whether a file begins like a `.strt` file. Raises: TraceError when it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error


def _read_header(file: FileIO | BufferedReader, where: str) -> TraceHeader:
    raw = file.read(_HEAD.size) or b""
    if len(raw) < _HEAD.size:
        raise TraceError(f"{where}: the file has {len(raw)} bytes; a header has {_HEAD.size} or more")
    magic, version, n_bytes, record_bytes, flags, n_layers, n_expert, k, n_sets, mark = _HEAD.unpack(raw)
    if magic != MAGIC:
        raise TraceError(f"{where}: magic is {magic!r}; expected {MAGIC!r}")
    if version != VERSION:
        raise TraceError(f"{where}: version is {version}; accepted: {VERSION}")
    if flags & ~_HAS_WEIGHTS:
        raise TraceError(f"{where}: flags is {flags}; accepted: 0 or {_HAS_WEIGHTS}")
    if not 1 <= n_sets <= 2 * MAX_LAYERS:
        raise TraceError(f"{where}: n_sets is {n_sets}; accepted: 1 to {2 * MAX_LAYERS}")
    layers = file.read(2 * n_sets) or b""
    if len(layers) < 2 * n_sets:
        raise TraceError(f"{where}: layers has {len(layers) // 2} entries; n_sets is {n_sets}")
    header = TraceHeader(
        fingerprint=mark.hex(),
        n_layers=n_layers,
        n_expert=n_expert,
        k=k,
        layers=tuple(int(layer) for layer in np.frombuffer(layers, "<u2")),
        has_weights=bool(flags & _HAS_WEIGHTS),
    )
    header.check(where)
    for name, value, expected in (
        ("header_bytes", n_bytes, header.n_bytes),
        ("record_bytes", record_bytes, header.record.itemsize),
    ):
        if value != expected:
            raise TraceError(f"{where}: {name} is {value}; the dimensions give {expected}")
    return header
