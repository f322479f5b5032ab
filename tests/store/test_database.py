"""The database: what a resolved write promises, who hears of a failure, and what a reader sees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, func, insert, select
from sqlalchemy.exc import StatementError

from huilu import errors
from huilu.store.database import Database, read_now
from huilu.store.schema import ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    opened = Database(path)
    yield opened
    opened.close()


def adding(name: str) -> Any:
    """A write of one row, which returns its name."""

    def write(connection: Connection) -> str:
        connection.execute(insert(ledger).values(name=name, count=0))
        return name

    return write


def names(connection: Connection) -> list[str]:
    return list(connection.scalars(select(ledger.c.name).order_by(ledger.c.name)))


class Gate:
    """A write that holds the writer's thread until it is told to go on, so that others gather behind it."""

    def __init__(self) -> None:
        self.inside, self.go = threading.Event(), threading.Event()

    def __call__(self, connection: Connection) -> None:
        self.inside.set()
        assert self.go.wait(30)


async def behind(database: Database, gate: Gate, *writes: Any) -> list[Any]:
    """What these writes gave when all of them waited for one commit that was under way."""
    held = asyncio.ensure_future(database.write(gate))
    await asyncio.to_thread(gate.inside.wait)
    waiting = [asyncio.ensure_future(database.write(write)) for write in writes]
    await asyncio.sleep(0)
    gate.go.set()
    await held
    return await asyncio.gather(*waiting, return_exceptions=True)


def test_a_write_returns_what_its_function_returned_and_a_read_sees_it(database: Database) -> None:
    async def scenario() -> tuple[str, list[str]]:
        return await database.write(adding("a")), await database.read(names)

    assert asyncio.run(scenario()) == ("a", ["a"])


def test_writes_that_wait_together_share_one_commit(database: Database) -> None:
    begun: list[None] = []
    event.listen(database._writer, "begin", lambda _connection: begun.append(None))

    async def scenario() -> list[Any]:
        return await behind(database, Gate(), *(adding(f"{n:02}") for n in range(50)))

    assert asyncio.run(scenario()) == [f"{n:02}" for n in range(50)]
    assert len(begun) == 2  # the one that was held, and one for all fifty
    assert database.num_commits == 2


def test_a_write_that_fails_undoes_itself_alone(database: Database) -> None:
    def half(connection: Connection) -> None:
        adding("half")(connection)
        raise LookupError("half way")

    async def scenario() -> tuple[list[Any], list[str]]:
        found = await behind(database, Gate(), adding("before"), half, adding("after"))
        return found, await database.read(names)

    found, stored = asyncio.run(scenario())
    assert isinstance(found[1], LookupError)
    assert stored == ["after", "before"]


def test_a_broken_constraint_and_a_wrong_statement_undo_themselves_alone(database: Database) -> None:
    async def scenario() -> tuple[list[Any], list[str]]:
        twice, wrong = adding("one"), lambda connection: connection.exec_driver_sql("SELECT nothing")
        unbindable = lambda connection: connection.execute(insert(ledger).values(name=object(), count=0))  # noqa: E731
        found = await behind(database, Gate(), adding("one"), twice, wrong, unbindable, adding("two"))
        return found, await database.read(names)

    found, stored = asyncio.run(scenario())
    assert isinstance(found[1], errors.Invariant)
    assert isinstance(found[2], errors.Invariant)
    assert isinstance(found[3], StatementError | errors.Invariant)
    assert stored == ["one", "two"]


def test_foreign_keys_are_kept(database: Database) -> None:
    statement = "INSERT INTO claimed (claim_id, place, task_id, trains) VALUES ('c', 0, 't', 1)"
    with pytest.raises(errors.Invariant, match="FOREIGN KEY"):
        asyncio.run(database.write(lambda connection: connection.exec_driver_sql(statement)))


