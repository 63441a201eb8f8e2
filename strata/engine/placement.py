"""Which experts get VRAM: size classes of slots, the split of a byte budget among them, the first choice. Pure.

Experts are addressed as [set, expert]: a set is one MoE layer's experts (the plan's expert_sets, in its order). A slot
holds one expert of its size class: the types and shapes of gate, up and down together. Slots of a class serve any set
of that class.

A hit saves reading an expert's bytes from RAM, so what a byte of VRAM saves is the heat of the expert that lies on it,
whatever its size: the hottest first is the right order for every class.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.arch.plan_tables import ExpertSet, ModelPlan

__all__ = ["Experts", "Split", "best_fixed", "exact_slots", "experts_of", "hit_share", "split_slots"]

SLOT_ALIGN_BYTES = 256
FLOOR_FRAC = 0.25  # of an even share of the slots belongs to each set, whatever the heat says
SPARE_SLOTS = 32  # of each class at most, so that several copies can be on their way
SPARE_FRAC = 0.02  # of what an even split gives a class is spare, but at least SPARE_MIN
SPARE_MIN = 4
SPARE_FRAC_MAX = 0.05  # of a small class

Heat = NDArray[np.float64]  # [n_sets, width]
Mask = NDArray[np.bool_]  # [n_sets, width]


class Experts(msgspec.Struct, frozen=True, dict=True):
    """All experts of a model, and what a slot for each of them takes."""

    layers: tuple[int, ...]  # block of each set
    n_expert: tuple[int, ...]  # of each set
    n_used: tuple[int, ...]  # by one token, of each set
    class_of: tuple[int, ...]  # size class of each set
    slot_bytes: tuple[int, ...]  # of each class

    @property
    def n_sets(self) -> int:
        return len(self.layers)

    @property
    def width(self) -> int:
        """Experts of the largest set: columns of every [set, expert] array."""
        return max(self.n_expert)

    @property
    def n_classes(self) -> int:
        return len(self.slot_bytes)

    @property
    def token_cycle(self) -> int:
        """Experts that one token uses in all sets together."""
        return sum(self.n_used)

    @cached_property
    def exists(self) -> Mask:
        """False where a set has fewer experts than the largest."""
        return np.arange(self.width) < np.asarray(self.n_expert)[:, None]

    @cached_property
    def bytes_of(self) -> NDArray[np.int64]:
        """Slot bytes of each set's experts, [n_sets]."""
        return np.asarray(self.slot_bytes, np.int64)[np.asarray(self.class_of)]

    @cached_property
    def profile_sets(self) -> dict[int, int]:
        """Block -> the set that profiles mean by it: its first."""
        found: dict[int, int] = {}
        for i, layer in enumerate(self.layers):
            found.setdefault(layer, i)
        return found


