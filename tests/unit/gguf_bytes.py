"""GGUF files made byte by byte, so that each field can be wrong on purpose."""

import struct
from collections.abc import Iterable
from pathlib import Path

U32, STRING, ARRAY, U64, BOOL, F32 = 4, 8, 9, 10, 7, 6


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def u32(key: str, value: int) -> bytes:
    return pair(key, U32, struct.pack("<I", value))


def string(key: str, value: str | bytes) -> bytes:
    return pair(key, STRING, text(value))


def array(key: str, kind: int, n: int, payload: bytes) -> bytes:
    return pair(key, ARRAY, struct.pack("<IQ", kind, n) + payload)


def tensor(name: str | bytes, ne: Iterable[int], kind: int = 0, offset: int = 0) -> bytes:
    ne = tuple(ne)
    return text(name) + struct.pack(f"<I{len(ne)}Q", len(ne), *ne) + struct.pack("<IQ", kind, offset)


def gguf(
    pairs: Iterable[bytes] = (),
    tensors: Iterable[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    magic: bytes = b"GGUF",
    alignment: int = 32,
) -> bytes:
    pairs, tensors = list(pairs), list(tensors)
    n_tensors, n_kv = counts or (len(tensors), len(pairs))
    head = magic + struct.pack("<IQQ", version, n_tensors, n_kv) + b"".join(pairs) + b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment) + data


def good() -> bytes:
    """A little of everything: two tensors, scalars, strings, arrays."""
    pairs = [
        string("general.architecture", "test"),
        u32("test.block_count", 2),
        pair("test.flag", BOOL, b"\1"),
        pair("test.eps", F32, struct.pack("<f", 0.5)),
        array("test.names", STRING, 3, text("a") + text("é") + text(b"\xff")),
        array("test.sizes", U32, 2, struct.pack("<2I", 7, 8)),
    ]
    tensors = [tensor("one", (4, 2)), tensor("two", (32, 3), kind=8, offset=32)]
    return gguf(pairs, tensors, bytes(32 + 3 * 34))


def write(folder: Path, content: bytes, name: str = "m.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path
