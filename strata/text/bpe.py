"""BPE by merge ranks (`tokenizer.ggml.model` = gpt2 and gemma4), built on the `tokenizers` library.

Two alphabets: byte-level (each byte is one of 256 printable characters) and raw UTF-8 with `<0xXX>` byte tokens.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from strata.errors import ModelError, RequestError
from strata.text import pretokenizers
from strata.text.sentencepiece import SPACE_MARK
from strata.text.vocabulary import Vocabulary

__all__ = ["BYTE_OF_CHAR", "BpeMerger"]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: a printable Latin-1 byte is itself, the others count up from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in sorted(printable)} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_alphabet()
_NEWLINE_RUNS = re.compile("(\n+)")
_DIGIT_RUN = re.compile("[0-9]{3,}")


class BpeMerger:
    """Cuts text without special tokens into token ids."""

    def __init__(self, vocabulary: Vocabulary, merges: list[Any], pre: pretokenizers.PreTokenizer) -> None:
        """Raises: ModelError for a merge that is malformed or names a token that does not exist."""
        self._source = vocabulary.source
        self._ids = vocabulary.ids
        self._pre = pre
        pairs = [_split_merge(merge, index, vocabulary) for index, merge in enumerate(merges)]
        model = BPE(
            vocab={text: token_id for text, token_id in vocabulary.ids.items() if _is_unicode(text)},
            merges=pairs,
            ignore_merges=pre.ignore_merges,
            byte_fallback=not pre.byte_level,
        )
        self._engine = Tokenizer(model)
        steps: list[PreTokenizer] = [Split(Regex(pattern), "isolated") for pattern in pre.splits]
        if pre.byte_level:
            steps.append(ByteLevel(add_prefix_space=False, use_regex=False))
        self._engine.pre_tokenizer = Sequence(steps)
        self._missing_bytes = self._find_missing_bytes()

    def _find_missing_bytes(self) -> frozenset[int]:
        if self._pre.byte_level:
            return frozenset(byte for char, byte in BYTE_OF_CHAR.items() if char not in self._ids)
        return frozenset(byte for byte in range(256) if f"<0x{byte:02X}>" not in self._ids)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`. Raises: RequestError for a byte that no token can express."""
        if self._pre.escape_space:
            text = text.replace(" ", SPACE_MARK)
        if self._missing_bytes:
            self._refuse_inexpressible(text)
        if self._pre.newline_runs_whole:
            pieces = _NEWLINE_RUNS.split(text)
        elif self._pre.digit_groups:
            pieces = _cut_digits(text)
        else:
            return self._engine.encode(text, add_special_tokens=False).ids
        ids: list[int] = []
        for piece in pieces:
            if self._pre.newline_runs_whole and piece.startswith("\n") and piece in self._ids:
                ids.append(self._ids[piece])
            elif piece:
                ids.extend(self._engine.encode(piece, add_special_tokens=False).ids)
        return ids

    def _refuse_inexpressible(self, text: str) -> None:
        if not self._pre.byte_level:  # a character that is a token needs no byte tokens
            text = "".join(char for char in set(text) if char not in self._ids)
        missing = self._missing_bytes.intersection(text.encode())
        if missing:
            raise RequestError(f"{self._source}: the vocabulary has no token for byte 0x{min(missing):02X} of the text")


def _cut_digits(text: str) -> list[str]:
    """Cut before every group of three digits, counted from the end of each run of digits.

    A regular expression can say this only by looking ahead to the end of the run from every place in it.
    """
    cuts = [0]
    for run in _DIGIT_RUN.finditer(text):
        cuts.extend(range(run.start() + (run.end() - run.start()) % 3, run.end(), 3))
    cuts.append(len(text))
    return [text[start:end] for start, end in itertools.pairwise(cuts)]


def _is_unicode(text: str) -> bool:
    """False for bytes that are no UTF-8, which the reader keeps as lone surrogates: no text can produce them."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _split_merge(merge: object, index: int, vocabulary: Vocabulary) -> tuple[str, str]:
    """Left and right part of one merge rule; a part may start with a space, so the search starts after it."""
    where = f"{vocabulary.source}: tokenizer.ggml.merges[{index}] is {merge!r}"
    if not isinstance(merge, str) or (space := merge.find(" ", 1)) < 0:
        raise ModelError(f"{where}; accepted: two tokens with a space between them")
    left, right = merge[:space], merge[space + 1 :]
    for part in (left, right, left + right):
        if part not in vocabulary.ids:
            raise ModelError(f"{where}; {part!r} is not in tokenizer.ggml.tokens")
    return left, right
