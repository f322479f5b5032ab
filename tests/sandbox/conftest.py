"""A sandbox with short limits, and what must be gone when a test is over."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from huilu.config import tree
from huilu.core.generation import Program, RunResult
from huilu.sandbox.client import SandboxClient
from huilu.sandbox.daemon import SCRATCH
from huilu.sandbox.kernel import cgroups
from huilu.telemetry import Telemetry

STEP_S, PATIENCE_S = 0.02, 20.0
T = TypeVar("T")
LIMITS = tree.Sandbox(
    wall_s=30.0, cpu_s=1.0, memory_bytes=128 << 20, output_bytes=1 << 16, disk_bytes=8 << 20, processes=8, concurrency=4
)
"""CPU time is short; wall time is not, since the machine may be busy."""
HASTY = msgspec.structs.replace(LIMITS, wall_s=1.0)
"""For programs that wait."""


def with_sandbox(work: Callable[[SandboxClient], Awaitable[T]], settings: tree.Sandbox = LIMITS) -> T:
    """The result of `work` on a sandbox that is closed afterwards."""

    async def scenario() -> T:
        client = SandboxClient(settings, Telemetry())
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(scenario())


def run(*sources: str, settings: tree.Sandbox = LIMITS) -> list[RunResult]:
    """Each program's result, run at once."""

    async def work(client: SandboxClient) -> list[RunResult]:
        return await asyncio.gather(*(client.run(Program(source=source)) for source in sources))

    return with_sandbox(work, settings)


def check(*cases: tuple[str, str], settings: tree.Sandbox = LIMITS) -> list[RunResult]:
    """The result of each (answer, test)."""

    async def work(client: SandboxClient) -> list[RunResult]:
        return await asyncio.gather(*(client.check(Program(source=source), test) for source, test in cases))

    return with_sandbox(work, settings)


def leftovers() -> list[str]:
    """Supervisors of this process, and scratch folders and control groups whose supervisor is no more."""
    mine = ["pgrep", "-P", str(os.getpid()), "-f", "huilu.sandbox.daemon"]
    processes = subprocess.run(mine, capture_output=True, text=True, check=False).stdout.split()
    roots = {path for places in cgroups.own_places().values() for path in places}
    groups = [path for root in roots for path in cgroups.dead_owners(root, cgroups.PREFIX)]
    scratch = cgroups.dead_owners(Path(tempfile.gettempdir()), SCRATCH)
    return [*processes, *map(str, groups), *map(str, scratch)]


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    yield
    if leftovers():
        run("pass")  # sweeps what a supervisor left that was killed
    assert leftovers() == []


def named(name: str) -> str:
    """A statement by which a program gives its process a name that the host sees."""
    return f"__import__('ctypes').CDLL(None).prctl(15, {name.encode()!r})"


def alive(name: str) -> list[int]:
    """The host's processes that gave themselves this name."""
    found = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() == name:
                found.append(int(comm.parent.name))
        except OSError:  # it ended while we looked
            continue
    return found


async def until(true: Callable[[], bool]) -> None:
    """Return once it is true; fail when it does not become so."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(STEP_S)
