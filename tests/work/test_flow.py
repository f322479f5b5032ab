"""The flow under the real loop and the real chain of versions, with a model that is a hash: any mix of outcomes makes
progress, and a process that dies between any two writes leaves nothing lost and nothing learnt twice."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, select

from huilu import loop
from huilu.bus import claims, feedback
from huilu.bus.integrity import check_integrity
from huilu.core import ids
from huilu.core.nouns import Accounting, Claim, Episode, Feedback, Outcome, PolicyVersion, StepReport, Task, Turn
from huilu.release.chain import Chain, Pace
from huilu.store import rows, schema
from huilu.store.database import Database
from huilu.store.files import Files
from huilu.store.folder import RunFolder
from huilu.telemetry import Telemetry
from huilu.work.flow import Flow, Plan
from huilu.work.queue import Queue
from huilu.work.rollouts import feedback_of

T = TypeVar("T")
BASE = "0" * 64


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `zeros` and `failures` are percentages of episodes."""

    rounds: int = 3
    batch: int = 2
    group: int = 2
    max_lag: int = 0
    max_extra: int = 0
    drop_equal: bool = False
    zeros: int = 50
    failures: int = 0
    save_every: int = 2
    seed: int = 0

    @property
    def plan(self) -> Plan:
        return Plan(
            batch=self.batch,
            rounds=self.rounds,
            max_lag=self.max_lag,
            max_extra=self.max_extra,
            episodes_per_task=self.group,
            drop_equal=self.drop_equal,
            sample_frac=1.0,
            seed=self.seed,
        )

    def lot(self, *parts: object) -> int:
        """A number from 0 to 99 that depends on what it is for alone."""
        return ids.seed_for(self.seed, *parts) % 100


class Died(Exception):
    """The process is gone."""


class Mortal:
    """The database of a process that dies right before, or right after, its write number `last`."""

    def __init__(self, path: Path, last: int | None, *, after: bool) -> None:
        self.inner, self._last, self._after = Database(path), last, after
        self.num_writes = 0

    async def write(self, fn: Callable[[Connection], T]) -> T:
        self.num_writes += 1
        number = self.num_writes
        if self._last is not None and (number > self._last or (number == self._last and not self._after)):
            raise Died
        found = await self.inner.write(fn)
        if number == self._last:
            raise Died
        return found

    async def read(self, fn: Callable[[Connection], T]) -> T:
        return await self.inner.read(fn)


class HashModel:
    """Weights that are a hash of all that they were taught."""

    def __init__(self) -> None:
        self.weights = BASE
        self.serving = 0

    async def digest(self) -> str:
        return self.weights

    async def save(self, weights: Path, state: Path | None = None) -> int:
        for path in (weights, state):
            if path is not None:
                path.write_text(self.weights)
        return len(self.weights)

    async def load(self, weights: Path, state: Path | None = None) -> str:
        self.weights = weights.read_text()
        return self.weights

    async def step(self, claim: Claim) -> StepReport:
        await asyncio.sleep(0)
        lesson = "".join(f"{episode.id}={episode.reward}" for episode in claim.episodes)
        if lesson:
            self.weights = hashlib.sha256(f"{self.weights}{lesson}".encode()).hexdigest()
        return StepReport(applied=bool(lesson), healthy=True, metrics={})

    async def sync(self, version: PolicyVersion) -> None:
        self.serving = version.number


class Attempts:
    """Rollouts whose outcomes come by lot. None may repeat an episode whose append was acknowledged."""

    def __init__(self, setting: Setting, flow: Flow, model: HashModel, durable: set[str]) -> None:
        self._setting, self._flow, self._model, self._durable = setting, flow, model, durable

    async def attempt(self, task: Task) -> AsyncIterator[tuple[Episode, Feedback]]:
        missing = self._flow.missing(task)
        version = self._model.serving
        for index in sorted(missing, key=lambda index: self._setting.lot("order", task.id, index)):
            for _ in range(self._setting.lot("turns", task.id, index) % 4):
                await asyncio.sleep(0)
            ended = self._episode(task, index, version)
            assert ended.id not in self._durable
            yield ended, feedback_of(ended)

    def _episode(self, task: Task, index: int, version: int) -> Episode:
        failed = self._setting.lot("fails", task.id, index) < self._setting.failures
        return Episode(
            id=ids.episode_id(task.id, index),
            task_id=task.id,
            round=self._flow.round_of(task),
            index=index,
            env=task.env,
            version=0 if failed else version,
            token_ids=[1] if failed else [1, 2],
            logprobs=[0.0] if failed else [0.0, -1.0],
            loss_mask=[False] if failed else [False, True],
            turns=() if failed else (Turn(1, 2),),
            text="",
            outcome=Outcome.INFRA_FAILED if failed else Outcome.OK,
            finish_reason="stop",
            reward=None if failed else float(self._setting.lot("reward", task.id, index) >= self._setting.zeros),
            note="no luck" if failed else "",
        )


