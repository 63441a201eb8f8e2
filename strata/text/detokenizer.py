"""Token ids to text while they arrive: whole characters only, special tokens hidden unless asked for."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from strata.text.tokenizer import Tokenizer

__all__ = ["Detokenizer"]


class Detokenizer:
    """The text of one growing sequence. Bytes of an unfinished character wait inside; `flush` ends the text."""

    def __init__(self, tokenizer: Tokenizer, special: bool = False, *, continues: bool = True) -> None:
        """Args:
        special: show control tokens as their text.
        continues: the ids follow earlier text (a prompt), so a leading space belongs to the answer. False: they are a
            whole text, and the space that a SentencePiece vocabulary puts before the first word is taken off.
        """
        self._tokenizer = tokenizer
        self._special = special
        self._strips_space = not continues and tokenizer.add_space_prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        """Text that is certain now. Bytes that can never become a character come out as U+FFFD at once.

        Raises: RequestError for an id outside the vocabulary.
        """
        return "".join([self._decoder.decode(self._bytes_of(token_id)) for token_id in ids])

    def flush(self) -> str:
        """End the text: an unfinished character becomes U+FFFD. The object can then start a new text."""
        tail = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return tail

    def _bytes_of(self, token_id: int) -> bytes:
        hidden = self._tokenizer.is_hidden(token_id)
        if hidden and not self._special:
            return b""
        piece = self._tokenizer.token_bytes(token_id)
        if self._strips_space and not hidden:
            self._strips_space = False
            return piece.removeprefix(b" ")
        return piece
