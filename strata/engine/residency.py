"""Who is in which slot: the host's picture of the slot table, and the life of a swap. Pure.

    slot     SPARE -begin-> LOADING -copied-> READY -commit-> RESIDENT -victim of a commit-> RETIRING -step ends-> SPARE
                               |                |
                               +--- cancel -----+-> SPARE (from LOADING only once the copy has ended: it still writes)

The table changes in `commit` alone, between steps. A victim serves hits until then; its slot is spare again when the
first step that ran with the new table has ended, so no step that could know the old table is still reading it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.engine.placement import Experts, Mask, Split

__all__ = ["Residency", "SlotState", "Swap"]


class SlotState(IntEnum):
    """Where a slot is in its life."""

    SPARE = 0
    LOADING = 1  # a copy into it is on its way
    READY = 2  # the copy has ended, the table does not name it yet
    RESIDENT = 3
    RETIRING = 4  # its expert was evicted; a step may still read it


class Swap(msgspec.Struct, frozen=True):
    """One expert on its way into a slot. victim None: a free place is filled."""

    swap_id: int
    newcomer: tuple[int, int]  # (set, expert)
    victim: tuple[int, int] | None
    slot: int  # that is copied into
    n_bytes: int


class Residency:
    """Slots are numbered class by class; class c has the numbers first_slot[c] to first_slot[c + 1] - 1."""

    def __init__(self, experts: Experts, split: Split) -> None:
        self.experts = experts
        self.split = split
        slots = split.slots()
        self.first_slot = tuple(int(n) for n in np.concatenate([[0], np.cumsum(slots)]))
        self.n_slots = self.first_slot[-1]
        self.table: NDArray[np.int32] = np.full(experts.exists.shape, -1, np.int32)  # (set, expert) -> slot, -1: none
        self.version = 0  # changes with the table
        self.state = np.full(self.n_slots, SlotState.SPARE, np.uint8)
        self.n_resident = np.zeros(experts.n_sets, np.int64)  # by set
        self.incoming = np.zeros(experts.exists.shape, bool)  # newcomers of open swaps
        self.outgoing = np.zeros(experts.exists.shape, bool)  # their victims
        self._leaving = np.zeros(experts.n_sets, np.int64)  # victims of open swaps for other sets, by set
        self.n_committed = 0
        self.n_cancelled = 0
        self._holds: dict[int, tuple[int, int]] = {}  # slot -> resident
        self._spare = [
            list(range(self.first_slot[c + 1] - 1, self.first_slot[c] - 1, -1)) for c in range(experts.n_classes)
        ]
        self._n_class = [0] * experts.n_classes  # residents, and newcomers that fill a free place
        self._open: dict[int, Swap] = {}  # LOADING or READY, not cancelled
        self._ending: dict[int, Swap] = {}  # cancelled, the copy still runs
        self._retiring: list[tuple[int, int]] = []  # (first step with the new table, slot)
        self._next_id = 1

    # ---- queries ----------------------------------------------------------------------------------------------

    @property
    def resident(self) -> Mask:
        return self.table >= 0

    @property
    def open_swaps(self) -> tuple[Swap, ...]:
        """Swaps that are neither committed nor cancelled, oldest first."""
        return tuple(self._open.values())

    @property
    def n_copying(self) -> int:
        """Copies that may still write: those of cancelled swaps too."""
        return int((self.state == SlotState.LOADING).sum())

    def n_spare(self, kind: int) -> int:
        """Slots of a class that a copy could go to now."""
        return len(self._spare[kind])

    def n_free(self, kind: int) -> int:
        """Residents that the class may still get without a victim."""
        return self.split.resident[kind] - self._n_class[kind]

    @property
    def n_staying(self) -> NDArray[np.int64]:
        """Residents of each set that no open swap takes away for another set."""
        return self.n_resident - self._leaving

    # ---- changes ----------------------------------------------------------------------------------------------

    def fill(self, chosen: Mask) -> NDArray[np.int32]:
        """Make experts resident at once, before the first step. Returns [n, 3] of (set, expert, slot) to copy.

        Raises: ValueError when a class has too few free places.
        """
        placed: list[tuple[int, int, int]] = []
        for set_id, expert in np.argwhere(chosen & self.experts.exists & ~self.resident):
            kind = self.experts.class_of[set_id]
            if self.n_free(kind) <= 0 or not self._spare[kind]:
                raise ValueError(f"size class {kind} has {self.split.resident[kind]} places; more were chosen")
            slot = self._spare[kind].pop()
            self._settle((int(set_id), int(expert)), slot)
            self._n_class[kind] += 1
            placed.append((int(set_id), int(expert), slot))
        self.version += bool(placed)
        return np.asarray(placed, np.int32).reshape(-1, 3)

    def begin(self, newcomer: tuple[int, int], victim: tuple[int, int] | None) -> Swap:
        """Reserve a spare slot; the caller starts the copy into it. The table stays as it is.

        Raises: ValueError for a swap that would break the accounts: no spare slot, an expert that is not where it
        should be, a victim of another class, or a set that would fall below its floor.
        """
        kind = self.experts.class_of[newcomer[0]]
        self._check_begin(newcomer, victim, kind)
        slot = self._spare[kind].pop()
        swap = Swap(self._next_id, newcomer, victim, slot, self.experts.slot_bytes[kind])
        self._next_id += 1
        self.state[slot] = SlotState.LOADING
        self.incoming[newcomer] = True
        if victim is None:
            self._n_class[kind] += 1
        else:
            self.outgoing[victim] = True
            self._leaving[victim[0]] += victim[0] != newcomer[0]
        self._open[swap.swap_id] = swap
        return swap

    def copied(self, swap_id: int) -> None:
        """The copy has ended. Of a cancelled swap this frees the slot. Raises: KeyError for an unknown swap."""
        ended = self._ending.pop(swap_id, None)
        if ended is not None:
            self._to_spare(ended.slot)
            return
        swap = self._open[swap_id]
        if self.state[swap.slot] != SlotState.LOADING:
            raise KeyError(swap_id)
        self.state[swap.slot] = SlotState.READY

    def cancel(self, swap_id: int) -> None:
        """Give a swap up; nothing of it was visible. While its copy runs, the slot stays taken until `copied`.

        Raises: KeyError for a swap that is not open.
        """
        swap = self._open.pop(swap_id)
        self._forget(swap)
        if swap.victim is None:
            self._n_class[self.experts.class_of[swap.newcomer[0]]] -= 1
        self.n_cancelled += 1
        if self.state[swap.slot] == SlotState.READY:
            self._to_spare(swap.slot)
        else:
            self._ending[swap_id] = swap

    def cancel_all(self) -> None:
        """Give up every open swap."""
        for swap_id in list(self._open):
            self.cancel(swap_id)

    def commit(self, next_step: int, in_use: Mask | None = None) -> list[Swap]:
        """Put every ready newcomer into the table; call it between steps. next_step: number of the next to start.

        in_use: experts that steps which have not ended may still read; swaps with such a victim wait.
        """
        done: list[Swap] = []
        for swap in list(self._open.values()):
            victim = swap.victim
            if self.state[swap.slot] != SlotState.READY or (victim and in_use is not None and in_use[victim]):
                continue
            del self._open[swap.swap_id]
            self._forget(swap)
            if victim is not None:
                self._evict(victim, next_step)
            self._settle(swap.newcomer, swap.slot)
            done.append(swap)
        self.n_committed += len(done)
        self.version += bool(done)
        return done

    def step_ended(self, step: int) -> None:
        """Step number `step`, and so all before it, has ended: slots that only older tables named are spare."""
        still = [(first, slot) for first, slot in self._retiring if first > step]
        for first, slot in self._retiring:
            if first <= step:
                self._to_spare(slot)
        self._retiring = still

    def no_step_runs(self) -> None:
        """Every submitted step has ended: nothing reads a retiring slot."""
        for _, slot in self._retiring:
            self._to_spare(slot)
        self._retiring = []

    # ---- inside -----------------------------------------------------------------------------------------------

    def _check_begin(self, newcomer: tuple[int, int], victim: tuple[int, int] | None, kind: int) -> None:
        if not self.experts.exists[newcomer] or self.table[newcomer] >= 0 or self.incoming[newcomer]:
            raise ValueError(f"expert {newcomer} cannot come: it is not there, resident, or on its way")
        if not self._spare[kind]:
            raise ValueError(f"size class {kind} has no spare slot")
        if victim is None:
            if self.n_free(kind) <= 0:
                raise ValueError(f"size class {kind} has no free place; a victim is needed")
            return
        if self.table[victim] < 0 or self.outgoing[victim] or self.experts.class_of[victim[0]] != kind:
            raise ValueError(f"expert {victim} cannot go for {newcomer}: not resident, leaving, or of another class")
        if victim[0] != newcomer[0] and self.n_staying[victim[0]] <= self.split.floor[victim[0]]:
            raise ValueError(f"set {victim[0]} is at its floor of {self.split.floor[victim[0]]} residents")

    def _forget(self, swap: Swap) -> None:
        self.incoming[swap.newcomer] = False
        if swap.victim is not None:
            self.outgoing[swap.victim] = False
            self._leaving[swap.victim[0]] -= swap.victim[0] != swap.newcomer[0]

    def _settle(self, expert: tuple[int, int], slot: int) -> None:
        self.table[expert] = slot
        self.state[slot] = SlotState.RESIDENT
        self._holds[slot] = expert
        self.n_resident[expert[0]] += 1

    def _evict(self, victim: tuple[int, int], next_step: int) -> None:
        slot = int(self.table[victim])
        self.table[victim] = -1
        self.state[slot] = SlotState.RETIRING
        del self._holds[slot]
        self.n_resident[victim[0]] -= 1
        self._retiring.append((next_step, slot))

    def _to_spare(self, slot: int) -> None:
        self.state[slot] = SlotState.SPARE
        kind = int(np.searchsorted(self.first_slot, slot, side="right")) - 1
        self._spare[kind].append(slot)

    def check_integrity(self) -> None:
        """Raise AssertionError when the accounts disagree (tests)."""
        named = self.table[self.table >= 0]
        assert len(set(named.tolist())) == len(named), "two experts are in one slot"
        assert sorted(self._holds) == sorted(named.tolist()), "table and slots disagree"
        assert all(self.table[expert] == slot for slot, expert in self._holds.items())
        in_states: Sequence[tuple[SlotState, list[int]]] = (
            (SlotState.RESIDENT, named.tolist()),
            (SlotState.RETIRING, [slot for _, slot in self._retiring]),
            (SlotState.SPARE, [slot for spare in self._spare for slot in spare]),
        )
        for state, slots in in_states:
            assert sorted(slots) == np.flatnonzero(self.state == state).tolist(), f"{state.name} slots disagree"
        moving = [swap.slot for swap in (*self._open.values(), *self._ending.values())]
        is_moving = (self.state == SlotState.LOADING) | (self.state == SlotState.READY)
        assert sorted(moving) == np.flatnonzero(is_moving).tolist(), "a slot is lost"
        for kind in range(self.experts.n_classes):
            sets = np.asarray(self.experts.class_of) == kind
            slots = self.table[sets][self.table[sets] >= 0]
            assert ((slots >= self.first_slot[kind]) & (slots < self.first_slot[kind + 1])).all(), "wrong class"
            assert self._n_class[kind] <= self.split.resident[kind], "more residents than places"
        leaving = [swap.victim[0] for swap in self._open.values() if swap.victim and swap.victim[0] != swap.newcomer[0]]
        assert (self._leaving == np.bincount(leaving, minlength=self.experts.n_sets)).all()
        assert (self.n_staying >= self.split.floor).all(), "a set is below its floor"
        assert (self.n_resident == self.resident.sum(axis=1)).all()
        assert not (self.incoming & self.resident).any(), "a newcomer is resident already"
        assert not (self.outgoing & ~self.resident).any(), "a victim is not resident"
