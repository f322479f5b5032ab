"""What isolation this machine gives, found by trying, and whether that is enough. Called by preflight and the client.

full      user, mount, pid, net, ipc, uts and cgroup namespaces, seccomp, no new privileges, and a control group
          that counts memory and processes
userns    the same without a control group: memory by address space and by looking, processes by a limit of the
          namespace
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from concurrent.futures import ThreadPoolExecutor

import msgspec

from huilu import errors
from huilu.core.generation import Program
from huilu.sandbox.supervised import Supervised

ORDER = ("refused", "userns", "full")
PROBE = Program(source="print('inside')", wall_s=10.0)
PROBE_TIMEOUT_S = 30.0


class Isolation(msgspec.Struct, frozen=True, kw_only=True):
    """The best level that works here; `missing` says what each better one lacks."""

    level: str
    missing: tuple[str, ...] = ()


@functools.cache
def detect() -> Isolation:
    """The best level here, each tried with a real program, best first."""
    missing: list[str] = []
    for level in reversed(ORDER[1:]):
        with ThreadPoolExecutor(1) as thread:  # the caller may have an event loop running; this needs its own
            problem = thread.submit(asyncio.run, _try(level)).result()
        if problem is None:
            return Isolation(level=level, missing=tuple(missing))
        missing.append(f"{level}: {problem}")
    return Isolation(level="refused", missing=tuple(missing))


def require(level: str) -> Isolation:
    """The isolation that a job gets. Raises IsolationRefused when this machine has less than `level`."""
    found = detect()
    if level not in ORDER or ORDER.index(found.level) < ORDER.index(level):
        raise errors.IsolationRefused(
            f"this machine isolates at level {found.level} ({'; '.join(found.missing) or 'nothing is missing'})",
            expected=f"{level} or better, as sandbox.level says",
            fix="run where user namespaces are allowed, or set sandbox.level to what you accept",
        )
    return found


async def _try(level: str) -> str | None:
    """Why a program does not run at this level, or None when it does."""
    supervised = None
    try:
        supervised = await Supervised.launch(level)
        result = await supervised.run(PROBE, PROBE_TIMEOUT_S)
    except errors.HuiluError as error:
        return str(error)
    finally:
        if supervised is not None:
            with contextlib.suppress(errors.HuiluError):
                await supervised.close()
    return None if result.verdict == "AC" and result.stdout == "inside\n" else f"{result.verdict} {result.note}"
