"""What the processes of a jail use, read from /proc. Called by `cell` in the supervisor, outside of the jail.

Where no control group counts, this is what bounds the memory of a jail's processes together; each alone is bounded by
its address space. A look costs about 0.2 ms a process.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
COUNTED = ("Pss_Anon:", "Pss_Shmem:")
"""Shared pages count by share; pages of files are the page cache's, or a tmpfs's, which has a limit of its own."""


class Usage(NamedTuple):
    """Memory now, and CPU time so far, of live and of reaped processes."""

    memory_bytes: int
    cpu_s: float


def pid_of(pidfd: int) -> int:
    """The process of a pidfd, as this process numbers it; -1 once it was reaped."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
            if line.startswith("Pid:"):
                return int(line.split()[1])
    return -1


def address_bytes(pid: int) -> int:
    """The address space of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def of_jail(keeper: int) -> Usage:
    """The usage of a jail by its keeper, which sleeps in it. What ends under our eyes is left out."""
    memory_bytes, ticks = 0, 0
    inside = Path("/proc", str(keeper), "root", "proc")  # all of the pid namespace, whoever its parent is
    with contextlib.suppress(OSError):
        for process in inside.iterdir():
            if not process.name.isdigit() or process.name == "1":
                continue
            with contextlib.suppress(OSError):
                ticks += _ticks((process / "stat").read_text())
                memory_bytes += _counted((process / "smaps_rollup").read_text())
    return Usage(memory_bytes, ticks / TICKS_PER_S)


def _ticks(stat: str) -> int:
    """utime, stime, cutime and cstime; the name before them may hold anything."""
    return sum(int(field) for field in stat.rpartition(")")[2].split()[11:15])


def _counted(rollup: str) -> int:
    return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith(COUNTED))
