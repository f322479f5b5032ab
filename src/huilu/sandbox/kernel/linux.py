"""The system calls that Python 3.11 lacks, by ctypes. Called by the supervisor and, inside, by `warm`.

Every function raises OSError with the call's name. Knows no policy. Standard library only: `warm.bundle` carries it
into zygotes.
"""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_VM, CLONE_FILES, CLONE_PIDFD, CLONE_PARENT = 0x100, 0x400, 0x1000, 0x8000
CLONE_CHILD_SETTID, SIGCHLD = 0x01000000, 17
WALL = 0x40000000
"""For `os.wait4`: children that end with another signal than SIGCHLD too."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_GET_TID_ADDRESS = 36, 38, 40
SECCOMP_MODE_FILTER = 2

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522
_MACHINE = os.uname().machine
_libc = ctypes.PyDLL(None, use_errno=True)  # keeps the lock of the interpreter: a clone copies it as it is
_idle_stack = ctypes.create_string_buffer(1 << 14)


def unshare(flags: int) -> None:
    """Leave the namespaces of these flags for new ones."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def clone(flags: int, exit_signal: int = SIGCHLD) -> tuple[int, int]:
    """Fork into new namespaces: (0, -1) in the child; (its pid, a pidfd of it) in the parent.

    What `os.fork` does for the interpreter is left out; a child that goes on for long calls `after_fork`.
    """
    pidfd = ctypes.c_int(-1)
    if _MACHINE == "x86_64":
        last = (ctypes.c_void_p(_tid_address), ctypes.c_void_p(0))
    else:
        last = (ctypes.c_void_p(0), ctypes.c_void_p(_tid_address))
    pid = _libc.syscall(
        ctypes.c_long(_CLONE[_MACHINE]),
        ctypes.c_ulong(flags | CLONE_PIDFD | (CLONE_CHILD_SETTID if _tid_address else 0) | exit_signal),
        ctypes.c_void_p(0),
        ctypes.byref(pidfd),
        *last,
    )
    _check(min(pid, 0), "clone")
    return pid, -1 if pid == 0 else pidfd.value


def after_fork() -> None:
    """What `os.fork` does for the interpreter in the child: locks, the main thread, what modules registered."""
    ctypes.pythonapi.PyOS_AfterFork_Child()


def clone_idle(flags: int) -> tuple[int, int]:
    """A process in new namespaces that sleeps for good, on this one's memory and files: (its pid, a pidfd of it).

    It costs a twentieth of a fork. It runs nothing of ours but the C library's `pause`, on a stack of its own; several
    may sleep on the same one, since what they put there is the same and none ever returns. Children that they inherit
    are reaped by the kernel where SIGCHLD is ignored here.
    """
    pidfd = ctypes.c_int(-1)
    top = (ctypes.addressof(_idle_stack) + len(_idle_stack)) & ~0xFF
    pid = _libc.clone(
        ctypes.cast(_libc.pause, ctypes.c_void_p),
        ctypes.c_void_p(top),
        ctypes.c_int(flags | CLONE_VM | CLONE_FILES | CLONE_PIDFD | SIGCHLD),
        ctypes.c_void_p(0),
        ctypes.byref(pidfd),
    )
    _check(min(pid, 0), "clone")
    return pid, pidfd.value


def setns(descriptor: int, flags: int) -> None:
    """Enter the namespaces of a pidfd's process, or of a namespace file."""
    _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(flags)), "setns")


def signal_file(number: int) -> int:
    """Block a signal; a descriptor that is readable when it has arrived."""
    mask = ctypes.create_string_buffer(128)
    _libc.sigemptyset(mask)
    _libc.sigaddset(mask, ctypes.c_int(number))
    _check(_libc.sigprocmask(ctypes.c_int(0), mask, None), "sigprocmask")
    descriptor = int(_libc.signalfd(ctypes.c_int(-1), mask, ctypes.c_int(os.O_CLOEXEC | os.O_NONBLOCK)))
    _check(min(descriptor, 0), "signalfd")
    return descriptor


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount `source` on `target`."""
    arguments = [text.encode() or None for text in (source, target, kind)]
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None), f"mount {target}")


def unmount(target: str) -> None:
    """Detach what is mounted on `target`."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    """Make `new_root` the root; the old one lies at `put_old`."""
    number = _PIVOT_ROOT[_MACHINE]
    _check(_libc.syscall(ctypes.c_long(number), new_root.encode(), put_old.encode()), "pivot_root")


def prctl(option: int, value: int, pointer: ctypes.c_void_p | None = None) -> None:
    """Set a property of this process."""
    unused = ctypes.c_ulong(0)
    argument = pointer if pointer is not None else unused
    _check(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), argument, unused, unused), f"prctl {option}")


def drop_capabilities() -> None:
    """Give up every capability; with no_new_privs there is no way back to one."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.syscall(ctypes.c_long(_CAPSET[_MACHINE]), header, bytes(24)), "capset")


def filter_calls(program: bytes) -> None:
    """Filter the system calls of this process and of all that it becomes, by instructions of the BPF machine."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    instructions = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(instructions)))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.cast(header, ctypes.c_void_p))


def system_call(name: str, number: int, *arguments: object) -> int:
    """A raw system call's result."""
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    _check(min(result, 0), name)
    return result


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def _find_tid_address() -> int:
    """Where the C library remembers this thread's id, for a clone to set it right; 0 where the kernel does not say."""
    address = ctypes.c_void_p(0)
    unused = ctypes.c_ulong(0)
    found = _libc.prctl(ctypes.c_int(PR_GET_TID_ADDRESS), ctypes.byref(address), unused, unused, unused)
    return (address.value or 0) if found == 0 else 0


_tid_address = _find_tid_address()
