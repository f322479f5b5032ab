"""A run folded from its events."""

from __future__ import annotations

from typing import Any

import pytest

from huilu.observe.events import decode
from huilu.observe.journal import Journal, before_after, fold, num_rounds, time_left_s, wall_by_phase

Told = list[dict[str, Any]]


def journal_of(told: Told) -> Journal:
    return fold(event for event in map(decode, told) if event is not None)


def at(seconds: float, event: str, /, **fields: Any) -> dict[str, Any]:
    return {"at": seconds, "event": event, **fields}


def ended(when: float, number: int, total: int = 4, /, **fields: Any) -> dict[str, Any]:
    return at(when, "round", round=number, rounds=total, **fields)


def evaluated(seconds: float, version: int, score: float, split: str = "holdout") -> dict[str, Any]:
    fields = {"split": split, "version": version, "pass_rate": score, "mean_reward": score, "num_tasks": 50}
    return at(seconds, "evaluation", seconds=8.0, **fields)


def test_a_replayed_round_replaces_what_was_told_of_it() -> None:
    journal = journal_of([ended(1, 1), ended(2, 2, reward_mean=0.1), ended(9, 2, reward_mean=0.3)])
    assert [r.reward_mean for r in journal.rounds.values()] == [None, 0.3]


def test_a_round_without_any_reward_is_still_a_round() -> None:
    journal = journal_of([ended(1, 1, reward_mean=None, episodes=0)])
    assert list(journal.rounds) == [1]


def test_before_and_after_are_the_first_and_last_evaluation_of_one_split() -> None:
    journal = journal_of(
        [evaluated(1, 0, 0.3), evaluated(2, 2, 0.5), evaluated(3, 4, 0.7), evaluated(4, 4, 0.1, "other")]
    )
    compared = before_after(journal)
    assert compared is not None
    assert [evaluation.pass_rate for evaluation in compared] == [0.3, 0.7]


def test_one_evaluation_is_no_comparison() -> None:
    assert before_after(journal_of([evaluated(1, 0, 0.3)])) is None


def test_the_number_of_rounds_is_known_from_the_first_stage_on() -> None:
    assert num_rounds(journal_of([at(0, "stage", name="load")])) is None
    assert num_rounds(journal_of([at(0, "stage", name="round", number=1, total=14)])) == 14


def test_time_left_is_the_rounds_left_at_the_measured_pace_and_the_last_evaluation() -> None:
    told = [
        evaluated(10, 0, 0.3),
        at(10, "stage", name="round", number=1, total=4),
        ended(20, 1),
        ended(32, 2),  # 11 s a round
    ]
    journal = journal_of(told)
    assert time_left_s(journal, 32) == pytest.approx(2 * 11 + 8)
    assert time_left_s(journal, 37) == pytest.approx(2 * 11 + 8 - 5)
    assert time_left_s(journal, 500) == 0.0


def test_time_left_is_unknown_before_a_round_of_this_process_has_ended() -> None:
    earlier = [at(0, "stage", name="preflight"), at(1, "stage", name="round", number=1, total=4), ended(9, 1)]
    resumed = [at(900, "stage", name="preflight"), at(902, "stage", name="round", number=2, total=4)]
    assert time_left_s(journal_of(earlier), 9) is not None
    assert time_left_s(journal_of([*earlier, *resumed]), 903) is None


def test_time_in_which_no_process_ran_counts_for_no_phase() -> None:
    told = [
        at(0, "stage", name="preflight"),
        at(1, "stage", name="round", number=1, total=1),
        at(1000, "stage", name="preflight"),
        at(1002, "stage", name="done"),
    ]
    assert wall_by_phase(journal_of(told)) == {"preflight": 3.0, "total": 3.0}


def test_wall_time_splits_rounds_by_their_own_phases_and_names_the_rest(events: Told) -> None:
    wall = wall_by_phase(journal_of(events))
    assert wall["rollout"] == pytest.approx(6 * 4.0)
    assert wall["train"] == pytest.approx(6 * 7.5)
    assert wall["evaluate"] == pytest.approx(9.0 + 7.0)
    assert "other" not in wall
    assert wall["total"] == pytest.approx(events[-1]["at"] - events[0]["at"])

    without_sync = [{**e, "seconds": {"rollout": 4.0, "train": 7.5}} if e["event"] == "round" else e for e in events]
    assert wall_by_phase(journal_of(without_sync))["other"] == pytest.approx(6 * 0.5)


def test_a_save_inside_a_round_is_counted_once() -> None:
    told = [
        at(0, "stage", name="round", number=1, total=1),
        at(10, "stage", name="save"),
        ended(14, 1, seconds={"train": 10.0, "save": 3.0, "sync": 1.0}),
        at(14, "stage", name="done"),
    ]
    assert wall_by_phase(journal_of(told)) == {"train": 10.0, "save": 3.0, "sync": 1.0, "total": 14.0}


def test_a_resumed_run_is_no_longer_failed() -> None:
    failed = [at(1, "error", code="disk_full", message="no space")]
    assert journal_of(failed).error is not None
    assert journal_of([*failed, at(2, "stage", name="preflight")]).error is None


def test_what_is_told_twice_counts_once(events: Told) -> None:
    once, twice = journal_of(events), journal_of([*events, *events])
    assert twice.rounds == once.rounds
    assert twice.evaluations == once.evaluations
