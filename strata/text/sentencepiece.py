"""SentencePiece-style merging (`tokenizer.ggml.model = llama`): the best-scoring pair first, leftmost on ties.

`tokenizers` can express such a vocabulary as BPE only by ranking pairs, and no ranking gives "leftmost first" to two
pairs of the same score: runs of spaces and vocabularies without scores would come out differently. So the merging is
here, with the same order as llama.cpp, and a cache of words keeps it fast.

Merging never crosses a word where no token holds a space mark after another character; then text is cut there first.
"""

from __future__ import annotations

import heapq
import re
from functools import lru_cache

from strata.errors import RequestError

__all__ = ["SPACE_MARK", "SentencePieceMerger"]

SPACE_MARK = "\u2581"
_INNER_SPACE = re.compile(f"[^{SPACE_MARK}]{SPACE_MARK}")
_WORD = re.compile(f"{SPACE_MARK}*[^{SPACE_MARK}]+|{SPACE_MARK}+")
_CACHED_WORD_CHARS = 64
_CACHED_WORDS = 1 << 16


class SentencePieceMerger:
    """Cuts text, spaces already written as U+2581, into token ids."""

    def __init__(self, ids: dict[str, int], scores: list[float], source: str) -> None:
        self._ids = ids
        self._scores = scores
        self._source = source
        self._byte_ids = self._find_byte_ids()
        self._words_are_separate = not any(_INNER_SPACE.search(text) for text in ids)
        self._cached_word = lru_cache(_CACHED_WORDS)(self._merge)

    def _find_byte_ids(self) -> list[int | None]:
        """Ids of the 256 bytes: `<0xXX>`, else the one-character ASCII token, else None."""
        return [
            self._ids.get(f"<0x{byte:02X}>", self._ids.get(chr(byte)) if byte < 0x80 else None) for byte in range(256)
        ]

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`. Raises: RequestError for a byte that no token can express."""
        if not self._words_are_separate:
            return list(self._merge(text))
        ids: list[int] = []
        for match in _WORD.finditer(text):
            word = match.group()
            ids.extend(self._cached_word(word) if len(word) <= _CACHED_WORD_CHARS else self._merge(word))
        return ids

    def _merge(self, text: str) -> tuple[int, ...]:
        """Merge pairs until none is a token.

        The symbol that starts at character i covers text[i:ends[i]]; ends[i] is 0 once it is part of another symbol.
        """
        n_chars = len(text)
        ends = list(range(1, n_chars + 1))
        before = list(range(-1, n_chars - 1))
        queue: list[tuple[float, int, int]] = []  # (minus score, left start, end of the merged text)

        def offer(left: int, right: int) -> None:
            token_id = self._ids.get(text[left : ends[right]])
            if token_id is not None:
                heapq.heappush(queue, (-self._scores[token_id], left, ends[right]))

        for right in range(1, n_chars):
            offer(right - 1, right)
        while queue:
            _, left, merged_end = heapq.heappop(queue)
            right = ends[left]
            if not right or right >= n_chars or not ends[right] or ends[right] != merged_end:
                continue  # a side was merged since
            ends[left] = merged_end
            ends[right] = 0
            if before[left] >= 0:
                offer(before[left], left)
            if merged_end < n_chars:
                before[merged_end] = left
                offer(left, merged_end)
        return self._ids_of(text, ends)

    def _ids_of(self, text: str, ends: list[int]) -> tuple[int, ...]:
        ids: list[int] = []
        start = 0
        while start < len(text):
            piece = text[start : ends[start]]
            token_id = self._ids.get(piece)
            if token_id is not None:
                ids.append(token_id)
            else:
                ids.extend(self._byte_id(byte) for byte in piece.encode())
            start = ends[start]
        return tuple(ids)

    def _byte_id(self, byte: int) -> int:
        token_id = self._byte_ids[byte]
        if token_id is None:
            raise RequestError(f"{self._source}: the vocabulary has no token for byte 0x{byte:02X} of the text")
        return token_id
