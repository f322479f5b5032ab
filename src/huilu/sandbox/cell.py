"""One run under way: its jail's pipes, what came out of them so far, and the verdict when it is over.

Called by `daemon`, one object a run; its zygote clones the jail, the pidfd ends it. Output is drained as it comes and
kept up to the limit, so that the supervisor's memory stays flat.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from huilu.core.generation import Program, RunResult
from huilu.sandbox import verdicts
from huilu.sandbox.kernel import usage
from huilu.sandbox.kernel.cgroups import Counts, Group, Groups
from huilu.sandbox.verdicts import Seen
from huilu.sandbox.warm import order
from huilu.sandbox.warm.order import Ending, Ends, Order
from huilu.sandbox.zygotes.root import ENVIRONMENT

CHUNK_BYTES = 1 << 16
LOOK_S = 0.1
"""Between looks at what a jail's processes hold, where no control group counts it."""
AGAIN_S = 1.0
GRACE_BYTES = 1 << 20
"""Address space beyond the limit for the interpreter's own mappings, where no cgroup counts memory."""
CORES = os.cpu_count() or 1
_READ_ONLY = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Start(NamedTuple):
    """What a run begins with. `channels` are pipe ends that the program inherits as 3, 4, …; the cell closes them."""

    number: int
    program: Program
    start: str
    argv: tuple[str, ...]
    level: str
    profile: str
    channels: tuple[int, ...] = ()


