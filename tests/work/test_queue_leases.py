"""Random workers, clocks and deaths on a real database: no task is lost, and no lease is held by two."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from sqlalchemy import Connection, select

from huilu.core.nouns import Task, TaskState
from huilu.core.tasks import Event, after
from huilu.store import sqlite
from huilu.store.migrate import upgrade
from huilu.store.schema import tasks
from huilu.work import queue
from huilu.work.queue import Lease

T = TypeVar("T")
LEASE_S, MAX_ATTEMPTS = 10.0, 3
OWNERS = st.sampled_from(["a", "b", "c"])


class Row(msgspec.Struct):
    """What the oracle knows of a task."""

    draw: int
    state: TaskState = TaskState.QUEUED
    attempts: int = 0
    fence: int = 0
    owner: str | None = None
    lease_until: float | None = None

    def apply(self, event: Event) -> TaskState | None:
        """The event as `core.tasks` has it."""
        state = after(self.state, event, self.attempts, MAX_ATTEMPTS)
        if state is not None:
            self.state, self.owner, self.lease_until = state, None, None
            self.attempts = {"requeue": 0, "give_back": self.attempts - 1}.get(event, self.attempts)
        return state


class Leases(RuleBasedStateMachine):
    """The queue against an oracle of plain records."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.engine = sqlite.writer_engine(Path(self.folder.name) / "run.db")
        raw = self.engine.raw_connection()
        raw.cursor().execute("PRAGMA synchronous = OFF")  # nobody pulls the plug here
        raw.close()
        self.run(upgrade)
        self.rows: dict[str, Row] = {}
        self.now = 0.0

    def teardown(self) -> None:
        self.engine.dispose()
        self.folder.cleanup()

    def run(self, fn: Callable[[Connection], T]) -> T:
        """One transaction."""
        with self.engine.begin() as connection:
            return fn(connection)

    @rule(draws=st.lists(st.integers(0, 12), max_size=6, unique=True))
    def enqueue(self, draws: list[int]) -> None:
        drawn = [(draw, Task(id=f"t{draw:02}", env="e", prompt=())) for draw in draws]
        self.run(lambda connection: queue.enqueue(connection, drawn, self.now))
        for draw, task in drawn:
            self.rows.setdefault(task.id, Row(draw=draw))

    @rule(target=leases, owner=OWNERS, num=st.integers(1, 4))
    def claim(self, owner: str, num: int) -> object:
        found = self.run(lambda connection: queue.claim(connection, owner, num, LEASE_S, self.now))
        queued = sorted((row.draw, key) for key, row in self.rows.items() if row.state is TaskState.QUEUED)
        assert [lease.task.id for lease in found] == [key for _, key in queued[:num]]
        for lease in found:
            row = self.rows[lease.task.id]
            row.state, row.owner, row.lease_until = TaskState.RUNNING, owner, self.now + LEASE_S
            row.attempts, row.fence = row.attempts + 1, row.fence + 1
            assert (lease.fence, lease.attempt) == (row.fence, row.attempts)
        return multiple(*found)

    @rule(lease=leases, event=st.sampled_from(["finish", "filter", "fail", "give_back", "cancel"]))
    def end(self, lease: Lease, event: Event) -> None:
        """A worker's word, which may be an old one."""
        self.told(lease, event)

    @rule(lease=consumes(leases), event=st.sampled_from(["finish", "fail"]))
    def end_twice(self, lease: Lease, event: Event) -> None:
        self.told(lease, event)
        self.told(lease, event)

    def told(self, lease: Lease, event: Event) -> None:
        row = self.rows[lease.task.id]
        expected = row.apply(event) if row.fence == lease.fence else None
        found = self.run(
            lambda connection: queue.move(
                connection, lease.task.id, event, self.now, MAX_ATTEMPTS, fence=lease.fence, error="e"
            )
        )
        assert found == expected

    @rule(owner=OWNERS)
    def renew(self, owner: str) -> None:
        mine = [row for row in self.rows.values() if row.owner == owner]
        assert self.run(lambda connection: queue.renew(connection, owner, LEASE_S, self.now)) == len(mine)
        for row in mine:
            row.lease_until = self.now + LEASE_S

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(owner=OWNERS)
    def reap(self, owner: str) -> None:
        """`owner` alone is alive: the leases of others are given back, and his own that ran out are failures."""
        lost = sorted(
            (row.draw, key)
            for key, row in self.rows.items()
            if row.lease_until is not None and (row.lease_until < self.now or row.owner != owner)
        )
        found = self.run(lambda connection: queue.reap(connection, self.now, MAX_ATTEMPTS, not_owner=owner))
        assert found == [key for _, key in lost]
        for _, key in lost:
            self.rows[key].apply("fail" if self.rows[key].owner == owner else "give_back")

    @rule(data=st.data(), event=st.sampled_from(["cancel", "requeue"]))
    def order(self, data: st.DataObject, event: Event) -> None:
        """An operator's word, which needs no lease."""
        if self.rows:
            key = data.draw(st.sampled_from(sorted(self.rows)))
            found = self.run(lambda connection: queue.move(connection, key, event, self.now, MAX_ATTEMPTS, fence=None))
            assert found == self.rows[key].apply(event)

    @invariant()
    def the_rows_are_what_the_oracle_says(self) -> None:
        found = self.run(lambda connection: connection.execute(select(tasks)).all())
        stored = {
            row.id: Row(row.draw, TaskState(row.state), row.attempts, row.fence, row.owner, row.lease_until)
            for row in found
        }
        assert stored == self.rows
        assert all((row.owner is not None) == (row.state is TaskState.RUNNING) for row in stored.values())
        assert sum(self.run(queue.counts).values()) == len(self.rows)


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
