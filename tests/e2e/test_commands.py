"""The commands on a run that ended: what a user does next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.e2e.conftest import ROUNDS, huilu


@pytest.fixture
def run(job: Path, tmp_path: Path) -> tuple[Path, Any]:
    """A finished run and its summary."""
    folder = tmp_path / "runs" / "tiny"
    done = huilu("run", str(job), "--run-dir", str(folder), "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_a_run_prints_its_summary_and_leaves_its_files_and_every_command_works_on_it(
    run: tuple[Path, Any], job: Path
) -> None:
    folder, summary = run
    assert summary["schema_version"] == 1
    assert summary["rounds"] == ROUNDS
    assert summary["feedback"] == {
        "issued": 32,
        "accepted": 32,
        "rejected": 0,
        "expired": 0,
        "infra_failed": 0,
        "in_flight": 0,
        "unaccounted": 0,
    }
    assert 0.5 < summary["kv_hit_ratio"] < 1.0
    assert {path.name for path in folder.iterdir()} >= {
        "job.json",
        "events.jsonl",
        "metrics.jsonl",
        "report.html",
        "run.db",
        "versions",
    }
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == ROUNDS

    listed = json.loads(huilu("runs", "--root", str(folder.parent), "--json").stdout)
    assert [(each["run_id"], each["state"], each["rounds"]) for each in listed["runs"]] == [("tiny", "done", ROUNDS)]

    answered = json.loads(huilu("generate", str(folder), "Say something.", "-n", "2", "-t", "1", "--json").stdout)
    assert len(answered["answers"]) == 2
    assert len({each["text"] for each in answered["answers"]}) == 2

    scored = json.loads(huilu("eval", str(folder), "--num-tasks", "4", "--json", "--quiet", "--tasks", str(job)).stdout)
    assert scored["num_tasks"] == 4
    assert scored["pass_rate"] == summary["eval_after"]["pass_rate"]

    assert huilu("report", str(folder)).stdout.strip() == str(folder / "report.html")
    newest = sorted((folder / "versions").iterdir())[-1]
    transformers.AutoModelForCausalLM.from_pretrained(newest, local_files_only=True)


def test_tensorboard_gets_the_rounds_where_the_job_asks_for_it(job: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = huilu(
        "run", str(job), "--run-dir", str(folder), "--quiet", "--set", "trackers=[tensorboard]", "--set", "rounds=1"
    )
    assert done.returncode == 0, done.stderr
    assert any(path.stat().st_size > 200 for path in (folder / "tensorboard").iterdir())


def test_config_and_data_commands_describe_the_job(job: Path) -> None:
    shown = json.loads(huilu("config", "show", str(job), "--set", "rounds=9", "--json").stdout)["settings"]
    assert shown["rounds"] == {"value": 9, "source": "--set"}
    assert shown["seed"]["source"] == "default"
    assert huilu("config", "check", str(job)).returncode == 0
    assert json.loads(huilu("config", "schema").stdout)["title"] == "Huilu job"
    checked = json.loads(huilu("data", "check", str(job), "--json").stdout)
    assert checked["gold_failures"] == {"jsonl": []}
    assert checked["sources"][0]["num_tasks"] == 40


def test_a_dry_run_checks_and_starts_nothing(job: Path, tmp_path: Path) -> None:
    checked = json.loads(huilu("run", str(job), "--run-dir", str(tmp_path / "run"), "--dry-run", "--json").stdout)
    assert {check["status"] for check in checked["checks"]} <= {"ok", "skip"}
    assert not (tmp_path / "run").exists()


def test_filtered_groups_are_replaced_and_sampled_out_ones_are_accounted_for(job: Path, tmp_path: Path) -> None:
    done = huilu(
        *("run", str(job), "--run-dir", str(tmp_path / "run"), "--json", "--quiet"),
        *("--set", "train.algorithm=dapo", "--set", "rollout.max_draws=4", "--set", "feedback.sample_frac=0.5"),
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["feedback"]["unaccounted"] == 0
    assert summary["feedback"]["accepted"] >= 32
    assert summary["feedback"]["in_flight"] == 0


def test_overlapped_rounds_finish_with_exact_books(job: Path, tmp_path: Path) -> None:
    done = huilu("run", str(job), "--run-dir", str(tmp_path / "run"), "--json", "--quiet", "--set", "rollout.max_lag=1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["feedback"]["accepted"] == 32


@pytest.mark.parametrize("arguments", [(), ("config",), ("--", "config", "schema"), ("config", "--", "schema")])
def test_whatever_stands_before_it_a_command_runs_and_a_group_alone_shows_its_help(arguments: tuple[str, ...]) -> None:
    done = huilu(*arguments)
    assert done.stdout != ""
    assert done.stderr == ""
