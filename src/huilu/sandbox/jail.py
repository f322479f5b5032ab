"""One jail: from a fork of the supervisor to a program that can reach nothing. Called by `daemon`, in the child.

    outer   (leads the cgroup; leaves every namespace for a new one)
      `- init   (pid 1 inside: builds the root, then only waits; its death kills all that is inside)
           `- program   (no privilege, limits, filter; executes Python on the source it was given)

Nothing of the host is visible but the Python installation and the system's libraries, read-only. Everything the
program writes lies in memory and goes with the namespace. What happens in here is told on the status pipe alone,
which the program does not have.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import resource
import select
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from huilu.core.generation import Program
from huilu.sandbox import linux, seccomp

WORK = "/work"
INSIDE_UID = 65534
"""Nobody, inside and, where the supervisor is root, outside."""
NAMESPACES = (
    linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWCGROUP
)
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/lib32")
INSTALLATION = ("bin", "lib", "lib64")
"""What a program sees of the Python installation: beside these there may be other environments, and packages."""
DEVICES = ("null", "zero", "full", "random", "urandom")
INODES = 4096
MAX_FILES = 64
OUT_OF_THE_WAY = 100
STACK_BYTES = 64 << 20
STATUS = struct.Struct("=cq")
"""What is told on the status pipe: `p` the pid of init, `w` the program's wait status, `e` an errno that ended it."""


class Ends(NamedTuple):
    """The jail's ends of its pipes. `channels` are inherited by the program as 3, 4, …."""

    stdin: int
    stdout: int
    stderr: int
    status: int
    go: int
    channels: tuple[int, ...] = ()


class Jail(NamedTuple):
    """What a jail is made from. `address_bytes` bounds the address space where no cgroup counts memory, else 0."""

    program: Program
    entry: str
    ends: Ends
    scratch: str
    filter: bytes
    supervisor: int
    address_bytes: int


def enter(jail: Jail) -> None:
    """Become the outer process; never returns."""
    try:
        os.setsid()
        _die_with_supervisor(jail.supervisor)
        os.read(jail.ends.go, 1)  # until this process is in its cgroup
        leash, held = os.pipe()
        uid, gid = os.geteuid(), os.getegid()  # in a new user namespace they read as nobody's until they are mapped
        as_root = uid == 0
        linux.unshare(NAMESPACES if as_root else NAMESPACES | linux.CLONE_NEWUSER)
        if not as_root:
            _map_ids(uid, gid)
        init = os.fork()
        if init == 0:
            os.close(held)
            _guard(jail, lambda: _init(jail, as_root, leash))
        _tell(jail.ends.status, b"p", init)
        _close_all_but((held,))
        os.waitpid(init, 0)
        os._exit(0)
    except OSError as error:
        _tell(jail.ends.status, b"e", error.errno or 1)
        os._exit(1)


def _init(jail: Jail, as_root: bool, leash: int) -> None:
    """Build the root, shed privileges, start the program, wait for it, and end the jail with it."""
    _die_with_outer(leash)
    _build_root(jail)
    if as_root:
        os.setgroups([])
        os.setresgid(INSIDE_UID, INSIDE_UID, INSIDE_UID)
        os.setresuid(INSIDE_UID, INSIDE_UID, INSIDE_UID)
        linux.prctl(linux.PR_SET_DUMPABLE, 1)  # else its own uid_map would not be its to write
        linux.unshare(linux.CLONE_NEWUSER)
        _map_ids(INSIDE_UID, INSIDE_UID)
        _die_with_outer(leash)  # changing identity forgot it
    program = os.fork()
    if program == 0:
        _guard(jail, lambda: _execute(jail))
    _close_all_but((jail.ends.status,))
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == program:
            _tell(jail.ends.status, b"w", status)
            os._exit(0)


