"""The zygotes of a supervisor, one a profile, started when first needed and again when one died. Called by `daemon`.

A start is a message with descriptors; its answer brings a pidfd, by which the jail is killed and its end is seen. Few
starts are under way at once: the rest wait here, where they cost no descriptor in flight.
"""

from __future__ import annotations

import array
import contextlib
import marshal
import os
import signal
import socket
import time
from collections import deque
from datetime import UTC, datetime
from typing import Generic, NamedTuple, Protocol, TypeVar

from huilu.sandbox.kernel import linux, usage
from huilu.sandbox.warm.order import ANSWER, ENDED, HEAD, READY, REFUSED, Ending, Ends
from huilu.sandbox.warm.program import Rules
from huilu.sandbox.zygotes import profiles, root

MOST_UNANSWERED = 16
START_S = 30.0
"""What a zygote may take to answer; one that does not is killed, and its runs fail."""
TAIL_BYTES = 2000


class Run(Protocol):
    """A run that wants to start."""

    number: int
    ends: Ends
    keeps: bool
    """Whether files of it are kept."""

    def sent(self) -> None:
        """Its descriptors are on their way: ours of the jail's ends may be closed."""
        ...

    def started(self, pidfd: int) -> None:
        """It was cloned; the pidfd is the run's to close."""
        ...

    def ended(self, ending: Ending) -> None:
        """Its program is over, and its jail is being ended."""
        ...

    def failed(self, note: str) -> None:
        """It will not start, or its zygote died."""
        ...


class Made(NamedTuple):
    """A zygote's process and its ends of what joins it to us."""

    pid: int
    pidfd: int
    control: socket.socket
    stderr: int


R = TypeVar("R", bound=Run)


class Zygote(Generic[R]):
    """One zygote's process. Raises OSError where it cannot be started."""

    def __init__(self, profile: profiles.Profile, rules: Rules, scratch: str) -> None:
        self.profile = profile
        self.built_at = datetime.now(UTC).isoformat(timespec="seconds")
        self.alive, self._ready, self._said = True, False, b""
        self._heard_at = time.monotonic()
        self._waiting: deque[R] = deque()
        self._news: list[R] = []
        self._unanswered: dict[int, R] = {}
        self._running: dict[int, R] = {}
        self._made = _make(profile, scratch)
        self._made.control.send(marshal.dumps(tuple(rules)))

    @property
    def pid(self) -> int:
        return self._made.pid

    @property
    def descriptors(self) -> tuple[int, int]:
        """To watch: its answers, and its complaints."""
        return self._made.control.fileno(), self._made.stderr

    def start(self, run: R) -> None:
        """Clone a run, when its turn comes."""
        self._waiting.append(run)
        self._send()

    def read(self) -> None:
        """Take its answers. A dead one's runs fail, and end with it."""
        while self.alive:
            try:
                answer, ancillary, _, _ = self._made.control.recvmsg(ANSWER.size, 64)
            except BlockingIOError:
                break
            except OSError:
                answer = b""
            if not answer:
                self._die()
                return
            self._heard_at = time.monotonic()
            self._take(answer, ancillary)
        self._send()

    def _take(self, answer: bytes, ancillary: list[tuple[int, int, bytes]]) -> None:
        kind, number, *values = ANSWER.unpack(answer)
        if kind == READY:
            self._ready = True
        elif kind == REFUSED:
            self._fail(self._unanswered.pop(number), f"it could not be cloned: {os.strerror(values[0])}")
        elif kind == ENDED:
            run = self._running.pop(number)
            run.ended(Ending(*values))
            self._news.append(run)
        else:
            run = self._running[number] = self._unanswered.pop(number)
            (pidfd,) = array.array("i", ancillary[0][2])
            run.started(pidfd)
            self._news.append(run)

    def hear(self) -> None:
        """Keep the end of what it says on stderr, which is only why it failed."""
        with contextlib.suppress(BlockingIOError):
            self._said = (self._said + os.read(self._made.stderr, TAIL_BYTES))[-TAIL_BYTES:]

    def look(self, now: float) -> None:
        """Kill it when it has been silent for too long."""
        if self.alive and (self._unanswered or not self._ready) and now - self._heard_at > START_S:
            self._die()

    def news(self) -> list[R]:
        """The runs that started, ended or failed since this was last asked."""
        found, self._news = self._news, []
        return found

    def close(self) -> None:
        """End it, and with it every jail it made."""
        if self.alive:
            self._die()
        self._made.control.close()
        os.close(self._made.stderr)

    def _send(self) -> None:
        while self.alive and self._waiting and len(self._unanswered) < MOST_UNANSWERED:
            run = self._waiting.popleft()
            head = HEAD.pack(run.number, len(run.ends.doors), len(run.ends.channels), run.keeps)
            try:
                socket.send_fds(self._made.control, [head], run.ends.flat())
            except BlockingIOError:
                self._waiting.appendleft(run)
                return
            except OSError as error:
                self._fail(run, f"its zygote cannot be asked: {error.strerror}")
                continue
            run.sent()
            if not self._unanswered:
                self._heard_at = time.monotonic()
            self._unanswered[run.number] = run

    def _die(self) -> None:
        self.alive = False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._made.pidfd, signal.SIGKILL)
        os.waitpid(self._made.pid, 0)
        os.close(self._made.pidfd)
        self.hear()
        said = _last_line(self._said)
        note = f"its zygote {'died' if self._ready else 'could not be started'}{': ' + said if said else ''}"
        for run in (*self._running.values(), *self._unanswered.values(), *self._waiting):
            self._fail(run, note)
        self._running.clear()
        self._unanswered.clear()
        self._waiting.clear()

    def _fail(self, run: R, note: str) -> None:
        run.failed(note)
        self._news.append(run)


def _make(profile: profiles.Profile, scratch: str) -> Made:
    """Clone a zygote, with an empty file for its stdin and pipes for its output, as its programs have."""
    packages = tuple(folder for package in profile.packages for folder in profiles.installed(package))
    script = profiles.script(profile)
    ids = os.geteuid(), os.getegid()  # in a new user namespace they read as nobody's until they are mapped
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as undo:
        ours, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(ours.close)
        theirs.callback(control.close)
        stdin = os.memfd_create("stdin")
        theirs.callback(os.close, stdin)
        nobody, stdout = os.pipe()
        theirs.callback(os.close, nobody)
        theirs.callback(os.close, stdout)
        heard, stderr = os.pipe()
        theirs.callback(os.close, stderr)
        undo.callback(os.close, heard)
        handed, maker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        handed.settimeout(START_S)
        undo.callback(handed.close)
        theirs.callback(maker.close)
        ends = stdin, stdout, stderr, control.fileno(), maker.fileno()
        pid, pidfd = linux.clone(root.flags())
        if pid == 0:
            root.make(root.Plan(script, packages, profile.environment, ends, scratch), ids)
        os.close(pidfd)
        theirs.close()
        with handed:
            _, got, _, _ = socket.recv_fds(handed, 1, 1)
        os.waitpid(pid, 0)
        ours.setblocking(False)
        os.set_blocking(heard, False)
        if not got:
            raise OSError(_last_line(os.read(heard, TAIL_BYTES)) or "its maker died")
        undo.pop_all()
    return Made(usage.pid_of(got[0]), got[0], ours, heard)


def _last_line(said: bytes) -> str:
    return "".join(said.decode(errors="replace").strip().splitlines()[-1:])
