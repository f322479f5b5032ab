"""The flow of tasks from their source to a claim: draw, append, claim, settle.

Called by the loop, as its `Draws` and its `Bus`; owns the slots and the leases of this process. Every change of
state is one transaction; nothing here waits on a clock, only on what the flow itself reports.

    source --draw--> queue --lease--> attempt --append--> group complete --claim--> learnt --settle--> slots
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec
from sqlalchemy import Connection

from huilu.bus import claims, feedback
from huilu.core import ids
from huilu.core.nouns import Claim, Episode, Feedback, Outcome, Task, TaskState
from huilu.core.tasks import OPEN, Event
from huilu.store.database import Database
from huilu.telemetry import Telemetry
from huilu.work import queue
from huilu.work.queue import Lease, Queue
from huilu.work.slots import Slots


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the flow must know of a job. `batch` is the number of groups a claim asks for."""

    batch: int
    rounds: int
    max_lag: int
    max_extra: int
    episodes_per_task: int
    drop_equal: bool
    sample_frac: float
    seed: int


class Flow:
    """Tasks under way. One a run; `recover` first."""

    def __init__(
        self,
        database: Database,
        tasks: Queue,
        source: Callable[[int], Task],
        plan: Plan,
        telemetry: Telemetry,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._database, self._queue, self._source = database, tasks, source
        self._plan, self._telemetry, self._now = plan, telemetry, now
        self._slots = Slots(plan.batch, plan.rounds, plan.max_lag, plan.max_extra)
        self._leases: dict[str, Lease] = {}
        self._replacements = 0
        self._waiting = 0
        self._missing: dict[str, list[int]] = {}
        self._drawing = 0
        self._appended = 0
        self._changed = asyncio.Event()

    async def recover(self, settled: int) -> int:
        """Start, or start again, with `settled` rounds in the saved state; the number of tasks taken back.

        Tasks of a dead process return to the queue. Groups that are complete hold their slots until the rounds
        that learn from them are replayed and settle.
        """
        taken_back = await self._queue.take_over()
        await self._database.read(lambda connection: self._count(connection, settled))
        return len(taken_back)

    async def draw(self) -> Sequence[Task]:
        """The next tasks, once slots are free: those taken back first, then new ones from the source.

        Their feedback is issued: whoever draws attempts them.
        """
        while self._slots.free == 0:
            await self._changed.wait()
        self._drawing = num = self._slots.free
        self._slots.take(num)
        leases = await self._queue.claim(num)
        self._waiting -= len(leases)
        if len(leases) < num:
            await self._enqueue_new(num - len(leases))
            leases += await self._queue.claim(num - len(leases))
        self._leases |= {lease.task.id: lease for lease in leases}
        self._missing |= await self._database.write(lambda connection: self._issue(connection, leases))
        self._drawing = 0
        return [lease.task for lease in leases]

    def missing(self, task: Task) -> list[int]:
        """Which episodes of a drawn task are to be made, by index; a crash may have left some."""
        return self._missing.pop(task.id)

    def _issue(self, connection: Connection, leases: Sequence[Lease]) -> dict[str, list[int]]:
        num = self._plan.episodes_per_task
        for lease in leases:
            feedback.issue(connection, [ids.episode_id(lease.task.id, index) for index in range(num)], self._now())
        return {lease.task.id: feedback.missing(connection, lease.task.id, num) for lease in leases}

    async def append(self, episode: Episode, word: Feedback) -> None:
        """Durable on return. The last episode of a group ends its task in the same transaction."""

        def work(connection: Connection) -> tuple[bool, TaskState | None]:
            is_new = feedback.append(connection, episode, word, self._now())
            if feedback.missing(connection, episode.task_id, self._plan.episodes_per_task):
                return is_new, None
            return is_new, self._close(connection, episode.task_id)

        is_new, ended = await self._database.write(work)
        if is_new:
            self._telemetry.count("huilu_feedback_total", source=word.source.value, state=word.state.value)
        self._telemetry.reach("after-append")
        self._appended += 1
        total = self._plan.batch * self._plan.episodes_per_task
        self._telemetry.event("progress", name="episodes", done=min(self._appended, total), total=total)
        if ended is not None:
            self._end(episode.task_id, ended)

    async def claim(self, round_: int, max_lag: int) -> Claim:
        """The round's claim: full, or what there is once nothing in flight can add to it."""
        with self._telemetry.timed("huilu_round_seconds", phase="rollout"):
            while True:
                changed = self._changed  # before the look, so that no change is missed
                found = await self._try_claim(round_, max_lag)
                if found is not None:
                    break
                await changed.wait()
        for episode in found.episodes:
            if episode.num_sampled:  # one that failed before its first token was sampled by no version
                self._telemetry.observe("huilu_rollout_staleness_versions", round_ - 1 - episode.version)
        return found

    def settle(self, claim: Claim) -> None:
        """The claim's fate is known and served: its slots return."""
        self._slots.settle()
        self._appended = 0
        self._tell_change()

    def round_of(self, task: Task) -> int:
        """The round that a task drawn now is for; its claim has the last word."""
        return self._slots.settled + 1

    async def heartbeat(self) -> None:
        """Renew this process's leases until cancelled."""
        owner, lease_s = self._queue.owner, self._queue.lease_s

        def renew(connection: Connection) -> None:
            queue.renew(connection, owner, lease_s, self._now())
            claims.renew(connection, owner, lease_s, self._now())

        while True:
            await asyncio.sleep(lease_s / 3)
            await self._database.write(renew)

    async def abandon(self) -> int:
        """The run is over: tasks still open are cancelled and their feedback expires; how many."""

        def work(connection: Connection) -> int:
            open_ids = queue.open_ids(connection)
            for task_id in open_ids:
                queue.move(connection, task_id, "cancel", self._now(), self._queue.max_attempts, fence=None)
            feedback.expire(connection, open_ids, self._now())
            return len(open_ids)

        return await self._database.write(work)

    def _count(self, connection: Connection, settled: int) -> None:
        """Make the slots what they were, from the rows."""
        plan, counts = self._plan, queue.counts(connection)
        claimed, since = claims.newest(connection)
        granted = min(queue.num_lost(connection, since), plan.max_extra)
        # A crash may have fallen between a loss and the draw that was to replace it.
        self._replacements = max(0, granted - queue.num_extra(connection, since))
        over = sum(number for state, number in counts.items() if state not in OPEN)
        used = over - queue.num_extra(connection) - self._replacements
        self._waiting = counts[TaskState.QUEUED]
        self._slots = Slots(
            plan.batch,
            plan.rounds,
            plan.max_lag,
            plan.max_extra,
            settled=settled,
            used=used,
            claimed=claimed,
            extra=granted,
        )

    async def _enqueue_new(self, num: int) -> None:
        first = await self._database.read(queue.next_draw)
        drawn = [(draw, await asyncio.to_thread(self._source, draw)) for draw in range(first, first + num)]
        extra = min(self._replacements, num)
        self._replacements -= extra
        await self._queue.enqueue(drawn[: num - extra])
        await self._queue.enqueue(drawn[num - extra :], extra=True)

    def _close(self, connection: Connection, task_id: str) -> TaskState | None:
        """End a task whose group is complete: done, filtered for equal rewards, or failed when nothing was judged."""
        group = feedback.group(connection, task_id)
        judged = [episode for episode in group if episode.outcome is not Outcome.INFRA_FAILED]
        event: Event = "finish"
        if not judged:
            event = "fail"
        elif self._plan.drop_equal and len({episode.reward for episode in judged}) == 1:
            event = "filter"
        lease = self._leases.get(task_id)
        fence = lease.fence if lease is not None else None
        # An attempt's episodes are durable, so failing again would find nothing missing: one failure is final.
        last = 0 if event == "fail" else self._queue.max_attempts
        error = "; ".join(sorted({episode.note for episode in group if episode.note}))[:500] if event == "fail" else ""
        return queue.move(connection, task_id, event, self._now(), last, fence=fence, error=error)

    def _end(self, task_id: str, state: TaskState | None) -> None:
        self._leases.pop(task_id, None)
        if state is not None:
            self._telemetry.count("huilu_sched_tasks_total", state=state.value)
        if state is TaskState.DEAD:
            self._telemetry.event("warning", message=f"task {task_id} is dead: every attempt failed", code="task_dead")
        if state in (TaskState.DEAD, TaskState.FILTERED) and self._slots.lose():
            self._replacements += 1
        self._tell_change()

    async def _try_claim(self, round_: int, max_lag: int) -> Claim | None:
        terms = claims.Terms(
            num_groups=self._plan.batch,
            max_lag=max_lag,
            allow_short=not (self._leases or self._drawing or self._slots.free or self._waiting > 0),
            owner=self._queue.owner,
            lease_s=self._queue.lease_s,
            sample_frac=self._plan.sample_frac,
            seed=self._plan.seed,
        )
        return await self._database.write(lambda connection: claims.claim(connection, round_, terms, self._now()))

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
