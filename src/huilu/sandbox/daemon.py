"""The supervisor of jails: one single-threaded process that forks, watches and kills them.

Started by `client` as `python -m huilu.sandbox.daemon FD LEVEL`; answers `run` and `check` frames of `wire`. It has no
threads and no asyncio, so that its forks are clean, and it ends, with all its jails, when its client does.

    check:  candidate's jail  <-- calls, values -->  examiner's jail  --> outcome
            runs the answer, sees no test            runs the test, sees plain values only
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from huilu import errors, wire
from huilu.core.generation import Program, RunResult
from huilu.sandbox import scripts, seccomp
from huilu.sandbox.cell import Cell
from huilu.sandbox.cgroups import Groups, dead_owners
from huilu.sandbox.link import Link
from huilu.sandbox.outcome import Outcome, judge

LEVELS = ("full", "userns")
TICK_S = 0.02
GRACE_S = 0.25
"""What a candidate may take to end by itself once its examiner is done: how it ended may be why."""
SCRATCH = "huilu-jail-"


class Check(msgspec.Struct, frozen=True):
    """`check`: a program that defines functions, and the test of them."""

    program: Program
    check: str


class Job:
    """One request: its cells, and what to answer when they are done."""

    def __init__(self, call_id: int, cells: list[Cell], answer: Callable[[list[RunResult]], RunResult]) -> None:
        self.call_id, self.cells, self.answer = call_id, cells, answer
        self._over_at: float | None = None

    def settled(self, now: float) -> bool:
        """Whether the last cell, which decides, has ended, and the others have too or had their time to."""
        if not self.cells[-1].ended:
            return False
        if self._over_at is None:
            self._over_at = now
        return now - self._over_at >= GRACE_S or all(cell.ended for cell in self.cells)


class Supervisor:
    """Owns every jail of one client."""

    def __init__(self, sock: socket.socket, level: str) -> None:
        self._link, self._level = Link(sock), level
        self._groups = Groups() if level == "full" else None
        self._filter = seccomp.for_this_machine()
        for dead in dead_owners(Path(tempfile.gettempdir()), SCRATCH):
            with contextlib.suppress(OSError):
                dead.rmdir()  # its roots were mounted in namespaces that are gone
        self._scratch = tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-")
        self._selector = selectors.DefaultSelector()
        self._jobs: list[Job] = []
        self._names = (f"cell-{number}" for number in itertools.count())
        self._progress, self._beaten_at = 0, 0.0

    def run(self) -> None:
        """Serve until the client closes its end."""
        if self._groups is not None:
            self._groups.open()
        self._selector.register(self._link, selectors.EVENT_READ, None)
        try:
            while self._turn():
                pass
        finally:
            self._close()

    def _turn(self) -> bool:
        for key, _ in self._selector.select(TICK_S if self._jobs or self._link.behind else wire.BEAT_S):
            if key.fileobj is self._link:
                calls = self._link.receive()
                if calls is None:
                    return False
                for call in calls:
                    self._take(call)
            else:
                self._read(int(key.fd), key.data)
        now = time.monotonic()
        for job in list(self._jobs):
            for cell in job.cells:
                cell.attend(now)
            if job.settled(now):
                self._finish(job)
        if now - self._beaten_at >= wire.BEAT_S:
            self._beaten_at = now
            self._link.send(wire.Beat(self._progress))
        self._link.flush()
        return True

    def _take(self, call: wire.Call) -> None:
        try:
            with errors.boundary("the sandbox"):
                job = self._start(call)
        except errors.HuiluError as error:
            self._link.send(wire.Fault(call.id, errors.SandboxFailed.code, str(error)))
            return
        self._jobs.append(job)
        for cell in job.cells:
            for descriptor in cell.pipes:
                self._selector.register(descriptor, selectors.EVENT_READ, cell)

    def _start(self, call: wire.Call) -> Job:
        if call.method == "run":
            program = msgspec.msgpack.decode(call.body, type=Program)
            plain = msgspec.structs.replace(program, files={**program.files, "main.py": scripts.source(program)})
            return Job(call.id, [self._cell(plain, "main.py")], lambda results: results[0])
        return self._start_check(call.id, msgspec.msgpack.decode(call.body, type=Check))

    def _start_check(self, call_id: int, request: Check) -> Job:
        """Two jails joined by two pipes, and a third for the examiner's word."""
        with contextlib.ExitStack() as ends, contextlib.ExitStack() as undo:  # the latter where something fails
            asks, answers, word = _pipe(ends), _pipe(ends), _pipe(ends)
            told = os.dup(word[0])
            undo.callback(os.close, told)
            candidate = self._cell(scripts.candidate(request.program), "serve.py", (asks[0], answers[1]))
            undo.callback(candidate.finish, self._level)
            examiner = self._cell(
                scripts.examiner(request.program, request.check), "examine.py", (answers[0], asks[1], word[1])
            )
            undo.pop_all()
        return Job(call_id, [candidate, examiner], lambda results: judge(results, read_outcome(told)))

    def _cell(self, program: Program, entry: str, channels: tuple[int, ...] = ()) -> Cell:
        return Cell(next(self._names), program, entry, self._scratch, self._filter, self._groups, channels)

    def _read(self, descriptor: int, cell: Cell) -> None:
        if not cell.read(descriptor):
            self._selector.unregister(descriptor)
            cell.drop(descriptor)

    def _finish(self, job: Job) -> None:
        for cell in job.cells:
            for descriptor in cell.pipes:
                self._selector.unregister(descriptor)
        results = [cell.finish(self._level) for cell in reversed(job.cells)]
        self._jobs.remove(job)
        self._progress += 1
        self._link.send(wire.Answer(job.call_id, wire.raw(job.answer(results))))

    def _close(self) -> None:
        for job in self._jobs:
            for cell in job.cells:
                cell.finish(self._level)
        if self._groups is not None:
            self._groups.close()
        with contextlib.suppress(OSError):
            Path(self._scratch).rmdir()


def _pipe(ends: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed with the stack: the jails have theirs by then."""
    pipe = os.pipe()
    for end in pipe:
        ends.callback(os.close, end)
    return pipe


def read_outcome(descriptor: int) -> Outcome | None:
    """What the examiner said on its pipe, or None when it said nothing whole."""
    with open(descriptor, "rb") as pipe:
        data = pipe.read(1 << 16)
    try:
        kind, text = msgspec.json.decode(data[4:], type=tuple[str, str])
    except msgspec.MsgspecError:
        return None
    return Outcome(kind, text)


def main() -> None:
    """Serve the socket and level named on the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a run takes three; the usual 1024 are few
    Supervisor(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]).run()


if __name__ == "__main__":
    main()