def _execute(jail: Jail) -> None:
    """Become the program."""
    os.setsid()  # else `killpg(0)` would reach init and outer, where they have its user
    ends, limits = jail.ends, jail.program
    sources = (ends.stdin, ends.stdout, ends.stderr, *ends.channels)
    # Out of the way first: a target may be another's source.
    moved = [fcntl.fcntl(source, fcntl.F_DUPFD, OUT_OF_THE_WAY) for source in sources]
    for target, source in enumerate(moved):
        os.dup2(source, target, inheritable=True)
    os.closerange(3 + len(ends.channels), 1 << 16)
    os.chdir(WORK)
    for limit, soft, hard in (
        (resource.RLIMIT_CPU, int(limits.cpu_s) + 1, int(limits.cpu_s) + 2),
        (resource.RLIMIT_FSIZE, limits.disk_bytes, limits.disk_bytes),
        (resource.RLIMIT_NOFILE, MAX_FILES, MAX_FILES),
        (resource.RLIMIT_CORE, 1, 1),  # at 0 the kernel still starts a handler that the host may have; at 1 nothing
        (resource.RLIMIT_STACK, STACK_BYTES, STACK_BYTES),
    ):
        resource.setrlimit(limit, (soft, hard))
    if jail.address_bytes:  # no cgroup counts memory and processes; init and the program are two
        resource.setrlimit(resource.RLIMIT_AS, (jail.address_bytes, jail.address_bytes))
        resource.setrlimit(resource.RLIMIT_NPROC, (limits.processes + 2, limits.processes + 2))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o077)
    seccomp.install(jail.filter)
    python = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")
    environment = {"PATH": "/usr/bin:/bin", "HOME": WORK, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    os.execve(python, [python, "-s", "-P", "-S", "-B", f"{WORK}/{jail.entry}"], environment)  # noqa: S606


def _build_root(jail: Jail) -> None:
    """A new root in memory: the system read-only, a small /dev, this pid namespace's /proc, and writable work space."""
    os.umask(0o022)  # the host's may be stricter, and the program is another user
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", jail.scratch, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=1m")
    os.chdir(jail.scratch)
    root = "."  # a supervisor that dies takes the folder away; by its path, the rest would be built on the host
    for path in (*SYSTEM, *(f"{sys.base_prefix}/{part}" for part in INSTALLATION)):
        _show(Path(path), root)
    _seal(str(Path.cwd()))
    _hide_packages(root)
    for device in DEVICES:
        target = Path(root, "dev", device)
        target.parent.mkdir(exist_ok=True)
        target.touch()
        linux.mount(f"/dev/{device}", str(target), flags=linux.MS_BIND)
    Path(root, "dev/shm").symlink_to("/tmp")  # noqa: S108 - named semaphores count as files of the jail
    Path(root, "proc").mkdir()
    # Writable, since the ids of the user namespace are mapped through it; to nobody it grants nothing.
    linux.mount("proc", f"{root}/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    options = f"mode=1777,size={jail.program.disk_bytes},nr_inodes={INODES}"
    for writable in (WORK, "/tmp"):  # noqa: S108 - the jail's own
        Path(root + writable).mkdir()
        linux.mount("tmpfs", root + writable, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    for name, content in jail.program.files.items():
        file = Path(root + WORK, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(0o644)
    Path(root, "old").mkdir()
    linux.pivot_root(root, "old")
    os.chdir("/")
    linux.unmount("/old")
    Path("/old").rmdir()
    linux.mount(
        "none", "/", flags=linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    )


def _show(path: Path, root: str) -> None:
    """Make a host folder visible at the same place, read-only; a link stays a link."""
    target = Path(root + str(path))
    if not path.exists() or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        target.symlink_to(path.readlink())
        return
    target.mkdir()
    linux.mount(str(path), str(target), flags=linux.MS_BIND | linux.MS_REC)


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
    """Inside the new user namespace there is one user, nobody, who is this one outside."""
    with contextlib.suppress(FileNotFoundError):
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{INSIDE_UID} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{INSIDE_UID} {gid} 1")


def _guard(jail: Jail, work: Callable[[], None]) -> None:
    """Run the work of a forked child: whatever fails is told, and it never returns into the parent's code."""
    try:
        work()
    except OSError as error:
        _tell(jail.ends.status, b"e", error.errno or 1)
    finally:
        os._exit(1)


def _die_with_supervisor(pid: int) -> None:
    """Be killed when the supervisor dies. One that died before this was asked for is no parent any more."""
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != pid:
        os._exit(1)


def _die_with_outer(leash: int) -> None:
    """Be killed when outer dies. One that died before this was asked for has let go of the leash."""
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([leash], [], [], 0)[0]:
        os._exit(1)


def _tell(status: int, what: bytes, value: int) -> None:
    with contextlib.suppress(OSError):
        os.write(status, STATUS.pack(what, value))


def _close_all_but(kept: tuple[int, ...]) -> None:
    lower = 0
    for descriptor in sorted(kept):
        os.closerange(lower, descriptor)
        lower = descriptor + 1
    os.closerange(lower, 1 << 16)
