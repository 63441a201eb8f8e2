"""The life of slots: a model that plays the device holds what each slot contains, and every step reads through a table."""

import numpy as np
import pytest
from cache_kit import mixed, uniform
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strata.engine.placement import Split, split_slots
from strata.engine.residency import Residency, SlotState
from strata.engine.swaps import SwapRule, choose_swaps


class Device(RuleBasedStateMachine):
    """Copies take time and write until they end; steps run with the table they were submitted with."""

    @initialize(which=st.sampled_from(["uniform", "mixed"]), budget=st.integers(3000, 40_000), seed=st.integers(0, 99))
    def start(self, which: str, budget: int, seed: int) -> None:
        self.experts = uniform() if which == "uniform" else mixed()
        self.rng = np.random.default_rng(seed)
        split, chosen = split_slots(self.experts, np.zeros(self.experts.exists.shape), budget, spares=3)
        self.host = Residency(self.experts, split)
        self.content: dict[int, tuple[int, int]] = {}  # slot -> expert whose bytes are whole in it
        for set_id, expert, slot in self.host.fill(chosen).tolist():
            self.content[slot] = (set_id, expert)
        self.copies: dict[int, tuple[int, tuple[int, int]]] = {}  # running: swap -> (slot, expert)
        self.ready: set[int] = set()
        self.step = 0
        self.running: dict[int, np.ndarray] = {}  # step -> its table

    @rule(most=st.integers(1, 4))
    def begin(self, most: int) -> None:
        heat = self.rng.exponential(size=self.experts.exists.shape) * 10 * self.experts.exists
        for newcomer, victim in choose_swaps(self.host, heat, SwapRule(noise=0.0), most):
            swap = self.host.begin(newcomer, victim)
            assert swap.slot not in {slot for slot, _ in self.copies.values()}, "two copies into one slot"
            for table in self.running.values():
                assert swap.slot not in table, "a copy into a slot that a running step may read"
            self.content.pop(swap.slot, None)
            self.copies[swap.swap_id] = (swap.slot, newcomer)

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def copy_ends(self, data: st.DataObject) -> None:
        swap_id = data.draw(st.sampled_from(sorted(self.copies)))
        slot, expert = self.copies.pop(swap_id)
        self.content[slot] = expert
        self.host.copied(swap_id)

    @precondition(lambda self: self.host.open_swaps)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.host.cancel(data.draw(st.sampled_from([swap.swap_id for swap in self.host.open_swaps])))

    @rule()
    def cancel_everything(self) -> None:
        self.host.cancel_all()
        assert not self.host.open_swaps
        assert not self.host.incoming.any()
        assert not self.host.outgoing.any()

    @precondition(lambda self: len(self.running) < 2)
    @rule(commit=st.booleans(), careful=st.booleans())
    def step_begins(self, commit: bool, careful: bool) -> None:
        if commit:
            in_use = np.zeros(self.experts.exists.shape, bool)
            if careful:
                in_use = self.rng.random(self.experts.exists.shape) < 0.5
            before = self.host.table.copy()
            for swap in self.host.commit(self.step + 1, in_use):
                assert swap.victim is None or not in_use[swap.victim]
            assert (self.host.table[in_use & (before >= 0)] == before[in_use & (before >= 0)]).all()
        self.step += 1
        self.running[self.step] = self.host.table.copy()

    @precondition(lambda self: self.running)
    @rule()
    def step_ends(self) -> None:
        step = min(self.running)
        self.check_reads(self.running.pop(step))
        self.host.step_ended(step)

    @precondition(lambda self: not self.running)
    @rule()
    def quiet(self) -> None:
        self.host.no_step_runs()
        assert not (self.host.state == SlotState.RETIRING).any()

    def check_reads(self, table: np.ndarray) -> None:
        for set_id, expert in np.argwhere(table >= 0):
            assert self.content.get(int(table[set_id, expert])) == (set_id, expert), "a step read a wrong slot"

    @invariant()
    def accounts_agree(self) -> None:
        if not hasattr(self, "host"):
            return
        self.host.check_integrity()
        self.check_reads(self.host.table)
        for table in self.running.values():
            self.check_reads(table)
        assert sum(1 for s in self.host.state if s == SlotState.LOADING) == len(self.copies)
        assert (self.host.n_resident >= self.host.split.floor).all()
        assert self.host.resident.sum() <= sum(self.host.split.resident)


