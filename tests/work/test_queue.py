"""The queue's SQL: it does what the table of states says, and nothing to a task whose fence is another."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from sqlalchemy import Connection, insert, select

from huilu.core.nouns import Message, Task, TaskState
from huilu.core.tasks import OPEN, Event, after
from huilu.store import sqlite
from huilu.store.database import Database
from huilu.store.migrate import upgrade
from huilu.store.schema import tasks
from huilu.work import queue
from huilu.work.queue import Lease, Queue

EVENTS: tuple[Event, ...] = get_args(Event)
NOW, LEASE_S, MAX_ATTEMPTS = 1000.0, 60.0, 3


def a_task(draw: int) -> Task:
    return Task(id=f"t{draw:06d}", env="arithmetic", prompt=(Message("user", f"{draw} + 1?"),), answer=draw + 1)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """A connection in a transaction that is never committed."""
    engine = sqlite.writer_engine(tmp_path / "run.db")
    with engine.connect() as opened:
        upgrade(opened)
        yield opened
    engine.dispose()


def filled(connection: Connection, num: int) -> None:
    queue.enqueue(connection, [(draw, a_task(draw)) for draw in range(num)], NOW)


def state_of(connection: Connection, task_id: str) -> TaskState:
    return TaskState(connection.execute(select(tasks.c.state).where(tasks.c.id == task_id)).scalar_one())


def moved(connection: Connection, lease: Lease, event: Event, error: str = "") -> TaskState | None:
    return queue.move(connection, lease.task.id, event, NOW + 5, MAX_ATTEMPTS, fence=lease.fence, error=error)


@pytest.mark.parametrize(
    ("state", "event", "attempts"),
    [case for case in itertools.product(TaskState, EVENTS, (1, 2, 3)) if case[1] != "claim"],
)
def test_move_does_what_the_table_says(connection: Connection, state: TaskState, event: Event, attempts: int) -> None:
    running = {"owner": "w", "lease_until": NOW + LEASE_S} if state is TaskState.RUNNING else {}
    ended = {} if state in OPEN else {"ended_at": NOW}
    row = {"id": "t", "draw": 0, "env": "e", "state": state.value, "extra": False, "attempts": attempts, "fence": 7}
    record = {"errors": '["old"]', "record": queue._encode(a_task(0)), "enqueued_at": NOW}
    connection.execute(insert(tasks).values(**row, **record, **running, **ended))
    before = connection.execute(select(tasks)).one()

    expected = after(state, event, attempts, MAX_ATTEMPTS)
    assert queue.move(connection, "t", event, NOW + 5, MAX_ATTEMPTS, fence=6, error="new") is None
    assert connection.execute(select(tasks)).one() == before
    assert queue.move(connection, "t", event, NOW + 5, MAX_ATTEMPTS, fence=7, error="new") == expected

    found = connection.execute(select(tasks)).one()
    if expected is None:
        assert found == before
        return
    assert found.state == expected.value
    assert (found.owner, found.lease_until) == (None, None)
    assert found.ended_at == (None if expected in OPEN else NOW + 5)
    assert found.attempts == {"requeue": 0, "give_back": attempts - 1}.get(event, attempts)
    assert found.errors == '["old","new"]'


@pytest.mark.parametrize("state", list(TaskState))
def test_claim_takes_what_the_table_lets_it_take(connection: Connection, state: TaskState) -> None:
    row = {"id": "t", "draw": 0, "env": "e", "state": state.value, "extra": False, "attempts": 1, "fence": 7}
    record = {"errors": "[]", "record": queue._encode(a_task(0)), "enqueued_at": NOW}
    connection.execute(insert(tasks).values(**row, **record))
    leases = queue.claim(connection, "w", 5, LEASE_S, NOW)
    assert bool(leases) == (after(state, "claim", 1, MAX_ATTEMPTS) is not None)
    assert [(lease.fence, lease.attempt) for lease in leases] == [(8, 2)] * len(leases)


def test_tasks_are_claimed_in_draw_order_whatever_order_they_came_in(connection: Connection) -> None:
    queue.enqueue(connection, [(draw, a_task(draw)) for draw in (3, 1, 2, 0)], NOW)
    assert [lease.draw for lease in queue.claim(connection, "w", 3, LEASE_S, NOW)] == [0, 1, 2]
    assert [lease.draw for lease in queue.claim(connection, "v", 3, LEASE_S, NOW)] == [3]


def test_a_claimed_task_is_the_task_that_was_enqueued(connection: Connection) -> None:
    filled(connection, 1)
    (lease,) = queue.claim(connection, "w", 1, LEASE_S, NOW)
    assert lease.task == a_task(0)


def test_enqueueing_again_changes_nothing(connection: Connection) -> None:
    filled(connection, 2)
    (lease, _) = queue.claim(connection, "w", 2, LEASE_S, NOW)
    moved(connection, lease, "finish")
    filled(connection, 3)
    assert queue.counts(connection)[TaskState.DONE] == 1
    assert queue.counts(connection)[TaskState.RUNNING] == 1
    assert queue.counts(connection)[TaskState.QUEUED] == 1
    assert queue.next_draw(connection) == 3


def test_the_word_of_a_worker_whose_lease_went_to_another_changes_nothing(connection: Connection) -> None:
    filled(connection, 1)
    (stale,) = queue.claim(connection, "w", 1, LEASE_S, NOW)
    queue.reap(connection, NOW + LEASE_S + 1, MAX_ATTEMPTS, not_owner="w")
    (fresh,) = queue.claim(connection, "v", 1, LEASE_S, NOW + LEASE_S + 2)
    for event in ("finish", "filter", "fail", "give_back", "cancel"):
        assert moved(connection, stale, event) is None
    assert state_of(connection, stale.task.id) is TaskState.RUNNING
    assert moved(connection, fresh, "finish") is TaskState.DONE


def test_a_task_that_fails_at_every_attempt_is_dead_with_its_last_errors(connection: Connection) -> None:
    filled(connection, 2)
    for attempt in range(MAX_ATTEMPTS):
        (lease,) = queue.claim(connection, "w", 1, LEASE_S, NOW)
        assert lease.attempt == attempt + 1
        moved(connection, lease, "fail", error=f"error {attempt}")
    assert queue.dead_letters(connection) == [(a_task(0), ["error 0", "error 1", "error 2"])]
    assert [lease.draw for lease in queue.claim(connection, "w", 9, LEASE_S, NOW)] == [1]


def test_only_the_last_errors_are_kept(connection: Connection) -> None:
    filled(connection, 1)
    for attempt in range(queue.MAX_ERRORS_KEPT + 3):
        (lease,) = queue.claim(connection, "w", 1, LEASE_S, NOW)
        queue.move(connection, lease.task.id, "fail", NOW, 99, fence=lease.fence, error=f"{attempt}")
    (lease,) = queue.claim(connection, "w", 1, LEASE_S, NOW)
    queue.move(connection, lease.task.id, "fail", NOW, 0, fence=lease.fence, error="last")
    ((_, kept),) = queue.dead_letters(connection)
    assert kept == ["4", "5", "6", "7", "last"]


def test_a_dead_letter_that_is_put_back_has_all_its_attempts_again(connection: Connection) -> None:
    filled(connection, 1)
    (lease,) = queue.claim(connection, "w", 1, LEASE_S, NOW)
    queue.move(connection, lease.task.id, "fail", NOW, 1, fence=lease.fence, error="broken")
    assert queue.move(connection, lease.task.id, "requeue", NOW, MAX_ATTEMPTS, fence=None) is TaskState.QUEUED
    (again,) = queue.claim(connection, "w", 1, LEASE_S, NOW)
    assert (again.attempt, again.fence) == (1, lease.fence + 1)


def test_the_tasks_of_a_killed_process_return_and_are_none_the_worse_for_it(connection: Connection) -> None:
    filled(connection, 2)
    for life in range(2 * MAX_ATTEMPTS):
        leases = queue.claim(connection, f"life {life}", 2, LEASE_S, NOW)
        assert [lease.attempt for lease in leases] == [1, 1]
        taken_back = queue.reap(connection, NOW + 1, MAX_ATTEMPTS, not_owner=f"life {life + 1}")
        assert taken_back == [lease.task.id for lease in leases]
    assert queue.counts(connection)[TaskState.QUEUED] == 2


def test_a_lease_that_ran_out_was_an_attempt(connection: Connection) -> None:
    filled(connection, 1)
    for _ in range(MAX_ATTEMPTS):
        queue.claim(connection, "w", 1, LEASE_S, NOW)
        assert queue.reap(connection, NOW + LEASE_S - 1, MAX_ATTEMPTS, not_owner="w") == []
        assert queue.reap(connection, NOW + LEASE_S + 1, MAX_ATTEMPTS, not_owner="w") == ["t000000"]
    assert queue.dead_letters(connection) == [(a_task(0), ["its lease ran out"] * MAX_ATTEMPTS)]


def test_renewing_extends_only_ones_own_leases(connection: Connection) -> None:
    filled(connection, 2)
    queue.claim(connection, "w", 1, LEASE_S, NOW)
    queue.claim(connection, "v", 1, LEASE_S, NOW)
    assert queue.renew(connection, "w", LEASE_S, NOW + 50) == 1
    found = {row.owner: row.lease_until for row in connection.execute(select(tasks))}
    assert found == {"w": NOW + 50 + LEASE_S, "v": NOW + LEASE_S}


def test_open_tasks_are_those_that_wait_or_run(connection: Connection) -> None:
    filled(connection, 4)
    first, _ = queue.claim(connection, "w", 2, LEASE_S, NOW)
    moved(connection, first, "finish")
    assert queue.open_ids(connection) == ["t000001", "t000002", "t000003"]


def test_the_queue_works_for_many_callers_at_once(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        database = Database(tmp_path / "run.db")
        workers = [Queue(database, f"w{n}", now=lambda: NOW) for n in range(8)]
        await workers[0].enqueue([(draw, a_task(draw)) for draw in range(64)])
        leases = [lease for found in await asyncio.gather(*(w.claim(10) for w in workers)) for lease in found]
        ended = await asyncio.gather(*(workers[0].move(lease, "finish") for lease in leases))
        assert set(ended) == {TaskState.DONE}
        database.close()
        return sorted(lease.draw for lease in leases)

    assert asyncio.run(scenario()) == list(range(64))
