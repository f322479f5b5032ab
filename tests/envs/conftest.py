"""Tools for judging in tests: real worker processes, and a sandbox that records what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from huilu.core.generation import Judgement, Program, RunResult
from huilu.core.ports import Environment
from huilu.envs.gold import check_gold
from huilu.telemetry import Telemetry
from huilu.work.calls import Calls


class RecordingSandbox:
    """A sandbox that runs nothing: it notes programs and checks, and answers with a fixed verdict."""

    def __init__(self) -> None:
        self.verdict, self.note = "AC", ""
        self.checks: list[tuple[Program, str]] = []

    async def run(self, program: Program) -> RunResult:
        raise AssertionError("environments only check")

    async def check(self, program: Program, check: str) -> RunResult:
        self.checks.append((program, check))
        return RunResult(verdict=self.verdict, note=self.note)


class Toolbox:
    """What an environment may use."""

    def __init__(self, sandbox: RecordingSandbox, calls: Calls) -> None:
        self.sandbox, self.calls = sandbox, calls


Judge = Callable[[Environment, Sequence[tuple[int, str]]], list[Judgement]]
CheckGold = Callable[[Environment, int], list[str]]


@pytest.fixture
def sandbox() -> RecordingSandbox:
    return RecordingSandbox()


@pytest.fixture
def judge(tmp_path: Path, sandbox: RecordingSandbox) -> Judge:
    """Judge (index, answer) pairs, with worker processes that start when one is needed."""

    async def run(environment: Environment, pairs: Sequence[tuple[int, str]]) -> list[Judgement]:
        calls = Calls(tmp_path, Telemetry(), num_workers=1)
        try:
            tools = Toolbox(sandbox, calls)
            return [await environment.judge(environment.task(index), [answer], tools) for index, answer in pairs]
        finally:
            await calls.close()

    return lambda environment, pairs: asyncio.run(run(environment, pairs))


@pytest.fixture
def gold_failures(tmp_path: Path, sandbox: RecordingSandbox) -> CheckGold:
    """What `check_gold` says of an environment."""

    async def run(environment: Environment, num: int) -> list[str]:
        calls = Calls(tmp_path, Telemetry(), num_workers=1)
        try:
            return await check_gold(environment, num, Toolbox(sandbox, calls))
        finally:
            await calls.close()

    return lambda environment, num: asyncio.run(run(environment, num))
