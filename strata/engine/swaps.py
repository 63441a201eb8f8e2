"""Which expert should come for which, and how many bytes that may cost. Pure; the time is passed in.

A swap must earn its copy: the newcomer's heat beats the victim's by a factor and by more than the noise of the counts,
so that two experts of about equal heat do not take turns. With fewer slots than one token uses, every expert leaves
before it is wanted again whatever the rule is: the choice then stands still.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.engine.placement import Experts, Mask
from strata.engine.residency import Residency

__all__ = ["LinkLoad", "SwapBudget", "SwapRule", "choose_swaps", "is_static", "swap_rate"]

Pair = tuple[tuple[int, int], tuple[int, int] | None]


class SwapRule(msgspec.Struct, frozen=True, kw_only=True):
    """When a newcomer beats a victim. Heat is counted in uses, those of the newest token weighing 1."""

    margin: float = 1.3  # newcomer's heat over victim's
    min_count: float = 2.0  # newcomer's heat
    noise: float = 0.75  # how many standard deviations of the difference of two counts the lead must be


class LinkLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured while decoding: rates when nothing else runs, and the share of time that decoding uses them."""

    link_bytes_per_s: float
    link_busy_frac: float
    ram_bytes_per_s: float
    ram_busy_frac: float


def swap_rate(load: LinkLoad, *, cost_frac: float = 0.03, link_frac: float = 0.5) -> float:
    """Bytes per second that swaps may move.

    Of the link at most `link_frac` of its idle part. A copy also reads RAM, and slows misses down in the share of time
    in which the CPU reads at full rate: at r bytes a second by r / RAM rate * busy share, which may be cost_frac.
    """
    link = load.link_bytes_per_s * max(1.0 - load.link_busy_frac, 0.0) * link_frac
    ram = load.ram_bytes_per_s * min(cost_frac / max(load.ram_busy_frac, cost_frac), 1.0)
    return max(min(link, ram), 0.0)


class SwapBudget:
    """Bytes for swaps: fills with time at a rate, up to a burst, and is never overdrawn."""

    def __init__(self, bytes_per_s: float, burst_bytes: int, now_s: float) -> None:
        """burst_bytes: what may be saved up; less than the largest slot would never allow its swap."""
        self.bytes_per_s = bytes_per_s
        self.burst_bytes = burst_bytes
        self.n_spent_bytes = 0
        self._have = 0.0
        self._at_s = now_s

    def set_rate(self, bytes_per_s: float, now_s: float) -> None:
        """Go on with a newly measured rate."""
        self._fill(now_s)
        self.bytes_per_s = bytes_per_s

    def available(self, now_s: float) -> int:
        """Bytes that may be spent now."""
        self._fill(now_s)
        return int(self._have)

    def spend(self, n_bytes: int, now_s: float) -> bool:
        """Take n_bytes; False, and nothing is taken, when there are too few."""
        self._fill(now_s)
        if n_bytes > self._have:
            return False
        self._have -= n_bytes
        self.n_spent_bytes += n_bytes
        return True

    def _fill(self, now_s: float) -> None:
        self._have = min(self._have + max(now_s - self._at_s, 0.0) * self.bytes_per_s, float(self.burst_bytes))
        self._at_s = max(now_s, self._at_s)


def is_static(experts: Experts, n_resident: int) -> bool:
    """Whether so few residents are better left alone: fewer than one token uses in all sets together."""
    return n_resident < experts.token_cycle


def choose_swaps(residency: Residency, heat: NDArray[np.float64], rule: SwapRule, most: int) -> list[Pair]:
    """Up to `most` pairs (newcomer, victim) for `begin`, the largest leads first; victim None fills a free place.

    heat: [n_sets, width]. Nothing is changed here.
    """
    pairs: list[tuple[float, Pair]] = []
    kinds = np.asarray(residency.experts.class_of)
    for kind in range(residency.experts.n_classes):
        n = min(most, residency.n_spare(kind))
        if n > 0:
            pairs.extend(_of_class(residency, heat, rule, (np.flatnonzero(kinds == kind), n)))
    pairs.sort(key=lambda pair: -pair[0])
    return [pair for _, pair in pairs[:most]]


def _of_class(
    residency: Residency, heat: NDArray[np.float64], rule: SwapRule, where: tuple[NDArray[np.intp], int]
) -> list[tuple[float, Pair]]:
    sets, n = where
    kind = residency.experts.class_of[int(sets[0])]
    newcomers = _hottest(heat, _outside(residency), sets, n)
    victims = _Victims(residency, heat, sets)
    n_free = residency.n_free(kind)
    found: list[tuple[float, Pair]] = []
    for newcomer in newcomers:
        count = float(heat[newcomer])
        if count < rule.min_count:
            break
        if n_free > 0:
            n_free -= 1
            found.append((count, (newcomer, None)))
            continue
        victim = victims.coldest(newcomer[0])
        if victim is None or not _beats(rule, count, float(heat[victim])):
            continue  # a set at its floor may have no victim where the next newcomer's set has
        victims.take(victim, newcomer[0])
        found.append((count - float(heat[victim]), (newcomer, victim)))
    return found


def _beats(rule: SwapRule, newcomer: float, victim: float) -> bool:
    return newcomer > rule.margin * victim and newcomer - victim > rule.noise * math.sqrt(newcomer + victim)


def _outside(residency: Residency) -> Mask:
    return residency.experts.exists & (residency.table < 0) & ~residency.incoming


def _hottest(heat: NDArray[np.float64], among: Mask, sets: NDArray[np.intp], n: int) -> list[tuple[int, int]]:
    """The n hottest of some sets, hottest first; which of several equally hot ones is left out is not said."""
    values = np.where(among[sets], heat[sets], -1.0)
    flat = values.reshape(-1)
    top = np.argpartition(flat, -n)[-n:] if n < flat.size else np.arange(flat.size)
    rows, columns = np.divmod(top, values.shape[1])
    order = np.lexsort((top, -flat[top]))
    return [(int(sets[rows[i]]), int(columns[i])) for i in order if flat[top[i]] >= 0]


class _Victims:
    """The coldest residents of a class that may go, as pairs are made."""

    def __init__(self, residency: Residency, heat: NDArray[np.float64], sets: NDArray[np.intp]) -> None:
        self._sets = sets
        self._row = {int(set_id): i for i, set_id in enumerate(sets)}
        may_go = (residency.table >= 0) & ~residency.outgoing
        self._cold = np.where(may_go[sets], heat[sets], np.inf)
        self._above = residency.n_staying[sets] - np.asarray(residency.split.floor)[sets]
        self._column = self._cold.argmin(axis=1)  # of each set's coldest
        self._value = self._cold[np.arange(len(sets)), self._column]

    def coldest(self, for_set: int) -> tuple[int, int] | None:
        """Of any set above its floor, or of the newcomer's own."""
        allowed = self._above > 0
        allowed[self._row[for_set]] = True
        values = np.where(allowed, self._value, np.inf)
        row = int(values.argmin())
        return (int(self._sets[row]), int(self._column[row])) if values[row] < np.inf else None

    def take(self, victim: tuple[int, int], for_set: int) -> None:
        row = self._row[victim[0]]
        self._cold[row, victim[1]] = np.inf
        self._column[row] = self._cold[row].argmin()
        self._value[row] = self._cold[row, self._column[row]]
        if victim[0] != for_set:
            self._above[row] -= 1
