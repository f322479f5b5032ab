"""Memory and process limits by control groups, where the supervisor may make them: version 1 or 2.

Called by `daemon` and `levels`. A group a jail; it is removed with the jail, and what a crash left is swept at the
next start.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PREFIX = "huilu-"
CONTROLLERS = ("memory", "pids")


class Groups:
    """The groups of one supervisor."""

    def __init__(self) -> None:
        self._v2 = (ROOT / "cgroup.controllers").exists()
        name = f"{PREFIX}{os.getpid()}"
        self._parents = [ROOT / name] if self._v2 else [ROOT / controller / name for controller in CONTROLLERS]

    def open(self) -> None:
        """Make the supervisor's groups. Raises OSError where this process may not, or a controller is missing."""
        for parent in self._parents:
            for dead in dead_owners(parent.parent, PREFIX):
                _remove_all(dead)
            parent.mkdir()
        if self._v2:
            wanted = " ".join(f"+{controller}" for controller in CONTROLLERS)
            (self._parents[0] / "cgroup.subtree_control").write_text(wanted)
        self.make("probe", 1 << 26, 8)
        self.remove("probe")

    def close(self) -> None:
        """Remove them; nothing may be left inside."""
        for parent in self._parents:
            _remove_all(parent)

    def make(self, name: str, memory_bytes: int, processes: int) -> None:
        """A group with its limits."""
        for parent in self._parents:
            (parent / name).mkdir()
        memory, pids = self._group(name, "memory"), self._group(name, "pids")
        if self._v2:
            (memory / "memory.max").write_text(str(memory_bytes))
            with contextlib.suppress(OSError):
                (memory / "memory.swap.max").write_text("0")
        else:
            (memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
        (pids / "pids.max").write_text(str(processes))

    def enter(self, name: str, pid: int) -> None:
        """Put a process into the group; its children follow."""
        for parent in self._parents:
            (parent / name / "cgroup.procs").write_text(str(pid))

    def peak_bytes(self, name: str) -> int:
        """The most memory that the group ever used."""
        file = "memory.peak" if self._v2 else "memory.max_usage_in_bytes"
        with contextlib.suppress(OSError, ValueError):
            return int((self._group(name, "memory") / file).read_text())
        return 0

    def ran_out(self, name: str) -> bool:
        """Whether the kernel killed for want of memory in the group."""
        file = "memory.events" if self._v2 else "memory.oom_control"
        return _counter(self._group(name, "memory") / file, "oom_kill") > 0

    def was_full(self, name: str) -> bool:
        """Whether a fork failed at the group's limit of processes."""
        return _counter(self._group(name, "pids") / "pids.events", "max") > 0

    def remove(self, name: str) -> bool:
        """Remove an empty group; False while something still lives in it."""
        gone = True
        for parent in self._parents:
            try:
                (parent / name).rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                gone = False
        return gone

    def _group(self, name: str, controller: str) -> Path:
        return (self._parents[0] if self._v2 or controller == "memory" else self._parents[1]) / name


def dead_owners(folder: Path, prefix: str) -> list[Path]:
    """Folders named `prefix`PID… whose process is no more: what a killed supervisor left."""
    found = []
    for path in folder.glob(f"{prefix}[0-9]*"):
        pid = path.name.removeprefix(prefix).split("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            found.append(path)
    return found


def _remove_all(parent: Path) -> None:
    with contextlib.suppress(OSError):
        for child in parent.iterdir():
            if child.is_dir():
                child.rmdir()
        parent.rmdir()


def _counter(path: Path, name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0
