"""Curves made of characters: a bar, a sparkline, and a line chart of braille dots. Pure; called by the live view."""

from __future__ import annotations

import math
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a braille cell's dots: [column][row from the top]."""


def bar(share: float | None, width: int) -> str:
    """A bar of exactly `width` characters, filled from the left to an eighth of a character."""
    if share is None or not math.isfinite(share):
        return " " * width
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip().ljust(width)


def sparkline(values: Sequence[float | None], width: int, low: float | None = None, high: float | None = None) -> str:
    """At most `width` bars, one a value, or one for the mean of several when there are more values than that.

    The scale runs from `low` to `high`, by default the values' own. A missing value is a space; equal values
    are the lowest bar.
    """
    means = _means(values, width)
    known = [value for value in means if value is not None]
    if not known:
        return " " * len(means)
    bottom = min(known) if low is None else low
    top = max(known) if high is None else high
    return "".join(" " if value is None else BARS[_step(value, bottom, top, len(BARS))] for value in means)


def line_chart(values: Sequence[float | None], width: int, height: int) -> list[str]:
    """`height` lines of a line chart: an axis with its lowest and highest value, and `width` characters of dots.

    Each character holds 2 x 4 dots. Empty without a known value.
    """
    known = [value for value in values if _known(value)]
    if not known:
        return []
    low, high = min(v for v in known if v is not None), max(v for v in known if v is not None)
    columns = _stretched(_means(values, 2 * width), 2 * width)
    cells = [[0] * width for _ in range(height)]
    last: int | None = None
    for x, value in enumerate(columns):
        if value is None:
            last = None
            continue
        y = 4 * height - 1 - _step(value, low, high, 4 * height)
        # The line fills the column from the previous height to this one, so that steep parts stay connected.
        start, stop = (y, y) if last is None else (min(y, last + (y > last)), max(y, last - (y < last)))
        for row in range(start, stop + 1):
            cells[row // 4][x // 2] |= _DOTS[x % 2][row % 4]
        last = y
    labels = [f"{high:.2f}", *[""] * (height - 2), f"{low:.2f}"] if height > 1 else [f"{high:.2f}"]
    margin = max(len(label) for label in labels)
    return [
        f"{label:>{margin}} │{''.join(chr(0x2800 + cell) for cell in row)}"
        for label, row in zip(labels, cells, strict=True)
    ]


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _means(values: Sequence[float | None], width: int) -> list[float | None]:
    """At most `width` means over stretches of equal length; of the known values, None where there is none."""
    num = min(len(values), width)
    means: list[float | None] = []
    for i in range(num):
        stretch = values[i * len(values) // num : (i + 1) * len(values) // num]
        known = [value for value in stretch if value is not None and math.isfinite(value)]
        means.append(sum(known) / len(known) if known else None)
    return means


def _stretched(values: list[float | None], width: int) -> list[float | None]:
    """`values` interpolated linearly over `width` columns; a single value is a flat line."""
    if len(values) == 1:
        return values * width
    columns: list[float | None] = []
    for x in range(width):
        place = x * (len(values) - 1) / (width - 1)
        i = min(int(place), len(values) - 2)
        left, right = values[i], values[i + 1]
        if left is None or right is None:
            columns.append(left if place == i else right if place == i + 1 else None)
        else:
            columns.append(left + (right - left) * (place - i))
    return columns


def _step(value: float, low: float, high: float, steps: int) -> int:
    """Which of `steps` equal steps from `low` to `high` the value is in."""
    if high <= low:
        return 0
    return max(0, min(steps - 1, int((value - low) / (high - low) * steps)))
