"""Held-out evaluation: one attempt at each task of a fixed list, judged as in training.

Called by the gate and by `huilu eval`. Writes nothing: whoever asked stores the result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from huilu import errors
from huilu.core.nouns import Episode, Evaluation, Outcome, Task
from huilu.telemetry import Telemetry
from huilu.work.rollouts import Attempts


async def evaluate(
    attempts: Attempts,
    tasks: Sequence[Task],
    version: int,
    split: str,
    telemetry: Telemetry,
    monotonic: Callable[[], float] = time.monotonic,
) -> tuple[Evaluation, list[Episode]]:
    """The evaluation of `version`, and its episodes in task order. An infrastructure failure is no score: it raises."""
    if not tasks:
        raise errors.BadConfig("nothing to evaluate on", expected="data.sources with holdout above 0")
    started, done = monotonic(), 0

    async def one(task: Task) -> Episode:
        nonlocal done
        async for episode in attempts.episodes(task, (0,), version):
            done += 1
            telemetry.event("progress", name=split, done=done, total=len(tasks))
            return episode
        raise errors.Invariant(f"task {task.id} gave no episode")

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(task)) for task in tasks]
    episodes = [task.result() for task in running]
    lost = [episode for episode in episodes if episode.outcome is Outcome.INFRA_FAILED]
    if lost:
        raise errors.Outside(
            f"{len(lost)} of {len(tasks)} held-out tasks failed for infrastructure reasons: {lost[0].note}",
            expected="every task judged",
            fix="see the warnings in events.jsonl, then run again with --resume",
        )
    rewards = [episode.reward or 0.0 for episode in episodes]
    passed = sum(episode.metrics.get("passed", 0.0) for episode in episodes)
    evaluation = Evaluation(
        version=version,
        split=split,
        num_tasks=len(tasks),
        pass_rate=passed / len(tasks),
        mean_reward=sum(rewards) / len(tasks),
        by_task={task.id: reward for task, reward in zip(tasks, rewards, strict=True)},
        seconds=monotonic() - started,
    )
    return evaluation, episodes
