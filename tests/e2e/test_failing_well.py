"""What goes wrong in a user's hands: one clear error each, the right exit status, and nothing lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import huilu

PATIENCE_S = 60.0
IN_SMALL_DISK = """
import os, sys
from pathlib import Path
from huilu.sandbox.kernel import linux
uid, gid = os.geteuid(), os.getegid()
linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
Path("/proc/self/setgroups").write_text("deny")
Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
linux.mount("tmpfs", sys.argv[1], "tmpfs", options=f"size={sys.argv[2]}")
os.execv(sys.executable, [sys.executable, "-m", "huilu", *sys.argv[3:]])
"""


def changed(job: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the job beside it, with one thing changed."""
    settings = yaml.safe_load(job.read_text())
    change(settings)
    path = job.with_name("changed.yaml")
    path.write_text(yaml.safe_dump(settings))
    return path


def begun(job: Path, run: Path, *more: str) -> subprocess.Popen[str]:
    """A run that has reached its first round."""
    process = subprocess.Popen(
        [sys.executable, "-m", "huilu", "run", str(job), "--run-dir", str(run), *more],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        events = run / "events.jsonl"
        if events.exists() and '"name":"round"' in events.read_text():
            return process
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"no round began: {process.communicate()[1]}")


def longer(settings: dict[str, Any]) -> None:
    settings["rounds"] = 400


def test_ctrl_c_ends_the_run_says_how_to_resume_and_the_rest_is_run_on_resume(job: Path, tmp_path: Path) -> None:
    long_job, run = changed(job, longer), tmp_path / "run"
    process = begun(long_job, run)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert f"huilu run {long_job} --run-dir {run} --resume" in told
    assert "Traceback" not in told


def test_a_second_run_on_the_same_folder_is_refused_and_told_who_holds_it(job: Path, tmp_path: Path) -> None:
    long_job, run = changed(job, longer), tmp_path / "run"
    process = begun(long_job, run, "--quiet")
    try:
        second = huilu("run", str(long_job), "--run-dir", str(run), "--resume")
        assert second.returncode == 6
        assert f"process {process.pid}" in second.stderr
    finally:
        process.kill()
        process.communicate()


def test_a_folder_with_a_run_in_it_is_not_overwritten(job: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.db").write_bytes(b"precious")
    refused = huilu("run", str(job), "--run-dir", str(run))
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    assert (run / "run.db").read_bytes() == b"precious"


def test_a_folder_that_cannot_be_written_is_one_clear_error(job: Path, tmp_path: Path) -> None:
    closed = Path("/sys")  # not even root makes folders there
    if os.geteuid() != 0:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o555)
    refused = huilu("run", str(job), "--run-dir", str(closed / "run"))
    assert refused.returncode == 1
    assert "[not_writable]" in refused.stderr
    assert "--run-dir" in refused.stderr


@pytest.mark.parametrize("size", ["600k", "2m"])
def test_a_full_disk_is_named_and_the_run_goes_on_where_there_is_room(size: str, job: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    full = subprocess.run(
        [sys.executable, "-c", IN_SMALL_DISK, str(small), size, "run", str(job), "--run-dir", str(small / "run")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert full.returncode in (1, 4), full.stderr
    assert "[disk_full]" in full.stderr or "PRE-DISK" in full.stderr
    assert "Traceback" not in full.stderr


def test_a_missing_model_is_named(job: Path, tmp_path: Path) -> None:
    path = changed(job, lambda settings: settings["model"].update(path="no/such/model"))
    missing = huilu("run", str(path), "--run-dir", str(tmp_path / "run"))
    assert missing.returncode == 2
    assert "no/such/model" in missing.stderr


def test_a_cut_weight_file_is_named_with_what_was_seen_and_expected(
    job: Path, tiny_model: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(tiny_model, cut)
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    path = changed(job, lambda settings: settings["model"].update(path=str(cut)))
    corrupt = huilu("run", str(path), "--run-dir", str(tmp_path / "run"))
    assert corrupt.returncode == 1
    assert "[bad_weights]" in corrupt.stderr
    assert "model.safetensors" in corrupt.stderr


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("train.algorithm=grop", "did you mean 'grpo'"),
        ("data.sources.0.env=jsnol", "did you mean 'jsonl'"),
        ("rollout.temprature=1", "did you mean 'temperature'"),
        ("rounds=0", "rounds is 0"),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_one(setting: str, named: str, job: Path, tmp_path: Path) -> None:
    wrong = huilu("run", str(job), "--set", setting, "--run-dir", str(tmp_path / "run"))
    assert wrong.returncode == 2
    assert named in wrong.stderr
    assert not (tmp_path / "run").exists()


def test_a_bad_line_of_data_is_named_by_its_number(job: Path, tmp_path: Path) -> None:
    data = job.with_name("tasks.jsonl")
    lines = data.read_text().splitlines()
    lines[6] = '{"prompt": "cut of'
    data.write_text("\n".join(lines))
    bad = huilu("run", str(job), "--run-dir", str(tmp_path / "run"))
    assert bad.returncode == 2
    assert "tasks.jsonl:7:" in bad.stderr


def test_a_resume_with_other_settings_is_refused_by_name(job: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    short = changed(job, lambda settings: settings.update(rounds=1))
    assert huilu("run", str(short), "--run-dir", str(run), "--quiet").returncode == 0
    other = huilu("run", str(short), "--run-dir", str(run), "--resume", "--set", "train.learning_rate=0.5")
    assert other.returncode == 2
    assert "train.learning_rate" in other.stderr
