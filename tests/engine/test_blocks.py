"""The block pool accounts for every block, shares only what is equal, and never lets one table write into another."""

from __future__ import annotations

import dataclasses
import hashlib
import types

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from huilu.engine.blocks import BlockPool, BlockTable
from huilu.errors import Invariant


def fill(pool: BlockPool, token_ids: list[int]) -> BlockTable:
    """A table with all the tokens stored."""
    table = pool.open(token_ids)
    pool.reserve(table, len(token_ids))
    pool.commit(table, token_ids, len(token_ids))
    return table


def test_a_prefix_is_found_again_in_whole_blocks_and_short_of_the_last_token() -> None:
    pool = BlockPool(8, block_size=4)
    first = fill(pool, list(range(12)))
    assert pool.open(list(range(12))).blocks == first.blocks[:2]
    assert pool.open([*range(12), 99]).blocks == first.blocks
    assert pool.open([*range(7), 99, 98]).blocks == first.blocks[:1]
    assert pool.open(list(range(1, 12))).blocks == []


def test_a_closed_prefix_is_found_until_its_blocks_are_needed() -> None:
    pool = BlockPool(4, block_size=2)
    pool.close(fill(pool, [1, 2, 3, 4]))
    assert (pool.num_idle, pool.num_available) == (2, 4)
    again = pool.open([1, 2, 3, 4, 5])
    assert again.num_tokens == 4
    pool.close(again)
    pool.close(fill(pool, list(range(10, 18))))
    assert pool.open([1, 2, 3, 4, 5]).num_tokens == 0


def test_the_least_recently_used_tail_is_taken_first() -> None:
    pool = BlockPool(4, block_size=2)
    pool.close(fill(pool, [1, 2, 3, 4]))
    pool.close(fill(pool, [5, 6, 7, 8]))
    pool.close(pool.open([1, 2, 3, 4, 0]))
    fill(pool, [9, 9])
    found = [pool.open([1, 2, 3, 4, 0]).num_tokens, pool.open([5, 6, 7, 8, 0]).num_tokens]
    assert found == [4, 2]


def test_a_fork_copies_its_partial_block_only_when_it_writes() -> None:
    pool = BlockPool(8, block_size=4)
    trunk = fill(pool, list(range(6)))
    twin = pool.fork(trunk)
    assert pool.num_held == 2
    assert pool.num_missing(twin, 7) == 1
    copy = pool.reserve(twin, 7)
    assert copy is not None
    assert (copy.source, copy.target) == (trunk.blocks[1], twin.blocks[1])
    assert trunk.blocks[0] == twin.blocks[0]
    assert pool.reserve(trunk, 7) is None


def test_a_new_namespace_hides_older_blocks_and_uses_them_up_before_untouched_ones() -> None:
    pool = BlockPool(8, block_size=2)
    pool.set_namespace("v1")
    old = fill(pool, [1, 2, 3, 4])
    old_blocks = set(old.blocks)
    pool.close(old)
    pool.set_namespace("v2")
    assert pool.open([1, 2, 3, 4, 5]).num_tokens == 0
    assert set(fill(pool, [7, 7, 7, 7]).blocks) == old_blocks


def test_kv_computed_across_a_change_of_namespace_is_never_published() -> None:
    pool = BlockPool(8, block_size=2)
    pool.set_namespace("v1")
    table = fill(pool, [1, 2, 3])
    pool.set_namespace("v2")
    pool.set_namespace("v1")
    pool.reserve(table, 4)
    pool.commit(table, [1, 2, 3, 4], 4)
    assert pool.open([1, 2, 3, 4, 5]).num_tokens == 2


def test_a_block_that_outlived_its_namespace_is_free_once_closed() -> None:
    pool = BlockPool(8, block_size=2)
    table = fill(pool, [1, 2, 3])
    pool.set_namespace("v2")
    pool.close(table)
    assert (pool.num_idle, pool.num_held) == (0, 0)


def test_equal_keys_of_different_tokens_are_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashlib, "sha256", lambda _: types.SimpleNamespace(digest=lambda: b"the same"))
    pool = BlockPool(8, block_size=2)
    fill(pool, [1, 2, 3])
    assert pool.open([1, 2, 4]).num_tokens == 2
    assert pool.open([5, 6, 7]).num_tokens == 0


def test_without_a_prefix_cache_nothing_is_shared_or_kept() -> None:
    pool = BlockPool(4, block_size=2, prefix_cache=False)
    pool.close(fill(pool, [1, 2, 3, 4]))
    assert pool.open([1, 2, 3, 4, 5]).num_tokens == 0
    assert pool.num_idle == 0


