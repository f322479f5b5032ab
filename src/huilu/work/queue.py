"""The task queue of a run: leases with fences, attempts counted at the claim, dead letters.

Called by `draws`. Functions take a connection, so that a caller can make one transaction of several; `Queue` runs
them on the database. The state machine is `core.tasks`; nothing here changes a task against it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
from sqlalchemy import Connection, and_, func, insert, or_, select, update

from huilu.core.nouns import Task, TaskState
from huilu.core.tasks import OPEN, Event, after
from huilu.store.database import Database
from huilu.store.schema import tasks

MAX_ERRORS_KEPT = 5
_encode = msgspec.msgpack.encode


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A task in one worker's hands. A finish with an older fence changes nothing."""

    task: Task
    draw: int
    fence: int
    attempt: int


def enqueue(connection: Connection, drawn: Sequence[tuple[int, Task]], now: float, *, extra: bool = False) -> None:
    """Add tasks by draw number; those that are there already stay as they are."""
    known = set(connection.scalars(select(tasks.c.id).where(tasks.c.id.in_([task.id for _, task in drawn]))))
    rows = [
        {
            "id": task.id,
            "draw": draw,
            "env": task.env,
            "state": TaskState.QUEUED.value,
            "extra": extra,
            "attempts": 0,
            "fence": 0,
            "errors": "[]",
            "record": _encode(task),
            "enqueued_at": now,
        }
        for draw, task in drawn
        if task.id not in known
    ]
    if rows:
        connection.execute(insert(tasks), rows)


def claim(connection: Connection, owner: str, num: int, lease_s: float, now: float) -> list[Lease]:
    """Up to `num` queued tasks in draw order, leased to `owner` until now + `lease_s`."""
    waiting = select(tasks.c.id).where(tasks.c.state == TaskState.QUEUED.value).order_by(tasks.c.draw).limit(num)
    rows = connection.execute(
        update(tasks)
        .where(tasks.c.id.in_(waiting))
        .values(
            state=TaskState.RUNNING.value,
            owner=owner,
            lease_until=now + lease_s,
            fence=tasks.c.fence + 1,
            attempts=tasks.c.attempts + 1,
        )
        .returning(tasks.c.record, tasks.c.draw, tasks.c.fence, tasks.c.attempts)
    ).all()
    leases = [
        Lease(task=msgspec.msgpack.decode(row.record, type=Task), draw=row.draw, fence=row.fence, attempt=row.attempts)
        for row in rows
    ]
    return sorted(leases, key=lambda lease: lease.draw)


def move(
    connection: Connection,
    task_id: str,
    event: Event,
    now: float,
    max_attempts: int,
    *,
    fence: int | None,
    error: str = "",
) -> TaskState | None:
    """Apply an event to a task under its fence; the new state, or None when it was stale and nothing changed."""
    row = connection.execute(select(tasks).where(tasks.c.id == task_id)).one_or_none()
    if row is None or (fence is not None and row.fence != fence):
        return None
    state = after(TaskState(row.state), event, row.attempts, max_attempts)
    if state is None:
        return None
    kept = [*msgspec.json.decode(row.errors, type=list[str]), error][-MAX_ERRORS_KEPT:] if error else None
    values = {
        "state": state.value,
        "owner": row.owner if state is TaskState.RUNNING else None,
        "lease_until": None,
        "ended_at": None if state in OPEN else now,
        "attempts": row.attempts - 1 if event == "give_back" else 0 if event == "requeue" else row.attempts,
        **({"errors": msgspec.json.encode(kept).decode()} if kept is not None else {}),
    }
    guard = and_(tasks.c.id == task_id, tasks.c.fence == row.fence, tasks.c.state == row.state)
    changed = connection.execute(update(tasks).where(guard).values(**values)).rowcount
    return state if changed else None


def renew(connection: Connection, owner: str, lease_s: float, now: float) -> int:
    """Extend every lease of `owner`; how many."""
    mine = and_(tasks.c.owner == owner, tasks.c.state == TaskState.RUNNING.value)
    return connection.execute(update(tasks).where(mine).values(lease_until=now + lease_s)).rowcount


