"""The program's own process: limits, no privilege, rules over files and calls; then the code it was made for.

Runs in a jail, in a zygote's clone. What the program finds is what a new interpreter would show it: fresh `__main__`,
none of these modules, random state of its own. Standard library only.
"""

from __future__ import annotations

import _signal
import atexit
import fcntl
import os
import resource
import sys
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from huilu.sandbox.kernel import landlock, linux
from huilu.sandbox.warm.jail import WORK
from huilu.sandbox.warm.order import Ends, Order

OUT_OF_THE_WAY = 100
STACK_BYTES = 64 << 20
_DEFAULTS = (_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGINT)


class Rules(NamedTuple):
    """What every program of a zygote is confined to."""

    filter: bytes
    landlock_abi: int
    """0 where the kernel has none."""
    paths: tuple[tuple[str, int], ...]


class Confinement:
    """The rules as the kernel takes them: made once, in the zygote."""

    def __init__(self, rules: Rules) -> None:
        self.filter = rules.filter
        self.ruleset = landlock.ruleset(rules.landlock_abi, rules.paths) if rules.landlock_abi else -1


def confine(order: Order, ends: Ends, rules: Confinement, become: Callable[[], None] | None = None) -> int:
    """Turn this process into the program's; the order stays open, to say if this fails, and is returned."""
    os.setsid()
    paper, ruleset = _arrange(ends, rules.ruleset)
    _limit(order)
    if become is not None:
        become()
    linux.prctl(linux.PR_SET_DUMPABLE, 1)
    linux.drop_capabilities()
    os.umask(0o077)
    os.chdir(WORK)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if ruleset is not None:
        landlock.restrict(ruleset)
        os.close(ruleset)
    linux.filter_calls(rules.filter)
    return paper


def _arrange(ends: Ends, ruleset: int) -> tuple[int, int | None]:
    """Standard streams at 0, 1, 2, channels from 3 on; of the rest the order and the rule set alone, moved."""
    sources = (ends.stdin, ends.stdout, ends.stderr, *ends.channels)
    private = (ends.order,) if ruleset < 0 else (ends.order, ruleset)
    # Out of the way first: a target may be another's source.
    moved = [fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY) for source in (*sources, *private)]
    for target, source in enumerate(moved[: len(sources)]):
        os.dup2(source, target, inheritable=True)
    paper, last = moved[len(sources)], moved[-1]
    os.closerange(len(sources), paper)
    os.closerange(last + 1, 1 << 20)
    return paper, None if last == paper else last


def _limit(order: Order) -> None:
    cpu_s = int(order.cpu_s)
    limits = [
        (resource.RLIMIT_CPU, cpu_s + 1, cpu_s + 2),
        (resource.RLIMIT_FSIZE, order.disk_bytes, order.disk_bytes),
        (resource.RLIMIT_NOFILE, order.open_files, order.open_files),
        (resource.RLIMIT_CORE, 1, 1),  # at 0 the kernel still starts a handler that the host may have; at 1 nothing
        (resource.RLIMIT_STACK, STACK_BYTES, STACK_BYTES),
        (resource.RLIMIT_MEMLOCK, 1 << 16, 1 << 16),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
    ]
    if order.address_bytes:
        most = _address_bytes() + order.address_bytes
        limits.append((resource.RLIMIT_AS, most, most))
    if order.processes:
        limits.append((resource.RLIMIT_NPROC, order.processes, order.processes))
    for limit, soft, hard in limits:
        resource.setrlimit(limit, (soft, hard))


def _address_bytes() -> int:
    """The address space that this process has from its zygote: it is not the program's."""
    descriptor = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(descriptor, 64).split()[0]) * resource.getpagesize()
    finally:
        os.close(descriptor)


def execute(order: Order) -> None:
    """Run a command in a child, and end as it ends; never returns.

    Not in this process: one that executes ends with SIGCHLD, for which its zygote does not wait.
    """
    pid = os.fork()
    if pid == 0:
        _become(order)
    os.closerange(0, 1 << 20)
    while True:
        ended, status = os.wait()
        if ended == pid:
            break
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            _signal.signal(number, _signal.SIG_DFL)
        except OSError:  # that one cannot be caught
            pass
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def _become(order: Order) -> None:
    """Become the command; what is none ends as a shell would end it."""
    try:
        os.setsid()
        for number in _DEFAULTS:
            _signal.signal(number, _signal.SIG_DFL)
        os.execvpe(order.argv[0], list(order.argv), order.environment)  # noqa: S606
    except OSError as error:
        os.write(2, f"{order.argv[0]}: {error.strerror}\n".encode("utf-8", "backslashreplace"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    finally:
        os._exit(126)


_forgotten: list[ModuleType] = []
"""Kept alive: to take modules apart costs more than the program may take."""


def scrub(mine: set[str]) -> None:
    """Forget what a new interpreter would not have: our modules, our signals, a random state that others share."""
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    _forgotten.extend([sys.modules.pop(name) for name in mine])
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def main_module(path: str) -> ModuleType:
    """A fresh `__main__`, as for a script."""
    module = ModuleType("__main__")
    loader: Any = type(sys.modules["__main__"].__loader__)
    vars(module).update(
        __file__=path,
        __cached__=None,
        __annotations__={},
        __builtins__=sys.modules["builtins"],
        __loader__=loader("__main__", path),
    )
    sys.modules["__main__"] = module
    return module


def source(path: str) -> CodeType:
    """The code of a script. Raises what its text deserves."""
    with open(path, "rb") as file:
        text = file.read()
    return compile(text, path, "exec", dont_inherit=True)


def run(find: Callable[[], CodeType], namespace: dict[str, Any]) -> None:
    """Run code as an interpreter runs its script, end as it ends, and never return."""
    code = 120
    try:
        try:
            exec(find(), namespace)  # noqa: S102 - that is what the jail is for
            code = 0
        except SystemExit as error:
            code = _exit_code(error.code)
        except BaseException:  # noqa: BLE001 - the script's, whatever it is
            code = _complain()
        code = _finish(namespace, code)
    finally:
        os._exit(code)


def _exit_code(value: object) -> int:
    """What an interpreter makes of `SystemExit`."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    sys.stderr.write(f"{value}\n")
    return 1


def _complain() -> int:
    """Print what the script raised, without the frames in which it was run."""
    kind, error, trace = sys.exc_info()
    ours = __name__.rpartition(".")[0]
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(ours):
        trace = trace.tb_next
    if error is not None:
        error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    if kind is not None and error is not None:
        sys.excepthook(kind, error, trace)
    if isinstance(error, KeyboardInterrupt):
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)
    return 1


def _finish(namespace: dict[str, Any], code: int) -> int:
    """Threads, exit functions, the last references and what is still to be written, in an interpreter's order."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    for first in (True, False):
        for name in list(namespace):
            if name != "__builtins__" and first == (name[:1] == "_" and name[1:2] != "_"):
                namespace[name] = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            code = 120
    return code
