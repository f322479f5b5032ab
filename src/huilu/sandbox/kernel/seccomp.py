"""The system-call filter of a jail, assembled for the kernel's BPF machine. Called by `daemon`.

Refused calls fail with EPERM (`clone3` with ENOSYS, so that C libraries fall back to `clone`, whose flags can be
looked at). A foreign architecture is killed. Numbers are those of the kernel's own tables.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from huilu import errors

_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_EPERM, _ENOSYS = 0x00050000 | 1, 0x00050000 | 38
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
_NEW_NAMESPACES = 0x7E020000
_X32 = 0x40000000
_FEW = 4


class Machine(NamedTuple):
    """One architecture: its audit number, and the numbers of the calls that are refused."""

    audit: int
    clone: int
    clone3: int
    prlimit: int
    refused: tuple[int, ...]


MACHINES = {
    "x86_64": Machine(
        audit=0xC000003E,
        clone=56,
        clone3=435,
        prlimit=302,
        refused=(
            *(41, 49, 50, 42),  # socket, bind, listen, connect
            *(101, 310, 311, 312),  # ptrace, process_vm_readv, process_vm_writev, kcmp
            *(155, 161, 165, 166, 272, 308),  # pivot_root, chroot, mount, umount2, unshare, setns
            *(
                428,
                429,
                430,
                431,
                432,
                433,
                442,
            ),  # open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr
            *(
                163,
                167,
                168,
                169,
                170,
                171,
                172,
                173,
            ),  # acct, swapon, swapoff, reboot, sethostname, setdomainname, iopl, ioperm
            *(175, 176, 313, 246, 320),  # init_module, delete_module, finit_module, kexec_load, kexec_file_load
            *(248, 249, 250),  # add_key, request_key, keyctl
            *(298, 321, 323),  # perf_event_open, bpf, userfaultfd
            *(425, 426, 427),  # io_uring_setup, io_uring_enter, io_uring_register
            *(303, 304, 300, 301),  # name_to_handle_at, open_by_handle_at, fanotify_init, fanotify_mark
            *(253, 294),  # inotify_init, inotify_init1: who opens the system's files is nobody's business
            *(153, 154, 156, 179, 134, 139),  # vhangup, modify_ldt, sysctl, quotactl, uselib, sysfs
            *(227, 159, 305, 164),  # clock_settime, adjtimex, clock_adjtime, settimeofday
            *(237, 238, 239, 256, 279),  # mbind, set_mempolicy, get_mempolicy, migrate_pages, move_pages
            *(438, 434),  # pidfd_getfd, pidfd_open
            *(440, 443),  # process_madvise, quotactl_fd
            *(319, 447, 29, 68, 240),  # memfd_create, memfd_secret, shmget, msgget, mq_open: memory of no process
        ),
    ),
    "aarch64": Machine(
        audit=0xC00000B7,
        clone=220,
        clone3=435,
        prlimit=261,
        refused=(
            *(198, 200, 201, 203),  # socket, bind, listen, connect
            *(117, 270, 271, 272),  # ptrace, process_vm_readv, process_vm_writev, kcmp
            *(41, 51, 40, 39, 97, 268),  # pivot_root, chroot, mount, umount2, unshare, setns
            *(428, 429, 430, 431, 432, 433, 442),  # the new mount calls
            *(89, 224, 225, 142, 161, 162),  # acct, swapon, swapoff, reboot, sethostname, setdomainname
            *(105, 106, 273, 104, 294),  # init_module, delete_module, finit_module, kexec_load, kexec_file_load
            *(217, 218, 219),  # add_key, request_key, keyctl
            *(241, 280, 282),  # perf_event_open, bpf, userfaultfd
            *(425, 426, 427),  # io_uring
            *(264, 265, 262, 263),  # name_to_handle_at, open_by_handle_at, fanotify_init, fanotify_mark
            *(26,),  # inotify_init1: who opens the system's files is nobody's business
            *(58, 60),  # vhangup, quotactl
            *(112, 171, 266, 170),  # clock_settime, adjtimex, clock_adjtime, settimeofday
            *(235, 237, 236, 238, 239),  # mbind, set_mempolicy, get_mempolicy, migrate_pages, move_pages
            *(438, 434),  # pidfd_getfd, pidfd_open
            *(440, 443),  # process_madvise, quotactl_fd
            *(279, 447, 194, 186, 180),  # memfd_create, memfd_secret, shmget, msgget, mq_open: memory of no process
        ),
    ),
}


def assemble(name: str) -> bytes:
    """The filter's instructions for a machine, 8 bytes each. Raises IsolationRefused for an unknown machine."""
    machine = MACHINES.get(name)
    if machine is None:
        raise errors.IsolationRefused(f"no system-call table for {name}", expected=f"one of {', '.join(MACHINES)}")
    code = [
        _op(_LOAD, _ARCH),
        _op(_EQUAL, machine.audit, 1, 0),
        _op(_RETURN, _KILL),
        _op(_LOAD, _NUMBER),
        _op(_AT_LEAST, _X32, 0, 1),
        _op(_RETURN, _KILL),
        _op(_EQUAL, machine.clone3, 0, 1),
        _op(_RETURN, _ENOSYS),
        _op(_EQUAL, machine.clone, 0, 4),
        _op(_LOAD, _FIRST_ARGUMENT),
        _op(_ANY_BIT, _NEW_NAMESPACES, 0, 1),
        _op(_RETURN, _EPERM),
        _op(_RETURN, _ALLOW),
        # Its own limits may be read and lowered; those of init, which has the same user, would end the jail.
        _op(_EQUAL, machine.prlimit, 0, 4),
        _op(_LOAD, _FIRST_ARGUMENT),
        _op(_EQUAL, 0, 1, 0),
        _op(_RETURN, _EPERM),
        _op(_RETURN, _ALLOW),
    ]
    return b"".join([*code, *_search(sorted(set(machine.refused)))])


def _search(refused: list[int]) -> list[bytes]:
    """Refuse these numbers and allow the others, by halving: the kernel tries every one when a filter is set."""
    if len(refused) <= _FEW:
        tests = [_op(_EQUAL, number, len(refused) - place, 0) for place, number in enumerate(refused)]
        return [*tests, _op(_RETURN, _ALLOW), _op(_RETURN, _EPERM)]
    middle = len(refused) // 2
    lower = _search(refused[:middle])
    return [_op(_AT_LEAST, refused[middle], len(lower), 0), *lower, *_search(refused[middle:])]


def for_this_machine() -> bytes:
    """The filter of the machine this runs on."""
    return assemble(os.uname().machine)


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
