"""How numbers are written for people, the same in the terminal and in the report. Pure; called by both."""

from __future__ import annotations

import math

NONE = "–"
"""What stands where there is no number."""


def percent(share: float | None, digits: int = 0) -> str:
    """0.365 -> `36 %`."""
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f} %"


def points(change: float) -> str:
    """A difference of two shares, in percentage points: 0.51 -> `+51.0 points`."""
    return f"{100 * change:+.1f} points"


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with a fixed number of decimals."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def significant(value: float | None) -> str:
    """Three significant digits without an exponent where that is short: 0.00123, 45.6, 1,230, 1.2e-07."""
    if value is None or not math.isfinite(value):
        return NONE
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size != 0 and size < 1e-4:
        return f"{value:.1e}"
    return f"{value:.3g}"


def whole(value: float | None) -> str:
    """A count with thousands separators: 12345 -> `12,345`."""
    return NONE if value is None or not math.isfinite(value) else f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """4.2 -> `4.2 s`, 125 -> `2 min 05 s`, 3780 -> `1 h 03 min`."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def one_line(text: str) -> str:
    """The text on one line with every control character written as its escape: safe to show on a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def interval(share: float, num: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share seen in `num` independent tasks (Wilson 1927, eq. for z = 1.96)."""
    if num == 0:
        return 0.0, 1.0
    z = 1.959964
    centre = (share + z * z / (2 * num)) / (1 + z * z / num)
    half = z / (1 + z * z / num) * math.sqrt(share * (1 - share) / num + z * z / (4 * num * num))
    return max(0.0, centre - half), min(1.0, centre + half)
