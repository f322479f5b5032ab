"""From a clone of the supervisor to a zygote in a root of its own. Called by `zygotes`, in the child.

The root is built once: the system's libraries and the Python installation, read-only and without installed packages,
five devices, and an empty folder that each run covers with its own file system. The zygote is nobody: as root, its
maker sheds every privilege over the host before it clones one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from huilu.sandbox.kernel import landlock, linux
from huilu.sandbox.warm.jail import BELOW, DISK, INSIDE_UID, TEMPORARY, WORK
from huilu.sandbox.warm.program import OUT_OF_THE_WAY, STACK_BYTES
from huilu.sandbox.warm.zygote import CONTROL, MAIN

FURNISHED = linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP
OWN = linux.CLONE_NEWUSER | linux.CLONE_NEWPID | linux.CLONE_NEWNS
"""The zygote's own, over which it has every capability."""
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/lib32")
INSTALLATION = ("bin", "lib", "lib64")
"""What a program sees of the Python installation: beside these there may be other environments, and packages."""
DEVICES = ("null", "zero", "full", "random", "urandom")
MAKER = CONTROL + 1
"""The descriptor over which a zygote's pidfd is handed to the supervisor."""
PACKAGES = "/packages"
"""Where a profile's packages lie."""
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": WORK, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
PYTHON = (
    str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"),
    *("-s", "-P", "-S", "-B"),
)


class Plan(NamedTuple):
    """What a zygote is made from. `ends` are its stdin, stdout, stderr, its end of the connection, and its maker's."""

    script: str
    packages: tuple[Path, ...]
    environment: tuple[tuple[str, str], ...]
    ends: tuple[int, int, int, int, int]
    scratch: str


def flags() -> int:
    """The namespaces that a maker is cloned into; root takes no user namespace before it is nobody."""
    return FURNISHED if os.geteuid() == 0 else FURNISHED | linux.CLONE_NEWUSER


def make(plan: Plan, ids: tuple[int, int]) -> None:
    """In the maker: build the root, shed privileges, clone the zygote, hand over its pidfd. Never returns.

    `ids` are the supervisor's, which is the zygote's parent too.
    """
    try:
        _arrange(plan.ends)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if ids[0] != 0:
            _map_ids(*ids)
        build(plan)
        if ids[0] == 0:
            os.setgroups([])
            os.setresgid(INSIDE_UID, INSIDE_UID, INSIDE_UID)
            os.setresuid(INSIDE_UID, INSIDE_UID, INSIDE_UID)
            linux.prctl(linux.PR_SET_DUMPABLE, 1)  # else its own uid_map would not be its to write
        uid, gid = os.geteuid(), os.getegid()
        pid, pidfd = linux.clone(OWN | linux.CLONE_PARENT)
        if pid == 0:
            os.close(MAKER)
            _become_zygote(plan, uid, gid)
        with socket.socket(fileno=MAKER) as maker:
            socket.send_fds(maker, [b"z"], [pidfd])
    except OSError as error:
        os.write(2, f"{error.strerror}\n".encode())
    finally:
        os._exit(1)


def _become_zygote(plan: Plan, uid: int, gid: int) -> None:
    """In the zygote: root over its own namespaces, with the /proc of its own pid namespace; then its interpreter."""
    os.setsid()
    _map_ids(uid, gid)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, STACK_BYTES))
    os.umask(0o077)
    os.chdir(WORK)
    os.execve(PYTHON[0], [*PYTHON, MAIN], {**ENVIRONMENT, **dict(plan.environment)})  # noqa: S606


def rules(version: int) -> tuple[tuple[str, int], ...]:
    """What a program may do beneath which path, for Landlock."""
    system = (*SYSTEM, *(f"{sys.base_prefix}/{part}" for part in INSTALLATION), PACKAGES)
    return (
        ("/", landlock.READ),
        *((path, landlock.RUN) for path in system),
        *((f"/dev/{device}", landlock.USE) for device in DEVICES),
        (BELOW, landlock.WRITE | landlock.EXECUTE),
    )


def _arrange(ends: Sequence[int]) -> None:
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY) for end in ends]
    for target, source in enumerate(moved):
        os.dup2(source, target, inheritable=True)
    os.closerange(MAKER + 1, 1 << 20)


def build(plan: Plan) -> None:
    """A new root in memory, read-only when it is done."""
    os.umask(0o022)  # the host's may be stricter, and the program is another user
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", plan.scratch, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=4m")
    os.chdir(plan.scratch)
    root = "."  # a supervisor that dies takes the folder away; by its path, the rest would be built on the host
    for path in (*SYSTEM, *(f"{sys.base_prefix}/{part}" for part in INSTALLATION)):
        show(path, path, root)
    for package in plan.packages:
        show(str(package), f"{PACKAGES}/{package.name}", root)
    _seal(str(Path.cwd()))
    _hide_packages(root)
    for device in DEVICES:
        target = Path(root, "dev", device)
        target.parent.mkdir(exist_ok=True)
        target.touch()
        linux.mount(f"/dev/{device}", str(target), flags=linux.MS_BIND)
    Path(root, "dev/shm").symlink_to(TEMPORARY)  # named semaphores count as files of the jail
    for place in (DISK + WORK, DISK + TEMPORARY, "/proc", "/old"):
        Path(root + place).mkdir(parents=True)
    for place in (WORK, TEMPORARY):
        Path(root + place).symlink_to(DISK + place)
    Path(root + DISK + MAIN).write_text(plan.script, encoding="utf-8")
    linux.mount("/proc", f"{root}/proc", flags=linux.MS_BIND | linux.MS_REC)  # the zygote covers it with its own
    linux.pivot_root(root, "old")
    os.chdir("/")
    linux.unmount("/old")
    Path("/old").rmdir()
    linux.mount(
        "none", "/", flags=linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    )


def show(source: str, place: str, root: str) -> None:
    """Make a host folder visible, read-only; a link stays a link."""
    path, target = Path(source), Path(root + place)
    if not path.exists() or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        target.symlink_to(path.readlink())
        return
    target.mkdir()
    linux.mount(source, str(target), flags=linux.MS_BIND | linux.MS_REC)


def _seal(root: str) -> None:
    """Make every mount below read-only: what is mounted inside a bound folder has flags of its own."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        options = fields[5].split(",")
        if not place.startswith(f"{root}/"):
            continue
        flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID
        for name, flag in (("nodev", linux.MS_NODEV), ("noexec", linux.MS_NOEXEC)):
            flags |= flag if name in options else 0  # a host's flags are locked, and must be named to stay
        try:
            linux.mount("none", place, flags=flags)
        except OSError as error:
            if error.errno != errno.EACCES:  # where this user may not go, the program may not either
                raise


def _hide_packages(root: str) -> None:
    """Cover installed packages: among them may be a data set, with the answers that the program is judged by."""
    flags = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    for library in sorted({"/usr/lib", "/usr/lib64", "/usr/local/lib", f"{sys.base_prefix}/lib"}):
        for pattern in ("python*/site-packages", "python*/dist-packages"):
            for folder in Path(root + library).glob(pattern):
                linux.mount("tmpfs", str(folder), "tmpfs", flags, "size=4k")


def _map_ids(uid: int, gid: int) -> None:
    """Inside the new user namespace there is one user, root over nothing but it, who is this one outside."""
    with contextlib.suppress(FileNotFoundError):
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
