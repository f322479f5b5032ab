"""A report made from a run's folder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, insert

from huilu.bus import feedback
from huilu.core.ids import episode_id, feedback_key, task_id
from huilu.core.nouns import (
    Episode,
    Feedback,
    FeedbackKind,
    FeedbackSource,
    FeedbackState,
    Message,
    Outcome,
    PolicyVersion,
    ReleaseName,
    Task,
    Turn,
)
from huilu.errors import BadDatabase, DiskFull, NotFound
from huilu.observe.report import collect
from huilu.observe.report.collect import write_report
from huilu.observe.runlog import JsonLines
from huilu.store import rows, schema
from huilu.store.database import Database
from huilu.store.folder import RunFolder

NOW = 1_753_000_900.0
ANSWER = "</script>十五\x00"


@pytest.fixture
def folder(tmp_path: Path, events: list[dict[str, Any]]) -> RunFolder:
    """A run's folder with its job and events, and no database yet."""
    folder = RunFolder(tmp_path / "quickstart-1")
    folder.create()
    folder.job.write_bytes(msgspec.json.encode({"name": "quickstart", "model": {"path": "m"}}))
    with JsonLines(folder.events) as lines:
        for told in events:
            lines.append(told)
    return folder


@pytest.fixture
def database(folder: RunFolder) -> Iterator[Database]:
    """The folder's database, open for writing, with one task of two episodes, two versions and a release."""
    database = Database(folder.database)
    asyncio.run(database.write(_fill))
    yield database
    database.close()


def _fill(connection: Connection) -> None:
    task = Task(id=task_id(0), env="arithmetic", prompt=(Message("user", "7 + 8?"),), answer=15)
    columns = {"draw": 0, "extra": False, "attempts": 1, "fence": 1, "errors": "[]", "enqueued_at": 1.0}
    record = msgspec.msgpack.encode(task)
    connection.execute(insert(schema.tasks).values(id=task.id, env=task.env, state="done", record=record, **columns))
    episodes = [_episode(task, 0, ANSWER, 1.0), _episode(task, 1, "14", None)]
    feedback.issue(connection, [episode.id for episode in episodes] + ["t000001.e0"], 1.0)
    for episode in episodes:
        state = FeedbackState.INFRA_FAILED if episode.reward is None else FeedbackState.ACCEPTED
        word = Feedback(
            key=feedback_key(episode.id, FeedbackSource.VERIFIER),
            episode_id=episode.id,
            kind=FeedbackKind.SCORE,
            source=FeedbackSource.VERIFIER,
            state=state,
        )
        feedback.append(connection, episode, word, 2.0)
    base = PolicyVersion(number=0, lineage=0, parent=None, round=0, digest="a" * 64)
    lost = PolicyVersion(number=1, lineage=0, parent=0, round=1, digest="b" * 64)
    first = PolicyVersion(number=1, lineage=1, parent=0, round=1, digest="c" * 64)
    for version in (base, lost):
        rows.insert_version(connection, version, 3.0)
    rows.supersede(connection, 0)
    rows.insert_version(connection, first, 4.0)
    rows.insert_saved(connection, first, 9, 4.0, has_state=True)
    rows.move_release(connection, ReleaseName.PRODUCTION, first, "better", 5.0)


def _episode(task: Task, index: int, text: str, reward: float | None) -> Episode:
    return Episode(
        id=episode_id(task.id, index),
        task_id=task.id,
        round=1,
        index=index,
        env=task.env,
        version=0,
        token_ids=[5, 6, 7],
        logprobs=[0.0, -0.1, -0.2],
        loss_mask=[False, True, True],
        turns=(Turn(1, 3),),
        text=text,
        outcome=Outcome.OK if reward is not None else Outcome.INFRA_FAILED,
        finish_reason="stop",
        reward=reward,
    )


def test_the_report_shows_what_the_run_recorded(folder: RunFolder, database: Database) -> None:
    facts = collect.collect(folder, NOW)
    assert [(e.answer, e.reward, e.num_tokens, e.round) for e in facts.episodes] == [
        (ANSWER, 1.0, 2, 1),
        ("14", None, 2, 1),
    ]
    assert facts.tasks["t000000"].expected == "15"
    assert facts.num_episodes == 2
    assert (facts.accounting.issued, facts.accounting.accepted, facts.accounting.infra_failed) == (3, 1, 1)
    assert (facts.accounting.in_flight, facts.accounting.unaccounted) == (1, 0)
    assert [(v.version.id, v.version.parent, v.superseded, v.is_kept) for v in facts.versions] == [
        ("v0", None, False, False),
        ("v1", 0, True, False),
        ("v1.1", 0, False, True),
    ]
    assert [(moved.name, moved.version.id) for moved in facts.releases] == [("production", "v1.1")]
    assert len(facts.journal.rounds) == 6


def test_a_report_is_made_while_the_run_writes(folder: RunFolder, database: Database) -> None:
    assert write_report(folder, NOW) == folder.report
    html = folder.report.read_text(encoding="utf-8")
    assert "\\u003c/script\\u003e\\u5341\\u4e94\\u0000" in html
    assert sorted(path.name for path in folder.path.glob("report*")) == ["report.html"]


def test_collecting_changes_nothing_that_the_run_recorded(folder: RunFolder, database: Database) -> None:
    database.close()
    recorded = (folder.job, folder.events, folder.database)
    before = [path.read_bytes() for path in recorded]
    collect.collect(folder, NOW)
    assert [path.read_bytes() for path in recorded] == before


def test_a_run_that_ended_before_its_database_has_a_report(folder: RunFolder) -> None:
    assert "All 0 episodes" in write_report(folder, NOW).read_text(encoding="utf-8")


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no run folder"):
        write_report(RunFolder(tmp_path), NOW)


def test_a_damaged_database_is_a_named_error(folder: RunFolder) -> None:
    folder.database.write_bytes(b"this is no database" * 100)
    with pytest.raises(BadDatabase, match=r"run\.db"):
        collect.collect(folder, NOW)


def test_a_report_that_does_not_fit_leaves_the_old_one(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.report.write_text("the old one", encoding="utf-8")

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DiskFull):
        write_report(folder, NOW)
    assert folder.report.read_text(encoding="utf-8") == "the old one"
