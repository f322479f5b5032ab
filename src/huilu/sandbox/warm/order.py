"""What a run is made from, as it crosses into a zygote's child, and what comes back. Plain values, packed.

An order never passes through the zygote's own memory, where a later run would find it: the zygote sees descriptors
alone, and its child reads the order from one of them, a file in memory. What fails before the program runs is written
into that file, and so are the files that are to be kept; the program does not have it. Standard library only.
"""

from __future__ import annotations

import marshal
import os
import struct
from typing import NamedTuple

from huilu.sandbox.warm.files import Tree

HEAD = struct.Struct("=QBBB")
"""A start: the run's number, how many doors of groups, how many channels, whether files are to be kept."""
ANSWER = struct.Struct("=cQqqqq")
"""What a zygote says: kind, the run's number, and four numbers."""
READY, STARTED, REFUSED, ENDED = b"r", b"s", b"n", b"e"
"""Kinds: it lives; the run was cloned, with a pidfd; it was not, an errno; it ended, as `Ending` says."""
FIXED = 4
_WORD = struct.Struct("=q")
"""In front of an order: 0, an errno, or that kept files have taken the order's place."""
_KEPT = -1


class Ends(NamedTuple):
    """The jail's ends of what joins it to the supervisor."""

    order: int
    stdin: int
    stdout: int
    stderr: int
    doors: tuple[int, ...] = ()
    """By these it enters its control groups."""
    channels: tuple[int, ...] = ()
    """The program has these as 3, 4, …"""

    def flat(self) -> list[int]:
        return [self.order, self.stdin, self.stdout, self.stderr, *self.doors, *self.channels]


class Ending(NamedTuple):
    """How a program ended: its wait status; what it and its children took; whether the disk had no room left.

    `disk_full` is -1 where the jail was ended first.
    """

    status: int
    cpu_us: int
    peak_kb: int
    disk_full: int


class Order(NamedTuple):
    """One run. `start` is what the zygote's interpreter runs: `script`, `serve`, `examine`; or `command`."""

    start: str
    argv: tuple[str, ...]
    """The script and its arguments, or the command."""
    tree: Tree
    keep: tuple[str, ...]
    cpu_s: float
    disk_bytes: int
    inodes: int
    open_files: int
    processes: int
    """0 where a group counts them."""
    address_bytes: int
    """Address space beyond the zygote's; 0 where a group counts memory."""
    environment: dict[str, str]
    """Of a command; the interpreter has its zygote's."""

    def pack(self) -> bytes:
        return _WORD.pack(0) + marshal.dumps(tuple(self))


def read(descriptor: int) -> Order:
    """The order in a memory file."""
    return Order(*marshal.loads(_read(descriptor)[_WORD.size :]))  # noqa: S302 - the supervisor wrote it


def fail(descriptor: int, error: int) -> None:
    """Say that the jail could not be made, by an errno."""
    os.pwrite(descriptor, _WORD.pack(error or 1), 0)


def keep(descriptor: int, packed: bytes) -> None:
    """Put the files that are kept in the order's place."""
    os.ftruncate(descriptor, _WORD.size)
    left, at = memoryview(packed), _WORD.size
    while left:
        size = os.pwrite(descriptor, left, at)
        left, at = left[size:], at + size
    os.pwrite(descriptor, _WORD.pack(_KEPT), 0)


def outcome(descriptor: int, kept: bool) -> tuple[int, bytes]:
    """(0 or an errno, the files that were kept), from the memory file of a run that is over."""
    (word,) = _WORD.unpack(os.pread(descriptor, _WORD.size, 0))
    return max(word, 0), _read(descriptor)[_WORD.size :] if kept and word == _KEPT else b""


def _read(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    data = bytearray()
    while len(data) < size and (part := os.pread(descriptor, size - len(data), len(data))):
        data += part
    return bytes(data)


def ends(head: bytes, descriptors: list[int]) -> tuple[int, bool, Ends]:
    """The run's number, whether files are kept, and its ends, from a start and the descriptors that came with it."""
    number, doors, channels, kept = HEAD.unpack(head)
    last = FIXED + doors
    paper, stdin, stdout, stderr = descriptors[:FIXED]
    doorways, pipes = tuple(descriptors[FIXED:last]), tuple(descriptors[last : last + channels])
    found = Ends(paper, stdin, stdout, stderr, doorways, pipes)
    return number, bool(kept), found
