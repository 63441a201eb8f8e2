"""KV block accounting and prefix reuse. Pure: block numbers and token ids only, no bytes, no clock.

A block holds 64 consecutive positions of one sequence. A full block never changes again, so any number of
sequences may read it; the block being filled belongs to one sequence. Full blocks stay findable by their token
ids (and those of all blocks before them) after their sequence has ended, until their room is needed.

    free        refs 0, not in the index     taken first
    cached      refs 0, in the index         taken next, least recently used first
    held        refs >= 1                    never taken
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as SequenceOf

from strata.engine.backend import KV_BLOCK_TOKENS

_Key = tuple[int, tuple[int, ...]]  # (block before it or -1, its 64 token ids)


class KvBlocks:
    """All KV blocks of one backend."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self._refs = [0] * n_blocks
        self._free = list(range(n_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # refs 0 and indexed, least recently used first
        self._index: dict[_Key, int] = {}
        self._key_of: dict[int, _Key] = {}
        self._children: dict[int, set[int]] = {}  # indexed block -> indexed blocks that follow it
        self.n_evicted = 0

    @property
    def n_available(self) -> int:
        """Blocks that `extend` could still hand out."""
        return len(self._free) + len(self._cached)

    @property
    def n_held(self) -> int:
        return self.n_blocks - self.n_available

    @property
    def n_cached(self) -> int:
        """Blocks kept only for prefix reuse."""
        return len(self._cached)

    def match(self, tokens: SequenceOf[int]) -> list[int]:
        """Take the longest chain of full blocks that holds the beginning of `tokens`.

        At least one token is left to compute, so that there are logits to sample from. The returned blocks are
        held for the caller.
        """
        found: list[int] = []
        before = -1
        for start in range(0, len(tokens) - KV_BLOCK_TOKENS, KV_BLOCK_TOKENS):
            block = self._index.get((before, tuple(tokens[start : start + KV_BLOCK_TOKENS])))
            if block is None:
                break
            found.append(block)
            before = block
        for block in found:
            self._hold(block)
        return found

    def extend(self, blocks: list[int], n_positions: int) -> bool:
        """Append blocks until `blocks` covers n_positions; change nothing and return False when there are too few."""
        n_new = (n_positions + KV_BLOCK_TOKENS - 1) // KV_BLOCK_TOKENS - len(blocks)
        if n_new > self.n_available:
            return False
        blocks.extend(self._take() for _ in range(n_new))
        return True

    def publish(self, blocks: SequenceOf[int], tokens: SequenceOf[int], n_positions: int) -> None:
        """Make every full block among the first n_positions findable. `tokens` are the sequence's ids.

        A block whose content is already indexed under another number stays private.
        """
        before = -1
        for i in range(n_positions // KV_BLOCK_TOKENS):
            block = blocks[i]
            if block not in self._key_of:
                key = (before, tuple(tokens[i * KV_BLOCK_TOKENS : (i + 1) * KV_BLOCK_TOKENS]))
                twin = self._index.get(key)
                if twin is not None:
                    before = twin
                    continue
                self._index[key] = block
                self._key_of[block] = key
                self._children.setdefault(before, set()).add(block)
            before = block

    def release(self, blocks: list[int]) -> None:
        """Give the blocks back and empty the list. Published ones stay cached, the oldest position last to go."""
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if block in self._key_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)
        blocks.clear()

    def clear_cache(self) -> None:
        """Forget everything that no sequence holds."""
        while self._cached:
            self._evict()

    def check_integrity(self) -> None:
        """Raise AssertionError when the accounts disagree (tests)."""
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & cached, "a block is free and cached"
        for block in range(self.n_blocks):
            held = self._refs[block] > 0
            assert self._refs[block] >= 0, f"block {block} was released too often"
            assert held + (block in free) + (block in cached) == 1, f"block {block} is in no state or in two"
            assert block not in free or block not in self._key_of, f"free block {block} is indexed"
        assert {self._index[key] for key in self._index} == set(self._key_of), "index and keys disagree"

    def _hold(self, block: int) -> None:
        self._refs[block] += 1
        self._cached.pop(block, None)

    def _take(self) -> int:
        if not self._free:
            self._evict()
        block = self._free.pop()
        self._refs[block] = 1
        return block

    def _evict(self) -> None:
        """Free the least recently used cached block, and drop from the index what could only be found through it."""
        block, _ = self._cached.popitem(last=False)
        self.n_evicted += 1
        self._free.append(block)
        self._forget(block)

    def _forget(self, block: int) -> None:
        pending = [block]
        while pending:
            gone = pending.pop()
            key = self._key_of.pop(gone)
            del self._index[key]
            self._children.get(key[0], set()).discard(gone)
            pending.extend(self._children.pop(gone, ()))
            if gone != block and gone in self._cached:
                del self._cached[gone]
                self._free.append(gone)
