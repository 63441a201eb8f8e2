"""Reads GGUF files: header, metadata and tensor directory, every count and offset checked against the file's size.

The bytes come from strangers: nothing is allocated for a count before the file has been shown to be long enough for
it, what a count may be at most is bounded too (the MAX_ constants, several times what the largest models have), and
every refusal is a BadGguf that names file, place and value. Tensor data is never read here.

Source: the format's description in ggml's docs/gguf.md; versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import re
import stat
import struct
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from strata.errors import BadGguf
from strata.gguf.inventory import GgufFile, Tensor
from strata.gguf.quants import row_bytes, type_info

__all__ = ["GgufFile", "Tensor", "read_gguf"]

MAGIC = b"GGUF"
MAX_DIMS = 4
MAX_NAME_BYTES = 63  # ggml's tensor names are 64 bytes with their terminator
MAX_KEY_BYTES = 65535
MAX_ALIGNMENT = 1 << 20
MAX_SHARDS = 4096
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18  # of one shard
MAX_ELEMENTS = 1 << 22  # of all metadata arrays of one shard
MAX_DIRECTORY_BYTES = 1 << 28  # header, metadata and tensor directory of one shard
_MIN_KV_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8

# GGUF value types: number -> (name, struct format)
_SCALARS: dict[int, tuple[str, str]] = {
    0: ("u8", "B"),
    1: ("i8", "b"),
    2: ("u16", "H"),
    3: ("i16", "h"),
    4: ("u32", "I"),
    5: ("i32", "i"),
    6: ("f32", "f"),
    7: ("bool", "?"),
    10: ("u64", "Q"),
    11: ("i64", "q"),
    12: ("f64", "d"),
}
_STRING, _ARRAY = 8, 9
_SHARD_NAME = re.compile(r"^(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$", re.DOTALL)


def read_gguf(path: str | Path) -> GgufFile:
    """Open a GGUF file; any shard of a split model opens all of it.

    Raises BadGguf when the file is missing, malformed, truncated or not of a supported version.
    """
    shards = [_read_shard(Path(path), 0)]
    first = shards[0]
    count = first.count("split.count", 1)
    if count > 1:
        paths = _shard_paths(Path(path), count)
        shards = [_read_shard(p, i) for i, p in enumerate(paths)]
        _check_split(shards)
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.name in tensors:
                raise BadGguf(f"{shard.path}: tensor {tensor.name!r} is in the file twice")
            tensors[tensor.name] = tensor
    head = shards[0]
    return GgufFile(
        paths=tuple(shard.path for shard in shards),
        version=head.version,
        alignment=head.alignment,
        metadata=MappingProxyType(head.metadata),
        kinds=MappingProxyType(head.kinds),
        tensors=MappingProxyType(tensors),
        data_offsets=tuple(shard.data_offset for shard in shards),
        file_bytes=tuple(shard.n_bytes for shard in shards),
    )


class _Shard:
    """One file while it is parsed."""

    def __init__(self, path: Path, data: mmap.mmap, index: int) -> None:
        self.path = path
        self._data = data
        self._at = 0
        self._n_elements = 0
        self.n_bytes = len(data)
        self.metadata: dict[str, Any] = {}
        self.kinds: dict[str, str] = {}
        self.tensors: list[Tensor] = []
        self.version = self._header()
        n_tensors, n_kv = self._counts()
        for i in range(n_kv):
            self._key_value(i)
        self.alignment = self._alignment()
        entries = [self._tensor_info(i) for i in range(n_tensors)]
        self.data_offset = -(-self._at // self.alignment) * self.alignment
        for name, ne, kind, offset in entries:
            self.tensors.append(self._place(name, ne, kind, offset, index))
        self._check_overlap()

    def count(self, key: str, default: int) -> int:
        """A small whole number of the split's bookkeeping."""
        value = self.metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SHARDS:
            raise self.error(f"{key} is {value!r}; accepted: 0 to {MAX_SHARDS}")
        return value

    def error(self, text: str) -> BadGguf:
        return BadGguf(f"{self.path}: {text}")

    # ---- pieces

    def _need(self, n: int, what: str) -> int:
        """Claim n bytes and return where they start."""
        at = self._at
        if n > min(self.n_bytes, MAX_DIRECTORY_BYTES) - at:
            raise self._too_long(what, at, n)
        self._at = at + n
        return at

    def _too_long(self, what: str, at: int, n: int) -> BadGguf:
        if n > self.n_bytes - at:
            return self.error(
                f"the file ends inside {what}: {n} bytes are needed at offset {at}, {self.n_bytes - at} are there"
            )
        return self.error(
            f"{what} goes from offset {at} to {at + n}; header, metadata and tensor directory may take "
            f"{MAX_DIRECTORY_BYTES} bytes"
        )

    def _number(self, code: str, what: str) -> Any:
        form = "<" + code
        return struct.unpack_from(form, self._data, self._need(struct.calcsize(form), what))[0]

    def _text(self, what: str, limit: int | None = None) -> bytes:
        n = self._number("Q", f"the length of {what}")
        if limit is not None and n > limit:
            raise self.error(f"{what} is said to have {n} bytes; accepted: at most {limit}")
        at = self._need(n, what)
        return self._data[at : at + n]

    def _name(self, what: str, limit: int) -> str:
        raw = self._text(what, limit)
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8: {raw[:40]!r}") from error
        if not name or "\0" in name:
            raise self.error(f"{what} is {name!r}; accepted: 1 to {limit} bytes without NUL")
        return name

    def _header(self) -> int:
        at = self._need(8, "the header")
        magic, version = struct.unpack_from("<4sI", self._data, at)
        if magic != MAGIC:
            raise self.error(f"this is no GGUF file: it begins with {magic!r}, not {MAGIC!r}")
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in (2, 3):
            if swapped in (1, 2, 3):
                raise self.error("the file is big-endian; only little-endian GGUF files can be read")
            raise self.error(f"GGUF version is {version}; accepted: 2 and 3")
        return version

    def _counts(self) -> tuple[int, int]:
        n_tensors, n_kv = self._number("Q", "the tensor count"), self._number("Q", "the metadata count")
        room = self.n_bytes - self._at
        if n_kv > room // _MIN_KV_BYTES:
            raise self.error(f"the header counts {n_kv} metadata entries; {room} bytes cannot hold them")
        if n_tensors > room // _MIN_TENSOR_BYTES:
            raise self.error(f"the header counts {n_tensors} tensors; {room} bytes cannot hold them")
        if n_kv > MAX_KEYS or n_tensors > MAX_TENSORS:
            raise self.error(
                f"the header counts {n_kv} metadata entries and {n_tensors} tensors; accepted: at most {MAX_KEYS} "
                f"and {MAX_TENSORS}"
            )
        return n_tensors, n_kv

    def _key_value(self, i: int) -> None:
        key = self._name(f"metadata key {i}", MAX_KEY_BYTES)
        if key in self.metadata:
            raise self.error(f"metadata key {key!r} is in the file twice")
        kind = self._number("I", f"the type of {key!r}")
        if kind == _ARRAY:
            self.metadata[key], self.kinds[key] = self._array(key)
        elif kind == _STRING:
            self.metadata[key] = self._text(f"the value of {key!r}").decode("utf-8", "surrogateescape")
            self.kinds[key] = "str"
        elif kind in _SCALARS:
            self.kinds[key], code = _SCALARS[kind]
            self.metadata[key] = self._scalar(key, code)
        else:
            raise self.error(f"metadata key {key!r} has value type {kind}; accepted: 0 to 12")

    def _scalar(self, key: str, code: str) -> Any:
        if code != "?":
            return self._number(code, f"the value of {key!r}")
        value = self._number("B", f"the value of {key!r}")
        if value > 1:
            raise self.error(f"metadata key {key!r} is a bool of value {value}; accepted: 0 and 1")
        return bool(value)

    def _array(self, key: str) -> tuple[list[Any], str]:
        kind = self._number("I", f"the element type of {key!r}")
        n = self._number("Q", f"the length of {key!r}")
        what = f"the array {key!r} of {n} elements"
        if kind != _STRING and kind not in _SCALARS:
            raise self.error(f"array {key!r} has element type {kind}; accepted: numbers, bool and strings")
        name, code = _SCALARS.get(kind, ("str", "Q"))  # a string begins with its length
        size = struct.calcsize("<" + code)
        if n > (self.n_bytes - self._at) // size:
            raise self.error(f"{what} cannot fit into the {self.n_bytes - self._at} bytes that follow")
        self._n_elements += n
        if self._n_elements > MAX_ELEMENTS:
            raise self.error(f"{what} makes {self._n_elements} in all arrays; accepted: at most {MAX_ELEMENTS}")
        if kind == _STRING:
            return self._strings(n, what), "[str]"
        at = self._need(n * size, what)
        if code == "?":
            raw = self._data[at : at + n]
            if raw.strip(b"\0\1"):
                raise self.error(f"{what} holds a bool that is neither 0 nor 1")
            return [byte == 1 for byte in raw], "[bool]"
        return list(struct.unpack_from(f"<{n}{code}", self._data, at)), f"[{name}]"

    def _strings(self, n: int, what: str) -> list[str]:
        """Hundreds of thousands of tokens: one tight loop, bounds checked for each."""
        data, at, end = self._data, self._at, min(self.n_bytes, MAX_DIRECTORY_BYTES)
        length = struct.Struct("<Q").unpack_from
        found: list[str] = []
        for i in range(n):
            if end - at < 8:
                raise self._too_long(f"the length of element {i} of {what}", at, 8)
            (size,) = length(data, at)
            at += 8
            if size > end - at:
                raise self._too_long(f"element {i} of {what}", at, size)
            found.append(data[at : at + size].decode("utf-8", "surrogateescape"))
            at += size
        self._at = at
        return found

    def _alignment(self) -> int:
        value = self.metadata.get("general.alignment", 32)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not 8 <= value <= MAX_ALIGNMENT
            or value & (value - 1)
        ):
            raise self.error(f"general.alignment is {value!r}; accepted: a power of two from 8 to {MAX_ALIGNMENT}")
        return value

    def _tensor_info(self, i: int) -> tuple[str, tuple[int, ...], int, int]:
        name = self._name(f"the name of tensor {i}", MAX_NAME_BYTES)
        n_dims = self._number("I", f"the dimension count of {name!r}")
        if not 1 <= n_dims <= MAX_DIMS:
            raise self.error(f"tensor {name!r} has {n_dims} dimensions; accepted: 1 to {MAX_DIMS}")
        at = self._need(8 * n_dims, f"the dimensions of {name!r}")
        ne: tuple[int, ...] = struct.unpack_from(f"<{n_dims}Q", self._data, at)
        kind = self._number("I", f"the type of {name!r}")
        offset = self._number("Q", f"the offset of {name!r}")
        return name, ne, kind, offset

    def _place(self, name: str, ne: tuple[int, ...], kind: int, offset: int, shard: int) -> Tensor:
        info = type_info(kind)
        if info is None:
            raise self.error(f"tensor {name!r} has GGML type {kind}, which is unknown")
        if 0 in ne:
            raise self.error(f"tensor {name!r} has the shape {list(ne)}; no dimension may be 0")
        if ne[0] % info.block:
            raise self.error(
                f"tensor {name!r}: rows of {ne[0]} values do not divide into {info.name} blocks of {info.block}"
            )
        n_rows = 1
        for n in ne[1:]:
            n_rows *= n
        n_bytes = row_bytes(kind, ne[0]) * n_rows
        room = self.n_bytes - self.data_offset
        if n_bytes > room or offset > room - n_bytes:
            raise self.error(
                f"tensor {name!r} of shape {list(ne)}, type {info.name}, needs {n_bytes} bytes at data offset "
                f"{offset}; the file holds {max(room, 0)} bytes of data"
            )
        if offset % self.alignment:
            raise self.error(
                f"tensor {name!r} lies at data offset {offset}, no multiple of the alignment {self.alignment}"
            )
        return Tensor(name=name, type=kind, ne=ne, shard=shard, offset=self.data_offset + offset, n_bytes=n_bytes)

    def _check_overlap(self) -> None:
        ordered = sorted(self.tensors, key=lambda tensor: tensor.offset)
        for before, after in pairwise(ordered):
            if before.offset + before.n_bytes > after.offset:
                raise self.error(f"tensors {before.name!r} and {after.name!r} overlap at offset {after.offset}")


