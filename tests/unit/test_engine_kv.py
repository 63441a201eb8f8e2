"""KV block accounts: an oracle-free model test (integrity after every move) and the prefix cases by hand."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from strata.engine.kv import KvBlocks


def tokens(n: int, salt: int = 0) -> list[int]:
    return [salt * 1000 + i for i in range(n)]


def test_prefix_is_found_by_token_ids_and_leaves_one_token_to_compute():
    kv = KvBlocks(8)
    ids = tokens(128)
    blocks = kv.match(ids)
    assert blocks == []
    assert kv.extend(blocks, 128)
    kv.publish(blocks, ids, 128)
    first = list(blocks)
    kv.release(blocks)
    assert kv.match(ids) == first[:1]  # the second block would leave nothing to compute
    assert kv.match([*ids, 5]) == first
    assert kv.match([9, *ids[1:], 5]) == []
    kv.check_integrity()


def test_second_block_is_found_only_behind_its_own_first_block():
    kv = KvBlocks(8)
    a = tokens(128)
    blocks: list[int] = []
    kv.extend(blocks, 128)
    kv.publish(blocks, a, 128)
    other = [*tokens(64, salt=7), *a[64:], 1]
    assert kv.match(other) == []


def test_extend_refuses_without_side_effects_when_blocks_run_out():
    kv = KvBlocks(2)
    blocks: list[int] = []
    assert not kv.extend(blocks, 129)
    assert blocks == []
    assert kv.n_available == 2
    assert kv.extend(blocks, 128)
    assert not kv.extend([], 1)


def test_eviction_takes_the_least_recently_used_and_what_hangs_on_it():
    kv = KvBlocks(4)
    old, new = tokens(128), tokens(128, salt=3)
    for ids in (old, new):
        blocks: list[int] = []
        assert kv.extend(blocks, 128)
        kv.publish(blocks, ids, 128)
        kv.release(blocks)
    assert kv.n_cached == 4
    taken: list[int] = []
    assert kv.extend(taken, 64)
    assert kv.match([*old, 1]) != kv.match([*new, 1])
    assert len(kv.match([*new, 1])) == 2
    kv.check_integrity()


def test_equal_content_computed_twice_stays_private():
    kv = KvBlocks(4)
    ids = tokens(64)
    a: list[int] = []
    b: list[int] = []
    kv.extend(a, 64)
    kv.extend(b, 64)
    kv.publish(a, ids, 64)
    kv.publish(b, ids, 64)
    kv.release(b)
    assert kv.n_cached == 0
    kv.release(a)
    assert kv.n_cached == 1
    kv.check_integrity()


class KvMachine(RuleBasedStateMachine):
    """Sequences start, grow, publish and end in any order; the accounts must always add up."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KvBlocks(6)
        self.live: list[tuple[list[int], list[int]]] = []

    @rule(n=st.integers(1, 200), salt=st.integers(0, 2))
    def start(self, n: int, salt: int) -> None:
        ids = tokens(n, salt)
        blocks = self.kv.match(ids)
        assert len(blocks) * 64 < n
        if self.kv.extend(blocks, n):
            self.live.append((blocks, ids))
        else:
            self.kv.release(blocks)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), n=st.integers(0, 200))
    def publish(self, data: st.DataObject, n: int) -> None:
        blocks, ids = data.draw(st.sampled_from(self.live))
        self.kv.publish(blocks, ids, min(n, len(ids)))

    @precondition(lambda self: self.live)
    @rule(i=st.integers(0, 100))
    def end(self, i: int) -> None:
        blocks, _ = self.live.pop(i % len(self.live))
        self.kv.release(blocks)

    @rule()
    def forget(self) -> None:
        self.kv.clear_cache()
        assert self.kv.n_cached == 0

    @invariant()
    def accounts_add_up(self) -> None:
        self.kv.check_integrity()
        held = {block for blocks, _ in self.live for block in blocks}
        assert self.kv.n_held == len(held)


TestKvMachine = KvMachine.TestCase
TestKvMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
