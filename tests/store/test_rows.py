"""Rows of versions: the chain that stands, what of it is on disk, evaluations, verdicts and pointers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from huilu.core.nouns import Evaluation, PolicyVersion, ReleaseName, Verdict
from huilu.store import rows, sqlite
from huilu.store.migrate import upgrade

NOW = 1000.0


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """A connection in a transaction that is never committed."""
    engine = sqlite.writer_engine(tmp_path / "run.db")
    with engine.connect() as opened:
        upgrade(opened)
        yield opened
    engine.dispose()


def version(number: int, lineage: int = 0, *, digest: str = "") -> PolicyVersion:
    return PolicyVersion(
        number=number,
        lineage=lineage,
        parent=number - 1 if number else None,
        round=number,
        digest=digest,
        claim_id=f"c{number}",
        healthy=number != 2,
        metrics={"loss": 0.5},
    )


def chain_of(connection: Connection, last: int) -> list[PolicyVersion]:
    made = [version(number) for number in range(last + 1)]
    for each in made:
        rows.insert_version(connection, each, NOW)
    return made


def evaluation(number: int, pass_rate: float, split: str = "holdout") -> Evaluation:
    return Evaluation(
        version=number, split=split, num_tasks=2, pass_rate=pass_rate, mean_reward=pass_rate, by_task={"a": 1.0}
    )


def test_versions_come_back_as_they_were_recorded(connection: Connection) -> None:
    made = chain_of(connection, 3)
    assert rows.chain(connection) == made
    assert rows.find_version(connection, 2) == made[2]
    assert rows.find_version(connection, 9) is None


def test_a_metric_that_is_no_number_is_left_out(connection: Connection) -> None:
    sick = PolicyVersion(
        number=1, lineage=0, parent=0, round=1, metrics={"loss": float("nan"), "grad_norm": float("inf"), "kl": 0.1}
    )
    rows.insert_version(connection, sick, NOW)
    (found,) = rows.chain(connection)
    assert found.metrics == {"kl": 0.1}


def test_a_digest_is_sealed_onto_its_own_version(connection: Connection) -> None:
    made = chain_of(connection, 2)
    rows.seal(connection, made[1], "abc")
    assert [each.digest for each in rows.chain(connection)] == ["", "abc", ""]


def test_a_fork_leaves_the_older_versions_and_its_own(connection: Connection) -> None:
    chain_of(connection, 4)
    assert rows.supersede(connection, 2) == 2
    rows.insert_version(connection, version(3, lineage=1), NOW)
    assert [each.id for each in rows.chain(connection)] == ["v0", "v1", "v2", "v3.1"]
    assert rows.latest_lineage(connection) == 1
    found = rows.find_version(connection, 3)
    assert found is not None
    assert found.lineage == 1
    assert rows.supersede(connection, 3) == 0


def test_a_restart_begins_at_the_newest_state_that_stands(connection: Connection) -> None:
    made = chain_of(connection, 4)
    assert rows.last_state(connection) is None
    rows.insert_saved(connection, made[1], 10, NOW, has_state=True)
    rows.insert_saved(connection, made[3], 10, NOW, has_state=True)
    rows.insert_saved(connection, made[4], 10, NOW, has_state=False)
    assert rows.last_state(connection) == made[3]
    rows.supersede(connection, 2)
    assert rows.last_state(connection) == made[1]


def test_what_is_saved_again_is_one_row_and_what_is_forgotten_none(connection: Connection) -> None:
    made = chain_of(connection, 2)
    rows.insert_saved(connection, made[1], 10, NOW, has_state=False)
    rows.insert_saved(connection, made[1], 20, NOW, has_state=True)
    rows.insert_saved(connection, made[2], 30, NOW, has_state=True)
    found = [(each.version.id, each.has_state, each.size_bytes) for each in rows.saved(connection)]
    assert found == [("v1", True, 20), ("v2", True, 30)]
    rows.forget_saved(connection, made[1], state_only=False)
    rows.forget_saved(connection, made[2], state_only=True)
    assert [(each.version.id, each.has_state) for each in rows.saved(connection)] == [("v2", False)]


def test_an_evaluation_is_kept_by_version_and_split(connection: Connection) -> None:
    made = chain_of(connection, 2)
    rows.insert_evaluation(connection, made[1], evaluation(1, 0.5), NOW)
    rows.insert_evaluation(connection, made[1], evaluation(1, 0.25, "other"), NOW)
    rows.insert_evaluation(connection, made[1], evaluation(1, 0.75), NOW)
    assert rows.find_evaluation(connection, made[1], "holdout") == evaluation(1, 0.75)
    assert rows.find_evaluation(connection, made[1], "other") == evaluation(1, 0.25, "other")
    assert rows.find_evaluation(connection, made[2], "holdout") is None


def test_the_best_is_saved_stands_and_is_the_newest_of_equals(connection: Connection) -> None:
    made = chain_of(connection, 4)
    for each, pass_rate in zip(made, (0.1, 0.5, 0.5, 0.9, 0.8), strict=True):
        rows.insert_evaluation(connection, each, evaluation(each.number, pass_rate), NOW)
        if each.number != 3:
            rows.insert_saved(connection, each, 1, NOW, has_state=False)
    assert rows.best(connection, "holdout") == made[4]
    rows.supersede(connection, 3)
    assert rows.best(connection, "holdout") == made[2]
    assert rows.best(connection, "other") is None


def test_a_verdict_is_kept_and_the_last_word_counts(connection: Connection) -> None:
    made = chain_of(connection, 1)
    hold = Verdict(version=1, promote=False, reasons=("below",), evidence={"pass_rate": 0.1})
    promote = Verdict(version=1, promote=True, reasons=("above",))
    assert rows.find_verdict(connection, made[1]) is None
    for word in (hold, promote):
        rows.insert_verdict(connection, made[1], word, NOW)
    assert rows.find_verdict(connection, made[1]) == promote


def test_a_pointer_is_its_newest_move_and_every_move_is_history(connection: Connection) -> None:
    made = chain_of(connection, 2)
    production, previous = ReleaseName.PRODUCTION, ReleaseName.PREVIOUS
    assert rows.pointer(connection, production) is None
    rows.move_release(connection, production, made[0], "the base", NOW)
    rows.move_release(connection, previous, made[0], "better", NOW + 1)
    rows.move_release(connection, production, made[2], "better", NOW + 1)
    assert rows.pointer(connection, production) == made[2]
    assert rows.pointer(connection, previous) == made[0]
    told = [(moved.name, moved.version.id, moved.why, moved.at) for moved in rows.history(connection)]
    assert told == [
        (production, "v0", "the base", NOW),
        (previous, "v0", "better", NOW + 1),
        (production, "v2", "better", NOW + 1),
    ]
    assert [moved.version.id for moved in rows.history(connection, production)] == ["v0", "v2"]


def test_a_pointer_stays_on_a_version_that_was_superseded(connection: Connection) -> None:
    made = chain_of(connection, 2)
    rows.move_release(connection, ReleaseName.PRODUCTION, made[2], "better", NOW)
    rows.supersede(connection, 1)
    assert rows.pointer(connection, ReleaseName.PRODUCTION) == made[2]
