"""Any data set of Reasoning Gym by name, judged by its own scorer in a worker process. Built by `registry`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from huilu.core.generation import Judgement
from huilu.core.nouns import Message, Task
from huilu.core.ports import Tools
from huilu.envs.reasoning_gym.scoring import load_dataset, make_entry


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which data set, and what counts as right."""

    dataset: Annotated[str, Meta(description="Name of the data set, as in Reasoning Gym")]
    size: Annotated[int, Meta(ge=1, description="Number of tasks to make")] = 500
    seed: Annotated[int, Meta(ge=0, description="Seed the tasks are made from")] = 0
    config: Annotated[dict[str, Any], Meta(description="The data set's own settings")] = {}
    system: Annotated[str, Meta(description="System message; none when empty")] = ""
    answer_tag: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z_]*$",
            description="Judge only what stands in the last <TAG>…</TAG>; the whole answer if empty",
        ),
    ] = ""
    pass_score: Annotated[float, Meta(gt=0, le=1, description="Least score that counts as passed")] = 1.0
    timeout_s: Annotated[float, Meta(gt=0, description="Deadline of one scoring, seconds")] = 10.0


class ReasoningGym:
    """Tasks of one data set. The reward is its scorer's score, 0 to 1."""

    needs: frozenset[str] = frozenset({"calls"})

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._dataset = load_dataset(settings.dataset, settings.size, settings.seed, settings.config)

    def __len__(self) -> int:
        return len(self._dataset)

    def task(self, index: int) -> Task:
        entry = make_entry(self._dataset, self._settings.seed, index)
        system = (Message("system", self._settings.system),) if self._settings.system else ()
        answer = entry["answer"]
        return Task(
            id=f"reasoning_gym/{index}",
            env="reasoning_gym",
            prompt=(*system, Message("user", entry["question"])),
            answer=answer if isinstance(answer, str) else None,  # some data sets know only how to score
            metadata={"index": index},
        )

    async def reply(self, task: Task, answers: Sequence[str], tools: Tools) -> Message | None:
        return None

    async def judge(self, task: Task, answers: Sequence[str], tools: Tools) -> Judgement:
        answer = self._judged_part(answers[-1])
        if answer is None:
            return Judgement(reward=0.0, passed=False, note=f"no <{self._settings.answer_tag}> in the answer")
        question = {
            "dataset": self._settings.dataset,
            "size": self._settings.size,
            "seed": self._settings.seed,
            "config": self._settings.config,
            "index": task.metadata["index"],
        }
        score = await tools.calls.call(
            "huilu.envs.reasoning_gym.scoring:score", {**question, "answer": answer}, self._settings.timeout_s
        )
        return Judgement(reward=score, passed=score >= self._settings.pass_score)

    def gold(self, task: Task) -> str | None:
        tag = self._settings.answer_tag
        if task.answer is None:
            return None
        return f"<{tag}>{task.answer}</{tag}>" if tag else str(task.answer)

    def _judged_part(self, answer: str) -> str | None:
        tag = self._settings.answer_tag
        if not tag:
            return answer.strip()
        end = answer.rfind(f"</{tag}>")
        start = answer.rfind(f"<{tag}>", 0, max(end, 0))
        return None if start < 0 else answer[start + len(tag) + 2 : end].strip()


def build(settings: Settings, folder: Path) -> ReasoningGym:
    """The environment. Raises BadConfig where Reasoning Gym is missing or refuses the settings."""
    return ReasoningGym(settings)
