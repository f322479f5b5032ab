"""Mathematics with a Python tool: the model may run programs between turns; the final answer is judged by equality.

Built by `registry`. Tasks are JSON Lines as for `jsonl`. Every program runs by itself in a fresh sandbox, which has
neither the task nor its answer, and what it printed is quoted as data.

    prompt -> answer -> no program: final, judged by math-verify
                ^         | a program, and runs left
                '-- its output, as quoted data
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from huilu import errors
from huilu.core.generation import Judgement, Program, RunResult
from huilu.core.nouns import Message, Task
from huilu.core.ports import Tools
from huilu.envs.jsonl import math_judgement
from huilu.envs.jsonl.rows import Row, answer_text, parse_row
from huilu.envs.lines import Lines
from huilu.envs.math_tool.calls import INSTRUCTIONS, BadCall, Syntax, find_call
from huilu.envs.program_output import quote

_SANDBOX_FAILED = "SBX"
_LAST = "That was the last run. Now give the final answer in \\boxed{}."


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which problems, how the tool is called, and how often."""

    path: Annotated[str, Meta(description="JSON Lines with `prompt` and `answer`; TRL's and verl's rows are read too")]
    prompt_field: Annotated[str, Meta(description="Field of the prompt: a string or a list of messages")] = "prompt"
    answer_field: Annotated[str, Meta(description="Field of the answer")] = "answer"
    syntax: Annotated[
        Syntax, Meta(description="python: a call is a ```python block; tool_call: JSON in <tool_call> tags")
    ] = "python"
    system: Annotated[
        str | None, Meta(description="System message; null explains the tool in the words of `syntax`; empty is none")
    ] = None
    max_runs: Annotated[int, Meta(ge=0, description="Programs that an episode may run, at most")] = 3
    output_chars: Annotated[int, Meta(ge=40, description="Program output shown, at most, characters")] = 400
    timeout_s: Annotated[float, Meta(gt=0, description="Deadline of comparing one answer, seconds")] = 10.0


class MathTool:
    """The rows of one file."""

    needs: frozenset[str] = frozenset({"sandbox", "calls"})

    def __init__(self, settings: Settings, path: Path) -> None:
        self._settings = settings
        self._rows = Lines(path, self._parse)

    def __len__(self) -> int:
        return len(self._rows)

    def task(self, index: int) -> Task:
        row, settings = self._rows[index], self._settings
        words = INSTRUCTIONS[settings.syntax] if settings.system is None else settings.system
        return Task(id=f"math_tool/{index}", env="math_tool", prompt=_with_system(words, row.prompt), answer=row.answer)

    async def reply(self, task: Task, answers: Sequence[str], tools: Tools) -> Message | None:
        call = find_call(answers[-1], self._settings.syntax)
        runs = len(answers)  # each answer before this one had a call
        if call is None or runs > self._settings.max_runs:
            return None
        told = (
            quote(call.why, self._settings.output_chars) if isinstance(call, BadCall) else await self._run(call, tools)
        )
        return Message("user", told if runs < self._settings.max_runs else f"{told}\n{_LAST}")

    async def judge(self, task: Task, answers: Sequence[str], tools: Tools) -> Judgement:
        judged = await math_judgement(task.answer, answers[-1], tools, self._settings.timeout_s)
        return msgspec.structs.replace(judged, metrics={**judged.metrics, "turns": float(len(answers))})

    def gold(self, task: Task) -> str | None:
        return f"\\boxed{{{task.answer}}}"

    async def _run(self, source: str, tools: Tools) -> str:
        result = await tools.sandbox.run(Program(source=source))
        if result.verdict == _SANDBOX_FAILED:
            raise errors.SandboxFailed(result.note or "no reason given", fix="huilu preflight JOB.yaml")
        return quote(_printed(result), self._settings.output_chars)

    def _parse(self, fields: dict[str, Any]) -> Row:
        row = parse_row(fields, self._settings.prompt_field, self._settings.answer_field)
        return msgspec.structs.replace(row, answer=answer_text(row.answer, self._settings.answer_field))


def _with_system(words: str, prompt: tuple[Message, ...]) -> tuple[Message, ...]:
    """The prompt under one system message: the row's own words, where it has some, then ours."""
    if not words:
        return prompt
    if prompt[0].role == "system":
        return (Message("system", f"{prompt[0].content}\n\n{words}"), *prompt[1:])
    return (Message("system", words), *prompt)


def _printed(result: RunResult) -> str:
    """What a run printed, and why it ended where that was not by itself."""
    parts = [result.stdout.strip("\n"), result.stderr.strip("\n")]
    if result.verdict not in ("AC", "RE"):
        parts.append(f"{result.verdict}: {result.note}")
    return "\n".join(part for part in parts if part) or "(it printed nothing)"


def build(settings: Settings, folder: Path) -> MathTool:
    """The environment. Raises BadData for a missing file and for the first bad line, by its number."""
    return MathTool(settings, folder / settings.path)
