"""How numbers are written."""

from __future__ import annotations

import pytest

from huilu.observe import figures


@pytest.mark.parametrize(
    ("num_passed", "num", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_interval_is_wilsons_as_in_newcombe_1998_table_1(
    num_passed: int, num: int, low: float, high: float
) -> None:
    assert figures.interval(num_passed / num, num) == pytest.approx((low, high), abs=5e-5)


def test_nothing_is_known_of_no_tasks() -> None:
    assert figures.interval(0.0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (125, "2 min 05 s"), (3780, "1 h 03 min"), (None, "–")],
)
def test_durations_read_as_people_say_them(seconds: float | None, text: str) -> None:
    assert figures.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.00123, "0.00123"), (1.2e-7, "1.2e-07"), (45.64, "45.6"), (1234.5, "1,234"), (float("inf"), "–")],
)
def test_three_digits_count(value: float, text: str) -> None:
    assert figures.significant(value) == text


def test_text_for_a_terminal_holds_no_control_character() -> None:
    assert figures.one_line("a\x1b[31mb\n中文\u202e") == "a\\x1b[31mb\\n中文\\u202e"
