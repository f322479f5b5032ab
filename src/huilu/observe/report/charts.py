"""Charts as SVG text: pure functions from series to a string. Called by `page`.

A chart carries its axes, ticks and units; colours come from the page's style sheet (classes `s1` to `s7`). Each
x position is a group `<g class="x">` with an invisible target, a crosshair and the values as a `<title>`: the
style sheet alone shows the crosshair, a reader without scripts still gets the browser's own tooltip.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from huilu.observe.figures import significant

WIDTH, HEIGHT = 640, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 22, 40
MAX_POSITIONS = 160
"""x positions drawn at most; more are averaged over neighbours."""

Points = tuple[tuple[float, float | None], ...]
Format = Callable[[float | None], str]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Named points by x; a y of None is a gap. `colour` is 1 to 7; `dots` draws marks without a line."""

    name: str
    points: Points
    colour: int
    dashed: bool = False
    dots: bool = False


class Axes(msgspec.Struct, frozen=True, kw_only=True):
    """What a chart measures: its title, its unit, how a value is written, and bounds that the y axis must include."""

    title: str
    unit: str
    format: Format = significant
    include: tuple[float, ...] = (0.0,)


def line_chart(axes: Axes, series: Sequence[Series]) -> str:
    """Lines (and marks) over rounds; empty without a single known value."""
    drawn = [msgspec.structs.replace(s, points=thinned(s.points)) if not s.dots else s for s in series]
    known = [(x, y) for s in drawn for x, y in s.points if y is not None]
    if not known:
        return ""
    xs = sorted({x for s in drawn for x, _ in s.points})
    low, high, step = _bounds([y for _, y in known], axes.include)
    to_x = _scale(xs[0], xs[-1], LEFT, WIDTH - RIGHT)
    to_y = _scale(low, high, HEIGHT - BOTTOM, TOP)
    body = [*_y_axis(axes, low, high, step, to_y), *_x_axis(xs[0], xs[-1], to_x)]
    body += [_marks(s, to_x, to_y) if s.dots else _line(s, to_x, to_y) for s in drawn]
    edges = _edges([to_x(x) for x in xs])
    for x, (left, right) in zip(xs, edges, strict=True):
        values = [(s, dict(s.points).get(x)) for s in drawn]
        tip = [f"round {_place(x)}", *(f"{s.name}: {axes.format(y)}" for s, y in values if y is not None)]
        dots = "".join(
            f'<circle class="dot s{s.colour}" cx="{to_x(x):.1f}" cy="{to_y(y):.1f}" r="4"/>'
            for s, y in values
            if y is not None
        )
        body.append(_position(left, right, to_x(x), tip, dots))
    return _svg(axes, body, _told(axes, series))


def stacked_bars(axes: Axes, parts: Sequence[Series]) -> str:
    """One bar a round, made of its parts from the bottom up; empty without a single known value."""
    drawn = [msgspec.structs.replace(s, points=thinned(s.points)) for s in parts]
    xs = sorted({x for s in drawn for x, _ in s.points})
    heights = {x: [(s, dict(s.points).get(x) or 0.0) for s in drawn] for x in xs}
    totals = [sum(y for _, y in column) for column in heights.values()]
    if not any(totals):
        return ""
    low, high, step = _bounds(totals, (0.0,))
    to_y = _scale(low, high, HEIGHT - BOTTOM, TOP)
    band = (WIDTH - LEFT - RIGHT) / len(xs)
    centres = {x: LEFT + band * (i + 0.5) for i, x in enumerate(xs)}
    to_x = _scale(xs[0], xs[-1], centres[xs[0]], centres[xs[-1]])
    body = [*_y_axis(axes, low, high, step, to_y), *_x_axis(xs[0], xs[-1], to_x)]
    thick = min(46.0, band * 0.72)
    for x, column in heights.items():
        foot, bars = 0.0, []
        for s, y in column:
            if y > 0:
                top, bottom = to_y(foot + y), to_y(foot)
                bars.append(
                    f'<rect class="bar s{s.colour}" x="{centres[x] - thick / 2:.1f}" y="{top:.1f}"'
                    f' width="{thick:.1f}" height="{max(0.4, bottom - top):.1f}"/>'
                )
                foot += y
        tip = [f"round {_place(x)}: {axes.format(foot)}", *(f"{s.name}: {axes.format(y)}" for s, y in column if y > 0)]
        edge = centres[x] - band / 2
        body.append(_position(edge, edge + band, None, tip, "".join(bars)))
    return _svg(axes, body, _told(axes, parts))


def interval_chart(rows: Sequence[tuple[str, float, float, float]]) -> str:
    """Shares with their intervals on one scale from 0 to 100 %: rows of (name, share, low, high)."""
    height = 26 * len(rows) + 26
    to_x = _scale(0.0, 1.0, 64, WIDTH - 24)
    body = []
    for tick in range(0, 101, 20):
        x = to_x(tick / 100)
        body.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{height - 24}"/>')
        body.append(f'<text class="tick" x="{x:.1f}" y="{height - 6}" text-anchor="middle">{tick} %</text>')
    for i, (name, share, low, high) in enumerate(rows):
        y = 18 + 26 * i
        colour = i + 1
        body.append(f'<text class="name" x="54" y="{y + 4}" text-anchor="end">{html.escape(name)}</text>')
        body.append(
            f'<line class="span s{colour}" x1="{to_x(low):.1f}" x2="{to_x(high):.1f}" y1="{y}" y2="{y}"/>'
            f'<circle class="mark s{colour}" cx="{to_x(share):.1f}" cy="{y}" r="6"/>'
        )
    told = "; ".join(f"{name} {100 * s:.1f} %, {100 * a:.0f} to {100 * b:.0f} %" for name, s, a, b in rows)
    label = html.escape(f"Held-out pass rate with its 95 % interval: {told}", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(body)}</svg>'


