"""The database and the outside world: full, read-only, damaged or busy files, and death at any moment."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import DBAPIError

from huilu import errors
from huilu.store import sqlite
from huilu.store.database import Database, read_now
from huilu.store.schema import ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


def adding(name: str) -> Any:
    return lambda connection: connection.execute(insert(ledger).values(name=name, count=0))


def names(connection: Connection) -> list[str]:
    return list(connection.scalars(select(ledger.c.name).order_by(ledger.c.name)))


def flooding(connection: Connection) -> None:
    """Write more than the file may hold."""
    connection.exec_driver_sql("CREATE TABLE flood (bytes BLOB)")
    connection.exec_driver_sql("INSERT INTO flood VALUES (zeroblob(1000000))")


def test_a_full_disk_is_told_to_every_waiting_caller_and_loses_nothing_older(path: Path) -> None:
    async def scenario() -> tuple[list[Any], list[str]]:
        database = Database(path)
        await database.write(adding("old"))

        def cap(connection: Connection) -> None:
            connection.exec_driver_sql("PRAGMA max_page_count = 1")  # SQLite takes it as: no larger than now

        await database.write(cap)
        gathered = asyncio.gather(database.write(adding("with it")), database.write(flooding), return_exceptions=True)
        found: list[Any] = list(await gathered)
        await database.write(lambda connection: connection.exec_driver_sql("PRAGMA max_page_count = 100000"))
        await database.write(adding("new"))  # space was freed: the database goes on
        stored = await database.read(names)
        database.close()
        return found, stored

    found, stored = asyncio.run(scenario())
    assert isinstance(found[1], errors.DiskFull)
    assert "--resume" in found[1].fix
    # Whether both shared the commit or not: nobody was told a lie.
    assert ("with it" in stored) == (not isinstance(found[0], Exception))
    assert {"old", "new"} <= set(stored)


def test_every_write_of_a_batch_hears_of_its_failed_commit(path: Path) -> None:
    async def scenario() -> list[Any]:
        database = Database(path)
        await database.write(lambda connection: connection.exec_driver_sql("PRAGMA max_page_count = 1"))
        batch = [database.write(adding("a")), database.write(flooding), database.write(adding("b"))]
        # Queued without a turn of the loop between them, behind the writer's wake-up.
        found = await asyncio.gather(database.write(flooding), *batch, return_exceptions=True)
        stored = await database.read(names)
        database.close()
        return [*found, stored]

    *found, stored = asyncio.run(scenario())
    told = {
        name for name, outcome in zip(["-", "a", "-", "b"], found, strict=True) if not isinstance(outcome, Exception)
    }
    assert set(stored) == told - {"-"}
    assert all(isinstance(outcome, errors.DiskFull) for outcome in found if isinstance(outcome, Exception))


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR, sqlite3.SQLITE_IOERR_WRITE])
def test_an_io_error_on_a_disk_without_space_is_a_full_disk(
    path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = sqlite3.OperationalError("disk I/O error")
    cause.sqlite_errorcode = code
    error = DBAPIError("INSERT", None, cause)
    assert type(sqlite.named(error, path)) is errors.Outside
    monkeypatch.setattr(sqlite, "LOW_BYTES", 1 << 62)
    assert type(sqlite.named(error, path)) is errors.DiskFull


def test_a_folder_that_is_not_there_or_not_writable_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.NotWritable, match=r"run\.db"):
        Database(tmp_path / "missing" / "run.db")


def test_a_file_that_is_no_database_is_named(path: Path) -> None:
    path.write_bytes(b"these are the voyages " * 1000)
    with pytest.raises(errors.BadDatabase, match=r"run\.db"):
        Database(path)
    with pytest.raises(errors.BadDatabase, match=r"run\.db"):
        read_now(path, names)


def test_a_damaged_page_is_named_when_it_is_read(path: Path) -> None:
    database = Database(path)
    asyncio.run(
        database.write(lambda c: c.execute(insert(ledger), [{"name": f"{n}", "count": n} for n in range(5000)]))
    )
    database.close()
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = b"\xff" * (len(content) - len(content) // 2)
    path.write_bytes(bytes(content))
    with pytest.raises(errors.BadDatabase):
        read_now(path, lambda connection: [names(connection), connection.exec_driver_sql("PRAGMA quick_check").all()])


def test_a_database_that_another_program_writes_is_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)
    Database(path).close()
    intruder = sqlite3.connect(path, isolation_level=None)
    intruder.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(errors.Locked):
            Database(path)
    finally:
        intruder.close()


def test_a_later_versions_database_is_refused_and_not_changed(path: Path) -> None:
    Database(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(errors.BadDatabase, match="9999"):
        Database(path)
    with pytest.raises(errors.BadDatabase, match="9999"):
        read_now(path, names)
    assert path.read_bytes() == before


def test_a_finished_run_in_a_read_only_folder_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Database(path).close()
    path.chmod(0o400)
    path.parent.chmod(0o500)
    # Root writes everywhere, so that it must be told that this folder is closed.
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)
    try:
        assert read_now(path, names) == []
        assert [each.name for each in path.parent.iterdir()] == ["run.db"]
    finally:
        path.parent.chmod(0o700)


CHILD = """
import asyncio, sys
from pathlib import Path
from sqlalchemy import insert
from huilu.store.database import Database
from huilu.store.schema import ledger

async def caller(database, lane):
    for n in range(100_000):
        await database.write(lambda c: c.execute(insert(ledger).values(name=f"{lane}-{n}", count=n)))
        print(f"{lane}-{n}", flush=True)

async def main():
    database = Database(Path(sys.argv[1]))
    await asyncio.gather(*(caller(database, lane) for lane in range(8)))

asyncio.run(main())
"""


def test_what_was_acknowledged_before_kill_9_is_there_afterwards(path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    acknowledged = [child.stdout.readline().strip() for _ in range(300)]
    child.send_signal(signal.SIGKILL)
    acknowledged += child.stdout.read().split()[:-1]  # the last line may be cut
    child.wait()
    child.stdout.close()
    database = Database(path)  # as a resume does: the log is recovered
    stored = asyncio.run(database.read(names))
    database.close()
    assert len(acknowledged) >= 299
    assert set(acknowledged) <= set(stored)
