"""The supervisor of jails: one single-threaded process that starts zygotes, and watches and kills what they clone.

Started by `client` as `python -m huilu.sandbox.daemon FD LEVEL`; answers `run`, `check` and `profiles` frames of
`wire`. It has no threads and no asyncio, so that its clones are clean, and it ends, with all its jails, when its
client does.

    check:  candidate's jail  <-- calls, values -->  examiner's jail  --> outcome
            runs the answer, sees no test            runs the test, sees plain values only
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import os
import resource
import select
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
from huilu.sandbox import scripts
from huilu.sandbox.cell import Cell, Start
from huilu.sandbox.kernel import landlock, seccomp
from huilu.sandbox.kernel.cgroups import Groups, dead_owners
from huilu.sandbox.link import Link
from huilu.sandbox.outcome import Outcome, judge
from huilu.sandbox.warm.program import Rules
from huilu.sandbox.zygotes import profiles, root
from huilu.sandbox.zygotes.process import Zygote
from huilu.sandbox.zygotes.profiles import Profile

LEVELS = ("full", "userns")
GRACE_S = 0.25
"""What a candidate may take to end by itself once its examiner is done: how it ended may be why."""
SCRATCH = "huilu-jail-"
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class Check(msgspec.Struct, frozen=True):
    """`check`: a program that defines functions, and the test of them."""

    program: Program
    check: str


class Job:
    """One request: its cells, and what to answer when they are over."""

    def __init__(self, call_id: int, cells: list[Cell], answer: Callable[[list[RunResult]], RunResult]) -> None:
        self.call_id, self.cells, self.answer = call_id, cells, answer
        self.cut_at: float | None = None
        """When the cells that do not decide are ended, once the last one, which does, is over."""

    @property
    def over(self) -> bool:
        return all(cell.over for cell in self.cells)


class Supervisor:
    """Owns every zygote and every jail of one client."""

    def __init__(self, sock: socket.socket, level: str) -> None:
        self._link, self._level = Link(sock), level
        self._groups = Groups() if level == "full" else None
        version = landlock.abi()
        self._rules = Rules(seccomp.for_this_machine(), version, root.rules(version))
        for dead in dead_owners(Path(tempfile.gettempdir()), SCRATCH):
            with contextlib.suppress(OSError):
                dead.rmdir()  # its roots were mounted in namespaces that are gone
        self._scratch = tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-")
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._zygotes: dict[str, Zygote[Cell]] = {}
        self._jobs: dict[int, Job] = {}
        """By the number of each of their cells."""
        self._due: list[tuple[float, int]] = []
        """When to look at which cell; what is over is skipped."""
        self._numbers = itertools.count(1)
        self._progress, self._beaten_at, self._link_events = 0, 0.0, _IN
        self._gone = False

    def run(self) -> None:
        """Serve until the client closes its end."""
        if self._groups is not None:
            self._groups.open()
        self._epoll.register(self._link.fileno(), _IN)
        self._watched[self._link.fileno()] = self._receive
        try:
            while not self._gone:
                self._turn()
        finally:
            self._close()

    def _turn(self) -> None:
        now = time.monotonic()
        wait_s = self._beaten_at + wire.BEAT_S - now
        if self._due:
            wait_s = min(wait_s, self._due[0][0] - now)
        for descriptor, _ in self._epoll.poll(max(wait_s, 0.0)):
            act = self._watched.get(descriptor)
            if act is not None:  # else an earlier one of this turn closed it
                act()
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            self._attend(heapq.heappop(self._due)[1], now)
        if now - self._beaten_at >= wire.BEAT_S:
            self._beaten_at = now
            self._link.send(wire.Beat(self._progress))
            for zygote in list(self._zygotes.values()):
                zygote.look(now)
                self._heed(zygote)
        self._flush()

    def _flush(self) -> None:
        self._link.flush()
        events = _IN | _OUT if self._link.behind else _IN
        if events != self._link_events:
            self._link_events = events
            self._epoll.modify(self._link.fileno(), events)

    def _receive(self) -> None:
        calls = self._link.receive()
        if calls is None:
            self._gone = True
            return
        for call in calls:
            self._take(call)

    def _take(self, call: wire.Call) -> None:
        try:
            with errors.boundary("the sandbox"):
                self._start(call)
        except errors.HuiluError as error:
            self._link.send(wire.Fault(call.id, errors.SandboxFailed.code, str(error)))

    def _start(self, call: wire.Call) -> None:
        if call.method == "profiles":
            self._link.send(wire.Answer(call.id, wire.raw([self._built(each) for each in profiles.available()])))
        elif call.method == "run":
            program = msgspec.msgpack.decode(call.body, type=Program)
            start, argv = scripts.start(program)
            cell = self._cell(scripts.plain(program), start, argv, profiles.choose(program))
            self._begin(Job(call.id, [cell], lambda results: results[0]))
        else:
            self._begin(self._check(call.id, msgspec.msgpack.decode(call.body, type=Check)))

    def _check(self, call_id: int, request: Check) -> Job:
        """Two jails joined by two pipes, and a third for the examiner's word. A cell closes its channels itself."""
        ends: set[int] = set()
        with contextlib.ExitStack() as undo:
            undo.callback(_close_all, ends)
            asks, answers, word = (_pipe(ends) for _ in range(3))
            candidate = self._side(scripts.candidate(request.program), "serve", (asks[0], answers[1]))
            ends -= {asks[0], answers[1]}
            undo.callback(candidate.discard)
            program = scripts.examiner(request.program, request.check)
            examiner = self._side(program, "examine", (answers[0], asks[1], word[1]))
            undo.pop_all()
        return Job(call_id, [candidate, examiner], lambda results: judge(results, read_outcome(word[0])))

    def _side(self, program: Program, start: str, channels: tuple[int, ...]) -> Cell:
        """One side of a check. Both speak JSON, which is loaded from the profile `stdlib` on."""
        profile = profiles.choose(program)
        profile = profiles.TABLE["stdlib"] if profile.name == "bare" else profile
        return self._cell(program, start, (scripts.MAIN,), profile, channels)

    def _cell(
        self, program: Program, start: str, argv: tuple[str, ...], profile: Profile, channels: tuple[int, ...] = ()
    ) -> Cell:
        number = next(self._numbers)
        return Cell(Start(number, program, start, argv, self._level, profile.name, channels), self._groups)

    def _begin(self, job: Job) -> None:
        for cell in job.cells:
            self._jobs[cell.number] = job
            for descriptor in cell.pipes:
                self._watch(descriptor, functools.partial(self._read, cell, descriptor))
        for cell in job.cells:
            zygote = self._zygote(cell.profile)
            zygote.start(cell)
            self._heed(zygote)

    def _zygote(self, name: str) -> Zygote[Cell]:
        zygote = self._zygotes.get(name)
        if zygote is None:
            zygote = self._zygotes[name] = Zygote(profiles.TABLE[name], self._rules, self._scratch)
            control, stderr = zygote.descriptors
            self._watch(control, functools.partial(self._answers, zygote))
            self._watch(stderr, zygote.hear)
        return zygote

    def _answers(self, zygote: Zygote[Cell]) -> None:
        zygote.read()
        self._heed(zygote)

    def _heed(self, zygote: Zygote[Cell]) -> None:
        """Take note of the runs that it started and of those that it cannot, and of its end."""
        for cell in zygote.news():
            if cell.over:
                self._over(cell)
            elif cell.pidfd is not None and cell.pidfd not in self._watched:
                self._watch(cell.pidfd, functools.partial(self._ended, cell))
                heapq.heappush(self._due, (cell.next_look(time.monotonic()), cell.number))
        if not zygote.alive and self._zygotes.get(zygote.profile.name) is zygote:
            del self._zygotes[zygote.profile.name]
            for descriptor in zygote.descriptors:
                self._unwatch(descriptor)
            zygote.close()

    def _read(self, cell: Cell, descriptor: int) -> None:
        if not cell.read(descriptor):
            self._unwatch(descriptor)
            cell.drop(descriptor)

    def _ended(self, cell: Cell) -> None:
        if cell.pidfd is not None:
            self._unwatch(cell.pidfd)
        cell.gone()
        if cell.over:
            self._over(cell)

    def _over(self, cell: Cell) -> None:
        """A cell is over: the others have a little time left when it was the one that decides."""
        for descriptor in cell.pipes:
            self._unwatch(descriptor)
        if cell.pidfd is not None:  # lost with its zygote
            self._unwatch(cell.pidfd)
            cell.gone()
        job = self._jobs[cell.number]
        if job.over:
            self._finish(job)
        elif cell is job.cells[-1]:
            job.cut_at = time.monotonic() + GRACE_S
            for other in job.cells:
                heapq.heappush(self._due, (job.cut_at, other.number))

    def _attend(self, number: int, now: float) -> None:
        job = self._jobs.get(number)
        if job is None:
            return
        cell = next(cell for cell in job.cells if cell.number == number)
        if cell.over:
            return
        if job.cut_at is not None and now >= job.cut_at:
            cell.cut()
        cell.attend(now)
        heapq.heappush(self._due, (cell.next_look(now), number))

    def _finish(self, job: Job) -> None:
        results = [cell.finish() for cell in reversed(job.cells)]
        for cell in job.cells:
            del self._jobs[cell.number]
        self._progress += 1
        self._link.send(wire.Answer(job.call_id, wire.raw(job.answer(results))))

    def _built(self, profile: Profile) -> profiles.Built:
        zygote = self._zygote(profile.name)
        return profiles.Built(
            name=profile.name, digest=profiles.digest(profile), built_at=zygote.built_at, modules=profile.imports
        )

    def _watch(self, descriptor: int, act: Callable[[], None]) -> None:
        self._epoll.register(descriptor, _IN)
        self._watched[descriptor] = act

    def _unwatch(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def _close(self) -> None:
        for zygote in list(self._zygotes.values()):
            zygote.close()
        if self._groups is not None:
            self._groups.close()
        with contextlib.suppress(OSError):
            Path(self._scratch).rmdir()


def _close_all(ends: set[int]) -> None:
    for end in ends:
        os.close(end)


def _pipe(ends: set[int]) -> tuple[int, int]:
    pipe = os.pipe()
    ends.update(pipe)
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
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a run takes four; the usual 1024 are few
    Supervisor(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]).run()


if __name__ == "__main__":
    main()
