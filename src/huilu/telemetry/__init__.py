"""What the system says about itself: counters, gauges, times, log events, and named kill points for tests.

Called by every room through the `Telemetry` object that assembly builds; a leaf: imports nothing of Huilu's.
A name that `metrics.METRICS` does not declare is refused at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from huilu.telemetry.metrics import METRICS, Kind, Metric

__all__ = ["KILL_POINTS", "METRICS", "Metric", "Telemetry"]

Sink = Callable[[Mapping[str, Any]], None]
Series = tuple[str, tuple[tuple[str, str], ...]]

KILL_POINTS = (
    "mid-prefill",
    "mid-decode",
    "after-append",
    "mid-step",
    "mid-save",
    "between-object-and-row",
    "between-row-and-sync",
    "mid-gate",
    "mid-release",
    "mid-gc",
)
"""Where a test may kill a process for real: `HUILU_KILL_AT=mid-step:2` sends SIGKILL at the second arrival."""


class Telemetry:
    """Counts, times and tells. Thread-safe; one a process. Sinks get each event as a mapping."""

    def __init__(
        self,
        *sinks: Sink,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        kill_at: str = "",
    ) -> None:
        self._sinks = list(sinks)
        self._now, self._monotonic = now, monotonic
        self._lock = threading.Lock()
        self._values: dict[Series, float] = {}
        self._counts: dict[Series, int] = {}
        point, _, nth = kill_at.partition(":")
        if point and point not in KILL_POINTS:
            raise ValueError(f"unknown kill point {point!r}; expected one of {', '.join(KILL_POINTS)}")
        self._kill_point, self._kill_countdown = point, int(nth or 1)

    def add_sink(self, sink: Sink) -> None:
        self._sinks.append(sink)

    def event(self, name: str, /, **fields: Any) -> None:
        """Tell one thing that happened, with its facts."""
        record = {"at": self._now(), "event": name, **fields}
        for sink in self._sinks:
            sink(record)

    def count(self, name: str, amount: float = 1.0, /, **labels: str) -> None:
        """Add to a counter."""
        series = _series(name, "counter", labels)
        with self._lock:
            self._values[series] = self._values.get(series, 0.0) + amount

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        """Set a gauge."""
        series = _series(name, "gauge", labels)
        with self._lock:
            self._values[series] = value

    def observe(self, name: str, value: float, /, **labels: str) -> None:
        """Add one observation to a histogram (its sum and count)."""
        series = _series(name, "histogram", labels)
        with self._lock:
            self._values[series] = self._values.get(series, 0.0) + value
            self._counts[series] = self._counts.get(series, 0) + 1

    @contextlib.contextmanager
    def timed(self, name: str, /, **labels: str) -> Iterator[None]:
        """Observe how long the block took, in seconds, whether or not it raised."""
        start = self._monotonic()
        try:
            yield
        finally:
            self.observe(name, self._monotonic() - start, **labels)

    def value(self, name: str, /, **labels: str) -> float:
        """A series' value (a histogram's sum), or the sum over all its series when no label is given."""
        with self._lock:
            if labels:
                return self._values.get((name, tuple(sorted(labels.items()))), 0.0)
            return sum(value for (series, _), value in self._values.items() if series == name)

    def snapshot(self) -> dict[Series, tuple[float, int]]:
        """Every series: (value or sum, number of observations)."""
        with self._lock:
            return {series: (value, self._counts.get(series, 0)) for series, value in self._values.items()}

    def reach(self, point: str) -> None:
        """A named kill point: does nothing unless this process was told to die here."""
        if point != self._kill_point:
            return
        self._kill_countdown -= 1
        if self._kill_countdown == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _series(name: str, kind: Kind, labels: dict[str, str]) -> Series:
    metric = METRICS.get(name)
    if metric is None or metric.kind != kind or set(labels) != set(metric.labels):
        raise KeyError(f"{name} with labels {sorted(labels)} is no declared {kind}")
    return name, tuple(sorted(labels.items()))
