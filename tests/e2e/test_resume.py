"""kill -9 at each named point of a run, then `--resume`: the run finishes, and its books are an unbroken run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, select

from huilu.bus import claims as claims_of
from huilu.bus import feedback as feedback_of
from huilu.core.nouns import TaskState
from huilu.store import rows
from huilu.store.database import read_now
from huilu.store.schema import claimed, claims, episodes, feedback, tasks, versions
from tests.e2e.conftest import ROUNDS, huilu, killed

POINTS = (
    "mid-prefill:3",
    "mid-decode:9",
    "after-append:11",
    "mid-step:3",
    "mid-save:1",
    "between-object-and-row:1",
    "between-row-and-sync:3",
    "mid-gate:1",
    "mid-release:1",
    "mid-gc:2",
)
WHOLE_CHAIN = {
    "mid-step",
    "mid-save",
    "between-object-and-row",
    "between-row-and-sync",
    "mid-gate",
    "mid-release",
    "mid-gc",
}
"""Points where no episode is in flight: all digests must equal the unbroken run's."""


class Books(msgspec.Struct, frozen=True):
    """What a finished run wrote down."""

    tasks: list[tuple[str, str]]
    feedback: list[tuple[str, str]]
    ledger: dict[str, int]
    claims: list[tuple[int, str, list[str]]]
    digests: list[str]
    rewards: list[tuple[str, float | None]]
    problems: list[str]


def books(run: Path) -> Books:
    return read_now(run / "run.db", _books)


def _books(connection: Connection) -> Books:
    held: dict[str, list[str]] = {}
    for claim_id, task_id in connection.execute(
        select(claimed.c.claim_id, claimed.c.task_id).order_by(claimed.c.claim_id, claimed.c.place)
    ):
        held.setdefault(claim_id, []).append(task_id)
    accounting = feedback_of.accounting(connection)
    return Books(
        tasks=[tuple(row) for row in connection.execute(select(tasks.c.id, tasks.c.state).order_by(tasks.c.draw))],
        feedback=[
            tuple(row) for row in connection.execute(select(feedback.c.key, feedback.c.state).order_by(feedback.c.key))
        ],
        ledger=msgspec.structs.asdict(accounting) | {"unaccounted": accounting.unaccounted},
        claims=[
            (row.round, row.state, held.get(row.id, []))
            for row in connection.execute(select(claims).order_by(claims.c.round))
        ],
        digests=[version.digest for version in rows.chain(connection)],
        rewards=[
            tuple(row) for row in connection.execute(select(episodes.c.id, episodes.c.reward).order_by(episodes.c.id))
        ],
        problems=claims_of.check_integrity(connection),
    )


def run_to_end(job: Path, run: Path, *more: str, kill_at: str = "") -> Any:
    environment = {"HUILU_KILL_AT": kill_at} if kill_at else {}
    return huilu("run", str(job), "--run-dir", str(run), "--json", "--quiet", *more, environment=environment)


def check_against(found: Books, unbroken: Books, *, whole_chain: bool) -> None:
    """Every task and piece of feedback counted once, the same tasks claimed by the same rounds, nothing left over."""
    assert found.problems == []
    assert found.tasks == unbroken.tasks
    assert {state for _, state in found.tasks} == {TaskState.DONE.value}
    assert found.feedback == unbroken.feedback
    assert found.ledger == unbroken.ledger
    assert found.claims == unbroken.claims
    assert len(found.digests) == ROUNDS + 1
    assert all(found.digests)
    if whole_chain:
        assert found.rewards == unbroken.rewards
        assert found.digests == unbroken.digests


def resume_at(point: str, job: Path, tmp_path: Path) -> None:
    finished = run_to_end(job, tmp_path / "unbroken")
    assert finished.returncode == 0, finished.stderr
    broken = tmp_path / "broken"
    died = run_to_end(job, broken, kill_at=point)
    assert killed(died), f"{point} was never reached: {died.stderr}"
    durable = read_now(
        broken / "run.db", lambda connection: dict(connection.execute(select(episodes.c.id, episodes.c.record)).all())
    )
    recorded = read_now(
        broken / "run.db",
        lambda connection: {
            row.number: row.digest for row in connection.execute(select(versions).where(versions.c.digest != ""))
        },
    )
    resumed = run_to_end(job, broken, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    summary = json.loads(resumed.stdout)
    assert summary["feedback"]["unaccounted"] == 0
    found = books(broken)
    check_against(found, books(tmp_path / "unbroken"), whole_chain=point.split(":", maxsplit=1)[0] in WHOLE_CHAIN)
    after = read_now(
        broken / "run.db", lambda connection: dict(connection.execute(select(episodes.c.id, episodes.c.record)).all())
    )
    assert {key: after[key] for key in durable} == durable, "a durable episode was generated again"
    assert {number: found.digests[number] for number in recorded} == recorded, "a replay gave other weights"


@pytest.mark.parametrize("point", ["after-append:11", "mid-step:3"])
def test_a_killed_run_resumes_to_the_books_of_an_unbroken_one(point: str, job: Path, tmp_path: Path) -> None:
    resume_at(point, job, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("point", [point for point in POINTS if point not in ("after-append:11", "mid-step:3")])
def test_a_run_killed_at_every_other_point_resumes_too(point: str, job: Path, tmp_path: Path) -> None:
    resume_at(point, job, tmp_path)
