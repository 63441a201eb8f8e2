"""Replays decoded tokens' routing through the expert cache's policy and counts what it would have hit.

Time is a model, not a measurement: a token takes its fixed part plus the missed bytes at the RAM's rate; copies go one
after the other at the link's rate. What is measured is the policy.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.engine.expert_cache import ExpertCache
from strata.engine.placement import Experts, best_fixed

__all__ = ["MachineRates", "Replay", "Window", "uses_of"]


class MachineRates(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that is imitated; defaults are the reference machine's."""

    ram_bytes_per_s: float = 105e9
    link_bytes_per_s: float = 55e9
    fixed_s: float = 0.0014  # of a token: dense part, hand-offs, kernels


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Some consecutive tokens."""

    first: int
    n_tokens: int
    hit_frac: float
    best_frac: float  # of the best fixed choice for the whole run of tokens that was given, on these tokens
    n_swaps: int
    swap_bytes: int
    seconds: float

    @property
    def ratio(self) -> float:
        return self.hit_frac / self.best_frac if self.best_frac else 1.0


def uses_of(experts: Experts, ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """How often each expert is used: ids [n_sets, n_tokens, k], -1 for none."""
    made = np.zeros(experts.exists.shape, np.float64)
    for set_id in range(experts.n_sets):
        used = ids[set_id][ids[set_id] >= 0]
        made[set_id] = np.bincount(used, minlength=experts.width)
    return made


class Replay:
    """One cache over any number of runs of tokens, one token a step."""

    def __init__(self, cache: ExpertCache, rates: MachineRates) -> None:
        self.cache = cache
        self.rates = rates
        self.now_s = 0.0
        self.n_swaps = 0
        self.swap_bytes = 0
        self._step = 0
        self._link_free_s = 0.0
        self._copies: list[tuple[float, int]] = []  # (end, swap_id)

    def run(self, ids: NDArray[np.int32], window: int = 50) -> list[Window]:
        """Decode the tokens; every slot, spare ones too, counts for the best fixed choice that stands beside."""
        experts = self.cache.experts
        slots = self.cache.residency.split.slots()
        best = best_fixed(experts, uses_of(experts, ids), slots)
        windows: list[Window] = []
        n_tokens = ids.shape[1]
        for first in range(0, n_tokens, window):
            piece = ids[:, first : first + window]
            before = (self.n_swaps, self.swap_bytes, self.now_s)
            hits = sum(self._token(piece[:, i]) for i in range(piece.shape[1]))
            n_uses = int((piece >= 0).sum())
            windows.append(
                Window(
                    first=first,
                    n_tokens=piece.shape[1],
                    hit_frac=hits / n_uses,
                    best_frac=int(_served(best, piece).sum()) / n_uses,
                    n_swaps=self.n_swaps - before[0],
                    swap_bytes=self.swap_bytes - before[1],
                    seconds=self.now_s - before[2],
                )
            )
        return windows

    def _token(self, ids: NDArray[np.int32]) -> int:
        """One step: commit, compute, count, plan. Returns its hits."""
        cache = self.cache
        self._step += 1
        for end, swap_id in [copy for copy in self._copies if copy[0] <= self.now_s]:
            cache.copied(swap_id)
            self._copies.remove((end, swap_id))
        done = cache.commit(self._step)
        self.n_swaps += len(done)
        hit = _served(cache.residency.resident, ids[:, None])[:, 0]
        missed_bytes = ((ids >= 0) & ~hit).sum(axis=1) @ cache.experts.bytes_of
        self.now_s += self.rates.fixed_s + float(missed_bytes) / self.rates.ram_bytes_per_s
        cache.step_ended(self._step)
        cache.note_decoded(ids[:, None])
        for swap in cache.plan(self.now_s):
            self._link_free_s = max(self._link_free_s, self.now_s) + swap.n_bytes / self.rates.link_bytes_per_s
            self._copies.append((self._link_free_s, swap.swap_id))
            self.swap_bytes += swap.n_bytes
        return int(hit.sum())


def _served(resident: NDArray[np.bool_], ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which of ids [n_sets, n, k] are resident."""
    sets = np.arange(len(ids))[:, None, None]
    return resident[sets, np.maximum(ids, 0)] & (ids >= 0)
