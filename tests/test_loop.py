"""The loop on in-memory fakes: order, staleness, restarts, and errors that end it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from huilu import errors, loop
from huilu.core.nouns import (
    Claim,
    ClaimState,
    Episode,
    Feedback,
    FeedbackKind,
    FeedbackSource,
    Group,
    Outcome,
    PolicyVersion,
    StepReport,
    Task,
    Verdict,
)


class World:
    """Every port of the loop on plain lists; `diary` says what happened in which order."""

    def __init__(self, rounds: int, batch: int = 2, max_lag: int = 0, fail_at: str = "", serving: int = 0) -> None:
        self.rounds, self.batch, self.max_lag, self.fail_at = rounds, batch, max_lag, fail_at
        self.diary: list[str] = []
        self.drawn, self.settled, self.serving = 0, 0, serving
        self.ready: list[Episode] = []
        self.staleness: list[int] = []
        self.changed = asyncio.Event()

    def parts(self) -> loop.Parts:
        return loop.Parts(
            draws=self,
            rollouts=self,
            bus=self,
            learner=self,
            versions=self,
            engine=self,
            gate=GateOf(self),
            releases=self,
            book=self,
        )

    def tell(self, line: str) -> None:
        self.diary.append(line)
        if line == self.fail_at:
            raise errors.ProcessDied("told to")

    async def draw(self) -> Sequence[Task]:
        while self.drawn >= self.batch * min(self.settled + 1 + self.max_lag, self.rounds):
            self.changed.clear()
            await self.changed.wait()
        self.drawn += 1
        return [Task(id=f"t{self.drawn}", env="e", prompt=())]

    def settle(self, claim: Claim) -> None:
        self.settled += 1
        self.changed.set()

    def close(self, claim: Claim, report: StepReport, version: PolicyVersion) -> None:
        assert version.number == self.serving

    async def attempt(self, task: Task) -> AsyncIterator[tuple[Episode, Feedback]]:
        await asyncio.sleep(0)
        self.tell(f"attempt {task.id}")
        episode = Episode(
            id=f"{task.id}.e0",
            task_id=task.id,
            round=0,
            index=0,
            env="e",
            version=self.serving,
            token_ids=[1],
            logprobs=[0.0],
            loss_mask=[True],
            turns=(),
            text="",
            outcome=Outcome.OK,
            finish_reason="stop",
        )
        yield (
            episode,
            Feedback(key=episode.id, episode_id=episode.id, kind=FeedbackKind.SCORE, source=FeedbackSource.VERIFIER),
        )

    async def append(self, episode: Episode, feedback: Feedback) -> None:
        self.tell(f"append {episode.id}")
        self.ready.append(episode)
        self.changed.set()

    async def claim(self, round_: int, max_lag: int) -> Claim:
        while len(self.ready) < self.batch:
            self.changed.clear()
            await self.changed.wait()
        taken, self.ready = self.ready[: self.batch], self.ready[self.batch :]
        self.staleness += [self.serving - episode.version for episode in taken]
        groups = tuple(Group(Task(id=episode.task_id, env="e", prompt=()), (episode,)) for episode in taken)
        return Claim(id=f"c{round_}", round=round_, state=ClaimState.LEASED, groups=groups)

    async def step(self, claim: Claim) -> StepReport:
        self.tell(f"step {claim.round}")
        await asyncio.sleep(0.01)
        return StepReport(applied=True, healthy=True, metrics={})

    async def record(self, claim: Claim, report: StepReport) -> PolicyVersion:
        self.tell(f"record {claim.round}")
        return PolicyVersion(number=claim.round, lineage=0, parent=claim.round - 1, round=claim.round)

    async def sync(self, version: PolicyVersion) -> None:
        self.tell(f"sync {version.number}")
        self.serving = version.number

    async def decide(self, verdict: Verdict) -> None:
        self.tell(f"decide {verdict.version}")


class GateOf:
    def __init__(self, world: World) -> None:
        self.world = world

    def due(self, round_: int) -> bool:
        return round_ == self.world.rounds

    async def judge(self, version: PolicyVersion) -> Verdict:
        self.world.tell(f"judge {version.number}")
        return Verdict(version=version.number, promote=True, reasons=())


def test_a_round_is_drawn_learnt_recorded_and_served_in_that_order() -> None:
    async def scenario() -> list[str]:
        world = World(rounds=1, batch=1)
        await loop.run(world.parts(), range(1, 2), 0)
        return world.diary

    assert asyncio.run(scenario()) == [
        "attempt t1",
        "append t1.e0",
        "step 1",
        "record 1",
        "sync 1",
        "judge 1",
        "decide 1",
    ]


def test_with_lag_0_both_sides_take_turns_and_no_sample_is_stale() -> None:
    async def scenario() -> World:
        world = World(rounds=4)
        await loop.run(world.parts(), range(1, 5), 0)
        return world

    world = asyncio.run(scenario())
    assert world.staleness == [0] * 8
    assert world.diary.index("sync 1") < world.diary.index("attempt t3")


def test_with_lag_1_rollouts_overlap_the_step_and_staleness_stays_bounded() -> None:
    async def scenario() -> World:
        world = World(rounds=5, max_lag=1)
        await loop.run(world.parts(), range(1, 6), 1)
        return world

    world = asyncio.run(scenario())
    assert max(world.staleness) == 1
    assert world.diary.index("attempt t4") < world.diary.index("sync 1")


def test_a_restart_continues_from_the_round_after_the_last() -> None:
    async def scenario() -> list[str]:
        world = World(rounds=4, serving=2)
        world.settled, world.drawn = 2, 4
        await loop.run(world.parts(), range(3, 5), 0)
        return [line for line in world.diary if line.startswith("record")]

    assert asyncio.run(scenario()) == ["record 3", "record 4"]


@pytest.mark.parametrize("where", ["attempt t2", "append t1.e0", "step 1", "record 1", "sync 1", "judge 2", "decide 2"])
def test_an_error_on_either_side_ends_both_and_is_raised_as_it_is(where: str) -> None:
    async def scenario() -> None:
        await loop.run(World(rounds=2, fail_at=where).parts(), range(1, 3), 0)

    with pytest.raises(errors.ProcessDied, match="told to"):
        asyncio.run(scenario())