def test_taking_more_blocks_than_there_are_is_a_bug() -> None:
    pool = BlockPool(2, block_size=2)
    with pytest.raises(Invariant, match="held"):
        pool.reserve(pool.open([0]), 5)


def test_the_integrity_check_notices_a_forgotten_and_an_extra_holder() -> None:
    pool = BlockPool(4, block_size=2)
    table = fill(pool, [1, 2, 3])
    pool.check_integrity([table])
    with pytest.raises(Invariant, match="holders, references"):
        pool.check_integrity([])
    with pytest.raises(Invariant, match="holders, references"):
        pool.check_integrity([table, table])


@dataclasses.dataclass
class Shadow:
    """What a table must hold: for each stored token, the namespace it was computed under and its whole prefix."""

    token_ids: list[int]
    stored: list[tuple[str, tuple[int, ...]]]
    epoch: int


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=14)


class PoolAgainstOracle(RuleBasedStateMachine):
    """Random use of a pool beside an oracle that writes down the content of every slot."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[tuple[BlockTable, Shadow]] = []
        self.content: dict[tuple[int, int], tuple[str, tuple[int, ...]]] = {}
        self.epoch = 0
        self.stored_ever: set[tuple[str, tuple[int, ...]]] = set()

    @initialize(num_blocks=st.integers(4, 24), block_size=st.integers(1, 4))
    def make(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.begin([0])

    def write(self, table: BlockTable, shadow: Shadow, num_tokens: int) -> None:
        copy = self.pool.reserve(table, num_tokens)
        size = self.pool.block_size
        if copy is not None:
            for offset in range(size):
                self.content.pop((copy.target, offset), None)
                if (copy.source, offset) in self.content:
                    self.content[copy.target, offset] = self.content[copy.source, offset]
        for place in range(table.num_tokens, num_tokens):
            entry = (self.pool.namespace, tuple(shadow.token_ids[: place + 1]))
            self.content[table.blocks[place // size], place % size] = entry
            shadow.stored.append(entry)
        self.pool.commit(table, shadow.token_ids, num_tokens)
        if shadow.epoch == self.epoch:
            self.stored_ever.update(shadow.stored)

    @rule(token_ids=TOKENS)
    def open_and_fill(self, token_ids: list[int]) -> None:
        self.begin(token_ids)

    def begin(self, token_ids: list[int]) -> None:
        table = self.pool.open(token_ids)
        found = [(self.pool.namespace, tuple(token_ids[: place + 1])) for place in range(table.num_tokens)]
        assert table.num_tokens < len(token_ids)
        assert self.stored_ever.issuperset(found), "a hit on what was never computed under this namespace"
        shadow = Shadow(list(token_ids), found, self.epoch)
        if self.pool.num_missing(table, len(token_ids)) > self.pool.num_available:
            self.pool.close(table)
            return
        self.write(table, shadow, len(token_ids))
        self.tables.append((table, shadow))
        again = self.pool.open([*token_ids, 0])
        assert again.num_tokens == len(token_ids) // self.pool.block_size * self.pool.block_size
        self.pool.close(again)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), token_id=st.integers(0, 2))
    def append(self, data: st.DataObject, token_id: int) -> None:
        table, shadow = data.draw(st.sampled_from(self.tables))
        num_tokens = table.num_tokens + 1
        num_missing, num_available = self.pool.num_missing(table, num_tokens), self.pool.num_available
        if num_missing <= num_available:
            shadow.token_ids = [*shadow.token_ids, token_id]
            self.write(table, shadow, num_tokens)
            assert self.pool.num_available == num_available - num_missing

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        table, shadow = data.draw(st.sampled_from(self.tables))
        twin = Shadow(list(shadow.token_ids), list(shadow.stored), shadow.epoch)
        self.tables.append((self.pool.fork(table), twin))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.tables) - 1))
        self.pool.close(self.tables.pop(place)[0])

    @rule(number=st.integers(0, 2))
    def change_namespace(self, number: int) -> None:
        self.epoch += self.pool.namespace != f"v{number}"
        self.pool.set_namespace(f"v{number}")

    @invariant()
    def every_table_reads_what_it_wrote(self) -> None:
        for table, shadow in self.tables:
            size = self.pool.block_size
            seen = [self.content[table.blocks[p // size], p % size] for p in range(table.num_tokens)]
            assert seen == shadow.stored

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check_integrity([table for table, _ in self.tables])


TestPoolAgainstOracle = PoolAgainstOracle.TestCase
TestPoolAgainstOracle.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