def thinned(points: Points, limit: int = MAX_POSITIONS) -> Points:
    """At most `limit` points: stretches of equal length become their middle x and the mean of their known y."""
    if len(points) <= limit:
        return points
    kept: list[tuple[float, float | None]] = []
    for i in range(limit):
        stretch = points[i * len(points) // limit : (i + 1) * len(points) // limit]
        known = [y for _, y in stretch if y is not None]
        kept.append((stretch[len(stretch) // 2][0], sum(known) / len(known) if known else None))
    return tuple(kept)


def ticks(low: float, high: float, at_most: int) -> tuple[float, list[float]]:
    """The step (1, 2, 2.5 or 5 times a power of ten) and its multiples that cover `low` to `high`."""
    rough = (high - low) / max(1, at_most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return step, [i * step for i in range(first, last + 1)]


def _bounds(values: Iterable[float], include: tuple[float, ...]) -> tuple[float, float, float]:
    """The ends of the y axis, which are ticks, and the step between ticks."""
    every = [*values, *include]
    low, high = min(every), max(every)
    if high - low < 1e-12:
        low, high = low - (0.5 if low else 0.0), high + (0.5 if low else 1.0)
    step, marks = ticks(low, high, 6)
    return marks[0], marks[-1], step


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """The linear map of low..high to start..end; everything to the middle when low is high."""
    if high == low:
        return lambda value: (start + end) / 2
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _y_axis(axes: Axes, low: float, high: float, step: float, to_y: Callable[[float], float]) -> list[str]:
    lines = [f'<text class="unit" x="{LEFT}" y="11">{html.escape(axes.unit)}</text>']
    for i in range(round((high - low) / step) + 1):
        value = low + i * step
        y = to_y(value)
        text = html.escape(axes.format(0.0 if abs(value) < step * 1e-6 else value))
        lines.append(
            f'<line class="{"base" if i == 0 else "grid"}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        lines.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    return lines


def _x_axis(first: float, last: float, to_x: Callable[[float], float]) -> list[str]:
    y = HEIGHT - BOTTOM
    places = [first]
    if last > first:
        _, marks = ticks(first, last, 9)
        places = [mark for mark in marks if first <= mark <= last and mark == round(mark)]
        places = places if len(places) > 1 else [first, last]
    lines = [
        f'<text class="tick" x="{to_x(place):.1f}" y="{y + 17}" text-anchor="middle">{_place(place)}</text>'
        for place in places
    ]
    return [*lines, f'<text class="unit" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">round</text>']


def _line(series: Series, to_x: Callable[[float], float], to_y: Callable[[float], float]) -> str:
    """The path of a series, broken at gaps; a point without neighbours is a short stroke with round ends."""
    path, pen_down = [], False
    for x, y in series.points:
        if y is None:
            pen_down = False
            continue
        path.append(f"{'L' if pen_down else 'M'}{to_x(x):.1f} {to_y(y):.1f}" + ("" if pen_down else "h.01"))
        pen_down = True
    dashed = " dashed" if series.dashed else ""
    return f'<path class="line s{series.colour}{dashed}" d="{"".join(path)}"/>'


def _marks(series: Series, to_x: Callable[[float], float], to_y: Callable[[float], float]) -> str:
    """A diamond for each point."""
    return "".join(
        f'<path class="mark s{series.colour}" d="M{to_x(x):.1f} {to_y(y) - 6.5:.1f}l6.5 6.5l-6.5 6.5l-6.5 -6.5z"/>'
        for x, y in series.points
        if y is not None
    )


def _edges(places: list[float]) -> list[tuple[float, float]]:
    """For each place the stretch of x that is nearer to it than to its neighbours."""
    middles = [(a + b) / 2 for a, b in itertools.pairwise(places)]
    lefts, rights = [float(LEFT), *middles], [*middles, float(WIDTH - RIGHT)]
    return [(left - 6 * (i == 0), right) for i, (left, right) in enumerate(zip(lefts, rights, strict=True))]


def _position(left: float, right: float, cross: float | None, tip: list[str], inside: str) -> str:
    line = (
        f'<line class="cross" x1="{cross:.1f}" x2="{cross:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        if cross is not None
        else ""
    )
    return (
        f'<g class="x"><title>{html.escape(chr(10).join(tip))}</title><rect class="hit" x="{left:.1f}" y="{TOP - 8}"'
        f' width="{right - left:.1f}" height="{HEIGHT - BOTTOM - TOP + 8}"/>{line}{inside}</g>'
    )


def _svg(axes: Axes, body: list[str], told: str) -> str:
    label = html.escape(f"{axes.title}, {axes.unit}. {told}", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(body)}</svg>'


def _told(axes: Axes, series: Sequence[Series]) -> str:
    """A chart in words, for who cannot see it."""
    parts = []
    for s in series:
        known = [y for _, y in s.points if y is not None]
        if known:
            parts.append(f"{s.name} from {axes.format(known[0])} to {axes.format(known[-1])}")
    return "; ".join(parts)


def _place(x: float) -> str:
    return f"{x:,.0f}"