class Bus:
    """The flow, remembering which appends it acknowledged."""

    def __init__(self, flow: Flow, durable: set[str]) -> None:
        self._flow, self._durable = flow, durable

    async def append(self, episode: Episode, word: Feedback) -> None:
        await self._flow.append(episode, word)
        self._durable.add(episode.id)

    async def claim(self, round_: int, max_lag: int) -> Claim:
        return await self._flow.claim(round_, max_lag)


class Quiet:
    """A gate that is never due, releases that never move, a book that is not read."""

    def due(self, round_: int) -> bool:
        return False

    async def judge(self, version: PolicyVersion) -> Any:
        raise AssertionError

    async def decide(self, verdict: object) -> None:
        raise AssertionError

    def close(self, claim: Claim, report: StepReport, version: PolicyVersion) -> None:
        assert claim.round == version.round


class Outcomes(msgspec.Struct, frozen=True):
    """What is left of a run when it has ended."""

    accounting: Accounting
    lessons: dict[int, list[str]]
    """The ids of the episodes of each round's claim, in order."""
    rewards: dict[str, float | None]
    versions: list[tuple[int, int, str]]
    num_writes: int


class World:
    """A run's folder, over the lives of several processes."""

    def __init__(self, setting: Setting, path: Path) -> None:
        self.setting, self.folder = setting, RunFolder(path)
        self.folder.create()
        self.base = path / "base"
        self.base.write_text(BASE)
        self.durable: set[str] = set()
        self.clock = itertools.count(1.0)

    def live(self, last: int | None = None, *, after: bool = True) -> Outcomes | None:
        """One process, from the saved state to the end, or to its death (None) at write number `last`."""
        return asyncio.run(self._live(last, after=after))

    async def _live(self, last: int | None, *, after: bool) -> Outcomes | None:
        database: Any = Mortal(self.folder.database, last, after=after)
        try:
            await asyncio.wait_for(self._run(database), 60)
            group = self.setting.group
            found: Outcomes = await database.inner.read(lambda c: outcomes(c, group, database.num_writes))
            return found
        except Died:
            return None
        finally:
            database.inner.close()

    async def _run(self, database: Any) -> None:
        setting, telemetry, model = self.setting, Telemetry(), HashModel()
        files = Files(self.folder, self.base, database, 1, telemetry)
        pace = Pace(rounds=setting.rounds, every=setting.save_every, state_bytes=1)
        chain = Chain(database, model, files, pace, telemetry, now=self._now)
        version = await chain.restore(PolicyVersion(number=0, lineage=0, parent=None, round=0, digest=BASE))
        await model.sync(version)
        tasks = Queue(database, ids.owner_id(), now=self._now)
        flow = Flow(database, tasks, a_task, setting.plan, telemetry, now=self._now)
        await flow.recover(settled=version.round)
        quiet = Quiet()
        parts = loop.Parts(
            draws=flow,
            rollouts=Attempts(setting, flow, model, self.durable),
            bus=Bus(flow, self.durable),
            learner=model,
            versions=chain,
            engine=model,
            gate=quiet,
            releases=quiet,
            book=quiet,
        )
        await loop.run(parts, range(version.round + 1, setting.rounds + 1), setting.max_lag)
        await chain.seal()
        await flow.abandon()

    def _now(self) -> float:
        return next(self.clock)


def a_task(draw: int) -> Task:
    return Task(id=ids.task_id(draw), env="e", prompt=())


