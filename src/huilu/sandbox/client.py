"""The sandbox as the rest of Huilu sees it: the port `Sandbox`, with limits, a bound on runs at once, and retries.

Called by assembly, which closes it. A supervisor that dies costs its runs one retry on a fresh one; what fails twice
is a `SandboxFailed`, never a verdict on the program.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath

import msgspec

from huilu import errors
from huilu.config import tree
from huilu.core.generation import Program, RunResult
from huilu.sandbox.levels import require
from huilu.sandbox.supervised import Supervised
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
            program, lambda supervised, limited, timeout_s: supervised.check(limited, _encodable(check), timeout_s)
        )

    async def close(self) -> None:
        """End the supervisor and every run; those under way fail."""
        self._closed = True
        if self._supervised is not None:
            await self._supervised.close()
            self._supervised = None

    async def _ask(self, program: Program, ask: Ask) -> RunResult:
        limited = self._limited(program)
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

    def _limited(self, program: Program) -> Program:
        """The program under the job's limits. Raises Usage for files that cannot be placed in the work folder."""
        settings = self._settings
        paths = {name: PurePosixPath(name) for name in program.files}
        folders = {folder for path in paths.values() for folder in path.parents}
        for name, path in paths.items():
            if path.is_absolute() or ".." in path.parts or "\0" in name or path in folders or not path.name:
                raise errors.Usage(f"a file called {name!r}", expected="a path inside the work folder, of no folder")
        size_bytes = sum(len(content) for content in program.files.values())
        if size_bytes > settings.disk_bytes:
            raise errors.Usage(f"files of {size_bytes} bytes", expected=f"at most {settings.disk_bytes}")
        return msgspec.structs.replace(
            program,
            source=_encodable(program.source),
            stdin=_encodable(program.stdin),
            wall_s=settings.wall_s,
            cpu_s=settings.cpu_s,
            memory_bytes=settings.memory_bytes,
            output_bytes=settings.output_bytes,
            disk_bytes=settings.disk_bytes,
            processes=settings.processes,
        )


def _encodable(text: str) -> str:
    """The text with its lone surrogates, which no encoding carries, as escapes: the same in a string literal."""
    return text.encode("utf-8", "backslashreplace").decode()
