"""Trackers: what TensorBoard reads back."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from huilu.config.tree import Job
from huilu.errors import Usage
from huilu.observe.trackers import TENSORBOARD_DIR, TRACKERS, TensorBoard


def records(folder: Path) -> Iterator[Any]:
    """The event protos of a TFRecord file: a length, its CRC, the message, its CRC."""
    from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415 - slow to import

    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            yield Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    return {(v.tag, e.step): v.simple_value for e in records(folder) for v in e.summary.value}


def test_rounds_and_evaluations_become_scalars_at_their_round(events: list[dict[str, Any]], tmp_path: Path) -> None:
    tracker = TRACKERS["tensorboard"](tmp_path, 1)
    for told in events:
        tracker(told)
    tracker.close()
    got = scalars(tmp_path / TENSORBOARD_DIR)
    assert got["train/reward_mean", 1] == pytest.approx(0.1506, abs=1e-4)
    assert got["train/kl_start", 6] == pytest.approx(0.0216)
    assert got["seconds/train", 3] == pytest.approx(7.5)
    assert got["eval/holdout/pass_rate", 0] == pytest.approx(0.36)
    assert got["eval/holdout/pass_rate", 6] == pytest.approx(0.87)
    assert {step for tag, step in got if tag == "train/loss"} == {1, 2, 3, 4, 5, 6}


def test_what_is_not_a_number_is_left_out(events: list[dict[str, Any]], tmp_path: Path) -> None:
    tracker = TensorBoard(tmp_path, 1)
    told = next(event for event in events if event["event"] == "round")
    tracker({**told, "loss": float("nan"), "entropy": None})
    tracker.close()
    tags = {tag for tag, _ in scalars(tmp_path / TENSORBOARD_DIR)}
    assert "train/reward_mean" in tags
    assert not {"train/loss", "train/entropy", "train/digest", "train/version"} & tags


def test_a_resumed_run_tells_tensorboard_to_drop_what_is_replayed(tmp_path: Path) -> None:
    TensorBoard(tmp_path, 5).close()
    starts = [(e.step, e.session_log.status) for e in records(tmp_path / TENSORBOARD_DIR) if e.HasField("session_log")]
    assert starts == [(5, 1)]


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(Usage, match=r"huilu\[trackers\]"):
        TensorBoard(tmp_path, 1)


def test_the_registry_has_every_tracker_of_the_job_file() -> None:
    schema = msgspec.json.schema(Job)
    assert schema["$defs"]["Job"]["properties"]["trackers"]["items"]["enum"] == sorted(TRACKERS)


def test_the_tracker_loads_no_torch(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys\n"
        "from huilu.observe.trackers import TensorBoard\n"
        "TensorBoard(pathlib.Path(sys.argv[1]), 1).close()\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == 0
