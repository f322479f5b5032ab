"""The database of a run: one writer thread with group commit, readers beside it.

Called by assembly, which owns it, and by the rooms that store. Functions given to `write` and `read` are plain and
synchronous, take a SQLAlchemy connection, and must not wait on anything else: no network and no tensor work
inside a transaction.

    write(fn) --> queue --> writer thread: BEGIN; each fn in a savepoint; COMMIT (synchronous=FULL) --> futures
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from huilu import errors

T = TypeVar("T")
MAX_GROUP = 256
"""Writes that share one commit, at most."""
READERS = 2
BUSY_S = 10.0


class _Write:
    """One write under way."""

    def __init__(self, work: Callable[[Connection], Any]) -> None:
        self.work = work
        self.done: Future[Any] = Future()


class Database:
    """Owns the connections and the writer thread. Close it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer_engine = _engine(path, begin="BEGIN IMMEDIATE")
        self._reader_engine = _engine(path, begin="BEGIN")
        self._writes: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        self._thread = threading.Thread(target=self._serve, name="writer", daemon=True)
        self._thread.start()

    @property
    def engine(self) -> Engine:
        """The writer's engine: for migrations, before anything is written."""
        return self._writer_engine

    async def write(self, work: Callable[[Connection], T]) -> T:
        """The result of `work`, durable. What `work` raises undoes `work` alone; a failed commit fails all of it."""
        return await asyncio.wrap_future(self._submit(work))

    def write_now(self, work: Callable[[Connection], T]) -> T:
        """As `write`, blocking: for callers without a loop."""
        return self._submit(work).result()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """The result of `work` on a reader's connection."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.read_now, work)

    def read_now(self, work: Callable[[Connection], T]) -> T:
        """As `read`, blocking."""
        try:
            with self._reader_engine.connect() as connection:
                return work(connection)
        except DBAPIError as error:
            raise self._named(error) from error

    def close(self) -> None:
        """Write what is queued, then close."""
        self._writes.put(None)
        self._thread.join()
        self._readers.shutdown()
        self._writer_engine.dispose()
        self._reader_engine.dispose()

    def _submit(self, work: Callable[[Connection], T]) -> Future[T]:
        write = _Write(work)
        self._writes.put(write)
        return write.done

    def _serve(self) -> None:
        while (first := self._writes.get()) is not None:
            group, ending = [first], False
            while len(group) < MAX_GROUP:
                try:
                    following = self._writes.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    ending = True
                    break
                group.append(following)
            self._commit(group)
            if ending:
                return

    def _commit(self, group: list[_Write]) -> None:
        outcomes: list[tuple[_Write, Any, BaseException | None]] = []
        try:
            with self._writer_engine.begin() as connection:
                outcomes.extend((write, *_attempt(connection, write.work)) for write in group)
        except BaseException as error:  # noqa: BLE001 - the thread's top: every waiting caller must hear of it
            named = self._named(error) if isinstance(error, DBAPIError) else error
            for write in group:
                write.done.set_exception(named)
            return
        for write, value, failure in outcomes:
            if failure is None:
                write.done.set_result(value)
            else:
                write.done.set_exception(self._named(failure) if isinstance(failure, DBAPIError) else failure)

    def _named(self, error: DBAPIError) -> BaseException:
        return named_error(error, self._path)


def _attempt(connection: Connection, work: Callable[[Connection], Any]) -> tuple[Any, BaseException | None]:
    """Run one write in its own savepoint; the database's own failures end the whole group."""
    savepoint = connection.begin_nested()
    try:
        value = work(connection)
    except DBAPIError as error:
        if _code(error) in _FATAL:
            raise
        savepoint.rollback()
        return None, error
    except BaseException as error:  # noqa: BLE001 - it is the caller's, and goes to the caller
        savepoint.rollback()
        return None, error
    savepoint.commit()
    return value, None


def _engine(path: Path, begin: str) -> Engine:
    """A SQLite engine on one file, in WAL, durable on commit, with transactions begun as `begin`."""
    pool: dict[str, Any] = {"poolclass": StaticPool} if begin == "BEGIN IMMEDIATE" else {"pool_size": READERS}
    engine = create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False, "timeout": BUSY_S}, **pool)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver must not begin transactions of its own
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


_FATAL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT}
_FATAL |= {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY}


def _code(error: DBAPIError) -> int:
    """SQLite's primary result code, or 0."""
    return (getattr(error.orig, "sqlite_errorcode", None) or 0) & 0xFF


def named_error(error: DBAPIError, path: Path) -> errors.HuiluError:
    """The error of ours that a failure of the database is."""
    code, seen = _code(error), f"{path}: {error.orig}"
    if code == sqlite3.SQLITE_FULL:
        return errors.DiskFull(seen, fix="free space, then run again with --resume")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return errors.NotWritable(seen, fix="choose a folder you may write with --run-dir")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return errors.Outside(f"{seen}: the database is damaged", fix="restore the run's folder from a copy")
    if code == sqlite3.SQLITE_BUSY:
        return errors.Locked(seen, fix="end the other process that writes this database")
    if code == sqlite3.SQLITE_IOERR:
        return errors.Outside(
            f"{seen}: the disk failed or is full", fix="look at the disk, then run again with --resume"
        )
    return errors.Invariant(f"{seen} ({error.statement})")
