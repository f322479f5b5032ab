"""Random work, duplicates, crashes, takeovers, replays and forks on a real database, against plain records: nothing is
lost, nothing is learnt twice, and the accounting is exact."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import Connection

from huilu.bus import claims, feedback
from huilu.bus.claims import Terms
from huilu.bus.integrity import check_integrity
from huilu.core import ids
from huilu.core.nouns import (
    Claim,
    ClaimState,
    Episode,
    Feedback,
    FeedbackKind,
    FeedbackSource,
    FeedbackState,
    Outcome,
    PolicyVersion,
    Task,
    TaskState,
)
from huilu.core.tasks import Event
from huilu.store import rows, sqlite
from huilu.store.migrate import upgrade
from huilu.work import queue

T = TypeVar("T")
GROUP, NOW, LEASE_S, FOREVER = 2, 1000.0, 60.0, 10**6
ENDS = [FeedbackState.ACCEPTED, FeedbackState.REJECTED, FeedbackState.INFRA_FAILED, FeedbackState.EXPIRED]


class Learnt(msgspec.Struct):
    """What the oracle knows of a round."""

    task_ids: list[str]
    state: ClaimState = ClaimState.LEASED
    version: tuple[int, int] | None = None


class Crash(Exception):
    """The process died before its transaction was committed."""


class BusMachine(RuleBasedStateMachine):
    """The bus against an oracle."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.engine = sqlite.writer_engine(Path(self.folder.name) / "run.db")
        raw = self.engine.raw_connection()
        raw.cursor().execute("PRAGMA synchronous = OFF")  # nobody pulls the plug here
        raw.close()
        self.owner, self.lineage, self.clock = "life 0", 0, NOW
        self.run(upgrade)
        self.tasks: dict[str, TaskState] = {}
        self.rewards: dict[str, float] = {}
        self.words: dict[str, FeedbackState] = {}
        self.rounds: dict[int, Learnt] = {}

    def teardown(self) -> None:
        self.engine.dispose()
        self.folder.cleanup()

    def run(self, fn: Callable[[Connection], T], *, crash: bool = False) -> T | None:
        """One transaction; None, and no change, when the process dies in it."""
        self.clock += 1.0
        try:
            with self.engine.begin() as connection:
                found = fn(connection)
                if crash:
                    raise Crash
                return found
        except Crash:
            return None

    def in_state(self, state: TaskState) -> list[str]:
        return [task for task, found in self.tasks.items() if found is state]

    @rule(num=st.integers(1, 4), crash=st.booleans())
    def draw(self, num: int, crash: bool) -> None:
        first = len(self.tasks)
        drawn = [(draw, Task(id=ids.task_id(draw), env="e", prompt=())) for draw in range(first, first + num)]
        self.run(lambda connection: queue.enqueue(connection, drawn, self.clock), crash=crash)
        if not crash:
            self.tasks |= {task.id: TaskState.QUEUED for _, task in drawn}

    @rule(num=st.integers(1, 4), crash=st.booleans())
    def start(self, num: int, crash: bool) -> None:
        """Lease tasks and issue their feedback."""
        started = self.in_state(TaskState.QUEUED)[:num]

        def work(connection: Connection) -> list[str]:
            leases = queue.claim(connection, self.owner, num, LEASE_S, self.clock)
            for lease in leases:
                feedback.issue(connection, episodes_of(lease.task.id), self.clock)
            return [lease.task.id for lease in leases]

        if self.run(work, crash=crash) is not None:
            for task in started:
                self.tasks[task] = TaskState.RUNNING
                for episode in episodes_of(task):
                    self.words.setdefault(key_of(episode), FeedbackState.IN_FLIGHT)

    @precondition(lambda self: self.in_state(TaskState.RUNNING))
    @rule(data=st.data(), state=st.sampled_from(ENDS), drop=st.booleans(), crash=st.booleans())
    def append(self, data: st.DataObject, state: FeedbackState, drop: bool, crash: bool) -> None:
        """An episode of a running task ends; the last of its group ends the task."""
        task = data.draw(st.sampled_from(self.in_state(TaskState.RUNNING)))
        self._append(task, data.draw(st.integers(0, GROUP - 1)), state, drop=drop, crash=crash)

    def _append(self, task: str, index: int, state: FeedbackState, *, drop: bool, crash: bool) -> None:
        episode, reward = ids.episode_id(task, index), float(len(self.rewards))
        event: Event = "filter" if drop else "finish"

        def work(connection: Connection) -> bool:
            is_new = feedback.append(connection, an_episode(task, index, reward), a_word(episode, state), self.clock)
            if not feedback.missing(connection, task, GROUP):
                assert queue.move(connection, task, event, self.clock, 3, fence=None) is not None
            return is_new

        is_new = self.run(work, crash=crash)
        if is_new is None:
            return
        assert is_new == (episode not in self.rewards)
        if is_new:
            self.rewards[episode], self.words[key_of(episode)] = reward, state
        if all(each in self.rewards for each in episodes_of(task)):
            self.tasks[task] = TaskState.FILTERED if drop else TaskState.DONE

    @rule(num=st.integers(1, 3))
    def work_off(self, num: int) -> None:
        """So many new tasks are drawn, and every running one is done."""
        self.draw(num, crash=False)
        self.start(len(self.tasks), crash=False)
        for task in self.in_state(TaskState.RUNNING):
            for index in range(GROUP):
                if ids.episode_id(task, index) not in self.rewards:
                    self._append(task, index, FeedbackState.ACCEPTED, drop=False, crash=False)

    @precondition(lambda self: self.rewards)
    @rule(data=st.data(), state=st.sampled_from(ENDS))
    def append_again(self, data: st.DataObject, state: FeedbackState) -> None:
        """What was appended comes once more, with another content."""
        episode = data.draw(st.sampled_from(sorted(self.rewards)))
        task, _, index = episode.rpartition(".e")
        again = an_episode(task, int(index), -1.0)
        assert not self.run(lambda connection: feedback.append(connection, again, a_word(episode, state), self.clock))

    @rule(number=st.integers(0, 5), state=st.sampled_from(ENDS), crash=st.booleans())
    def arrive(self, number: int, state: FeedbackState, crash: bool) -> None:
        """A user says something, maybe twice."""
        word = msgspec.structs.replace(a_word("t000000.e0", state), key=f"user {number}", source=FeedbackSource.USER)
        found = self.run(lambda connection: feedback.arrive(connection, word, self.clock), crash=crash)
        if found is not None:
            assert found == (word.key not in self.words)
            self.words.setdefault(word.key, state)

    @precondition(lambda self: self.in_state(TaskState.RUNNING))
    @rule(data=st.data(), crash=st.booleans())
    def give_up(self, data: st.DataObject, crash: bool) -> None:
        """A task is cancelled: what it still owes expires."""
        task = data.draw(st.sampled_from(self.in_state(TaskState.RUNNING)))

        def work(connection: Connection) -> bool:
            queue.move(connection, task, "cancel", self.clock, 3, fence=None)
            feedback.expire(connection, [task], self.clock)
            return True

        if self.run(work, crash=crash):
            self.tasks[task] = TaskState.CANCELLED
            for key in map(key_of, episodes_of(task)):
                if self.words[key] is FeedbackState.IN_FLIGHT:
                    self.words[key] = FeedbackState.EXPIRED

    @rule(crash=st.booleans())
    def take_over(self, crash: bool) -> None:
        """A new process runs: what its predecessor had under way returns to the queue."""
        owner = f"life {int(self.owner.split()[1]) + 1}"
        found = self.run(lambda connection: queue.reap(connection, self.clock, 3, not_owner=owner), crash=crash)
        if found is not None:
            assert found == self.in_state(TaskState.RUNNING)
            self.owner = owner
            for task in found:
                self.tasks[task] = TaskState.QUEUED

    @rule(num=st.integers(1, 3), short=st.booleans(), crash=st.booleans())
    def claim(self, num: int, short: bool, crash: bool) -> None:
        """The next round's claim."""
        taken = {task for learnt in self.rounds.values() for task in learnt.task_ids}
        ready = [task for task in self.in_state(TaskState.DONE) if task not in taken][:num]
        round_ = len(self.rounds) + 1
        found = self.run(lambda connection: self._claimed(connection, round_, num, short=short), crash=crash)
        if not crash:
            assert (found is None) == (len(ready) < num and not short)
        if found is not None:
            assert [group.task.id for group in found.groups] == ready
            self.rounds[round_] = Learnt(task_ids=ready)

    @precondition(lambda self: self.rounds)
    @rule(data=st.data())
    def claim_again(self, data: st.DataObject) -> None:
        """A replay asks for an old round: the same groups and rewards, in the same order."""
        round_ = data.draw(st.sampled_from(sorted(self.rounds)))
        learnt = self.rounds[round_]
        found = self.run(lambda connection: self._claimed(connection, round_, 1, short=False))
        assert found is not None
        assert [group.task.id for group in found.groups] == learnt.task_ids
        assert {episode.id: episode.reward for episode in found.episodes} == {
            episode: self.rewards[episode] for task in learnt.task_ids for episode in episodes_of(task)
        }
        assert (found.state, found.version) == (learnt.state, learnt.version[0] if learnt.version else None)

    def _claimed(self, connection: Connection, round_: int, num: int, *, short: bool) -> Claim | None:
        terms = Terms(num_groups=num, max_lag=FOREVER, allow_short=short, owner=self.owner, lease_s=LEASE_S)
        return claims.claim(connection, round_, terms, self.clock)

    @precondition(lambda self: any(learnt.version is None for learnt in self.rounds.values()))
    @rule(crash=st.booleans())
    def learn(self, crash: bool) -> None:
        """The oldest claim that no version contains makes one."""
        round_ = min(number for number, learnt in self.rounds.items() if learnt.version is None)
        self._record(round_, crash=crash)

    def _record(self, round_: int, *, crash: bool) -> None:
        claim_id = ids.claim_id(round_)
        version = PolicyVersion(
            number=round_, lineage=self.lineage, parent=round_ - 1, round=round_, digest=f"{round_}", claim_id=claim_id
        )

        def work(connection: Connection) -> bool:
            rows.supersede(connection, round_ - 1)
            rows.insert_version(connection, version, self.clock)
            claims.apply(connection, claim_id, round_, self.lineage)
            return True

        if self.run(work, crash=crash):
            self.rounds[round_].state = ClaimState.APPLIED
            self.rounds[round_].version = (round_, self.lineage)

    @precondition(lambda self: self.rounds)
    @rule(data=st.data(), crash=st.booleans())
    def save(self, data: st.DataObject, crash: bool) -> None:
        """A state is saved: what it contains is acknowledged."""
        number = data.draw(st.sampled_from(sorted(self.rounds)))
        contained = [
            learnt
            for learnt in self.rounds.values()
            if learnt.state is ClaimState.APPLIED and learnt.version is not None and learnt.version[0] <= number
        ]
        if self.run(lambda connection: claims.ack(connection, number), crash=crash) is not None:
            for learnt in contained:
                learnt.state = ClaimState.ACKED

    @precondition(lambda self: any(learnt.state is ClaimState.APPLIED for learnt in self.rounds.values()))
    @rule()
    def fork(self) -> None:
        """A replay came out differently: every round after the saved state is made again, in a new lineage."""
        self.lineage += 1
        again = [number for number, learnt in self.rounds.items() if learnt.state is ClaimState.APPLIED]
        for round_ in again:
            self._record(round_, crash=False)

    @invariant()
    def the_accounting_is_exact(self) -> None:
        found = self.run(feedback.accounting)
        assert found is not None
        assert found.issued == len(self.words)
        assert found.unaccounted == 0
        for state in FeedbackState:
            assert getattr(found, state.value) == sum(word is state for word in self.words.values())

    @invariant()
    def tasks_are_where_the_oracle_says(self) -> None:
        found = self.run(queue.counts)
        assert found == {state: len(self.in_state(state)) for state in TaskState}

    @invariant()
    def nothing_contradicts_itself(self) -> None:
        assert self.run(lambda connection: check_integrity(connection, GROUP)) == []


def episodes_of(task: str) -> list[str]:
    return [ids.episode_id(task, index) for index in range(GROUP)]


def key_of(episode: str) -> str:
    return ids.feedback_key(episode, FeedbackSource.VERIFIER)


def an_episode(task: str, index: int, reward: float) -> Episode:
    return Episode(
        id=ids.episode_id(task, index),
        task_id=task,
        round=0,
        index=index,
        env="e",
        version=0,
        token_ids=[1, 2],
        logprobs=[0.0, -1.0],
        loss_mask=[False, True],
        turns=(),
        text="",
        outcome=Outcome.OK,
        finish_reason="stop",
        reward=reward,
    )


def a_word(episode: str, state: FeedbackState) -> Feedback:
    return Feedback(
        key=key_of(episode),
        episode_id=episode,
        kind=FeedbackKind.SCORE,
        source=FeedbackSource.VERIFIER,
        state=state,
    )


TestBus = BusMachine.TestCase
TestBus.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)
