"""Limits and counts by control groups, where the supervisor may make them: version 1, 2, or some of each.

Called by `daemon`. Groups are made below this process's own group where that is allowed, else at the top of the
hierarchy. They are used again by later runs, since a removed group of memory stays in the kernel for as long as a page
is charged to it; what a crash left is swept at the next start.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PREFIX = "huilu-"
NEEDED = ("memory", "pids")
WANTED = ("cpuacct",)
"""Used where version 1 has it; version 2 counts CPU time in every group."""
UNLIMITED = "max"


class Place(NamedTuple):
    """Where one controller's groups are: the folder of the supervisor's group, and the hierarchy's version."""

    parent: Path
    version: int


class Counts(NamedTuple):
    """What a group has counted since it exists, but for the peak, which starts anew with each run."""

    peak_bytes: int
    killed_for_memory: int
    refused_forks: int
    cpu_s: float


class Group:
    """The folders of one group, one or several, held by one run at a time."""

    def __init__(self, name: str, places: dict[str, Place]) -> None:
        self._folders = {controller: place.parent / name for controller, place in places.items()}
        self._version = {controller: place.version for controller, place in places.items()}
        self._limits: tuple[int, int] | None = None
        self._before = Counts(0, 0, 0, 0.0)
        for folder in self.folders:
            folder.mkdir(exist_ok=True)

    @property
    def folders(self) -> list[Path]:
        return list(dict.fromkeys(self._folders.values()))

    def prepare(self, memory_bytes: int, processes: int) -> None:
        """Set the limits of the next run, and count from here."""
        if self._limits != (memory_bytes, processes):
            self._limits = None
            self._limit_memory(memory_bytes)
            (self._folders["pids"] / "pids.max").write_text(str(processes))
            self._limits = memory_bytes, processes
        if self._version["memory"] == 1:
            (self._folders["memory"] / "memory.max_usage_in_bytes").write_text("0")
        self._before = self._read()

    def _limit_memory(self, memory_bytes: int) -> None:
        folder = self._folders["memory"]
        if self._version["memory"] == 2:
            (folder / "memory.max").write_text(str(memory_bytes))
            with contextlib.suppress(OSError):
                (folder / "memory.swap.max").write_text("0")
            return
        with contextlib.suppress(OSError):  # memory and swap together may not be less than memory, at any moment
            (folder / "memory.memsw.limit_in_bytes").write_text("-1")
        (folder / "memory.limit_in_bytes").write_text(str(memory_bytes))
        with contextlib.suppress(OSError):
            (folder / "memory.memsw.limit_in_bytes").write_text(str(memory_bytes))

    def doors(self) -> list[int]:
        """Open files by which a process enters, writing `0`; the caller closes them.

        A single thread that moves itself by `tasks` needs no lock of all processes; version 2 has no such file.
        """
        found: list[int] = []
        try:
            for folder in self.folders:
                name = "tasks" if (folder / "tasks").exists() else "cgroup.procs"
                found.append(os.open(folder / name, os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            for descriptor in found:
                os.close(descriptor)
            raise
        return found

    def counts(self) -> Counts:
        """What this run has come to."""
        now, before = self._read(), self._before
        return Counts(
            now.peak_bytes,
            now.killed_for_memory - before.killed_for_memory,
            now.refused_forks - before.refused_forks,
            now.cpu_s - before.cpu_s,
        )

    def cpu_s(self) -> float:
        """This run's CPU time so far."""
        return self._cpu_s() - self._before.cpu_s

    def remove(self) -> None:
        """Take its folders away; one with something alive inside stays, for the next sweep."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _read(self) -> Counts:
        memory, second = self._folders["memory"], self._version["memory"] == 2
        return Counts(
            _number(memory / ("memory.peak" if second else "memory.max_usage_in_bytes")),
            _counter(memory / ("memory.events" if second else "memory.oom_control"), "oom_kill"),
            _counter(self._folders["pids"] / "pids.events", "max"),
            self._cpu_s(),
        )

    def _cpu_s(self) -> float:
        if "cpuacct" in self._folders:
            return _number(self._folders["cpuacct"] / "cpuacct.usage") / 1e9
        if self._version["pids"] == 2:
            return _counter(self._folders["pids"] / "cpu.stat", "usage_usec") / 1e6
        return 0.0


class Groups:
    """The groups of one supervisor."""

    def __init__(self, places: dict[str, Path] | None = None) -> None:
        """`places` are the folders to work below, by controller; those of this process where none are given."""
        self._name = f"{PREFIX}{os.getpid()}"
        self._given, self._places = places, dict[str, Place]()
        self._free: list[Group] = []
        self._made = 0

    @property
    def counts_cpu(self) -> bool:
        return "cpuacct" in self._places or self._places["pids"].version == 2

    def open(self) -> None:
        """Make the supervisor's groups. Raises OSError where this process may not, or a controller is missing."""
        candidates = own_places() if self._given is None else {name: [path] for name, path in self._given.items()}
        for controller in (*NEEDED, *WANTED):
            try:
                self._places[controller] = self._open(controller, candidates.get(controller, []))
            except OSError:
                if controller in NEEDED:
                    self.close()
                    raise
        probe = self.acquire(1 << 26, 8)
        for door in probe.doors():
            os.close(door)
        self.release(probe)

    def _open(self, controller: str, candidates: list[Path]) -> Place:
        error = OSError(2, f"there is no controller {controller}")
        for above in candidates:
            sweep(above)
            parent = above / self._name
            try:
                parent.mkdir(exist_ok=True)
                version = 1 if (parent / "tasks").exists() else 2
                if version == 2:
                    _delegate(above, parent, controller)
            except OSError as refused:
                error = refused
                with contextlib.suppress(OSError):
                    parent.rmdir()
                continue
            return Place(parent, version)
        raise error

    def acquire(self, memory_bytes: int, processes: int) -> Group:
        """A group with these limits, for one run. Raises OSError and keeps nothing where it cannot be had."""
        if self._free:
            group = self._free.pop()
        else:
            self._made += 1
            group = Group(f"cell-{self._made}", self._places)
        try:
            group.prepare(memory_bytes, processes)
        except OSError:
            group.remove()
            raise
        return group

    def release(self, group: Group) -> None:
        """Give a group back; nothing may live in it."""
        self._free.append(group)

    def close(self) -> None:
        """Remove them all; nothing may be left inside."""
        for place in self._places.values():
            _remove_all(place.parent)
        self._places.clear()
        self._free.clear()


def own_places() -> dict[str, list[Path]]:
    """By controller, where groups may be made: below this process's own group, then at the top of the hierarchy."""
    found: dict[str, list[Path]] = {}
    mounts = list(_mounts(Path("/proc/self/mountinfo").read_text()))
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, group = line.split(":", 2)
        for mount, root, kind, options in mounts:
            if kind == "cgroup" and names and not set(names.split(",")) - set(options):
                controllers = names.split(",")
            elif kind == "cgroup2" and not names:
                controllers = (mount / "cgroup.controllers").read_text().split()
            else:
                continue
            inside = os.path.relpath(group, root)
            own = mount if inside.startswith("..") else mount / inside
            for controller in controllers:
                found.setdefault(controller, list(dict.fromkeys((own, mount))))
    return found


def dead_owners(folder: Path, prefix: str) -> list[Path]:
    """Folders named `prefix`PID… whose process is no more: what a killed supervisor left."""
    found = []
    for path in folder.glob(f"{prefix}[0-9]*"):
        pid = path.name.removeprefix(prefix).split("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            found.append(path)
    return found


def sweep(folder: Path) -> None:
    """Remove the groups of supervisors that are no more."""
    for dead in dead_owners(folder, PREFIX):
        _remove_all(dead)


def _delegate(above: Path, parent: Path, controller: str) -> None:
    """Let the groups below `parent` use a controller of version 2."""
    for folder in (above, parent):
        if controller not in (folder / "cgroup.subtree_control").read_text().split():
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def _mounts(mountinfo: str) -> Iterator[tuple[Path, str, str, list[str]]]:
    """(where, root inside the file system, its kind, its options) of each mount."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split()[:3]
        where = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        yield Path(where), fields[3], kind, options.split(",")


def _remove_all(parent: Path) -> None:
    with contextlib.suppress(OSError):
        for child in parent.iterdir():
            if child.is_dir():
                with contextlib.suppress(OSError):
                    child.rmdir()
        parent.rmdir()


def _number(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return 0


def _counter(path: Path, name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0
