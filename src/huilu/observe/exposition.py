"""Prometheus text of what this process counts, and the table of all metrics for the documentation.

Called by whoever serves `/metrics`; reads a snapshot of `Telemetry` and declares nothing of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from huilu.telemetry import METRICS, Metric, Telemetry

Family = CounterMetricFamily | GaugeMetricFamily | SummaryMetricFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TYPES = {"counter": "counter", "gauge": "gauge", "histogram": "summary"}


class TelemetryCollector(Collector):
    """A prometheus-client collector of one process's telemetry: mount it in any registry.

    Times are exposed as summaries (`_sum` and `_count`), which is what telemetry keeps of them. A counter without
    labels is exposed from the start, at 0; a gauge only once it was set.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def collect(self) -> Iterator[Family]:
        """Every family with a series, in the order of the registry."""
        snapshot = self._telemetry.snapshot()
        for metric in METRICS.values():
            series = [
                (tuple(dict(labels)[name] for name in metric.labels), value, num)
                for (name_, labels), (value, num) in snapshot.items()
                if name_ == metric.name
            ]
            if not series and metric.kind == "counter" and not metric.labels:
                series = [((), 0.0, 0)]
            if series:
                yield _family(metric, series)


def exposition(telemetry: Telemetry) -> bytes:
    """The text of `/metrics` (its type is CONTENT_TYPE)."""
    registry = CollectorRegistry()
    registry.register(TelemetryCollector(telemetry))
    return generate_latest(registry)


def metrics_table() -> str:
    """Every metric as a Markdown table, by room: what docs/metrics.md holds."""
    lines = ["| Metric | Type | Labels | Room | Meaning |", "|---|---|---|---|---|"]
    for metric in sorted(METRICS.values(), key=lambda metric: (metric.room, metric.name)):
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        meaning = metric.help.replace("|", "\\|")
        lines.append(f"| `{metric.name}` | {_TYPES[metric.kind]} | {labels} | {metric.room} | {meaning} |")
    return "\n".join(lines) + "\n"


def _family(metric: Metric, series: list[tuple[tuple[str, ...], float, int]]) -> Family:
    if metric.kind == "counter":
        counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value, _ in series:
            counter.add_metric(labels, value)
        return counter
    if metric.kind == "gauge":
        gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value, _ in series:
            gauge.add_metric(labels, value)
        return gauge
    summary = SummaryMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value, num in series:
        summary.add_metric(labels, num, value)
    return summary
