"""Damages model files at random, for fuzzing: a reader may accept or refuse what comes out, and nothing else."""

from __future__ import annotations

import random
import struct

__all__ = ["mutated"]

# lengths, counts, offsets and type numbers that readers get wrong
_EDGES = (0, 1, 7, 9, 13, 31, 64, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**60, 2**63 - 1, 2**63, 2**64 - 1)


def mutated(content: bytes, rng: random.Random, n_header: int | None = None) -> bytes:
    """Return a damaged copy: one to four changes within the first n_header bytes (None: all), or the file cut short."""
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        end = min(len(damaged), n_header or len(damaged))
        if end == 0:
            break
        rng.choice((_flip_bit, _set_byte, _set_number, _set_number, _nudge_number, _cut, _repeat, _insert))(
            damaged, rng.randrange(end), rng
        )
    if rng.random() < 0.1:
        del damaged[rng.randrange(len(damaged) + 1) :]
    return bytes(damaged)


def _flip_bit(data: bytearray, at: int, rng: random.Random) -> None:
    data[at] ^= 1 << rng.randrange(8)


def _set_byte(data: bytearray, at: int, rng: random.Random) -> None:
    data[at] = rng.randrange(256)


def _set_number(data: bytearray, at: int, rng: random.Random) -> None:
    """Overwrite a 64- or 32-bit field with a number from the edges."""
    size = rng.choice((4, 8))
    number = rng.choice(_EDGES) & (2 ** (8 * size) - 1)
    data[at : at + size] = number.to_bytes(size, "little")


def _nudge_number(data: bytearray, at: int, rng: random.Random) -> None:
    """Move a 64-bit field a little: off by one is harder to notice than absurd."""
    old = int.from_bytes(data[at : at + 8], "little")
    data[at : at + 8] = struct.pack("<Q", (old + rng.choice((-32, -1, 1, 32))) % 2**64)


def _cut(data: bytearray, at: int, rng: random.Random) -> None:
    del data[at : at + rng.randrange(1, 33)]


def _repeat(data: bytearray, at: int, rng: random.Random) -> None:
    """Insert a piece again: duplicate keys and tensors."""
    n = rng.randrange(1, 129)
    data[at:at] = data[at : at + n]


def _insert(data: bytearray, at: int, rng: random.Random) -> None:
    data[at:at] = rng.randbytes(rng.randrange(1, 17))
