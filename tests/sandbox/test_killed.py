"""Supervisors and clients killed in the middle of runs: a verdict or a named failure, and nothing left running."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from huilu import errors
from huilu.config import tree
from huilu.core.generation import Program
from huilu.sandbox.client import SandboxClient
from huilu.sandbox.supervised import Supervised
from huilu.telemetry import Telemetry
from tests.sandbox.conftest import LIMITS, alive, named, until, with_sandbox

MARK = "HUILU_TEST_MARK"
SLEEPS = "import time; time.sleep(60)"


def supervisor_of(client: SandboxClient) -> int:
    assert client._supervised is not None
    return client._supervised.pid


def test_a_supervisor_killed_twice_is_a_failed_sandbox_and_the_next_run_starts_afresh() -> None:
    name = f"hk{os.getpid()}"
    source = f"{named(name)}\nimport time; time.sleep(60)"

    async def work(client: SandboxClient) -> None:
        task = asyncio.create_task(client.run(Program(source=source)))
        for _ in range(2):
            await until(lambda: bool(alive(name)))
            os.kill(supervisor_of(client), signal.SIGKILL)
            await until(lambda: not alive(name))
        with pytest.raises(errors.SandboxFailed, match="died"):
            await task
        assert (await client.run(Program(source="pass"))).verdict == "AC"

    with_sandbox(work, tree.Sandbox(wall_s=60.0))


def test_a_check_whose_supervisor_is_killed_is_checked_again() -> None:
    name = f"hc{os.getpid()}"
    source = f"{named(name)}\nimport time\ndef f(x): time.sleep(0.5); return x + 1"

    async def work(client: SandboxClient) -> str:
        task = asyncio.create_task(client.check(Program(source=source), "assert f(1) == 2"))
        await until(lambda: bool(alive(name)))
        os.kill(supervisor_of(client), signal.SIGKILL)
        return (await task).verdict

    assert with_sandbox(work, tree.Sandbox(wall_s=20.0)) == "AC"


def test_supervisors_killed_while_they_make_jails_leave_no_process_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, str(os.getpid()))
    chance = random.Random(0)

    async def work() -> None:
        for _ in range(20):
            supervised = await Supervised.launch("userns")
            runs = [asyncio.create_task(supervised.run(Program(source=SLEEPS), 90.0)) for _ in range(6)]
            await asyncio.sleep(chance.uniform(0.06, 0.16))  # the supervisor starts, then forks
            os.kill(supervised.pid, signal.SIGKILL)
            await asyncio.gather(*runs, return_exceptions=True)
            await supervised.close()
        await until(lambda: not marked())

    asyncio.run(work())


def marked() -> list[str]:
    """The host's processes that were started with this test's mark."""
    mark, found = f"{MARK}={os.getpid()}\0".encode(), []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in environment.read_bytes() and environment.parent.name != str(os.getpid()):
                found.append(environment.parent.name)
    return found


def test_runs_are_counted_by_verdict_and_timed() -> None:
    telemetry = Telemetry()

    async def work() -> None:
        client = SandboxClient(LIMITS, telemetry)
        await asyncio.gather(client.run(Program(source="pass")), client.run(Program(source="raise ValueError")))
        await client.close()

    asyncio.run(work())
    counted = {name: telemetry.value("huilu_sandbox_runs_total", verdict=name) for name in ("AC", "RE")}
    assert counted == {"AC": 1, "RE": 1}
    assert telemetry.value("huilu_sandbox_run_seconds") > 0
