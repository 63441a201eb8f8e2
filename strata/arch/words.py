"""Which words a declaration uses, and what family that makes it. For lists of architectures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strata.arch.spec import Arch, Case, Dim, Key, Norm, Power, Word

__all__ = ["family_of", "words_of"]

_VALUES = (Key, Case, Dim, Power, Norm)  # every declaration is made of these


def words_of(arch: Arch) -> tuple[str, ...]:
    """Names of the words that stand in the declaration, sorted; defaults that it does not spell count as its own."""
    return tuple(sorted({type(word).__name__ for word in _within(arch)} - {type(arch).__name__}))


def family_of(arch: Arch) -> str:
    """How tokens mix: the kind of attention, after that of the recurrent layers, if there are any."""
    kind = _tag(arch.attention)
    return kind if arch.recurrent is None else f"{_tag(arch.recurrent.mixer)} + {kind}"


def _within(word: Word) -> Iterator[Word]:
    if isinstance(word, _VALUES):
        return
    yield word
    for field in word.__struct_fields__:
        value: Any = getattr(word, field)
        if isinstance(value, Word):
            yield from _within(value)


def _tag(word: Word) -> str:
    return str(word.__struct_config__.tag)