TestDevice = Device.TestCase
TestDevice.settings = settings(max_examples=80, stateful_step_count=40, deadline=None, derandomize=True)


def small(resident: int = 2, spare: int = 1, floor: tuple[int, ...] = (0, 0)) -> Residency:
    return Residency(uniform(n_sets=2, n_expert=4, n_used=1), Split((resident,), (spare,), floor))


def chosen(*pairs: tuple[int, int]) -> np.ndarray:
    made = np.zeros((2, 4), bool)
    for pair in pairs:
        made[pair] = True
    return made


def test_a_victim_s_slot_is_spare_one_step_after_the_commit():
    host = small()
    host.fill(chosen((0, 0), (1, 0)))
    swap = host.begin((0, 1), (1, 0))
    assert host.table[1, 0] >= 0, "the victim serves hits until the commit"
    assert host.commit(5) == [], "the copy has not ended"
    host.copied(swap.swap_id)
    freed = int(host.table[1, 0])
    version = host.version
    assert host.commit(5) == [swap]
    assert host.version == version + 1
    assert host.table[1, 0] == -1
    assert host.table[0, 1] == swap.slot
    assert host.n_spare(0) == 0
    host.step_ended(4)  # it ran with the old table
    assert host.n_spare(0) == 0
    host.step_ended(5)
    assert host.n_spare(0) == 1
    assert host.begin((1, 1), (0, 0)).slot == freed


def test_a_cancelled_copy_keeps_its_slot_until_it_has_ended():
    host = small()
    host.fill(chosen((0, 0), (1, 0)))
    swap = host.begin((0, 1), (1, 0))
    host.cancel(swap.swap_id)
    assert host.n_spare(0) == 0
    assert host.n_copying == 1
    with pytest.raises(KeyError):
        host.cancel(swap.swap_id)
    host.copied(swap.swap_id)
    assert host.n_spare(0) == 1
    with pytest.raises(KeyError):
        host.copied(swap.swap_id)
    assert host.commit(1) == []
    assert host.n_cancelled == 1


def test_a_copy_that_has_ended_is_cancelled_at_once():
    host = small()
    host.fill(chosen((0, 0)))
    swap = host.begin((0, 1), None)
    assert host.n_free(0) == 0
    host.copied(swap.swap_id)
    host.cancel(swap.swap_id)
    assert (host.n_spare(0), host.n_free(0)) == (2, 1)
    host.check_integrity()


@pytest.mark.parametrize(
    ("newcomer", "victim", "message"),
    [
        ((0, 0), (1, 0), r"expert \(0, 0\) cannot come"),
        ((0, 1), (1, 1), r"expert \(1, 1\) cannot go"),
        ((0, 1), None, "no free place"),
        ((0, 1), (1, 0), "set 1 is at its floor of 1"),
    ],
)
def test_what_begin_refuses(newcomer, victim, message):
    host = small(floor=(0, 1))
    host.fill(chosen((0, 0), (1, 0)))
    with pytest.raises(ValueError, match=message):
        host.begin(newcomer, victim)
    host.check_integrity()


def test_more_refusals():
    host = small()
    with pytest.raises(ValueError, match="2 places; more were chosen"):
        host.fill(chosen((0, 0), (0, 1), (0, 2)))
    host = small()
    host.fill(chosen((0, 0), (1, 0)))
    host.begin((0, 1), (1, 0))
    with pytest.raises(ValueError, match="no spare slot"):
        host.begin((0, 2), (0, 0))
    host = small(spare=2)
    host.fill(chosen((0, 0), (1, 0)))
    host.begin((0, 1), (1, 0))
    with pytest.raises(ValueError, match="leaving"):
        host.begin((0, 2), (1, 0))
    with pytest.raises(ValueError, match="on its way"):
        host.begin((0, 1), (0, 0))


def test_a_set_may_swap_within_itself_at_its_floor():
    host = small(floor=(1, 1))
    host.fill(chosen((0, 0), (1, 0)))
    swap = host.begin((1, 2), (1, 0))
    host.copied(swap.swap_id)
    host.commit(1)
    assert host.n_resident.tolist() == [1, 1]
