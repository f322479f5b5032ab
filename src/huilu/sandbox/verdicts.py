"""What a run comes to, from all that was seen of it. Pure; called by `cell`.

The order matters: what the supervisor did outranks what the program says.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import NamedTuple

from huilu.core.generation import Program
from huilu.sandbox.kernel.cgroups import Counts
from huilu.sandbox.warm.order import Ending

FULL = (b"[Errno 11]", b"can't start new thread")
"""What Python says when a limit of processes stops a fork or a thread."""
_SAID = (
    ("MemoryError", "MLE"),
    ("[Errno 12]", "MLE"),
    ("[Errno 27]", "DLE"),
    ("[Errno 28]", "DLE"),
    ("[Errno 122]", "DLE"),
)
"""What Python says last when memory or disk ran out."""


class Seen(NamedTuple):
    """What was seen: records from inside, counts, and which limits the supervisor enforced."""

    program: Program
    ending: Ending | None
    """None where it was lost."""
    error: int
    """The errno that its jail failed with, or 0."""
    counts: Counts
    note: str
    """Why it could not be started."""
    stderr: bytes
    over: bool
    """It wrote too much."""
    late: bool
    spent: bool
    """It used up its CPU time."""
    heavy: bool
    """Its processes held too much memory."""
    cut: bool
    """It was ended since nobody needed it any more."""


def of_run(seen: Seen) -> tuple[str, str]:
    """(verdict, note)."""
    decided = _stopped(seen) or _unmade(seen)
    if decided is not None or seen.ending is None:
        return decided or ("SBX", seen.note)
    status = seen.ending.status
    if os.WIFSIGNALED(status):
        return _signalled(os.WTERMSIG(status), seen)
    return ("AC", "") if os.WEXITSTATUS(status) == 0 else _complained(os.WEXITSTATUS(status), seen)


def _unmade(seen: Seen) -> tuple[str, str] | None:
    """What came between a run and its end, if something did."""
    if seen.error == errno.EFBIG:
        return "DLE", f"its files are more than {seen.program.disk_bytes} bytes"
    if seen.error:
        return "SBX", f"the jail could not be made: {os.strerror(seen.error)} ({errno.errorcode.get(seen.error)})"
    if seen.ending is not None and seen.ending.disk_full < 0:  # the keeper went first
        return ("INC", "still ran when it was over") if seen.cut else ("SBX", "the jail was killed from outside")
    return None


def _stopped(seen: Seen) -> tuple[str, str] | None:
    """Which limit stopped it, if one did."""
    program = seen.program
    for met, verdict, note in (
        (seen.over, "OLE", f"more than {program.output_bytes} bytes of output"),
        (seen.heavy or seen.counts.killed_for_memory, "MLE", f"more than {program.memory_bytes} bytes of memory"),
        (_was_full(seen), "PLE", f"more than {program.processes} processes"),
        (seen.spent, "TLE", f"more than {program.cpu_s:g} s of CPU time"),
        (seen.late, "TLE", f"not done after {program.wall_s:g} s"),
    ):
        if met:
            return verdict, note
    return None


def _was_full(seen: Seen) -> bool:
    """Whether a fork failed at the limit: the group's word, or what a program says that did not end well.

    It may say so anywhere in its output: the forks of a bomb write over one another.
    """
    return bool(seen.counts.refused_forks) or (
        (seen.ending is None or seen.ending.status != 0) and any(word in seen.stderr for word in FULL)
    )


def _signalled(number: int, seen: Seen) -> tuple[str, str]:
    program = seen.program
    if number in (signal.SIGXCPU, signal.SIGKILL) and seen.counts.cpu_s >= program.cpu_s:
        return "TLE", f"more than {program.cpu_s:g} s of CPU time"
    if number == signal.SIGXFSZ:
        return "DLE", f"a file longer than {program.disk_bytes} bytes"
    return "RE", f"killed by {signal.Signals(number).name if number in set(signal.Signals) else f'signal {number}'}"


def _complained(code: int, seen: Seen) -> tuple[str, str]:
    """A program that ended badly: a limit by its last word, or by a work space without room."""
    last = seen.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    said = last[0] if last else ""
    for word, verdict in _SAID:
        if word in said:
            return verdict, said[:200]
    if seen.ending is not None and seen.ending.disk_full > 0:
        return "DLE", f"more than {seen.program.disk_bytes} bytes or {seen.program.inodes} files"
    return "RE", said[:200] or f"status {code}"