def test_a_cancelled_caller_does_not_stop_the_writer(database: Database) -> None:
    async def scenario() -> list[str]:
        gate = Gate()
        held = asyncio.ensure_future(database.write(gate))
        await asyncio.to_thread(gate.inside.wait)
        waiting = asyncio.ensure_future(database.write(adding("never")))
        await asyncio.sleep(0)
        waiting.cancel()
        held.cancel()  # this one is being written already
        await asyncio.gather(waiting, held, return_exceptions=True)
        gate.go.set()
        await database.write(adding("later"))
        return await database.read(names)

    assert asyncio.run(scenario()) == ["later"]


def test_closing_commits_what_waits_and_refuses_what_comes_later(path: Path) -> None:
    async def scenario() -> None:
        database = Database(path)
        gate = Gate()
        held = asyncio.ensure_future(database.write(gate))
        await asyncio.to_thread(gate.inside.wait)
        waiting = [asyncio.ensure_future(database.write(adding(f"{n}"))) for n in range(5)]
        await asyncio.sleep(0)
        threading.Timer(0.05, gate.go.set).start()
        await asyncio.to_thread(database.close)
        await asyncio.gather(held, *waiting)
        database.close()
        with pytest.raises(errors.Invariant, match="closed"):
            await database.write(adding("late"))

    asyncio.run(scenario())
    assert read_now(path, names) == ["0", "1", "2", "3", "4"]


def test_a_closed_database_is_one_file(path: Path) -> None:
    database = Database(path)
    asyncio.run(database.write(adding("a")))
    assert path.with_name("run.db-wal").exists()
    database.close()
    assert [each.name for each in path.parent.iterdir()] == ["run.db"]


def test_a_read_stands_on_one_snapshot(database: Database) -> None:
    async def scenario() -> tuple[int, int]:
        between = threading.Event()
        written = threading.Event()

        def twice(connection: Connection) -> tuple[int, int]:
            count = select(func.count()).select_from(ledger)
            first = connection.scalar(count)
            between.set()
            assert written.wait(30)
            return first or 0, connection.scalar(count) or 0

        reading = asyncio.ensure_future(database.read(twice))
        await asyncio.to_thread(between.wait)
        await database.write(adding("meanwhile"))
        written.set()
        return await reading

    assert asyncio.run(scenario()) == (0, 0)


def test_a_reader_cannot_write(database: Database) -> None:
    with pytest.raises(errors.NotWritable):
        asyncio.run(database.read(adding("a")))


def test_a_change_wakes_those_who_wait_for_one(database: Database) -> None:
    async def scenario() -> int:
        seen = database.num_commits
        waiting = [asyncio.ensure_future(database.changed(seen)) for _ in range(3)]
        dropped = asyncio.ensure_future(database.changed(seen))
        await asyncio.sleep(0)
        dropped.cancel()
        await database.write(adding("a"))
        return min(await asyncio.gather(*waiting)) - seen

    assert asyncio.run(scenario()) == 1


def test_a_change_that_came_before_the_wait_is_not_missed(database: Database) -> None:
    async def scenario() -> bool:
        seen = database.num_commits
        await database.write(adding("a"))
        await database.write(adding("b"))
        return await asyncio.wait_for(database.changed(seen), 30) > seen

    assert asyncio.run(scenario())


def test_another_process_reads_while_the_run_writes(path: Path, database: Database) -> None:
    asyncio.run(database.write(adding("a")))
    assert read_now(path, names) == ["a"]


def test_reading_leaves_a_finished_run_as_it_is(path: Path) -> None:
    Database(path).close()
    before = path.read_bytes()
    assert read_now(path, names) == []
    assert path.read_bytes() == before


def test_reading_a_run_that_is_not_there_names_it(path: Path) -> None:
    with pytest.raises(errors.NotFound, match=r"run\.db"):
        read_now(path, names)


def test_a_path_of_any_characters_is_only_a_path(tmp_path: Path) -> None:
    folder = tmp_path / "50% off?mode=memory#&ä"
    folder.mkdir()
    database = Database(folder / "run.db")
    asyncio.run(database.write(adding("a")))
    database.close()
    assert read_now(folder / "run.db", names) == ["a"]
