"""A version that breaches its gate: held, restored or the end of the run, as the job says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huilu.core.nouns import ReleaseName
from huilu.store import rows
from huilu.store.database import read_now
from tests.e2e.conftest import ROUNDS, huilu


def breached(job: Path, run: Path, on_breach: str) -> Any:
    drifted = ("--set", "gate.max_kl=1e-9", "--set", f"gate.on_breach={on_breach}")
    return huilu("run", str(job), "--run-dir", str(run), "--json", "--quiet", *drifted)


def test_a_held_version_leaves_production_and_the_rollout_policy_as_they_are(job: Path, tmp_path: Path) -> None:
    done = breached(job, tmp_path / "run", "hold")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["release"]["promoted"] is False
    assert "over the cap" in summary["release"]["reasons"][0]
    assert summary["policy_version"]["id"] == f"v{ROUNDS}"
    production = read_now(tmp_path / "run" / "run.db", lambda c: rows.pointer(c, ReleaseName.PRODUCTION))
    assert production is not None
    assert production.number == 0


def test_a_restored_run_goes_on_from_production_in_a_new_lineage(job: Path, tmp_path: Path) -> None:
    done = breached(job, tmp_path / "run", "restore")
    assert done.returncode == 0, done.stderr
    chain = read_now(tmp_path / "run" / "run.db", rows.chain)
    by_number = {version.number: version for version in chain}
    assert by_number[2].lineage == 1
    assert by_number[2].parent == 0
    assert by_number[2].digest == by_number[0].digest
    assert by_number[3].lineage == 1
    assert json.loads(done.stdout)["feedback"]["unaccounted"] == 0


def test_a_job_may_ask_to_stop_at_a_breach(job: Path, tmp_path: Path) -> None:
    done = breached(job, tmp_path / "run", "stop")
    assert done.returncode == 1
    assert "[training_unhealthy]" in done.stderr
    assert "v2" in done.stderr


def test_an_exploding_learning_rate_is_stopped_by_name(job: Path, tmp_path: Path) -> None:
    done = huilu(
        *("run", str(job), "--run-dir", str(tmp_path / "run"), "--quiet"),
        *("--set", "train.learning_rate=1e30", "--set", "train.max_nonfinite=1", "--set", "rounds=6"),
    )
    assert done.returncode == 1
    assert "[training_unhealthy]" in done.stderr