def experts_of(plan: ModelPlan) -> Experts:
    """The plan's expert sets with their size classes, classes in order of first appearance."""
    classes: dict[tuple[object, ...], int] = {}
    class_of = [classes.setdefault(_shape(plan, experts), len(classes)) for experts in plan.expert_sets]
    slot_bytes = [0] * len(classes)
    for experts, kind in zip(plan.expert_sets, class_of, strict=True):
        slot_bytes[kind] = max(slot_bytes[kind], -(-experts.slot_bytes // SLOT_ALIGN_BYTES) * SLOT_ALIGN_BYTES)
    return Experts(
        layers=tuple(experts.layer for experts in plan.expert_sets),
        n_expert=tuple(experts.n_expert for experts in plan.expert_sets),
        n_used=tuple(experts.n_used for experts in plan.expert_sets),
        class_of=tuple(class_of),
        slot_bytes=tuple(slot_bytes),
    )


def _shape(plan: ModelPlan, experts: ExpertSet) -> tuple[object, ...]:
    """Everything that decides how the bytes of a slot are laid out."""
    parts = (experts.gate, experts.up, experts.down)
    extra = (experts.gate_bias, experts.up_bias, experts.down_bias)
    scales = (experts.gate_scale, experts.up_scale, experts.down_scale)
    tensors = [plan.tensors[i] if i >= 0 else None for i in (*parts, *extra, *scales)]
    return (*((t.type, t.n_cols, t.n_rows) if t else None for t in tensors), experts.slot_bytes)


class Split(msgspec.Struct, frozen=True):
    """Slots of each size class. A newcomer is copied into a spare one before its victim goes."""

    resident: tuple[int, ...]  # experts that can be resident, by class
    spare: tuple[int, ...]
    floor: tuple[int, ...]  # residents that each set keeps, by set
    note: str = ""  # what the budget did not allow

    def slots(self) -> tuple[int, ...]:
        return tuple(resident + spare for resident, spare in zip(self.resident, self.spare, strict=True))

    def n_bytes(self, experts: Experts) -> int:
        return sum(n * size for n, size in zip(self.slots(), experts.slot_bytes, strict=True))


def split_slots(experts: Experts, heat: Heat, budget_bytes: int, *, spares: int = SPARE_SLOTS) -> tuple[Split, Mask]:
    """Divide budget_bytes of VRAM among the size classes by heat, and choose who is resident at first.

    heat: [n_sets, width]; all zero (nothing known) gives every set an even share. Each class gets a slot, then a spare
    one, before any gets more; where the budget is too small for that, the hottest class is served first and the note
    says which got nothing. spares 0: nothing will be swapped.
    """
    fill = _Fill(experts, heat, np.asarray(experts.slot_bytes), budget_bytes)
    if budget_bytes >= fill.total:
        fill.rest()
        return fill.split([0] * experts.n_classes)
    fill.one_per_class()
    spare = fill.reserve(spares)
    fill.floors()
    fill.rest()
    while useless := [kind for kind, n in enumerate(spare) if n and not fill.is_outside(kind)]:
        for kind in useless:  # wholly resident
            fill.room += spare[kind] * experts.slot_bytes[kind]
            spare[kind] = 0
        fill.rest()
    return fill.split(spare)


def exact_slots(experts: Experts, heat: Heat, n_slots: int, *, spares: int = SPARE_SLOTS) -> tuple[Split, Mask]:
    """Room for exactly n_slots residents, at most all experts; spare slots come on top. 0: none at all."""
    fill = _Fill(experts, heat, np.ones(experts.n_classes, np.int64), n_slots)
    fill.floors()
    fill.rest()
    resident = fill.by_class()
    spare = [min(spares, n) if fill.is_outside(kind) else 0 for kind, n in enumerate(resident)]
    return fill.split(spare)


class _Fill:
    """Chooses experts, hottest first, while there is room; `cost` of a slot by class is in the unit of `room`."""

    def __init__(self, experts: Experts, heat: Heat, cost: NDArray[np.int64], room: int) -> None:
        self._experts = experts
        self._cost = [int(cost[kind]) for kind in experts.class_of]
        self._order = [(int(set_id), int(expert)) for set_id, expert in _hottest(experts, heat)]
        self.room = room
        self.total = sum(n * each for n, each in zip(experts.n_expert, self._cost, strict=True))
        self.chosen = np.zeros(experts.exists.shape, bool)
        even = min(room / self.total, 1.0) if self.total else 0.0
        self._floor = [int(n * even * FLOOR_FRAC) for n in experts.n_expert]

    def one_per_class(self) -> None:
        seen: set[int] = set()
        for set_id, expert in self._order:
            kind = self._experts.class_of[set_id]
            if kind not in seen and self._take(set_id, expert):
                seen.add(kind)

    def reserve(self, wanted: int) -> list[int]:
        """Take room for spare slots: a small part of what an even split would give the class, at least one."""
        cost = [0] * self._experts.n_classes
        n_all = [0] * self._experts.n_classes
        for kind, n, each in zip(self._experts.class_of, self._experts.n_expert, self._cost, strict=True):
            n_all[kind], cost[kind] = n_all[kind] + n, each
        even = self.room / self.total
        held = self.by_class()
        made = [0] * self._experts.n_classes
        for kind, n in enumerate(n_all):
            share = n * even
            most = min(wanted, max(min(SPARE_MIN, int(share * SPARE_FRAC_MAX)), int(share * SPARE_FRAC), 1))
            made[kind] = max(min(most, self.room // cost[kind]), 0) if held[kind] else 0
            self.room -= made[kind] * cost[kind]
        return made

    def floors(self) -> None:
        held = self.chosen.sum(axis=1)
        for set_id, expert in self._order:
            if held[set_id] < self._floor[set_id] and self._take(set_id, expert):
                held[set_id] += 1

    def rest(self) -> None:
        for set_id, expert in self._order:
            self._take(set_id, expert)

    def is_outside(self, kind: int) -> bool:
        """Whether an expert of the class is not chosen."""
        of_class = np.asarray(self._experts.class_of) == kind
        return bool((self._experts.exists & ~self.chosen)[of_class].any())

    def by_class(self) -> list[int]:
        held = self.chosen.sum(axis=1)
        kinds = np.asarray(self._experts.class_of)
        return [int(held[kinds == kind].sum()) for kind in range(self._experts.n_classes)]

    def split(self, spare: list[int]) -> tuple[Split, Mask]:
        resident = self.by_class()
        empty = [kind for kind, n in enumerate(resident) if n == 0]
        note = f"size classes without a slot: {', '.join(map(str, empty))}" if empty else ""
        floor = np.minimum(self._floor, self.chosen.sum(axis=1))
        return Split(tuple(resident), tuple(spare), tuple(int(n) for n in floor), note), self.chosen

    def _take(self, set_id: int, expert: int) -> bool:
        if self.chosen[set_id, expert] or self._cost[set_id] > self.room:
            return False
        self.chosen[set_id, expert] = True
        self.room -= self._cost[set_id]
        return True


def best_fixed(experts: Experts, uses: Heat, slots: tuple[int, ...]) -> Mask:
    """The yardstick: the choice for `slots` of each class that serves the most of these uses, known in hindsight."""
    chosen = np.zeros(experts.exists.shape, bool)
    room = list(slots)
    for set_id, expert in _hottest(experts, uses):
        kind = experts.class_of[set_id]
        if room[kind] > 0:
            chosen[set_id, expert] = True
            room[kind] -= 1
    return chosen


def hit_share(uses: Heat, resident: Mask) -> float:
    """Part of the uses that the residents serve; 0 without uses."""
    total = float(uses.sum())
    return float(uses[resident].sum()) / total if total else 0.0


def _hottest(experts: Experts, heat: Heat) -> NDArray[np.intp]:
    """Every (set, expert) that exists, [n, 2], hottest first; ties go round the sets."""
    sets, ids = np.nonzero(experts.exists)
    order = np.lexsort((sets, ids, -heat[sets, ids]))
    return np.stack([sets[order], ids[order]], axis=1)
