"""The live view of `huilu run` on stderr. Called by the CLI, which opens it around a run; draws what `view` renders.

On a terminal: a row for each round that ended, and below them lines that change in place. Elsewhere: one plain line
for each thing that happened. With `quiet`: nothing. It draws and does nothing else; a run must not depend on it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from huilu.observe import view
from huilu.observe.events import EvaluationEnded, Event, RoundEnded, WarningGiven, decode
from huilu.observe.figures import one_line
from huilu.observe.journal import Journal, advance
from huilu.telemetry import Sink

_REFRESHES_PER_S = 4
"""Enough for a bar that moves; each refresh costs well under a millisecond."""


class Watcher:
    """The journal of the run that is shown, and what was last drawn. One thread tells, another may draw."""

    def __init__(self, journal: Journal, draw: Callable[[Event, Journal], None]) -> None:
        self.journal = journal
        self._draw = draw

    def __call__(self, told: Mapping[str, Any]) -> None:
        """The sink: take in one event and show it."""
        event = decode(told)
        if event is not None:
            self.journal = advance(self.journal, event)
            self._draw(event, self.journal)


@contextlib.contextmanager
def watching(
    console: Console,
    title: str,
    ending: view.Ending,
    *,
    quiet: bool = False,
    journal: Journal | None = None,
    now: Callable[[], float] = time.time,
) -> Iterator[Sink]:
    """A sink that shows the run's events on `console` until the block ends.

    A resumed run gives the journal of its earlier processes. When the run reached its stage `done`, the end of
    the block shows how it ended.
    """
    if quiet:
        yield lambda told: None
        return
    journal = Journal() if journal is None else journal
    _print(console, Text(f"huilu · {one_line(title)}", style="bold"))
    if console.is_terminal:
        watcher = Watcher(journal, lambda event, after: _draw_above(console, event, after))
        live = Live(
            get_renderable=lambda: _region(watcher.journal, now(), console.width),
            console=console,
            refresh_per_second=_REFRESHES_PER_S,
            transient=True,
        )
        with live:
            yield watcher
    else:
        watcher = Watcher(journal, lambda event, after: _draw_plain(console, event, after))
        yield watcher
    if watcher.journal.stage is not None and watcher.journal.stage.name == "done":
        for line in view.closing(watcher.journal, ending, console.width):
            _print(console, line)


def _region(journal: Journal, now: float, width: int) -> RenderableType:
    lines = view.status(journal, now, width)
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _draw_above(console: Console, event: Event, journal: Journal) -> None:
    """What stays on the terminal, above the lines that change; the heading with this process's first round."""
    match event:
        case RoundEnded():
            if len(journal.marks) == 2:
                _print(console, view.heading())
            _print(console, view.row(event))
        case EvaluationEnded():
            _print(console, view.evaluated(event))
        case WarningGiven():
            _print(console, view.warned(event))


def _draw_plain(console: Console, event: Event, journal: Journal) -> None:
    line = view.plain_line(event, journal)
    if line is not None:
        _print(console, Text(line))


def _print(console: Console, line: Text) -> None:
    """One line, never cut or folded: paths and commands stay whole for copying."""
    console.print(line, soft_wrap=True)