def outcomes(connection: Connection, group: int, num_writes: int) -> Outcomes:
    assert check_integrity(connection, group) == []
    found = {
        row.round: claims.load(connection, row.id)
        for row in connection.execute(select(schema.claims).order_by(schema.claims.c.round))
    }
    return Outcomes(
        accounting=feedback.accounting(connection),
        lessons={round_: [episode.id for episode in claim.episodes] for round_, claim in found.items()},
        rewards={row.id: row.reward for row in connection.execute(select(schema.episodes))},
        versions=[(version.number, version.lineage, version.digest) for version in rows.chain(connection)],
        num_writes=num_writes,
    )


def ended(setting: Setting, deaths: list[tuple[int, bool]] | None = None) -> Outcomes:
    """How a run ended that died so often."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(setting, Path(folder))
        for last, after in deaths or []:
            finished = world.live(last, after=after)
            if finished is not None:
                return finished
        finished = world.live()
        assert finished is not None
        assert world.durable <= set(finished.rewards)
        return finished


def check(setting: Setting, found: Outcomes) -> None:
    """What holds of every run that ended."""
    assert list(found.lessons) == list(range(1, setting.rounds + 1))
    learnt = [episode for lesson in found.lessons.values() for episode in lesson]
    assert len(learnt) == len(set(learnt))
    assert set(learnt) <= set(found.rewards)
    assert [number for number, _, _ in found.versions] == list(range(setting.rounds + 1))
    assert all(digest for _, _, digest in found.versions)
    accounting = found.accounting
    assert (accounting.unaccounted, accounting.in_flight) == (0, 0)
    assert accounting.accepted + accounting.infra_failed == len(found.rewards)
    assert accounting.issued == accounting.accepted + accounting.infra_failed + accounting.expired


SETTINGS = st.builds(
    Setting,
    rounds=st.integers(1, 4),
    batch=st.integers(1, 3),
    group=st.integers(1, 3),
    max_lag=st.integers(0, 2),
    max_extra=st.integers(0, 2),
    drop_equal=st.booleans(),
    zeros=st.sampled_from([0, 30, 60, 100]),
    failures=st.sampled_from([0, 20, 100]),
    save_every=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
DEATHS = st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=5)


@given(SETTINGS)
@settings(max_examples=10, deadline=None)
def test_any_mix_of_outcomes_makes_progress(setting: Setting) -> None:
    check(setting, ended(setting))


@given(SETTINGS, DEATHS)
@settings(max_examples=10, deadline=None)
def test_whatever_the_moments_of_death_nothing_is_lost_and_nothing_learnt_twice(
    setting: Setting, deaths: list[tuple[int, bool]]
) -> None:
    check(setting, ended(setting, deaths))


@given(SETTINGS.map(lambda setting: msgspec.structs.replace(setting, max_lag=0)), DEATHS)
@settings(max_examples=10, deadline=None)
def test_on_policy_a_run_that_died_ends_as_one_that_did_not(setting: Setting, deaths: list[tuple[int, bool]]) -> None:
    died, whole = ended(setting, deaths), ended(setting)
    assert died.lessons == whole.lessons
    assert died.rewards == whole.rewards
    assert died.versions == whole.versions
    assert died.accounting == whole.accounting


def test_a_run_may_die_anywhere_along_its_way() -> None:
    setting = Setting(rounds=2, batch=1, group=2, failures=20, drop_equal=True, max_extra=1, seed=7)
    whole = ended(setting)
    for last in range(1, whole.num_writes + 1, 2):
        died = ended(setting, [(last, True)])
        assert (died.lessons, died.versions, died.accounting) == (whole.lessons, whole.versions, whole.accounting), last


def test_a_run_that_dies_again_and_again_in_the_same_place_loses_no_task() -> None:
    setting = Setting(rounds=1, batch=1, group=3)
    assert ended(setting, [(4, True)] * 6).accounting == ended(setting).accounting


def test_a_batch_without_one_judged_episode_is_a_counted_round() -> None:
    found = ended(Setting(rounds=2, batch=2, failures=100))
    assert found.lessons == {1: [], 2: []}
    assert found.accounting == Accounting(issued=8, infra_failed=8)
    assert [digest for _, _, digest in found.versions] == [BASE] * 3


def test_lost_groups_are_replaced_as_often_as_the_job_allows() -> None:
    always_equal = Setting(rounds=2, batch=2, zeros=100, drop_equal=True, max_extra=3)
    assert len(ended(always_equal).rewards) == 2 * (2 + 3) * 2
    assert len(ended(msgspec.structs.replace(always_equal, max_extra=0)).rewards) == 2 * 2 * 2
