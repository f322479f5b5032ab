"""Curves made of characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from huilu.observe.curve import bar, line_chart, sparkline

Values = st.lists(st.none() | st.floats(allow_nan=True, allow_infinity=True), max_size=200)


def test_a_sparkline_spans_its_values_from_the_lowest_bar_to_the_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"


def test_a_sparkline_keeps_to_the_scale_it_is_given() -> None:
    assert sparkline([0.0, 0.5, 1.0], 8, 0.0, 1.0) == "▁▅█"
    assert sparkline([0.4, 0.5], 8, 0.0, 1.0) == "▄▅"


def test_a_sparkline_averages_when_there_is_no_room() -> None:
    assert sparkline([0, 0, 1, 1, 0, 0, 1, 1], 4) == "▁█▁█"


def test_missing_values_are_gaps_and_equal_values_are_flat() -> None:
    assert sparkline([None, 1.0, float("nan"), 2.0], 8) == " ▁ █"
    assert sparkline([3.0, 3.0], 8) == "▁▁"
    assert sparkline([], 8) == ""


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(0.0, "    "), (1.0, "████"), (0.5, "██  "), (0.28, "█▏  "), (None, "    "), (1.7, "████"), (-1.0, "    ")],
)
def test_a_bar_fills_its_width_to_an_eighth_of_a_character(share: float | None, drawn: str) -> None:
    assert bar(share, 4) == drawn


def test_a_line_chart_joins_its_points_and_names_its_ends() -> None:
    assert line_chart([0.0, 0.5, 1.0, 1.0], 6, 3) == [
        "1.00 │⠀⠀⢀⠜⠉⠉",
        "     │⠀⢀⠎⠀⠀⠀",
        "0.00 │⡠⠃⠀⠀⠀⠀",
    ]


def test_a_line_chart_of_one_value_is_a_flat_line_and_of_none_is_nothing() -> None:
    assert line_chart([0.5], 3, 2) == ["0.50 │⠀⠀⠀", "0.50 │⣀⣀⣀"]
    assert line_chart([None, float("nan")], 3, 2) == []


@given(Values, st.integers(1, 60), st.integers(1, 8))
def test_curves_never_exceed_their_size(values: list[float | None], width: int, height: int) -> None:
    assert len(sparkline(values, width)) <= width
    lines = line_chart(values, width, height)
    assert len(lines) in (0, height)
    assert len({len(line) for line in lines}) <= 1
