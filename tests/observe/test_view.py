"""What the terminal shows, as text."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

from huilu.observe import view
from huilu.observe.events import RoundEnded, WarningGiven, decode
from huilu.observe.journal import Journal, fold

ENDING = view.Ending(run_dir="runs/quickstart-1", prompt="What is 7 + 8?", tasks="arithmetic")


def journal_of(told: list[dict[str, Any]]) -> Journal:
    return fold(event for event in map(decode, told) if event is not None)


def until(events: list[dict[str, Any]], name: str, nth: int = 1, /, **fields: Any) -> list[dict[str, Any]]:
    """The events up to the nth one of this name with these fields."""
    found = [i for i, e in enumerate(events) if e["event"] == name and fields.items() <= e.items()]
    return events[: found[nth - 1] + 1]


def plain(lines: list[Any]) -> list[str]:
    return [line.plain.rstrip() for line in lines]


def test_rounds_are_rows_under_a_heading(events: list[dict[str, Any]]) -> None:
    rounds = list(journal_of(events).rounds.values())
    assert plain([view.heading(), view.row(rounds[0]), view.row(rounds[5])]) == [
        "  round   reward  pass rate                 KL   tokens    tok/s        time",
        "    1/6     0.15   15 % █▊              0.0006     11.0      176      12.0 s",
        "    6/6     0.78   78 % █████████▍      0.0216      6.0       96      12.0 s",
    ]


def test_a_round_without_episodes_is_a_row_of_dashes() -> None:
    assert plain([view.row(RoundEnded(round=3, rounds=4))]) == [
        "    3/4        –      –                      –        –        –       0.0 s"
    ]


def test_before_rounds_the_status_is_the_stage_with_its_progress(events: list[dict[str, Any]]) -> None:
    told = until(events, "progress", name="tasks")
    assert plain(view.status(journal_of(told), told[-1]["at"], 60)) == [
        " evaluating  ━━━━━━━━━━━━─────────────  50/100 tasks  4.0 s"
    ]
    told = until(events, "stage", name="load")
    assert plain(view.status(journal_of(told), told[-1]["at"] + 2, 60)) == [
        " loading the model: SmolLM2-135M-Instruct  2.0 s"
    ]


def test_between_rounds_the_status_is_the_run_with_its_curves_and_the_time_left(events: list[dict[str, Any]]) -> None:
    told = until(events, "progress", 4, name="episodes")
    assert plain(view.status(journal_of(told), told[-1]["at"], 76)) == [
        " round 4 of 6  ━━━━━━━━━━━━━━━━━━━────────────  40/64 episodes  42.0 s left",
        " reward 0.15 ▁▄█ 0.44   pass rate 15 % ▂▃▄ 44 %",
    ]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_status_fits_the_terminal(width: int, events: list[dict[str, Any]]) -> None:
    for end in range(1, len(events)):
        journal = journal_of(events[:end])
        if journal.stage is not None:
            line = view.status(journal, events[end - 1]["at"] + 1, width)[0]
            assert cell_len(line.plain) <= max(width, 40)


def test_wide_characters_are_measured_in_cells(events: list[dict[str, Any]]) -> None:
    told = [{"at": 1.0, "event": "stage", "name": "load", "detail": "千问大模型" * 12}]
    line = view.status(journal_of(told), 3.0, 60)[0]
    assert cell_len(line.plain) <= 60
    assert line.plain.endswith("千问大模型  2.0 s")


def test_the_end_compares_before_and_after_and_says_what_to_try(events: list[dict[str, Any]]) -> None:
    lines = plain(view.closing(journal_of(events), ENDING, 80))
    assert lines[1] == " mean reward by round, 1 to 6"
    assert [line[:7] for line in lines[2:7]] == [" 0.78 │", "      │", "      │", "      │", " 0.15 │"]
    assert lines[7:] == [
        "",
        " 100 held-out tasks, never trained on",
        "                       before            after",
        " pass rate             36.0 % →         87.0 %   +51.0 points",
        " 95 % interval     27 to 46 % →     79 to 92 %",
        " mean reward             0.36 →           0.87   +0.51",
        "",
        " released  v6 is production now",
        "           held-out pass rate 87.0 % is not below 36.0 % less 2.0 points",
        "           KL to the start 0.09 is under 1.0",
        " run       runs/quickstart-1",
        " next      huilu report runs/quickstart-1",
        "           huilu generate runs/quickstart-1 'What is 7 + 8?'",
        "           huilu eval runs/quickstart-1 --tasks arithmetic",
    ]


def test_a_hold_says_what_production_stays(events: list[dict[str, Any]]) -> None:
    held = {"at": 1.0, "event": "verdict", "version": 9, "promote": False, "reasons": ["the score fell"]}
    lines = plain(view.closing(journal_of([*events, held]), ENDING, 80))
    assert " held      v9; production stays v6" in lines
    assert "           the score fell" in lines
    assert " held      v9; nothing is production" in plain(view.closing(journal_of([held]), ENDING, 80))


def test_commands_to_try_survive_odd_names_and_prompts() -> None:
    ending = view.Ending(run_dir="my runs/a", prompt="It's\n\x1b[31m " + "七加八等于几" * 9)
    commands = view.next_commands(ending)
    assert commands[0] == "huilu report 'my runs/a'"
    assert "\x1b" not in commands[1]
    assert "\n" not in commands[1]
    assert cell_len(commands[1]) < 100
    assert commands[2] == "huilu eval 'my runs/a'"


def test_without_a_prompt_the_command_shows_where_it_goes() -> None:
    assert view.next_commands(view.Ending(run_dir="runs/a"))[1] == 'huilu generate runs/a "..."'


def test_a_log_gets_one_line_for_each_thing_that_happened(events: list[dict[str, Any]]) -> None:
    lines = []
    for end in range(1, len(events) + 1):
        event = decode(events[end - 1])
        assert event is not None
        line = view.plain_line(event, journal_of(events[:end]))
        if line is not None:
            lines.append(line)
    assert lines[:6] == [
        "checking the machine",
        "loading the model: SmolLM2-135M-Instruct",
        "evaluating: before",
        "evaluated v0: 36.0 % of 100 holdout tasks pass, mean reward 0.36, 9.0 s",
        "round 1/6  reward 0.15  pass 15 %  KL 0.0006  11.0 tokens  176 tok/s  12.0 s  1 min 09 s left",
        "round 2/6  reward 0.26  pass 26 %  KL 0.0024  10.0 tokens  160 tok/s  12.0 s  57.0 s left",
    ]
    assert len(lines) == 3 + 1 + 6 + 1 + 1 + 1


def test_a_warning_cannot_write_to_the_terminal_but_through_its_text() -> None:
    assert view.warned(WarningGiven(message="\x1b]0;title\x07")).plain == "warning: \\x1b]0;title\\x07"


def test_an_unfinished_comparison_shows_what_was_evaluated(events: list[dict[str, Any]]) -> None:
    journal = msgspec.structs.replace(journal_of(until(events, "evaluation")), rounds={})
    assert "evaluated v0: 36.0 % of 100 holdout tasks pass, mean reward 0.36, 9.0 s" in plain(
        view.closing(journal, ENDING, 80)
    )
