"""One run under way: its jail's pipes, what came out of them so far, and the verdict when it is over.

Called by `daemon`, one object a run; starts and kills the jail. Output is drained as it comes and kept up to the
limit, so that the supervisor's memory stays flat.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable

from huilu.core.generation import Program, RunResult
from huilu.sandbox import jail, usage
from huilu.sandbox.cgroups import Groups

CHUNK_BYTES = 1 << 16
LOOK_S = 0.1
"""Between looks at what a jail's processes hold, where no control group counts it."""
GRACE_BYTES = 1 << 20
"""Address space beyond the limit for the interpreter's own mappings, where no cgroup counts memory."""
FULL = (b"[Errno 11]", b"can't start new thread")
"""What Python says when a limit of processes stops a fork or a thread."""


class Cell:
    """A running jail. `channels` are further pipe ends that the program inherits as 3, 4, …; the caller closes them.

    Raises OSError where it cannot be started, and leaves nothing then.
    """

    def __init__(
        self,
        name: str,
        program: Program,
        entry: str,
        scratch: str,
        filter_: bytes,
        groups: Groups | None,
        channels: tuple[int, ...] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.program = name, program
        self._groups, self._monotonic = groups, monotonic
        self._output = {"stdout": bytearray(), "stderr": bytearray()}
        self._over, self._late, self._heavy, self._cut = False, False, False, False
        self._used, self._look_at = usage.Usage(0, 0.0), 0.0
        self._told: dict[bytes, int] = {}
        self._started = monotonic()
        self.deadline = self._started + program.wall_s
        with contextlib.ExitStack() as undo:
            if groups is not None:
                undo.callback(groups.remove, name)
                groups.make(name, program.memory_bytes, program.processes + 3)  # outer, init and the program are three
            self._fork(entry, scratch, filter_, channels)
            undo.pop_all()

    def _fork(self, entry: str, scratch: str, filter_: bytes, channels: tuple[int, ...]) -> None:
        address_bytes = 0 if self._groups is not None else self.program.memory_bytes + GRACE_BYTES
        supervisor = os.getpid()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as undo:
            stdin = os.memfd_create("stdin")
            theirs.callback(os.close, stdin)
            os.write(stdin, self.program.stdin.encode("utf-8", "surrogateescape"))
            os.lseek(stdin, 0, os.SEEK_SET)
            stdout, stderr, status = (_pipe(undo, theirs) for _ in range(3))
            go = _pipe(theirs, theirs)
            ends = jail.Ends(stdin, stdout[1], stderr[1], status[1], go[0], channels)
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    jail.enter(jail.Jail(self.program, entry, ends, scratch, filter_, supervisor, address_bytes))
                finally:
                    os._exit(1)
            undo.callback(os.waitpid, self.pid, 0)
            undo.callback(os.kill, self.pid, signal.SIGKILL)
            self.pipes = {stdout[0]: "stdout", stderr[0]: "stderr", status[0]: "status"}
            for descriptor in self.pipes:
                os.set_blocking(descriptor, False)
            if self._groups is not None:
                self._groups.enter(self.name, self.pid)
            os.write(go[1], b"g")
            undo.pop_all()

    def read(self, descriptor: int) -> bool:
        """Take what a pipe holds; False at its end, when it is to be dropped."""
        size = self._take(descriptor)
        if self._over:
            self.kill()
        return size != 0

    def drop(self, descriptor: int) -> None:
        """Close a pipe, which nobody may watch any more.

        A jail that is being forked may hold a copy; epoll then goes on reporting a descriptor that was closed first,
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
        name = self.pipes[descriptor]
        if name == "status":
            for start in range(0, len(data) - jail.STATUS.size + 1, jail.STATUS.size):
                what, value = jail.STATUS.unpack_from(data, start)
                self._told[what] = value
        else:
            kept = self._output[name]
            room = self.program.output_bytes - len(kept)
            kept += data[:room]
            self._over = self._over or len(data) > room
        return len(data)

    @property
    def ended(self) -> bool:
        """The program is gone, by its own doing or ours; pipes that others inside hold open do not count."""
        return b"w" in self._told or b"e" in self._told or "status" not in self.pipes.values()

    def attend(self, now: float) -> None:
        """Kill it when its time is up, or where nobody else counts, when its processes together hold too much."""
        if self.ended:
            return
        self._late = now >= self.deadline
        if self._late or (self._groups is None and now >= self._look_at):
            self._look(now)
        if self._late or self._heavy:
            self.kill()

    def _look(self, now: float) -> None:
        init = self._told.get(b"p")
        if init is None:  # it is still being made
            return
        self._look_at = now + LOOK_S
        seen = usage.of_jail(init)
        self._used = usage.Usage(max(seen.memory_bytes, self._used.memory_bytes), seen.cpu_s)
        self._heavy = self._groups is None and seen.memory_bytes > self.program.memory_bytes

    def kill(self) -> None:
        """Kill all that is inside: init's death takes the pid namespace with it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._told.get(b"p", self.pid), signal.SIGKILL)

    def finish(self, level: str) -> RunResult:
        """End and reap everything; the result."""
        wall_s = self._monotonic() - self._started
        if not self.ended:  # else init goes by itself, and its process id may already be another's
            self._cut = True
            self.kill()
        _, _, reaped = os.wait4(self.pid, 0)
        cpu_s = max(reaped.ru_utime + reaped.ru_stime, self._used.cpu_s)  # the killed are in the latter alone
        for descriptor in list(self.pipes):  # what is left in them; their writers are dead
            while self._take(descriptor):
                pass
            self.drop(descriptor)
        verdict, note = self._verdict(cpu_s)
        largest_bytes = max(reaped.ru_maxrss * 1024, self._used.memory_bytes)
        peak_bytes = self._groups.peak_bytes(self.name) if self._groups is not None else largest_bytes
        status = self._told.get(b"w")
        result = RunResult(
            verdict=verdict,
            exit_code=os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
            signal=os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
            stdout=self._output["stdout"].decode("utf-8", "backslashreplace"),
            stderr=self._output["stderr"].decode("utf-8", "backslashreplace"),
            truncated=self._over,
            wall_s=wall_s,
            cpu_s=cpu_s,
            peak_bytes=peak_bytes,
            isolation=level,
            note=note,
        )
        if self._groups is not None:
            self._groups.remove(self.name)
        return result

    def _verdict(self, cpu_s: float) -> tuple[str, str]:
        """What the run comes to. The order matters: what the supervisor did outranks what the program says."""
        if b"e" in self._told:
            number = self._told[b"e"]
            return "SBX", f"the jail could not be made: {os.strerror(number)} ({errno.errorcode.get(number, number)})"
        stopped = self._stopped()
        if stopped is not None:
            return stopped
        status = self._told.get(b"w")
        if status is None:
            return ("INC", "still ran when it was over") if self._cut else ("SBX", "the jail was killed from outside")
        if os.WIFSIGNALED(status):
            return self._signalled(os.WTERMSIG(status), cpu_s)
        return ("AC", "") if os.WEXITSTATUS(status) == 0 else self._complained(os.WEXITSTATUS(status))

    def _stopped(self) -> tuple[str, str] | None:
        """Which limit stopped it, if one did."""
        groups, program = self._groups, self.program
        for met, verdict, note in (
            (self._over, "OLE", f"more than {program.output_bytes} bytes of output"),
            (
                self._heavy or (groups is not None and groups.ran_out(self.name)),
                "MLE",
                f"more than {program.memory_bytes} bytes of memory",
            ),
            (self._was_full(), "PLE", f"more than {program.processes} processes"),
            (self._late, "TLE", f"not done after {program.wall_s:g} s"),
        ):
            if met:
                return verdict, note
        return None

    def _was_full(self) -> bool:
        """Whether a fork failed at the limit: the group's word, or what a program says that did not end well.

        It may say so anywhere in its output: the forks of a bomb write over one another.
        """
        if self._groups is not None and self._groups.was_full(self.name):
            return True
        stderr = self._output["stderr"]
        return self._told.get(b"w") != 0 and any(word in stderr for word in FULL)

    def _signalled(self, number: int, cpu_s: float) -> tuple[str, str]:
        if number in (signal.SIGXCPU, signal.SIGKILL) and cpu_s >= self.program.cpu_s:
            return "TLE", f"more than {self.program.cpu_s:g} s of CPU"
        if number == signal.SIGXFSZ:
            return "DLE", f"a file of more than {self.program.disk_bytes} bytes"
        return "RE", f"killed by signal {number}"

    def _complained(self, code: int) -> tuple[str, str]:
        """A program that ended by itself with an error: which limit it says it met, if any."""
        last = self._output["stderr"].decode("utf-8", "replace").strip().splitlines()[-1:]
        said = last[0] if last else ""
        for word, verdict in (
            ("MemoryError", "MLE"),
            ("[Errno 12]", "MLE"),
            ("[Errno 27]", "DLE"),
            ("[Errno 28]", "DLE"),
            ("[Errno 122]", "DLE"),
        ):
            if word in said:
                return verdict, said[:200]
        return "RE", said[:200] or f"status {code}"


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed with these."""
    pipe = os.pipe()
    for stack, end in zip((reader, writer), pipe, strict=True):
        stack.callback(os.close, end)
    return pipe
