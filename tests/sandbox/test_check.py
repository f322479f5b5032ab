"""Answers that try to pass without being right: the test's own word is the only one that counts."""

from __future__ import annotations

import asyncio

import pytest

from huilu.config import tree
from huilu.core.generation import Program
from huilu.core.ports import Environment
from huilu.envs.registry import build_environment
from huilu.sandbox.client import SandboxClient
from tests.sandbox.conftest import LIMITS, check, with_sandbox

TEST = "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(2) == 3\ncheck(f)"
RIGHT = "def f(x): return x + 1"
CHEATS = {  # an answer and its verdict, or those that depend on which side sees the end first
    "exits at import": ("import sys; sys.exit(0)", "INC"),
    "exits in the call": ("def f(x):\n  import os; os._exit(0)", "INC"),
    "raises SystemExit": ("def f(x): raise SystemExit(0)", "INC"),
    "exits in atexit": ("import atexit, os\natexit.register(os._exit, 0)\nraise ValueError", "INC"),
    "equals everything": ("class A:\n  def __eq__(s, o): return True\ndef f(x): return A()", "WA"),
    "is a lying int": ("class A(int):\n  def __eq__(s, o): return True\ndef f(x): return A(7)", "WA"),
    "prints success": ("print('passed'); print('[\"passed\", \"\"]')\ndef f(x): return 0", "WA"),
    "overrides builtins": (
        "import builtins\nbuiltins.AssertionError = type('E', (Exception,), {})\n"
        "builtins.all = builtins.any = lambda *a: True\ndef f(x): return 0",
        "WA",
    ),
    "walks frames": (
        "import sys\ndef f(x):\n  g = sys._getframe(1)\n  while g:\n    g.f_globals.update(passed=True); g = g.f_back\n"
        "  return 0",
        "WA",
    ),
    "writes its own verdict": (
        "import os\nfor n in range(3, 12):\n"
        '  try: os.write(n, b\'\\0\\0\\0\\x0e["passed", ""]\')\n  except OSError: pass\ndef f(x): return 0',
        "INC RE",
    ),
    "closes its channel": ("import os\nos.closerange(3, 99)\ndef f(x): return 2", "RE"),
    "answers garbage": ("import os\ndef f(x):\n  os.write(4, b'\\xff' * 100)\n  return 2", "INC RE"),
    "never answers": ("def f(x):\n  while True: pass", "TLE"),
    "is not there": ("x = 1", "RE"),
    "raises": ("def f(x): raise ValueError('no')", "RE"),
    "looks for the test": (
        "import os\ndef f(x):\n  found = [n for p, d, n in os.walk('/work')]\n"
        "  assert not any('check.py' in n for n in found), 'found'\n  return 0",
        "WA",
    ),
}


def test_a_right_answer_passes_and_a_wrong_one_does_not() -> None:
    right, wrong = check((RIGHT, TEST), ("def f(x): return x", TEST))
    assert (right.verdict, wrong.verdict) == ("AC", "WA")


def test_no_trick_passes() -> None:
    results = check(*((source, TEST) for source, _ in CHEATS.values()))
    found = {name: result.verdict for name, result in zip(CHEATS, results, strict=True)}
    assert "AC" not in found.values()
    assert {name: found[name] for name, (_, allowed) in CHEATS.items() if found[name] not in allowed.split()} == {}


@pytest.mark.parametrize(
    "value",
    [
        "None",
        "True",
        "-(10**40)",
        "1.5",
        "float('inf')",
        "b'x'",
        "(1, [2, {3: 'four'}])",
        "{1, 2}",
        "frozenset({1})",
        "2j",
    ],
)
def test_plain_values_cross_unchanged(value: str) -> None:
    (result,) = check(
        (
            f"def f(x): return x == {value} and x or {value}",
            f"v = {value}\nr = f(v)\nassert r == v and type(r) is type(v)",
        )
    )
    assert result.verdict == "AC", (result.note, result.stderr)


def test_a_test_may_expect_an_error_and_use_further_functions_of_the_answer() -> None:
    source = "def f(x): return g(x)\ndef g(x):\n  if x < 0: raise ValueError('negative')\n  return x"
    test = "assert g(3) == f(3)\ntry:\n  f(-1)\n  assert False\nexcept ValueError as e:\n  assert 'negative' in str(e)"
    (result,) = check((source, test))
    assert result.verdict == "AC", result.note


def human_eval(step: int) -> list[tuple[str, bool]]:
    """(verdict, whether it should pass) of every `step`th problem's own solution and of an empty one."""
    environment: Environment = build_environment("code", {})
    settings = tree.Sandbox(wall_s=20.0, cpu_s=20.0, concurrency=2)

    async def work(client: SandboxClient) -> list[tuple[str, bool]]:
        class Tools:
            sandbox, calls = client, None

        async def one(index: int, answer: str | None, right: bool) -> tuple[str, bool]:
            task = environment.task(index)
            judged = await environment.judge(task, [environment.gold(task) if answer is None else answer], Tools())  # type: ignore[list-item,arg-type]
            return task.id if judged.passed != right else "", right

        indexes = range(0, len(environment), step)
        return await asyncio.gather(
            *(one(index, None, True) for index in indexes), *(one(index, "    pass\n", False) for index in indexes)
        )

    return with_sandbox(work, settings)


def test_a_sample_of_human_eval_accepts_its_own_solutions_and_no_stub() -> None:
    assert [task for task, _ in human_eval(14) if task] == []


@pytest.mark.slow
def test_all_of_human_eval_accepts_its_own_solutions_and_no_stub() -> None:
    assert [task for task, _ in human_eval(1) if task] == []


def test_limits_are_the_jobs() -> None:
    async def work(client: SandboxClient) -> str:
        return (await client.run(Program(source="import time; time.sleep(1.2)", wall_s=0.1))).verdict

    assert with_sandbox(work, LIMITS) == "AC"
