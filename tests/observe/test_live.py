"""The live view on consoles of every kind."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from huilu.observe.events import decode
from huilu.observe.journal import fold
from huilu.observe.live import watching
from huilu.observe.view import Ending

ENDING = Ending(run_dir="runs/a-very-long-folder-name-that-does-not-fit/quickstart-20250720-0826", prompt="1 + 1?")


def shown(events: list[dict[str, Any]], *, terminal: bool, quiet: bool = False, **console: Any) -> str:
    out = io.StringIO()
    with watching(
        Console(file=out, force_terminal=terminal, width=60, **console),
        "quickstart",
        ENDING,
        quiet=quiet,
        now=lambda: events[-1]["at"],
    ) as sink:
        for told in events:
            sink(told)
    return out.getvalue()


def test_a_pipe_gets_plain_whole_lines(events: list[dict[str, Any]]) -> None:
    text = shown(events, terminal=False)
    assert "\x1b" not in text
    assert sum(line.startswith("round ") for line in text.splitlines()) == 6
    assert f"huilu report {ENDING.run_dir}" in text


def test_a_terminal_keeps_a_row_for_each_round_and_one_heading(events: list[dict[str, Any]]) -> None:
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(events, terminal=True))
    assert len(re.findall(r"^\s*\d/6 ", text, flags=re.MULTILINE)) == 6
    assert text.count("tok/s ") == 1
    assert "+51.0 points" in text


def test_quiet_shows_nothing(events: list[dict[str, Any]]) -> None:
    assert shown(events, terminal=True, quiet=True) == ""


def test_no_color_is_respected(events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7]|38;)[0-9;]*m", shown(events, terminal=True))
    monkeypatch.delenv("NO_COLOR")
    colour: dict[str, Any] = {"color_system": "standard", "_environ": {"TERM": "xterm"}}
    assert re.search(r"\x1b\[[0-9;]*3[0-7][0-9;]*m", shown(events, terminal=True, **colour))


def test_a_run_that_did_not_finish_has_no_closing(events: list[dict[str, Any]]) -> None:
    assert "huilu report" not in shown(events[:20], terminal=False)


def test_a_resumed_run_compares_with_the_evaluation_of_its_first_process(events: list[dict[str, Any]]) -> None:
    first, second = events[:15], events[15:]
    out = io.StringIO()
    earlier = fold(event for event in map(decode, first) if event is not None)
    with watching(Console(file=out), "quickstart", ENDING, journal=earlier) as sink:
        for told in second:
            sink(told)
    assert "36.0 % →         87.0 %" in out.getvalue()


def test_events_it_does_not_know_pass_by(events: list[dict[str, Any]]) -> None:
    with watching(Console(file=io.StringIO()), "quickstart", ENDING) as sink:
        sink({"at": 1.0, "event": "object_collected", "bytes": 5})
