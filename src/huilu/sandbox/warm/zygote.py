"""A zygote: one interpreter, loaded once, from which every run is cloned into a jail of its own.

Started by `zygotes` in a root that has nothing but the system in it, as process 1 of a pid namespace: its death ends
its jails. It has no threads, reads no order, and keeps nothing of a run. Standard library only.

    a start     -> a keeper with the run's namespaces; a clone that joins it and becomes the program
    a child's end -> what it took is told, and its keeper killed; where files are kept, a clone collects them first
"""

from __future__ import annotations

import _signal
import _socket
import errno
import functools
import gc
import marshal
import os
import select
import struct
import sys
from collections.abc import Callable
from types import CodeType
from typing import NamedTuple

from huilu.sandbox.kernel import linux
from huilu.sandbox.warm import jail, order, program
from huilu.sandbox.warm.order import ANSWER, ENDED, READY, REFUSED, STARTED, Ending, Ends, Order
from huilu.sandbox.warm.program import Confinement, Rules

CONTROL = 3
"""The descriptor that joins it to the supervisor."""
MOST_DESCRIPTORS = 32
MAIN = f"{jail.WORK}/main.py"
OVER = _signal.SIGUSR1
"""What a program's end sends: of what ends with SIGCHLD nobody waits, so that orphans need no keeper that does."""


class Running(NamedTuple):
    """A run whose program, or the clone that collects its files, has not ended."""

    number: int
    keeper: int
    """Its pid."""
    pidfd: int
    """The keeper's."""
    order: int
    """Its descriptor where files are kept, else -1."""
    ending: Ending | None = None
    """The program's, once it is known."""


class Zygote:
    """Everything it knows: who talks to it, what its programs are confined to, and which runs are under way."""

    def __init__(self, scripts: dict[str, CodeType], mine: set[str]) -> None:
        """`scripts` are code that a run may start instead of its own; `mine` are the modules to forget."""
        self._control = _socket.socket(fileno=CONTROL)
        self._rules = Confinement(Rules(*marshal.loads(self._control.recv(1 << 20))))  # noqa: S302 - the supervisor's
        self._scripts, self._mine = scripts, mine
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._running: dict[int, Running] = {}
        """By the pid that is waited for."""

    def live(self) -> Callable[[], None]:
        """Clone runs until the supervisor is gone. Returns in the child of one, what it is to do."""
        _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
        over = linux.signal_file(OVER)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(over, select.POLLIN)
        gc.collect()
        gc.freeze()
        self._say(READY, 0)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == over:
                    os.read(over, 4096)
                    self._reap()
                elif (cloned := self._start()) is not None:
                    return functools.partial(self._be, *cloned)

    def _start(self) -> tuple[int, Ends] | None:
        """Start a run; in its clone, the keeper's pidfd and the jail's ends."""
        room = _socket.CMSG_SPACE(4 * MOST_DESCRIPTORS)
        head, ancillary, _, _ = self._control.recvmsg(order.HEAD.size, room, _socket.MSG_CMSG_CLOEXEC)
        if not head:
            os._exit(0)
        got = [number for _, _, data in ancillary for (number,) in struct.iter_unpack("=i", data[: len(data) & ~3])]
        number, keeps, ends = order.ends(head, got)
        try:
            keeper, pidfd = linux.clone_idle(jail.NAMESPACES)
            try:
                pid = self._clone(pidfd)
            except OSError:
                _signal.pidfd_send_signal(pidfd, _signal.SIGKILL)
                os.close(pidfd)
                raise
        except OSError as error:
            self._say(REFUSED, number, error.errno or 1)
        else:
            if pid == 0:
                return pidfd, ends
            self._say(STARTED, number, pidfd=pidfd)
            self._running[pid] = Running(number, keeper, pidfd, ends.order if keeps else -1)
            if keeps:
                got.remove(ends.order)
        for descriptor in got:
            os.close(descriptor)
        return None

    def _clone(self, keeper: int) -> int:
        """A clone in the keeper's pid namespace, 0 in itself."""
        linux.setns(keeper, linux.CLONE_NEWPID)
        pid = -1
        try:
            pid, pidfd = linux.clone(0, OVER)
        finally:
            if pid:
                linux.setns(self._own, linux.CLONE_NEWPID)
        if pid:
            os.close(pidfd)
        return pid

    def _reap(self) -> None:
        """Tell how programs ended, and end their jails."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG | linux.WALL)
            except ChildProcessError:
                return
            if pid == 0:
                return
            run = self._running.pop(pid, None)
            if run is None:
                continue
            if run.ending is None:
                cpu_us = int((used.ru_utime + used.ru_stime) * 1e6)
                run = run._replace(ending=Ending(status, cpu_us, used.ru_maxrss, jail.is_full(run.keeper)))
                if run.order >= 0 and self._collect(run):
                    continue
            try:
                _signal.pidfd_send_signal(run.pidfd, _signal.SIGKILL)
            except ProcessLookupError:  # its end is what ended the program
                pass
            os.close(run.pidfd)
            if run.order >= 0:
                os.close(run.order)
            self._say(ENDED, run.number, *(run.ending or ()))

    def _collect(self, run: Running) -> bool:
        """Clone a process that keeps the run's files; False where that fails, and they are lost."""
        try:
            pid = self._clone(run.pidfd)
        except OSError:
            return False
        if pid == 0:
            try:
                jail.enter(run.pidfd)
                jail.collect(run.order)
            except OSError as error:
                order.fail(run.order, error.errno or 1)
            finally:
                os._exit(0)
        self._running[pid] = run
        return True

    def _be(self, keeper: int, ends: Ends) -> None:
        """In the clone: make the jail, and become the program in it."""
        paper = ends.order
        try:
            self._control.close()
            linux.after_fork()
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
            wanted = order.read(paper)
            jail.enter(keeper)
            jail.furnish(wanted, ends)
            paper = program.confine(wanted, ends, self._rules)
            if wanted.start == "command":
                os.close(paper)
                program.execute(wanted)
            self._run(wanted, paper)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not the program's
            order.fail(paper, getattr(error, "errno", 0) or errno.EPROTO)
        finally:
            os._exit(1)

    def _run(self, wanted: Order, paper: int) -> None:
        script = self._scripts.get(wanted.start)
        path = wanted.argv[0]
        module = program.main_module(path)
        sys.argv[:] = wanted.argv
        program.scrub(self._mine)
        os.close(paper)
        find = (lambda: program.source(path)) if script is None else (lambda: script)
        program.run(find, vars(module))

    def _say(self, kind: bytes, number: int, *values: int, pidfd: int = -1) -> None:
        ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("=i", pidfd))] if pidfd >= 0 else []
        padded = (*values, 0, 0, 0, 0)[:4]
        try:
            self._control.sendmsg([ANSWER.pack(kind, number, *padded)], ancillary)
        except OSError:  # the supervisor is gone, and so is everything here
            os._exit(0)


def main(before: set[str], scripts: dict[str, str]) -> Callable[[], None]:
    """Called by the bundle, which had the modules `before` loaded ours; returns in a run's clone, what it is to do."""
    compiled = {name: compile(text, f"{name}.py", "exec", dont_inherit=True) for name, text in scripts.items()}
    return Zygote(compiled, set(sys.modules) - before).live()
