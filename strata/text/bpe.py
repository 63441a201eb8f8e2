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

from strata.errors import ModelError
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
_SURROGATE = re.compile("[\ud800-\udfff]")  # bytes that are no UTF-8, as the reader keeps them
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
            vocab=_with_missing_bytes(vocabulary.ids, len(vocabulary.texts), pre),
            merges=pairs,
            ignore_merges=pre.ignore_merges,
            byte_fallback=not pre.byte_level,
        )
        self._engine = Tokenizer(model)
        steps: list[PreTokenizer] = [Split(Regex(pattern), "isolated") for pattern in pre.splits]
        if pre.byte_level:
            steps.append(ByteLevel(add_prefix_space=False, use_regex=False))
        self._engine.pre_tokenizer = Sequence(steps)
        self._n_vocab = len(vocabulary.texts)
        self._loses_bytes = pre.byte_level and any(char not in vocabulary.ids for char in BYTE_OF_CHAR)
        _note_missing_bytes(vocabulary, pre)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        if self._pre.escape_space:
            text = text.replace(" ", SPACE_MARK)
        if self._pre.newline_runs_whole:
            pieces = _NEWLINE_RUNS.split(text)
        elif self._pre.digit_groups:
            pieces = _cut_digits(text)
        else:
            return self._merge(text)
        ids: list[int] = []
        for piece in pieces:
            if self._pre.newline_runs_whole and piece.startswith("\n") and piece in self._ids:
                ids.append(self._ids[piece])
            elif piece:
                ids.extend(self._merge(piece))
        return ids

    def _merge(self, text: str) -> list[int]:
        ids = self._engine.encode(text, add_special_tokens=False).ids
        return [token_id for token_id in ids if token_id < self._n_vocab] if self._loses_bytes else ids


def _with_missing_bytes(ids: dict[str, int], n_vocab: int, pre: pretokenizers.PreTokenizer) -> dict[str, int]:
    """The vocabulary for the library. Bytes without a token get ids from `n_vocab` on: they keep their neighbours
    from merging, and are taken out of the result. Texts that are no Unicode are left out: no text can produce them."""
    known = {text: token_id for text, token_id in ids.items() if not _SURROGATE.search(text)}
    if pre.byte_level:
        missing = (char for char in BYTE_OF_CHAR if char not in ids)
        known.update({char: n_vocab + position for position, char in enumerate(missing)})
    return known


def _note_missing_bytes(vocabulary: Vocabulary, pre: pretokenizers.PreTokenizer) -> None:
    """Some published vocabularies lack a few control characters; text loses them, as with their own tokenizers."""
    if pre.byte_level:
        missing = sorted(byte for char, byte in BYTE_OF_CHAR.items() if char not in vocabulary.ids)
    else:
        missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary.ids]
    if missing:
        shown = " ".join(f"{byte:02X}" for byte in missing[:16]) + (" ..." if len(missing) > 16 else "")
        vocabulary.notes.append(f"the vocabulary has no token for {len(missing)} bytes, text loses them: {shown}")


def _cut_digits(text: str) -> list[str]:
    """Cut before every group of three digits, counted from the end of each run of digits.

    A regular expression can say this only by looking ahead to the end of the run from every place in it.
    """
    cuts = [0]
    for run in _DIGIT_RUN.finditer(text):
        cuts.extend(range(run.start() + (run.end() - run.start()) % 3, run.end(), 3))
    cuts.append(len(text))
    return [text[start:end] for start, end in itertools.pairwise(cuts)]


def _split_merge(merge: object, index: int, vocabulary: Vocabulary) -> tuple[str, str]:
    """Left and right part of one merge rule; a part may start with a space, so the search starts after it."""
    if isinstance(merge, str) and (space := merge.find(" ", 1)) > 0:
        left, right = merge[:space], merge[space + 1 :]
        if left in vocabulary.ids and right in vocabulary.ids and left + right in vocabulary.ids:
            return left, right
        lost = next(part for part in (left, right, left + right) if part not in vocabulary.ids)
        why = f"{lost!r} is not in tokenizer.ggml.tokens"
    else:
        why = "accepted: two tokens with a space between them"
    raise ModelError(f"{vocabulary.source}: tokenizer.ggml.merges[{index}] is {merge!r}; {why}")
