"""The metadata database of a run: one thread that writes, a few that only read.

    await write(fn) ──> inbox ──> writer thread: BEGIN; fn, fn, fn (a savepoint each); COMMIT ──> futures resolve
    await read(fn)  ──> reader threads, each on a snapshot of what was committed

Called by queue, bus and release with plain functions of a connection, which compose into one transaction. Writes
that wait while a commit is on its way to the disk share the next one, so that many small writes cost one sync. A
function must be quick, and touch nothing but the connection.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from huilu import errors
from huilu.store import migrate, sqlite
from huilu.store.schema import REVISION

T = TypeVar("T")

MAX_BATCH = 1000
NUM_READERS = 2


class _Write(Generic[T]):
    """One function that waits to be committed."""

    def __init__(self, fn: Callable[[Connection], T]) -> None:
        self.fn = fn
        self.future: Future[T] = Future()
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self, connection: Connection) -> None:
        """Run in a savepoint of its own. Raises only what undoes the whole transaction."""
        savepoint = connection.begin_nested()
        try:
            self._result = self.fn(connection)
        except DBAPIError as error:
            if not sqlite.spares(error):
                raise
            savepoint.rollback()
            self._error = error
        except Exception as error:  # noqa: BLE001 - it is the caller's, and is given to him
            savepoint.rollback()
            self._error = error
        else:
            savepoint.commit()

    def settle(self, named: Callable[[DBAPIError], errors.HuiluError]) -> None:
        """It is on disk, or failed by itself: tell the caller."""
        if isinstance(self._error, DBAPIError):
            error = named(self._error)
            error.__cause__ = self._error
            self.future.set_exception(error)
        elif self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result)  # type: ignore[arg-type]


class Database:
    """Owns the file's connections and threads. Whoever makes one holds the run's lock."""

    def __init__(self, path: Path) -> None:
        """Open, make or migrate the database at `path`. Raises DiskFull, NotWritable, BadDatabase, Locked."""
        self._path = path
        self._writer = sqlite.writer_engine(path)
        try:
            with self._writer.begin() as connection:
                migrate.upgrade(connection)
        except DBAPIError as error:
            self._writer.dispose()
            raise self._named(error) from error
        except errors.HuiluError:
            self._writer.dispose()
            raise
        self._readers = sqlite.reader_engine(path, NUM_READERS)
        self._pool = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="huilu-read")
        self._inbox: queue.SimpleQueue[_Write[Any] | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._closed = False
        self._num_commits = 0
        self._watchers: list[Future[None]] = []
        self._thread = threading.Thread(target=self._serve, name="huilu-write", daemon=True)
        self._thread.start()

    @property
    def num_commits(self) -> int:
        """Commits so far; what `changed` compares with."""
        return self._num_commits

    async def write(self, fn: Callable[[Connection], T]) -> T:
        """What `fn` returned, once its changes are on disk; what it raised, and then none of them are.

        A write whose caller is cancelled may still be committed. Raises DiskFull, NotWritable, BadDatabase and
        Locked for a failed commit; Invariant for a broken constraint.
        """
        write = _Write(fn)
        with self._guard:
            if self._closed:
                raise errors.Invariant(f"{self._path} is closed")
            self._inbox.put(write)
        return await asyncio.wrap_future(write.future)

    async def read(self, fn: Callable[[Connection], T]) -> T:
        """What `fn` returned, run on one snapshot that holds every write which resolved before."""
        return await asyncio.wrap_future(self._pool.submit(self._read, fn))

    async def changed(self, seen: int) -> int:
        """Wait until there are more commits than `seen`; how many there are then.

        To wait for a condition: note `num_commits`, look, and when it does not hold yet wait for a change.
        """
        while True:
            with self._guard:
                if self._num_commits != seen:
                    return self._num_commits
                watcher: Future[None] = Future()
                self._watchers.append(watcher)
            await asyncio.wrap_future(watcher)

    def close(self) -> None:
        """Commit what waits, end the threads, close the file. Later writes raise; closing again does nothing."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._inbox.put(None)
        self._thread.join()
        self._pool.shutdown()
        self._readers.dispose()
        # Last, so that SQLite folds the log into the file and a finished run is one file.
        self._writer.dispose()

    def _read(self, fn: Callable[[Connection], T]) -> T:
        return _on(self._readers, fn, self._path)

    def _named(self, error: DBAPIError) -> errors.HuiluError:
        return sqlite.named(error, self._path)

    def _serve(self) -> None:
        while (first := self._inbox.get()) is not None:
            batch, last = [first], False
            while len(batch) < MAX_BATCH and not last and not self._inbox.empty():
                following = self._inbox.get()
                if following is None:
                    last = True
                else:
                    batch.append(following)
            self._commit([write for write in batch if write.future.set_running_or_notify_cancel()])
            if last:
                return

    def _commit(self, batch: list[_Write[Any]]) -> None:
        """Commit a batch whole, or tell every caller why not."""
        if not batch:
            return
        try:
            with self._writer.begin() as connection:
                for write in batch:
                    write.run(connection)
        except Exception as error:  # noqa: BLE001 - the thread's top loop: each caller gets it
            for write in batch:
                write.future.set_exception(self._named(error) if isinstance(error, DBAPIError) else error)
            return
        with self._guard:
            self._num_commits += 1
            watchers, self._watchers = self._watchers, []
        for write in batch:
            write.settle(self._named)
        for watcher in watchers:
            if watcher.set_running_or_notify_cancel():
                watcher.set_result(None)


def read_now(path: Path, fn: Callable[[Connection], T]) -> T:
    """What `fn` returned on the database of another process or of a finished run, which is not changed.

    Raises NotFound, BadDatabase, NotWritable.
    """
    if not path.is_file():
        raise errors.NotFound(f"{path}", expected="a run's database", fix="huilu runs lists the runs")
    engine = sqlite.archive_engine(path)
    try:
        return _on(engine, lambda connection: fn(_checked(connection, path)), path)
    finally:
        engine.dispose()


def _checked(connection: Connection, path: Path) -> Connection:
    found = migrate.revision(connection)
    if found != REVISION:
        raise errors.BadDatabase(
            f"{path} is at revision {found}", expected=REVISION, fix="resume the run once, which migrates it"
        )
    return connection


def _on(engine: Engine, fn: Callable[[Connection], T], path: Path) -> T:
    try:
        with engine.begin() as connection:
            return fn(connection)
    except DBAPIError as error:
        raise sqlite.named(error, path) from error