def _read_shard(path: Path, index: int) -> _Shard:
    with ExitStack() as stack:
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise BadGguf(f"{path}: is not a regular file")
            if status.st_size == 0:
                raise BadGguf(f"{path}: the file is empty")
            file = stack.enter_context(path.open("rb"))
            data = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise BadGguf(f"{path}: cannot be opened: {error.strerror or error}") from error
        return _Shard(path, data, index)


def _shard_paths(path: Path, count: int) -> list[Path]:
    match = _SHARD_NAME.match(path.name)
    if match is None or int(match["count"]) != count:
        raise BadGguf(
            f"{path}: the file is one of {count} parts, so its name must end in -00001-of-{count:05d}.gguf; "
            "the other parts are looked for under such names"
        )
    paths = [path.with_name(f"{match['stem']}-{no:05d}-of-{count:05d}.gguf") for no in range(1, count + 1)]
    missing = [str(p) for p in paths if not p.is_file()]
    if missing:
        raise BadGguf(f"{path}: {len(missing)} of {count} parts are missing: {', '.join(missing[:4])}")
    return paths


def _check_split(shards: list[_Shard]) -> None:
    for i, shard in enumerate(shards):
        for key in ("split.no", "split.count"):
            if key not in shard.metadata:
                raise shard.error(f"{key} is missing, but by its name this is part {i + 1} of {len(shards)}")
        if (no := shard.count("split.no", 0)) != i:
            raise shard.error(f"split.no is {no}, but by its name this is part {i} (counted from 0)")
        if (count := shard.count("split.count", 0)) != len(shards):
            raise shard.error(f"split.count is {count}; the first part says {len(shards)}")
    total = shards[0].metadata.get("split.tensors.count")
    found = sum(len(shard.tensors) for shard in shards)
    if total is not None and total != found:
        raise shards[0].error(f"split.tensors.count is {total!r}; the parts hold {found} tensors")
