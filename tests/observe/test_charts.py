"""Charts as SVG."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from huilu.observe.report.charts import (
    MAX_POSITIONS,
    WIDTH,
    Axes,
    Series,
    interval_chart,
    line_chart,
    stacked_bars,
    thinned,
    ticks,
)

AXES = Axes(title="KL to the start", unit="nats a token")
HOSTILE = '</svg><script>alert("1")</script>&'


def series(*ys: float | None, name: str = "KL", **fields: Any) -> Series:
    return Series(name=name, points=tuple((float(i + 1), y) for i, y in enumerate(ys)), colour=1, **fields)


def test_a_chart_names_its_unit_its_axis_and_its_values() -> None:
    root = ET.fromstring(line_chart(AXES, [series(0.0, 0.03, 0.09)]))
    texts = [text.text for text in root.iter("text")]
    assert "nats a token" in texts
    assert "round" in texts
    assert {"0", "0.02", "0.04", "0.06", "0.08", "0.1"} <= set(texts)
    assert {"1", "2", "3"} <= set(texts)
    assert [title.text for title in root.iter("title")] == ["round 1\nKL: 0", "round 2\nKL: 0.03", "round 3\nKL: 0.09"]
    assert root.get("aria-label") == "KL to the start, nats a token. KL from 0 to 0.09"


def test_a_missing_value_breaks_the_line() -> None:
    root = ET.fromstring(line_chart(AXES, [series(1.0, 2.0, None, 3.0)]))
    (path,) = [p.get("d") or "" for p in root.iter("path")]
    assert path.count("M") == 2
    assert path.count("L") == 1


def test_a_chart_of_nothing_is_nothing() -> None:
    assert line_chart(AXES, [series(None, None)]) == ""
    assert line_chart(AXES, []) == ""
    assert stacked_bars(AXES, [series(None, 0.0)]) == ""


def test_one_round_is_a_chart_too() -> None:
    assert "round 1" in line_chart(AXES, [series(0.5)])
    assert "round 1" in stacked_bars(AXES, [series(0.5)])


def test_bars_stack_to_the_sum_of_their_parts() -> None:
    root = ET.fromstring(stacked_bars(AXES, [series(2.0, name="rollout"), series(3.0, name="train")]))
    bars = [rect for rect in root.iter("rect") if rect.get("class", "").startswith("bar")]
    low, high = ((float(b.get("y", 0)), float(b.get("height", 0))) for b in bars)
    assert high[0] + high[1] == pytest.approx(low[0], abs=0.2)
    assert low[1] / high[1] == pytest.approx(2 / 3, abs=0.02)
    assert [title.text for title in root.iter("title")] == ["round 1: 5\nrollout: 2\ntrain: 3"]


def test_names_are_escaped() -> None:
    axes = Axes(title=HOSTILE, unit=HOSTILE)
    for svg in (
        line_chart(axes, [series(1.0, 2.0, name=HOSTILE)]),
        stacked_bars(axes, [series(1.0, 2.0, name=HOSTILE)]),
        interval_chart([(HOSTILE, 0.5, 0.4, 0.6)]),
    ):
        root = ET.fromstring(svg)
        assert "script" not in {element.tag for element in root.iter()}
        assert HOSTILE in "".join(root.itertext()) + (root.get("aria-label") or "")


def test_long_runs_are_averaged_to_a_drawable_number() -> None:
    points = tuple((float(x), float(x % 2)) for x in range(10_000))
    kept = thinned(points)
    assert len(kept) == MAX_POSITIONS
    assert all(y == pytest.approx(0.5, abs=0.02) for _, y in kept)
    assert len(line_chart(AXES, [Series(name="KL", points=points, colour=1)])) < 100_000


def test_intervals_are_drawn_to_scale() -> None:
    root = ET.fromstring(interval_chart([("before", 0.36, 0.27, 0.46), ("after", 0.87, 0.79, 0.92)]))
    spans = [line for line in root.iter("line") if line.get("class", "").startswith("span")]
    widths = [float(s.get("x2", 0)) - float(s.get("x1", 0)) for s in spans]
    assert widths[0] / widths[1] == pytest.approx(0.19 / 0.13, rel=0.01)


@given(st.floats(-1e9, 1e9), st.floats(1e-9, 1e9), st.integers(3, 9))
def test_ticks_cover_the_range_and_are_few(low: float, span: float, at_most: int) -> None:
    high = low + span
    if high - low < abs(low) * 1e-6:
        return
    step, marks = ticks(low, high, at_most)
    assert marks[0] <= low + step * 1e-6
    assert marks[-1] >= high - step * 1e-6
    assert len(marks) <= at_most + 1


@given(st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=400))
def test_every_chart_is_well_formed_and_stays_inside(ys: list[float | None]) -> None:
    svg = line_chart(AXES, [series(*ys)])
    if svg:
        xs = [float(c.get("cx", 0)) for c in ET.fromstring(svg).iter("circle")]
        assert all(0 <= x <= WIDTH for x in xs)
