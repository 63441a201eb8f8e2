"""Stop strings in streamed text, wherever they fall across the borders of its chunks.

The rule, whatever the chunks: text ends at the first character that completes a stop string; if several end there, the
longest counts. Text before it is emitted, the stop string and all after it is not. Until then the only text held back
is the longest end of it that is the beginning of a stop string: nothing less would be safe, nothing more is needed.

The method is Aho and Corasick's automaton (Efficient string matching, CACM 18(6), 1975): linear in the text, whatever
the number of stop strings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from strata.errors import RequestError

__all__ = ["StopMatcher", "StopResult"]


class StopResult(NamedTuple):
    """Text that may be shown now, and the stop string that ended the text, if one did."""

    emit: str
    stopped_by: str | None


class StopMatcher:
    """Watches one text. A node is a prefix of some stop string; node 0 is the empty one."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises: RequestError for an empty stop string."""
        if "" in stops:
            raise RequestError("a stop string is empty; leave it out, or give at least one character")
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._stop: list[str | None] = [None]
        for stop in stops:
            self._add(stop)
        self._fallback = self._link()
        self._node = 0
        self._held = ""
        self._stopped_by: str | None = None

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text."""
        return self._stopped_by

    def feed(self, text: str) -> StopResult:
        """Take more text. After a stop nothing more is emitted."""
        if self._stopped_by is not None:
            return StopResult("", self._stopped_by)
        if len(self._next) == 1:
            return StopResult(text, None)
        seen = self._held + text
        for position, char in enumerate(text, start=len(self._held) + 1):
            self._node = self._step(self._node, char)
            stop = self._stop[self._node]
            if stop is not None:
                self._stopped_by = stop
                self._held = ""
                return StopResult(seen[: position - len(stop)], stop)
        certain = len(seen) - self._depth[self._node]
        self._held = seen[certain:]
        return StopResult(seen[:certain], None)

    def flush(self) -> str:
        """End the text: what was held back is no stop string after all."""
        held, self._held, self._node = self._held, "", 0
        return held

    def _step(self, node: int, char: str) -> int:
        while node and char not in self._next[node]:
            node = self._fallback[node]
        return self._next[node].get(char, 0)

    def _add(self, stop: str) -> None:
        node = 0
        for char in stop:
            following = self._next[node].get(char)
            if following is None:
                following = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[node] + 1)
                self._stop.append(None)
                self._next[node][char] = following
            node = following
        self._stop[node] = stop

    def _link(self) -> list[int]:
        """For each node the longest proper end that is a node too; it also hands on a stop string that ends there."""
        self._fallback = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for char, following in self._next[node].items():
                self._fallback[following] = self._step(self._fallback[node], char)
                queue.append(following)
            if self._stop[node] is None:
                self._stop[node] = self._stop[self._fallback[node]]
        return self._fallback
