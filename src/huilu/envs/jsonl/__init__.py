"""Tasks from a JSON Lines file, judged by equality or by a reward function written for TRL or verl.

Built by `registry`. The job's own function runs unchanged in a worker process, named by `judge`; mathematics is
compared there too. Single turn: the last answer is judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from huilu import errors
from huilu.core.generation import Judgement
from huilu.core.nouns import Message, Task
from huilu.core.ports import Tools
from huilu.envs.jsonl.rows import Row, answer_text, parse_row
from huilu.envs.last_number import last_number
from huilu.envs.lines import Lines


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which file, and how an answer is judged."""

    path: Annotated[str, Meta(description="The file; a relative path starts at the job file's folder; `.gz` is read")]
    prompt_field: Annotated[str, Meta(description="Field of the prompt: a string or a list of messages")] = "prompt"
    answer_field: Annotated[str, Meta(description="Field of the answer; verl's ground truth is found by itself")] = (
        "answer"
    )
    system: Annotated[str, Meta(description="System message put before each prompt; none when empty")] = ""
    equality: Annotated[
        Literal["exact", "numeric", "math"] | None,
        Meta(
            description="exact (the default): same text but for outer blanks; numeric: same last number; "
            "math: math-verify; not with `judge`"
        ),
    ] = None
    tolerance: Annotated[float, Meta(ge=0, description="Relative error allowed by `numeric`; 0 is exact")] = 0.0
    judge: Annotated[
        Annotated[str, Meta(pattern=r"^(.+\.py|[A-Za-z_][\w.]*):[A-Za-z_][\w.]*$")] | None,
        Meta(description="A reward function, `path.py:function` or `module:function`, instead of an equality"),
    ] = None
    judge_style: Annotated[
        Literal["trl", "verl"] | None, Meta(description="Whose calling convention `judge` has; trl by default")
    ] = None
    pass_reward: Annotated[float | None, Meta(description="Least reward of `judge` that counts as passed; 1.0")] = None
    gold: Annotated[
        str | None,
        Meta(description="How a right answer is written, with {answer} in it; null: not known, and not checked"),
    ] = "{answer}"
    timeout_s: Annotated[float, Meta(gt=0, description="Deadline of one judgement in a worker, seconds")] = 10.0

    def __post_init__(self) -> None:
        if self.judge is not None and self.equality is not None:
            raise ValueError("both `judge` and `equality` are set; expected one of them")
        if self.judge is None and (self.judge_style is not None or self.pass_reward is not None):
            raise ValueError("`judge_style` and `pass_reward` say how to use `judge`, which is not set")
        if self.tolerance and self.equality != "numeric":
            raise ValueError("`tolerance` is only used by `equality: numeric`")


class JsonLines:
    """The rows of one file as tasks."""

    def __init__(self, settings: Settings, path: Path) -> None:
        self._settings = settings
        self._data_source = path.name.partition(".")[0]
        self._rows = Lines(path, self._parse)
        self._in_worker = settings.judge is not None or settings.equality == "math"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"calls"}) if self._in_worker else frozenset()

    def __len__(self) -> int:
        return len(self._rows)

    def task(self, index: int) -> Task:
        row = self._rows[index]
        system = (Message("system", self._settings.system),) if self._settings.system else ()
        judged = {"columns": row.columns, "conversational": row.conversational} if self._settings.judge else {}
        return Task(id=f"jsonl/{index}", env="jsonl", prompt=(*system, *row.prompt), answer=row.answer, metadata=judged)

    async def reply(self, task: Task, answers: Sequence[str], tools: Tools) -> Message | None:
        return None

    async def judge(self, task: Task, answers: Sequence[str], tools: Tools) -> Judgement:
        answer = answers[-1]
        if self._settings.judge is not None:
            style = _verl if self._settings.judge_style == "verl" else _trl
            return await style(self._settings, self._data_source, task, answer, tools)
        if self._settings.equality == "math":
            return await math_judgement(task.answer, answer, tools, self._settings.timeout_s)
        if self._settings.equality == "numeric":
            passed = _same_number(task.answer, answer, self._settings.tolerance)
        else:
            passed = answer.strip() == task.answer.strip()
        return Judgement(reward=float(passed), passed=passed)

    def gold(self, task: Task) -> str | None:
        if self._settings.gold is None or not isinstance(task.answer, (str, int, float)):
            return None
        return self._settings.gold.replace("{answer}", str(task.answer))

    def _parse(self, fields: dict[str, Any]) -> Row:
        row = parse_row(fields, self._settings.prompt_field, self._settings.answer_field)
        if self._settings.judge is not None:
            if self._settings.judge_style == "verl" and row.answer is None:
                raise errors.BadData("no ground truth", expected="verl's reward_model.ground_truth, or an answer")
            return row
        text = answer_text(row.answer, self._settings.answer_field)
        if self._settings.equality == "numeric" and last_number(text) is None:
            raise errors.BadData(f"no number in the answer {text[:60]!r}", expected="a number, for `equality: numeric`")
        return msgspec.structs.replace(row, answer=text)