class Cell:
    """A running jail. Raises OSError where it cannot be asked for, and leaves nothing then."""

    def __init__(self, start: Start, groups: Groups | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.number, self.program = start.number, start.program
        self.profile = start.profile
        self._level, self._groups, self._monotonic = start.level, groups, monotonic
        self._output = {"stdout": bytearray(), "stderr": bytearray()}
        self._over = self._late = self._spent = self._heavy = self._cut = False
        self._used = usage.Usage(0, 0.0)
        self._ending: Ending | None = None
        self._note = ""
        self._started_at = monotonic()
        self.deadline = float("inf")
        self.pidfd: int | None = None
        """Of its keeper, while that lives and is known."""
        self.over = False
        self.keeps = bool(start.program.keep)
        self._group: Group | None = None
        self._counts_cpu = groups is not None and groups.counts_cpu
        with contextlib.ExitStack() as undo:
            if groups is not None:
                self._group = groups.acquire(start.program.memory_bytes, start.program.processes + _beside(start))
                undo.callback(groups.release, self._group)
            self._join(start, undo)
            undo.pop_all()

    def _join(self, start: Start, undo: contextlib.ExitStack) -> None:
        """Make what joins the jail to us, and write down what it is to do."""
        with contextlib.ExitStack() as theirs:
            paper = os.memfd_create("order")
            undo.callback(os.close, paper)
            _fill(paper, _order(start, self._group is not None).pack())
            stdin = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            theirs.callback(os.close, stdin)
            _fill(stdin, start.program.stdin.encode("utf-8", "surrogateescape"))
            fcntl.fcntl(stdin, fcntl.F_ADD_SEALS, _READ_ONLY)
            stdout, stderr = _pipe(undo, theirs), _pipe(undo, theirs)
            doors = self._group.doors() if self._group is not None else []
            for door in doors:
                theirs.callback(os.close, door)
            self.ends = Ends(paper, stdin, stdout[1], stderr[1], tuple(doors), start.channels)
            self._theirs = theirs.pop_all()
        for channel in start.channels:
            self._theirs.callback(os.close, channel)
        self._paper = paper
        self.pipes = {stdout[0]: "stdout", stderr[0]: "stderr"}
        for descriptor in self.pipes:
            os.set_blocking(descriptor, False)

    def sent(self) -> None:
        """Its ends of what joins it to us are on their way."""
        self._theirs.close()

    def started(self, pidfd: int) -> None:
        """Its zygote has cloned it: its time runs from now."""
        self.pidfd = pidfd
        self._started_at = self._monotonic()
        self.deadline = self._started_at + self.program.wall_s
        if self._cut:
            self.kill()

    def ended(self, ending: Ending) -> None:
        """Its program is over: it is, as soon as nothing of it lives."""
        self._ending = ending
        self.over = self.pidfd is None

    def gone(self) -> None:
        """Nothing of it lives; nobody may watch its pidfd any more."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
        self.over = self.over or self._ending is not None

    def failed(self, note: str) -> None:
        """It never started, or was lost with its zygote; what was seen of it before still counts."""
        self._theirs.close()
        self._note = self._note or note
        self.over = True

    def read(self, descriptor: int) -> bool:
        """Take what a pipe holds; False at its end, when it is to be dropped."""
        size = self._take(descriptor)
        if self._over:
            self.kill()
        return size != 0

    def drop(self, descriptor: int) -> None:
        """Close a pipe, which nobody may watch any more.

        A clone that is under way may hold a copy; epoll then goes on reporting a descriptor that was closed first,
        under a number that may be another's by then.
        """
        os.close(descriptor)
        del self.pipes[descriptor]

    def _take(self, descriptor: int) -> int | None:
        """How many bytes came: 0 at the end, None when there are none yet."""
        try:
            data = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return None
        kept = self._output[self.pipes[descriptor]]
        room = self.program.output_bytes - len(kept)
        kept += data[:room]
        self._over = self._over or len(data) > room
        return len(data)

    def next_look(self, now: float) -> float:
        """When it has to be looked at: at its deadline, or before it could have used up what nobody else bounds."""
        if now >= self.deadline:  # it was killed, and its end is on its way
            return now + AGAIN_S
        if self._group is None or not self._counts_cpu:
            return min(self.deadline, now + LOOK_S)
        spare_s = max(self.program.cpu_s - self._used.cpu_s, 0.0) / CORES
        return min(self.deadline, now + max(spare_s, LOOK_S))

    def attend(self, now: float) -> None:
        """Kill it when its time is up, or its processes together hold or spent too much."""
        if self.over or self.pidfd is None:
            return
        self._late = now >= self.deadline
        self._look()
        if self._late or self._heavy or self._spent:
            self.kill()

    def _look(self) -> None:
        program = self.program
        if self._group is not None and self._counts_cpu:
            self._used = usage.Usage(0, self._group.cpu_s())
        elif self.pidfd is not None:
            seen = usage.of_jail(usage.pid_of(self.pidfd))
            self._used = usage.Usage(max(seen.memory_bytes, self._used.memory_bytes), seen.cpu_s)
            self._heavy = self._group is None and seen.memory_bytes > program.memory_bytes
        self._spent = self._used.cpu_s > program.cpu_s

    def kill(self) -> None:
        """Kill all that is inside: its keeper's death takes the pid namespace with it."""
        if self.pidfd is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def discard(self) -> None:
        """Close everything of a run that was never asked for."""
        self.failed("")
        self.finish()

    def cut(self) -> None:
        """Nobody needs it any more."""
        self._cut = True
        self.kill()

    def finish(self) -> RunResult:
        """The result, once it is over. Everything of it is closed then."""
        wall_s = self._monotonic() - self._started_at
        for descriptor in list(self.pipes):  # what is left in them; their writers are dead
            while self._take(descriptor):
                pass
            self.drop(descriptor)
        error, kept = order.outcome(self._paper, self.keeps)
        os.close(self._paper)
        counts = self._counts()
        verdict, note = verdicts.of_run(self._seen(counts, error))
        status = self._ending.status if self._ending is not None else None
        return RunResult(
            verdict=verdict,
            exit_code=os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
            signal=os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
            stdout=self._output["stdout"].decode("utf-8", "backslashreplace"),
            stderr=self._output["stderr"].decode("utf-8", "backslashreplace"),
            truncated=self._over,
            wall_s=wall_s,
            cpu_s=counts.cpu_s,
            peak_bytes=counts.peak_bytes,
            isolation=self._level,
            profile=self.profile,
            note=note,
            kept=kept,
        )

    def _counts(self) -> Counts:
        """What it used, by its group if it has one, else by what was told and seen; the group is given back."""
        ending = self._ending or Ending(0, 0, 0, 0)
        told_s = ending.cpu_us / 1e6
        if self._group is None or self._groups is None:
            peak_bytes = max(ending.peak_kb * 1024, self._used.memory_bytes)
            return Counts(peak_bytes, 0, 0, max(told_s, self._used.cpu_s))
        counts = self._group.counts()
        self._groups.release(self._group)
        return counts if self._counts_cpu else counts._replace(cpu_s=max(told_s, self._used.cpu_s))

    def _seen(self, counts: Counts, error: int) -> Seen:
        return Seen(
            program=self.program,
            ending=self._ending,
            error=error,
            counts=counts,
            note=self._note,
            stderr=bytes(self._output["stderr"]),
            over=self._over,
            late=self._late,
            spent=self._spent,
            heavy=self._heavy,
            cut=self._cut,
        )


def _beside(start: Start) -> int:
    """Processes in the jail beyond the run's number: the program's first, and who waits for it if it is a command."""
    return 2 if start.start == "command" else 1


def _order(start: Start, counted: bool) -> Order:
    program = start.program
    return Order(
        start=start.start,
        argv=start.argv,
        tree={name: (0o100644, content) for name, content in program.files.items()}
        | {name: (kept.mode, kept.content) for name, kept in program.tree.items()},
        keep=program.keep,
        cpu_s=program.cpu_s,
        disk_bytes=program.disk_bytes,
        inodes=program.inodes,
        open_files=program.open_files,
        processes=0 if counted else program.processes + 1 + _beside(start),  # and the keeper
        address_bytes=0 if counted else program.memory_bytes + GRACE_BYTES,
        environment=ENVIRONMENT,
    )


def _fill(descriptor: int, content: bytes) -> None:
    """Write a file in memory, and go back to its start."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
    os.lseek(descriptor, 0, os.SEEK_SET)


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed with these."""
    pipe = os.pipe()
    for stack, end in zip((reader, writer), pipe, strict=True):
        stack.callback(os.close, end)
    return pipe
