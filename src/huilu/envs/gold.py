"""Whether an environment can tell right from wrong: its own answers must pass, an empty one must not.

Called by preflight and `huilu data check` before anything is generated. Reports; refusing is the caller's.
"""

from __future__ import annotations

import asyncio

from huilu import errors
from huilu.core.generation import Judgement
from huilu.core.ports import Environment, Tools


async def check_gold(environment: Environment, num: int, tools: Tools) -> list[str]:
    """What is wrong with the answers to `num` tasks spread over the data set: one line each, none when all is well.

    A task without a known answer only has its empty answer checked.
    """
    num_tasks = len(environment)
    indexes = sorted({i * num_tasks // min(num, num_tasks) for i in range(min(num, num_tasks))})
    found = await asyncio.gather(*(_check_task(environment, index, tools) for index in indexes))
    return [failure for failures in found for failure in failures]


async def _check_task(environment: Environment, index: int, tools: Tools) -> list[str]:
    try:
        with errors.boundary(f"task {index}"):
            task = environment.task(index)
            gold = environment.gold(task)
            failures = []
            if gold is not None:
                judged = await environment.judge(task, [gold], tools)
                if not judged.passed:
                    failures.append(f"{task.id}: the right answer {_short(gold)} {_scored(judged)}")
            judged = await environment.judge(task, [""], tools)
            if judged.passed:
                failures.append(f"{task.id}: an empty answer {_scored(judged)}")
            return failures
    except errors.HuiluError as error:
        return [f"task {index}: {error}"]


def _scored(judged: Judgement) -> str:
    said = f" ({judged.note})" if judged.note else ""
    reward = "was not judged" if judged.reward is None else f"scored {judged.reward:g}"
    return reward + said


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