def _same_number(expected: str, answer: str, tolerance: float) -> bool:
    wanted, found = last_number(expected), last_number(answer)
    if wanted is None or found is None:
        return False
    return wanted == found or abs(wanted - found) <= Decimal(tolerance) * abs(wanted)


async def math_judgement(expected: str, answer: str, tools: Tools, timeout_s: float) -> Judgement:
    """Compared in a worker; an answer on which that takes for ever is not judged: neither right nor wrong."""
    arguments = {"expected": expected, "answer": answer}
    try:
        equal = await tools.calls.call("huilu.envs.jsonl.equality:math_equal", arguments, timeout_s)
    except errors.TimedOut:
        return Judgement(reward=None, passed=False, note=f"math-verify did not end within {timeout_s:g} s")
    if equal is None:
        return Judgement(reward=None, passed=False, note=f"math-verify cannot read the answer {expected[:60]!r}")
    return Judgement(reward=float(equal), passed=equal)


async def _trl(settings: Settings, data_source: str, task: Task, answer: str, tools: Tools) -> Judgement:
    """TRL's convention: `f(prompts, completions, **columns)` on lists of one, returning one reward or None."""
    prompt: Any = task.prompt[-1].content
    completion: Any = answer
    if task.metadata["conversational"]:
        prompt = msgspec.to_builtins(task.prompt)
        completion = [{"role": "assistant", "content": answer}]
    columns = {k: [v] for k, v in task.metadata["columns"].items() if k not in ("prompts", "completions", "completion")}
    arguments = {"prompts": [prompt], "completions": [completion], **columns}
    rewards = await tools.calls.call(str(settings.judge), arguments, settings.timeout_s)
    if not isinstance(rewards, list) or len(rewards) != 1:
        raise errors.ExtensionFailed(f"{settings.judge} returned {rewards!r}"[:200], expected="a list of one reward")
    if rewards[0] is None:
        return Judgement(reward=None, passed=False, note=f"{settings.judge} did not judge it")
    return _judgement(settings, rewards[0], {})


async def _verl(settings: Settings, data_source: str, task: Task, answer: str, tools: Tools) -> Judgement:
    """verl's convention: `compute_score(data_source, solution_str, ground_truth, extra_info)`: a score or a dict."""
    columns = task.metadata["columns"]
    arguments = {
        "data_source": columns.get("data_source", data_source),
        "solution_str": answer,
        "ground_truth": task.answer,
        "extra_info": columns.get("extra_info") or {},
    }
    result = await tools.calls.call(str(settings.judge), arguments, settings.timeout_s)
    if not isinstance(result, dict):
        return _judgement(settings, result, {})
    if "score" not in result:
        raise errors.ExtensionFailed(f"{settings.judge} returned {result!r}"[:200], expected="a dict with `score`")
    numbers = {k: float(v) for k, v in result.items() if k != "score" and isinstance(v, (int, float))}
    return _judgement(settings, result["score"], numbers)


def _judgement(settings: Settings, reward: Any, metrics: dict[str, float]) -> Judgement:
    """A function's reward as a judgement. Raises ExtensionFailed for what is no finite number."""
    if not isinstance(reward, (int, float)) or not math.isfinite(reward):
        raise errors.ExtensionFailed(f"{settings.judge} gave the reward {reward!r}"[:200], expected="a finite number")
    least = 1.0 if settings.pass_reward is None else settings.pass_reward
    return Judgement(reward=float(reward), passed=reward >= least, metrics=metrics)


def build(settings: Settings, folder: Path) -> JsonLines:
    """The environment. Raises BadData for a missing file and for the first bad line, by its number."""
    return JsonLines(settings, folder / settings.path)
