"""Retention: what a run leaves on disk, and that a crash on the way leaves garbage at most, never a lie."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import Connection

from huilu import errors
from huilu.core.nouns import Evaluation, PolicyVersion, ReleaseName
from huilu.store import rows
from huilu.store.database import Database
from huilu.store.files import HELD_OUT, Files
from huilu.store.folder import RunFolder
from huilu.telemetry import Telemetry

NOW = 1000.0


class Shelf(msgspec.Struct, frozen=True):
    """A run's folder with its database, and versions put on disk by hand."""

    folder: RunFolder
    database: Database

    def files(self, keep_last: int = 1) -> Files:
        return Files(self.folder, self.folder.path / "base", self.database, keep_last, Telemetry())

    def save(
        self, number: int, *, lineage: int = 0, state: bool = True, pass_rate: float | None = None
    ) -> PolicyVersion:
        version = PolicyVersion(number=number, lineage=lineage, parent=None, round=number, digest=f"{number}" * 64)
        weights = self.folder.weights(version.id)
        weights.mkdir()
        (weights / "model.safetensors").write_bytes(b"w")
        if state:
            self.folder.state(version.id).write_bytes(b"s")

        def record(connection: Connection) -> None:
            rows.insert_version(connection, version, NOW)
            rows.insert_saved(connection, version, 1, NOW, has_state=state)
            if pass_rate is not None:
                found = Evaluation(
                    version=number, split=HELD_OUT, num_tasks=1, pass_rate=pass_rate, mean_reward=pass_rate
                )
                rows.insert_evaluation(connection, version, found, NOW)

        asyncio.run(self.database.write(record))
        return version

    def collect(self, keep_last: int = 1) -> int:
        return asyncio.run(self.files(keep_last).collect())

    @property
    def weights(self) -> list[str]:
        return sorted(path.name for path in self.folder.versions.iterdir())

    @property
    def states(self) -> list[str]:
        return sorted(path.name for path in self.folder.states.iterdir())


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    database = Database(folder.database)
    yield Shelf(folder, database)
    database.close()


def test_the_newest_state_is_kept_with_its_weights_and_the_older_ones_go(shelf: Shelf) -> None:
    for number in (1, 2, 3):
        shelf.save(number)
    assert shelf.collect() == 4
    assert (shelf.weights, shelf.states) == (["v3"], ["v3"])
    assert shelf.collect() == 0


def test_as_many_states_are_kept_as_the_job_says(shelf: Shelf) -> None:
    for number in (1, 2, 3):
        shelf.save(number)
    shelf.collect(keep_last=2)
    assert (shelf.weights, shelf.states) == (["v2", "v3"], ["v2", "v3"])


def test_the_best_and_the_released_keep_their_weights_but_not_their_states(shelf: Shelf) -> None:
    shelf.save(1, pass_rate=0.9)
    released = shelf.save(2, pass_rate=0.2)
    shelf.save(3, pass_rate=0.5)
    shelf.save(4)
    asyncio.run(shelf.database.write(lambda c: rows.move_release(c, ReleaseName.PRODUCTION, released, "", NOW)))
    shelf.collect()
    assert (shelf.weights, shelf.states) == (["v1", "v2", "v4"], ["v4"])


def test_weights_saved_for_a_release_alone_have_no_state_to_keep(shelf: Shelf) -> None:
    shelf.save(1)
    shelf.save(2, state=False)
    shelf.collect()
    assert (shelf.weights, shelf.states) == (["v1"], ["v1"])


def test_what_no_row_names_is_garbage_of_a_crash(shelf: Shelf) -> None:
    shelf.save(1)
    (shelf.folder.versions / ".v2.tmp-x").mkdir()
    (shelf.folder.versions / "v2").mkdir()
    (shelf.folder.states / ".v2.tmp-y").write_bytes(b"half")
    assert shelf.collect() == 3
    assert (shelf.weights, shelf.states) == (["v1"], ["v1"])


def test_a_lost_lineage_does_not_push_out_the_state_that_stands(shelf: Shelf) -> None:
    shelf.save(3)
    shelf.save(4)
    asyncio.run(shelf.database.write(lambda connection: rows.supersede(connection, 2)))
    shelf.save(3, lineage=1)
    shelf.collect()
    assert (shelf.weights, shelf.states) == (["v3.1"], ["v3.1"])
    last = asyncio.run(shelf.database.read(rows.last_state))
    assert last is not None
    assert last.id == "v3.1"


def test_version_0_lies_where_the_model_came_from(shelf: Shelf) -> None:
    base = PolicyVersion(number=0, lineage=0, parent=None, round=0)
    assert shelf.files().weights(base) == shelf.folder.path / "base"


def test_weights_that_are_not_the_recorded_ones_are_named(shelf: Shelf) -> None:
    version = shelf.save(1)
    shelf.files().check(version, version.digest)
    with pytest.raises(errors.BadWeights, match="v1"):
        shelf.files().check(version, "f" * 64)