def reap(connection: Connection, now: float, max_attempts: int, *, not_owner: str) -> list[str]:
    """Fail the tasks whose lease ran out; give back those of owners other than `not_owner`, which are gone; their ids.

    That a control process was killed says nothing against its tasks, so it is none of their attempts.
    """
    lost = and_(
        tasks.c.state == TaskState.RUNNING.value,
        or_(tasks.c.lease_until < now, tasks.c.owner != not_owner),
    )
    rows = connection.execute(select(tasks.c.id, tasks.c.owner).where(lost).order_by(tasks.c.draw)).all()
    for row in rows:
        if row.owner == not_owner:
            move(connection, row.id, "fail", now, max_attempts, fence=None, error="its lease ran out")
        else:
            move(connection, row.id, "give_back", now, max_attempts, fence=None)
    return [row.id for row in rows]


def counts(connection: Connection) -> dict[TaskState, int]:
    """How many tasks are in each state."""
    rows = connection.execute(select(tasks.c.state, func.count()).group_by(tasks.c.state)).all()
    found = {TaskState(state): number for state, number in rows}
    return {state: found.get(state, 0) for state in TaskState}


def open_ids(connection: Connection) -> list[str]:
    """The tasks that are queued or running, in draw order."""
    states = [state.value for state in OPEN]
    return list(connection.scalars(select(tasks.c.id).where(tasks.c.state.in_(states)).order_by(tasks.c.draw)))


def num_extra(connection: Connection, since: float = 0.0) -> int:
    """How many tasks were drawn to replace lost ones, after `since`."""
    return connection.scalar(select(func.count()).where(and_(tasks.c.extra, tasks.c.enqueued_at > since))) or 0


def num_lost(connection: Connection, since: float) -> int:
    """How many tasks came to nothing after `since`."""
    lost = tasks.c.state.in_([TaskState.FILTERED.value, TaskState.DEAD.value])
    return connection.scalar(select(func.count()).where(and_(lost, tasks.c.ended_at > since))) or 0


def next_draw(connection: Connection) -> int:
    """The number of the next draw: the cursor of the data."""
    last = connection.scalar(select(func.max(tasks.c.draw)))
    return 0 if last is None else last + 1


def dead_letters(connection: Connection) -> list[tuple[Task, list[str]]]:
    """Dead tasks with their last errors."""
    rows = connection.execute(
        select(tasks.c.record, tasks.c.errors).where(tasks.c.state == TaskState.DEAD.value).order_by(tasks.c.draw)
    )
    return [
        (msgspec.msgpack.decode(row.record, type=Task), msgspec.json.decode(row.errors, type=list[str])) for row in rows
    ]


class Queue:
    """The functions above on one database, for one owner."""

    def __init__(
        self,
        database: Database,
        owner: str,
        *,
        lease_s: float = 60.0,
        max_attempts: int = 3,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._database, self.owner = database, owner
        self._lease_s, self.max_attempts, self._now = lease_s, max_attempts, now

    @property
    def lease_s(self) -> float:
        return self._lease_s

    async def enqueue(self, drawn: Sequence[tuple[int, Task]], *, extra: bool = False) -> None:
        await self._database.write(lambda connection: enqueue(connection, drawn, self._now(), extra=extra))

    async def claim(self, num: int) -> list[Lease]:
        return await self._database.write(
            lambda connection: claim(connection, self.owner, num, self._lease_s, self._now())
        )

    async def move(self, lease: Lease, event: Event, error: str = "") -> TaskState | None:
        return await self._database.write(
            lambda connection: move(
                connection, lease.task.id, event, self._now(), self.max_attempts, fence=lease.fence, error=error
            )
        )

    async def take_over(self) -> list[str]:
        """The leases of everybody else are lost: their tasks return to the queue or die."""
        return await self._database.write(
            lambda connection: reap(connection, self._now(), self.max_attempts, not_owner=self.owner)
        )
