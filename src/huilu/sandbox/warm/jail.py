"""A jail from inside: made by the process that becomes the program, and searched by another when the program is over.

    keeper    process 1 of the jail's pid namespace: sleeps; its death kills all that is inside
    program   enters the keeper's namespaces, furnishes them, and gives up every capability over them

Runs in clones of a zygote. Standard library only.
"""

from __future__ import annotations

import _signal
import errno
import os

from huilu.sandbox.kernel import linux
from huilu.sandbox.warm import files, order
from huilu.sandbox.warm.order import Ends, Order

INSIDE_UID = 65534
_JOINED = linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
NAMESPACES = _JOINED | linux.CLONE_NEWPID
"""A run's own. Its zygote has left the host's network and control groups before, for empty ones that no run can use."""
WORK, TEMPORARY = "/work", "/tmp"  # noqa: S108 - the jail's own
BELOW, DISK = "/jail", "/jail/disk"
"""Links lead from these two to the one file system of a run, whose place lies below a folder that rules can name."""


def enter(keeper: int) -> None:
    """Join the keeper, by its pidfd; in its pid namespace this process is already."""
    linux.setns(keeper, _JOINED)


def furnish(wanted: Order, ends: Ends) -> None:
    """Make the jail around this process, which is the first in it."""
    for door in ends.doors:
        os.write(door, b"0")
        os.close(door)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{INSIDE_UID} 0 1"), ("gid_map", f"{INSIDE_UID} 0 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    os.umask(0o022)
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("proc", "/proc", "proc", flags | linux.MS_NOEXEC)
    linux.mount("tmpfs", DISK, "tmpfs", flags, f"mode=755,size={wanted.disk_bytes},nr_inodes={wanted.inodes}")
    os.mkdir(DISK + WORK, 0o755)
    os.mkdir(DISK + TEMPORARY)
    os.chmod(DISK + TEMPORARY, 0o1777)  # noqa: S103 - the jail's own
    files.put(WORK, wanted.tree)


def is_full(keeper_pid: int) -> int:
    """Whether a jail's disk has no room left, or no inode; asked from outside. -1 once its keeper is dying."""
    try:
        disk = os.statvfs(f"/proc/{keeper_pid}/root{DISK}")
    except OSError:
        return -1
    return int(not disk.f_bavail or not disk.f_favail)


def collect(descriptor: int) -> None:
    """In a jail whose program is over: end what it left running, and keep the files that its order names."""
    wanted = order.read(descriptor)
    try:
        os.kill(-1, _signal.SIGKILL)  # all but this process and the keeper
    except ProcessLookupError:
        pass
    try:
        order.keep(descriptor, files.take(WORK, wanted.keep, wanted.disk_bytes))
    except files.TooMuch:
        order.fail(descriptor, errno.EFBIG)
