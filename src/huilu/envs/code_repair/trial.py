"""A program tried on tests in the sandbox: how many passed, and what went wrong first.

Called by the environment, for the visible tests and for the hidden ones. Values that tests expect never enter the
program's process: functions are called from a second jail (`Sandbox.check`), and what a whole program prints is
compared here. What the sandbox failed at is an error, never a verdict.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence

import msgspec

from huilu import errors
from huilu.core.generation import Program, RunResult
from huilu.core.ports import Sandbox
from huilu.envs.code_repair.problems import Dialogue, Test

_SANDBOX_FAILED = "SBX"
_SAID = re.compile(r"(?P<passed>\d+) (?P<first>\d+) (?P<said>.*)", re.DOTALL)
_PRELUDE = """\
_h_passed, _h_first, _h_said = 0, -1, ""


def _h_fail(_h_number, _h_why):
    global _h_first, _h_said
    if _h_first < 0:
        _h_first, _h_said = _h_number, _h_why


def _h_short(_h_value):
    try:
        return repr(_h_value)[:300]
    except Exception:
        return "a value too long to show"


def _h_name(_h_error):
    _h_kind = type(_h_error).__name__
    return str(_h_error) if _h_kind == "CandidateRaised" else f"{_h_kind}: {_h_error}"

"""
# Its names must be nobody's: a name that the script defines is none of the program's functions.


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """How a program did. `test` is the first test that failed, where it is known, and `said` what became of it."""

    verdict: str
    passed: int
    total: int
    test: Test | None = None
    said: str = ""
    raised: bool = False
    """The program's function raised in that test, so running its call alone shows where."""
    printed: str = ""
    cpu_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.verdict == "AC"


async def attempt(source: str, tests: Sequence[Test], sandbox: Sandbox) -> Trial:
    """Try `source` on `tests`, each problem's all of one kind; without tests, whether it runs. Raises SandboxFailed."""
    dialogues = [test for test in tests if isinstance(test, Dialogue)]
    if dialogues:
        return await _talk(source, dialogues, sandbox)
    codes = [test for test in tests if isinstance(test, str)]
    if not codes:
        result = _sound(await sandbox.run(Program(source=source)))
        return _trial(result, 0, 0)
    result = _sound(await sandbox.check(Program(source=source), script(codes)))
    if result.verdict == "AC":
        return _trial(result, len(codes), len(codes))
    counted = _SAID.fullmatch(result.note) if result.verdict == "WA" else None
    if counted is None:  # it died, or met a limit: which test it was in is not known, and none counts
        return _trial(result, 0, len(codes), said=result.note)
    return _trial(
        result,
        int(counted["passed"]),
        len(codes),
        test=codes[int(counted["first"])],
        said=counted["said"],
        raised=counted["said"].startswith("raised "),
    )


def call_of(test: Test | None) -> str | None:
    """The call in a test of the form `assert CALL == VALUE`; it has nothing of the value."""
    parts = _comparison(test) if isinstance(test, str) else None
    return parts[0] if parts else None


def script(tests: Sequence[str]) -> str:
    """The examiner's script: every test tried, the passed ones counted, the first failure told."""
    tried = "\n".join(_tried(number, test) for number, test in enumerate(tests))
    end = f'if _h_passed < {len(tests)}:\n    raise AssertionError(f"{{_h_passed}} {{_h_first}} {{_h_said}}")\n'
    return f"{_PRELUDE}\n{tried}\n{end}"


def _tried(number: int, test: str) -> str:
    parts = _comparison(test)
    if parts is not None:
        return textwrap.dedent(f"""\
            try:
                _h_got = {parts[0]}
                if _h_got == {parts[1]}:
                    _h_passed += 1
                else:
                    _h_fail({number}, "returned " + _h_short(_h_got))
            except Exception as _h_error:
                _h_fail({number}, "raised " + _h_name(_h_error))
            """)
    body = textwrap.indent(ast.unparse(ast.parse(test)), "    ")
    return (
        f"try:\n{body}\n    _h_passed += 1\n"
        f'except AssertionError as _h_error:\n    _h_fail({number}, "failed " + str(_h_error))\n'
        f'except Exception as _h_error:\n    _h_fail({number}, "raised " + _h_name(_h_error))\n'
    )


def _comparison(test: str) -> tuple[str, str] | None:
    """CALL and VALUE of a test that is `assert CALL == VALUE`."""
    body = ast.parse(test).body
    node = body[0] if len(body) == 1 else None
    if not isinstance(node, ast.Assert) or not isinstance(node.test, ast.Compare) or len(node.test.ops) != 1:
        return None
    left, right = node.test.left, node.test.comparators[0]
    if not isinstance(node.test.ops[0], ast.Eq) or not isinstance(left, ast.Call):
        return None
    return ast.unparse(left), ast.unparse(right)


async def _talk(source: str, dialogues: Sequence[Dialogue], sandbox: Sandbox) -> Trial:
    """Run a whole program once a dialogue, each in a sandbox of its own; stops at the first that the sandbox ended."""
    passed, first, cpu_s = 0, None, 0.0
    for dialogue in dialogues:
        result = _sound(await sandbox.run(Program(source=source, stdin=dialogue.input)))
        cpu_s += result.cpu_s
        if result.verdict == "AC" and _same_text(result.stdout, dialogue.output):
            passed += 1
        elif first is None:
            wrong = result if result.verdict != "AC" else msgspec.structs.replace(result, verdict="WA")
            first = (wrong, dialogue)
    if first is None:
        return Trial(verdict="AC", passed=passed, total=len(dialogues), cpu_s=cpu_s)
    result, dialogue = first
    told = _trial(result, passed, len(dialogues), test=dialogue, said=result.note)
    return msgspec.structs.replace(told, cpu_s=cpu_s)


def _same_text(found: str, expected: str) -> bool:
    """Equal but for blanks at the ends of lines and blank lines at the end."""
    return [line.rstrip() for line in found.rstrip().split("\n")] == [
        line.rstrip() for line in expected.rstrip().split("\n")
    ]


def _sound(result: RunResult) -> RunResult:
    if result.verdict == _SANDBOX_FAILED:
        raise errors.SandboxFailed(result.note or "no reason given", fix="huilu preflight JOB.yaml")
    return result


def _trial(
    result: RunResult, passed: int, total: int, *, test: Test | None = None, said: str = "", raised: bool = False
) -> Trial:
    printed = "\n".join(part for part in (result.stdout.strip("\n"), _traceback(result.stderr)) if part)
    return Trial(
        verdict=result.verdict,
        passed=passed,
        total=total,
        test=test,
        said=said,
        raised=raised,
        printed=printed,
        cpu_s=result.cpu_s,
    )


def _traceback(stderr: str) -> str:
    """What the program said on stderr, without the frames of what ran it, under one file name."""
    lines = stderr.strip("\n").split("\n")
    ours = next(
        (i for i, line in enumerate(lines) if re.match(r'\s*File "(?:/work/)?(?:candidate|main)\.py"', line)), 0
    )
    return re.sub(r'File "(?:/work/)?(?:candidate|main)\.py"', 'File "solution.py"', "\n".join(lines[ours:]))
