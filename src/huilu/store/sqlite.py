"""SQLite's side of the database: how a file is opened, and what its errors mean.

Called by `database` alone. Everything that only SQLite does stays in this module.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, QueuePool, create_engine, event
from sqlalchemy.exc import DBAPIError

from huilu import errors

BUSY_S = 5.0
LOW_BYTES = 1 << 20
"""With less than this free, a failed write is told as a full disk, whatever SQLite calls it."""


def writer_engine(path: Path) -> Engine:
    """The one connection that writes: WAL, and a commit is on disk when it returns."""
    pragmas = ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON")
    return _engine(lambda: _connect(path.absolute().as_uri() + "?mode=rwc"), pragmas, "BEGIN IMMEDIATE", size=1)


def reader_engine(path: Path, size: int) -> Engine:
    """Connections that only read, each transaction on one snapshot."""
    return _engine(lambda: _connect(path.absolute().as_uri() + "?mode=ro"), ("query_only = ON",), "BEGIN", size=size)


def archive_engine(path: Path) -> Engine:
    """A reader for the database of another process, or of a finished run in a folder that cannot be written.

    In such a folder SQLite could not make the files that guard against a writer; none can be there, so they are
    done without.
    """
    untouched = not path.with_name(path.name + "-wal").exists() and not os.access(path.parent, os.W_OK)
    query = "?immutable=1" if untouched else "?mode=ro"
    return _engine(lambda: _connect(path.absolute().as_uri() + query), ("query_only = ON",), "BEGIN", size=1)


def named(error: DBAPIError, path: Path) -> errors.HuiluError:
    """The named error of what SQLite or its driver raised."""
    code = _code(error)
    if code in (None, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT):
        return errors.Invariant(f"{path}: {error.orig} in {error.statement}")
    return _by_code(code, f"{path}: {error.orig}", path)


def spares(error: DBAPIError) -> bool:
    """Whether an error undid its statement alone, so that the transaction around it can go on."""
    return _code(error) in (None, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT)


def _code(error: DBAPIError) -> int | None:
    """SQLite's plain result code: the low byte of an extended one. None when the driver raised by itself."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _by_code(code: int | None, observed: str, path: Path) -> errors.HuiluError:
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_full(path)):
        return errors.DiskFull(observed, fix="free space, then run again with --resume")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return errors.NotWritable(observed, fix="make the run's folder writable, or choose another with --run-dir")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return errors.BadDatabase(observed, expected="a database that Huilu wrote", fix="restore it from a backup")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return errors.Locked(observed, fix="end the other program that writes to this database")
    return errors.Outside(observed)


def _is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free < LOW_BYTES
    except OSError:
        return False


def _connect(uri: str) -> sqlite3.Connection:
    # Transactions are begun by the engine's own event: the driver would not put DDL into one.
    return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _engine(connect: Callable[[], sqlite3.Connection], pragmas: tuple[str, ...], begin: str, size: int) -> Engine:
    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=size, max_overflow=0)

    def prepare(connection: sqlite3.Connection, _record: Any) -> None:
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine
