"""The round book: one event a round, from the claim, the step and the counters since the last."""

from __future__ import annotations

from typing import Any

from huilu.core.nouns import Claim, ClaimState, Episode, Group, Outcome, PolicyVersion, StepReport, Task
from huilu.observe.book import RoundBook
from huilu.telemetry import Telemetry


def episode(index: int, reward: float | None, outcome: Outcome = Outcome.OK) -> Episode:
    return Episode(
        id=f"t.e{index}",
        task_id="t",
        round=3,
        index=index,
        env="e",
        version=1,
        token_ids=[1, 2, 3],
        logprobs=[0.0, -1.0, -1.0],
        loss_mask=[False, True, True],
        turns=(),
        text="",
        outcome=outcome,
        finish_reason="stop",
        reward=reward,
        metrics={"passed": float(reward == 1.0)},
    )


def closed(**metrics: float) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    telemetry = Telemetry(lambda record: told.append(dict(record)))
    book = RoundBook(telemetry, 5)
    telemetry.observe("huilu_round_seconds", 2.0, phase="rollout")
    telemetry.count("huilu_rollout_tokens_total", 10, type="generated")
    groups = (
        Group(Task(id="t", env="e", prompt=()), (episode(0, 1.0), episode(1, 0.0, Outcome.TRUNCATED))),
        Group(Task(id="u", env="e", prompt=()), (episode(2, 1.0), episode(3, None, Outcome.INFRA_FAILED))),
    )
    claim = Claim(id="c", round=3, state=ClaimState.LEASED, groups=groups)
    report = StepReport(applied=True, healthy=True, metrics={"loss": 0.5, **metrics})
    book.close(claim, report, PolicyVersion(number=3, lineage=0, parent=2, round=3))
    return told


def test_a_round_is_told_from_its_episodes_and_the_counters_since_the_last() -> None:
    (told,) = closed(mismatch=1e-5)
    assert told["event"] == "round"
    assert told["reward_mean"] == 2 / 3
    assert told["pass_rate"] == 2 / 3
    assert told["truncated_frac"] == 0.25
    assert told["zero_variance"] == 0.5
    assert told["generated_tokens"] == 8
    assert told["generated_tokens_per_s"] == 5.0
    assert told["staleness"] == 1.0


def test_an_engine_that_drifted_from_the_learner_is_warned_of() -> None:
    _, warning = closed(mismatch=0.01)
    assert warning["code"] == "logprob_mismatch"
