"""Sums of two whole numbers: the smallest environment, and the quickstart's. Built by `registry`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from huilu.core.generation import Judgement
from huilu.core.nouns import Message, Task
from huilu.core.ports import Tools
from huilu.envs.last_number import last_number

_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which sums are asked."""

    low: Annotated[int, Meta(description="Smallest operand")] = 1
    high: Annotated[int, Meta(description="Largest operand")] = 20
    ops: Annotated[tuple[Literal["+", "-", "*"], ...], Meta(min_length=1, description="Operations")] = ("+",)

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low is {self.low} and high is {self.high}; expected low <= high")
        if len(set(self.ops)) < len(self.ops):
            raise ValueError(f"ops names one twice: {list(self.ops)}")


class Arithmetic:
    """Every ordered pair of operands under every operation, in a fixed order."""

    needs: frozenset[str] = frozenset()

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._span = settings.high - settings.low + 1

    def __len__(self) -> int:
        return len(self._settings.ops) * self._span**2

    def task(self, index: int) -> Task:
        op_index, pair = divmod(index, self._span**2)
        row, column = divmod(pair, self._span)
        a, b = self._settings.low + row, self._settings.low + column
        op = self._settings.ops[op_index]
        question = f"What is {a} {op} {b}? Answer with just the number."
        return Task(
            id=f"arithmetic/{index}",
            env="arithmetic",
            prompt=(Message("user", question),),
            answer=_OPERATIONS[op](a, b),
        )

    async def reply(self, task: Task, answers: Sequence[str], tools: Tools) -> Message | None:
        return None

    async def judge(self, task: Task, answers: Sequence[str], tools: Tools) -> Judgement:
        passed = last_number(answers[-1]) == task.answer
        return Judgement(reward=float(passed), passed=passed)

    def gold(self, task: Task) -> str | None:
        return str(task.answer)


def build(settings: Settings, folder: Path) -> Arithmetic:
    """The environment; it reads no files."""
    return Arithmetic(settings)
