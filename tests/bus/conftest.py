"""A bus on a real database, and the records that go over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from huilu.bus import feedback
from huilu.core import ids
from huilu.core.nouns import (
    Episode,
    Feedback,
    FeedbackKind,
    FeedbackSource,
    FeedbackState,
    Message,
    Outcome,
    Task,
    Turn,
)
from huilu.store import sqlite
from huilu.store.migrate import upgrade
from huilu.work import queue

NOW, GROUP = 1000.0, 2

MakeEpisode = Callable[..., Episode]
Say = Callable[..., Feedback]
Complete = Callable[..., None]


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """A connection in a transaction that is never committed."""
    engine = sqlite.writer_engine(tmp_path / "run.db")
    with engine.connect() as opened:
        upgrade(opened)
        yield opened
    engine.dispose()


@pytest.fixture
def drawn(connection: Connection) -> Callable[[int], list[str]]:
    """Enqueue so many tasks; their ids."""

    def enqueue(num: int) -> list[str]:
        tasks = [
            (draw, Task(id=ids.task_id(draw), env="e", prompt=(Message("user", f"{draw}?"),))) for draw in range(num)
        ]
        queue.enqueue(connection, tasks, NOW)
        return [task.id for _, task in tasks]

    return enqueue


@pytest.fixture
def episode() -> MakeEpisode:
    """An episode of a task, by index."""

    def make(task: str, index: int, *, version: int = 0, outcome: Outcome = Outcome.OK) -> Episode:
        judged = outcome is not Outcome.INFRA_FAILED
        sampled = [7, 8] if judged else []
        return Episode(
            id=ids.episode_id(task, index),
            task_id=task,
            round=99,
            index=index,
            env="e",
            version=version if judged else 0,
            token_ids=[5, *sampled],
            logprobs=[0.0, *(-0.5 for _ in sampled)],
            loss_mask=[False, *(True for _ in sampled)],
            turns=(Turn(1, 3),) if judged else (),
            text="8",
            outcome=outcome,
            finish_reason="stop",
            reward=float(index) if judged else None,
            metrics={"passed": float("nan")},
        )

    return make


@pytest.fixture
def say() -> Say:
    """What the verifier says of an episode."""

    def make(about: Episode, state: FeedbackState | None = None) -> Feedback:
        failed = about.outcome is Outcome.INFRA_FAILED
        return Feedback(
            key=ids.feedback_key(about.id, FeedbackSource.VERIFIER),
            episode_id=about.id,
            kind=FeedbackKind.SCORE,
            source=FeedbackSource.VERIFIER,
            state=state or (FeedbackState.INFRA_FAILED if failed else FeedbackState.ACCEPTED),
            value=about.reward,
            note="because",
        )

    return make


@pytest.fixture
def complete(connection: Connection, episode: MakeEpisode, say: Say) -> Complete:
    """Lease a task, append its whole group and finish it."""

    def run(task: str, *, version: int = 0, outcomes: tuple[Outcome, ...] = (Outcome.OK,) * GROUP) -> None:
        queue.claim(connection, "w", 99, 60.0, NOW)
        feedback.issue(connection, [ids.episode_id(task, index) for index in range(len(outcomes))], NOW)
        for index, outcome in enumerate(outcomes):
            ended = episode(task, index, version=version, outcome=outcome)
            feedback.append(connection, ended, say(ended), NOW + 1)
        queue.move(connection, task, "finish", NOW + 2, 3, fence=None)

    return run
