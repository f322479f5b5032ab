"""What the processes of a jail use, read from /proc. Called by `cell` in the supervisor, outside of the jail.

Where no control group counts, this is what bounds the memory of a jail's processes together; each alone is bounded by
its address space. A look costs about 0.2 ms a process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
COUNTED = ("Pss_Anon:", "Pss_Shmem:")
"""Shared pages count by share; pages of files are the page cache's, or a tmpfs's, which has a limit of its own."""


class Usage(NamedTuple):
    """Memory now, and CPU time so far, of live and of reaped processes."""

    memory_bytes: int
    cpu_s: float


def of_jail(init: int) -> Usage:
    """The usage of a jail by the host's id of its first process. What ends under our eyes is left out."""
    memory_bytes, ticks = 0, 0
    for pid in _family(init):
        with contextlib.suppress(OSError):
            ticks += _ticks(Path(f"/proc/{pid}/stat").read_text())
            memory_bytes += _counted(Path(f"/proc/{pid}/smaps_rollup").read_text())
    return Usage(memory_bytes, ticks / TICKS_PER_S)


def _family(pid: int) -> Iterator[int]:
    """A process and its descendants; orphans inside a jail are its first process's children."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                yield from _family(int(child))


def _ticks(stat: str) -> int:
    """utime, stime, cutime and cstime; the name before them may hold anything."""
    return sum(int(field) for field in stat.rpartition(")")[2].split()[11:15])


def _counted(rollup: str) -> int:
    return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith(COUNTED))
