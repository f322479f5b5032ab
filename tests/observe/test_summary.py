"""The object that `huilu run --json` prints."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from huilu.core.nouns import Accounting, PolicyVersion
from huilu.observe.events import decode
from huilu.observe.journal import Journal, fold
from huilu.observe.summary import SCHEMA_VERSION, Summary, summary

VERSION = PolicyVersion(number=6, lineage=1, parent=5, round=6, digest="ab" * 32)
ACCOUNTING = Accounting(issued=384, accepted=380, rejected=1, infra_failed=2)


def journal_of(told: list[dict[str, Any]]) -> Journal:
    return fold(event for event in map(decode, told) if event is not None)


def as_json(made: Summary) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))
    return value


def test_the_summary_of_a_whole_run(events: list[dict[str, Any]]) -> None:
    made = summary(journal_of(events), ACCOUNTING, VERSION, run_id="q-1", run_dir="runs/q-1")
    assert as_json(made) == {
        "schema_version": 1,
        "run_id": "q-1",
        "run_dir": "runs/q-1",
        "rounds": 6,
        "eval_before": {"version": 0, "pass_rate": 0.36, "mean_reward": 0.36, "num_tasks": 100},
        "eval_after": {"version": 6, "pass_rate": 0.87, "mean_reward": 0.87, "num_tasks": 100},
        "episodes": 384,
        "episodes_per_second": pytest.approx(384 / 72),
        "generated_tokens_per_second": pytest.approx(64 * 51 / 24),
        "train_tokens_per_second": pytest.approx(48 * 51 / 45),
        "kv_hit_ratio": pytest.approx(56 / 64),
        "feedback": {
            "issued": 384,
            "accepted": 380,
            "rejected": 1,
            "expired": 0,
            "infra_failed": 2,
            "in_flight": 0,
            "unaccounted": 1,
        },
        "policy_version": {"id": "v6.1", "digest": "ab" * 32},
        "release": {
            "promoted": True,
            "reasons": [
                "held-out pass rate 87.0 % is not below 36.0 % less 2.0 points",
                "KL to the start 0.09 is under 1.0",
            ],
            "production": 6,
        },
        "wall_seconds": {
            "preflight": 1.0,
            "load": 2.0,
            "evaluate": 16.0,
            "gate": 0.5,
            "rollout": 24.0,
            "train": 45.0,
            "sync": 3.0,
            "total": 91.5,
        },
    }


def test_the_schema_of_version_1_is_as_promised() -> None:
    """A field renamed, removed or retyped is a new schema version; a field added belongs in this list."""
    assert SCHEMA_VERSION == 1
    assert {field.name: str(field.type) for field in msgspec.structs.fields(Summary)} == {
        "schema_version": "<class 'int'>",
        "run_id": "<class 'str'>",
        "run_dir": "<class 'str'>",
        "rounds": "<class 'int'>",
        "eval_before": "huilu.observe.summary.Score | None",
        "eval_after": "huilu.observe.summary.Score | None",
        "episodes": "<class 'int'>",
        "episodes_per_second": "float | None",
        "generated_tokens_per_second": "float | None",
        "train_tokens_per_second": "float | None",
        "kv_hit_ratio": "float | None",
        "feedback": "<class 'huilu.observe.summary.Counts'>",
        "policy_version": "huilu.observe.summary.VersionName | None",
        "release": "huilu.observe.summary.ReleaseState | None",
        "wall_seconds": "dict[str, float]",
    }


def test_a_run_that_ended_at_once_has_no_rates() -> None:
    made = as_json(summary(Journal(), Accounting(), None, run_id="q", run_dir="runs/q"))
    assert made["rounds"] == made["episodes"] == 0
    absent = {"eval_before", "eval_after", "episodes_per_second", "kv_hit_ratio", "policy_version", "release"}
    assert all(made[name] is None for name in absent)
    assert made["wall_seconds"] == {"total": 0}


def test_an_interrupted_run_has_a_before_and_no_after(events: list[dict[str, Any]]) -> None:
    made = as_json(summary(journal_of(events[:12]), Accounting(), None, run_id="q", run_dir="runs/q"))
    assert made["eval_before"]["pass_rate"] == 0.36
    assert made["eval_after"] is None


def test_a_hold_names_the_version_that_production_keeps(events: list[dict[str, Any]]) -> None:
    held = {"at": 1.0, "event": "verdict", "version": 7, "promote": False, "reasons": ["the score fell"]}
    made = summary(journal_of([*events, held]), Accounting(), None, run_id="q", run_dir="runs/q")
    assert made.release is not None
    assert (made.release.promoted, made.release.reasons, made.release.production) == (False, ["the score fell"], 6)
