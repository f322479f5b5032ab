"""Landlock: what a process may open, by the folders it lies in; no TCP, no signal to others. By ctypes.

Called inside by `warm` in a process that is about to become the program. Standard library only. Which rights the
kernel knows is its ABI's number; rights that it does not know are left out.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from huilu.sandbox.kernel import linux

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE
REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (
    1 << bit for bit in range(4, 13)
)
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_SINCE = {2: REFER, 3: TRUNCATE, 5: IOCTL_DEV}
_NET_SINCE, _SCOPE_SINCE = 4, 6
_ALL_NET, _ALL_SCOPES = 3, 3  # bind and connect; abstract unix sockets and signals

READ = READ_FILE | READ_DIR
RUN = READ | EXECUTE
WRITE = (
    READ
    | WRITE_FILE
    | REMOVE_DIR
    | REMOVE_FILE
    | MAKE_DIR
    | MAKE_REG
    | MAKE_SOCK
    | MAKE_FIFO
    | MAKE_SYM
    | REFER
    | TRUNCATE
)
USE = READ_FILE | WRITE_FILE | IOCTL_DEV


def abi() -> int:
    """The kernel's Landlock ABI, 0 where it has none or may not be asked."""
    try:
        return linux.system_call(
            "landlock_create_ruleset", _CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION)
        )
    except OSError:
        return 0


def handled(version: int) -> int:
    """The rights over files that an ABI knows."""
    rights = (1 << 13) - 1
    for since, right in _SINCE.items():
        rights |= right if version >= since else 0
    return rights


def ruleset(version: int, rules: Iterable[tuple[str, int]]) -> int:
    """A rule set of (path, rights), for it and all that lies beneath; what is not there is left out. Its descriptor.

    What a file system covers is beneath too, but for the very folder that it is mounted on.
    """
    rights = handled(version)
    attributes = struct.pack("QQQ", rights, _ALL_NET, _ALL_SCOPES)
    size = 24 if version >= _SCOPE_SINCE else 16 if version >= _NET_SINCE else 8
    made = linux.system_call("landlock_create_ruleset", _CREATE, attributes, ctypes.c_size_t(size), ctypes.c_uint(0))
    try:
        for path, wanted in rules:
            _allow(made, path, wanted & rights)
    except OSError:
        os.close(made)
        raise
    return made


def restrict(ruleset: int) -> None:
    """Confine this process for good. Needs no_new_privs."""
    linux.system_call("landlock_restrict_self", _RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0))


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):  # noqa: PTH112 - no pathlib in a zygote
            rights &= _OF_FILES | TRUNCATE | IOCTL_DEV
        rule = struct.pack("=Qi", rights, descriptor)
        linux.system_call(
            "landlock_add_rule", _ADD, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint(0)
        )
    finally:
        os.close(descriptor)
