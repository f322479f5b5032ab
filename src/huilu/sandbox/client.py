"""The sandbox as the rest of Huilu sees it: the port `Sandbox`, with limits, a bound on runs at once, and retries.

Called by assembly, which closes it. A supervisor that dies costs its runs one retry on a fresh one; what fails twice
is a `SandboxFailed`, never a verdict on the program.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from huilu import errors
from huilu.config import tree
from huilu.core.generation import Program, RunResult
from huilu.sandbox import limits
from huilu.sandbox.levels import require
from huilu.sandbox.session import Session
from huilu.sandbox.supervised import Supervised
from huilu.sandbox.zygotes.profiles import Built
from huilu.telemetry import Telemetry

MARGIN_S = 30.0
"""Beyond a run's own wall time: for its turn on a busy machine."""
ATTEMPTS = 2

Ask = Callable[[Supervised, Program, float], Awaitable[RunResult]]


class SandboxClient:
    """Runs programs under a job's limits. Starts nothing before the first of them."""

    def __init__(self, settings: tree.Sandbox, telemetry: Telemetry) -> None:
        self._settings, self._telemetry = settings, telemetry
        self._slots = asyncio.Semaphore(settings.concurrency or os.cpu_count() or 1)
        self._starting = asyncio.Lock()
        self._supervised: Supervised | None = None
        self._closed = False

    async def run(self, program: Program) -> RunResult:
        """Run a program as it stands."""
        return await self._ask(program, lambda supervised, limited, timeout_s: supervised.run(limited, timeout_s))

    async def check(self, program: Program, check: str) -> RunResult:
        """Define what `program.source` defines in one jail, test it from another; AC only by the test's own word."""
        return await self._ask(
            program,
            lambda supervised, limited, timeout_s: supervised.check(limited, limits.encodable(check), timeout_s),
        )

    def session(self) -> Session:
        """A work folder that lasts over several runs: `async with client.session() as session: ...`."""
        return Session(self.run, self._settings.disk_bytes)

    async def profiles(self) -> list[Built]:
        """What programs may find loaded here, each with its digest and the date it was built."""
        return await (await self._ready()).profiles(MARGIN_S)

    async def close(self) -> None:
        """End the supervisor and every run; those under way fail."""
        self._closed = True
        if self._supervised is not None:
            await self._supervised.close()
            self._supervised = None

    async def _ask(self, program: Program, ask: Ask) -> RunResult:
        limited = limits.limited(program, self._settings)
        async with self._slots:
            with self._telemetry.timed("huilu_sandbox_run_seconds"):
                result = await self._attempt(limited, ask)
        self._telemetry.count("huilu_sandbox_runs_total", verdict=result.verdict)
        if result.verdict == "SBX":
            raise errors.SandboxFailed(result.note)
        return result

    async def _attempt(self, program: Program, ask: Ask) -> RunResult:
        for attempt in range(1, ATTEMPTS + 1):
            supervised = await self._ready()
            try:
                result = await ask(supervised, program, program.wall_s + MARGIN_S)
            except errors.HuiluError:
                await self._drop(supervised)
                if attempt == ATTEMPTS:
                    raise
                continue
            if result.verdict != "SBX" or attempt == ATTEMPTS:
                return result
        raise errors.Invariant("a run that was never tried")

    async def _ready(self) -> Supervised:
        async with self._starting:
            if self._closed:
                raise errors.SandboxFailed("its client was closed")
            if self._supervised is None:
                found = await asyncio.to_thread(require, self._settings.level)
                self._supervised = await Supervised.launch(found.level)
            return self._supervised

    async def _drop(self, supervised: Supervised) -> None:
        """This supervisor is done for; the next run gets a new one."""
        async with self._starting:
            if self._supervised is supervised:
                self._supervised = None
                await supervised.close()
