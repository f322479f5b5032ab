"""What the model reads: the request, and what became of its program.

Called by the environment. Texts alone. Whatever a program printed or returned stands in a fenced, labelled block.
"""

from __future__ import annotations

from collections.abc import Sequence

from huilu.core.nouns import Message
from huilu.envs.code_repair.problems import Dialogue, Test
from huilu.envs.code_repair.trial import Trial
from huilu.envs.program_output import quote

_WHY = {
    "WA": "Your program gives a wrong result.",
    "RE": "Your program fails with an error.",
    "TLE": "Your program takes too long.",
    "MLE": "Your program takes too much memory.",
    "OLE": "Your program prints too much.",
    "PLE": "Your program starts too many processes.",
    "DLE": "Your program writes too much to disk.",
    "INC": "Your program ends before it gives a result.",
}
_AGAIN = "Fix it and answer with the whole program in one ```python block."


def request(prompt: str, visible: Sequence[Test], instruction: str) -> str:
    """The first message: the problem, the tests that are shown, and how to answer."""
    shown = "\n".join(_test(test) for test in visible)
    parts = (prompt.strip("\n"), f"It must pass:\n{shown}" if shown else "", instruction)
    return "\n".join(part for part in parts if part)


def no_program(instruction: str) -> Message:
    """That the answer has no code in it."""
    return Message("user", f"There is no program in your answer. {instruction}")


def verdict(found: Trial) -> Message:
    """That it failed, and how."""
    return Message("user", f"{_why(found)} {_AGAIN}")


def full(found: Trial, printed: str, max_chars: int) -> Message:
    """That it failed, the first test that did, what became of it, and what was printed."""
    parts = [_why(found)]
    if found.test is not None:
        parts.append(f"This test fails:\n{_test(found.test)}")
    said = "\n".join(part for part in (_said(found, printed), printed) if part)
    if said:
        parts.append(quote(said, max_chars))
    return Message("user", "\n".join([*parts, _AGAIN]))


def _why(found: Trial) -> str:
    return _WHY["RE"] if found.raised else _WHY.get(found.verdict, _WHY["RE"])


def _said(found: Trial, printed: str) -> str:
    """The failed test's word. What a traceback says anyway is not said twice."""
    said = found.said
    return "" if said and said.removeprefix("raised ") in printed else said


def _test(test: Test) -> str:
    if isinstance(test, Dialogue):
        return f"input:\n{test.input.rstrip()}\noutput:\n{test.output.rstrip()}"
    return test.strip()
