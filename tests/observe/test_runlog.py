"""The JSON Lines files of a run."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from huilu.core.nouns import Outcome
from huilu.errors import BadData, DiskFull, Outside
from huilu.observe.events import WarningGiven
from huilu.observe.runlog import JsonLines, event_log, metrics_log, read_events, read_metrics, without
from huilu.telemetry import Telemetry


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def test_every_event_is_one_line_and_metrics_get_the_rounds_flat(events: list[dict[str, Any]], tmp_path: Path) -> None:
    with JsonLines(tmp_path / "events.jsonl") as all_, JsonLines(tmp_path / "metrics.jsonl") as rounds:
        for told in events:
            event_log(all_)(told)
            metrics_log(rounds)(told)
    assert lines_of(tmp_path / "events.jsonl") == events
    metrics = lines_of(tmp_path / "metrics.jsonl")
    assert [line["round"] for line in metrics] == [1, 2, 3, 4, 5, 6]
    assert metrics[0]["seconds_train"] == 7.5
    assert not any(isinstance(value, dict | list) for line in metrics for value in line.values())


def test_a_line_is_readable_as_soon_as_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with JsonLines(path) as lines:
        Telemetry(event_log(lines)).event("warning", message="low memory")
        assert lines_of(path)[0]["message"] == "low memory"


def test_a_resumed_run_appends(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for number in (1, 2):
        with JsonLines(path) as lines:
            lines.append({"life": number})
    assert lines_of(path) == [{"life": 1}, {"life": 2}]


@pytest.mark.parametrize("torn", [b'{"life": 1, "te', b"\x00" * 4096, b'{"a": 1}', b"x" * 100_000])
def test_a_torn_last_line_is_cut_off_when_the_run_goes_on(torn: bytes, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"life":1}\n' + torn)
    with JsonLines(path) as lines:
        lines.append({"life": 2})
    assert lines_of(path) == [{"life": 1}, {"life": 2}]


def test_a_file_of_nothing_but_a_torn_line_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"li')
    JsonLines(path).close()
    assert path.read_bytes() == b""


def test_a_full_disk_has_its_name_and_leaves_only_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    real_write = os.write
    with JsonLines(path) as lines:
        lines.append({"n": 1})
        room = [5, 0]

        def short_write(fd: int, data: bytes) -> int:
            if room[0] == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real_write(fd, data[: room.pop(0)])

        monkeypatch.setattr(os, "write", short_write)
        with pytest.raises(DiskFull, match=r"events\.jsonl"):
            lines.append({"n": 2})
        monkeypatch.undo()
        assert path.read_bytes() == b'{"n":1}\n'
        lines.append({"n": 3})
    assert lines_of(path) == [{"n": 1}, {"n": 3}]


def test_a_path_that_cannot_be_opened_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(Outside, match=r"no-such-folder"):
        JsonLines(tmp_path / "no-such-folder" / "events.jsonl")


def test_a_killed_process_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    script = (
        "import sys, pathlib\n"
        "from huilu.observe.runlog import JsonLines\n"
        "lines = JsonLines(pathlib.Path(sys.argv[1]))\n"
        "for n in range(10**9):\n"
        "    lines.append({'n': n, 'text': 'x' * 500})\n"
        "    print(n, flush=True) if n == 200 else None\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    numbers = [line["n"] for line in lines_of(path)]
    assert len(numbers) > 200
    assert numbers == list(range(len(numbers)))


def test_what_json_cannot_hold_is_written_readably(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with JsonLines(path) as lines:
        lines.append(
            {"loss": float("nan"), "text": "a\ud800b", "outcome": Outcome.OK, "path": Path("/x"), "ids": (1, 2)}
        )
    assert lines_of(path) == [{"loss": None, "text": "a\\ud800b", "outcome": "ok", "path": "/x", "ids": [1, 2]}]


def test_a_secret_value_is_written_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    secrets = ['p"ss\\wörd', "tök", "", "tökén"]
    with JsonLines(path) as lines:
        telemetry = Telemetry(without(secrets, event_log(lines)))
        telemetry.event("warning", message='judge said: p"ss\\wörd!', headers={"tökén": ["Bearer tökén"]}, tries=3)
    line = lines_of(path)[0]
    assert line["message"] == "judge said: [secret]!"
    assert line["headers"] == {"[secret]": ["Bearer [secret]"]}
    assert line["tries"] == 3


def test_events_are_read_back_typed_without_the_line_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"at":1.0,"event":"warning","message":"m"}\n{"at":2,"event":"debug"}\n{"at":3.0,"eve')
    assert list(read_events(path)) == [WarningGiven(at=1.0, message="m")]


def test_a_run_without_a_log_has_no_events(tmp_path: Path) -> None:
    assert list(read_events(tmp_path / "events.jsonl")) == []


def test_a_damaged_line_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"at":1.0,"event":"warning","message":"m"}\nnot json\n')
    with pytest.raises(BadData, match="line 2"):
        list(read_events(path))


def test_of_a_round_that_was_replayed_the_last_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with JsonLines(path) as lines:
        for number, reward in ((1, 0.1), (2, 0.2), (2, 0.3), (3, 0.4)):
            lines.append({"round": number, "reward_mean": reward})
    assert [line["reward_mean"] for line in read_metrics(path)] == [0.1, 0.3, 0.4]
