"""One runner a folder: a lock that names its holder and dies with it. Called by assembly before it opens a run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import msgspec

from huilu import errors


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a lock."""

    pid: int
    host: str
    since: float


@contextlib.contextmanager
def held(path: Path, now: float) -> Iterator[None]:
    """Hold the lock until the block ends. Raises Locked, naming the holder, when somebody else does."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise errors.from_os(error, f"opening {path}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise errors.Locked(
                f"{path.parent} is in use by {_named(path)}",
                expected="one process a run folder",
                fix="wait for it, end it, or choose another folder with --run-dir",
            ) from error
        holder = Holder(pid=os.getpid(), host=platform.node(), since=now)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, msgspec.json.encode(holder), 0)
        yield
    finally:
        os.close(descriptor)


def _named(path: Path) -> str:
    try:
        holder = msgspec.json.decode(path.read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError):
        return "another process"
    return f"process {holder.pid} on {holder.host}"
