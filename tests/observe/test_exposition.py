"""Prometheus text, and the page that documents it."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from huilu.observe.exposition import exposition, metrics_table
from huilu.telemetry import METRICS, Telemetry

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def samples(telemetry: Telemetry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(exposition(telemetry).decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_counters_gauges_and_times_are_read_back_by_prometheus_own_parser() -> None:
    telemetry = Telemetry(monotonic=iter([1.0, 3.5]).__next__)
    telemetry.count("huilu_rollout_episodes_total", 3, env="arithmetic", outcome="ok")
    telemetry.gauge("huilu_trainer_kl", 0.25, kind="start")
    with telemetry.timed("huilu_round_seconds", phase="train"):
        pass
    got = samples(telemetry)
    assert got["huilu_rollout_episodes_total", (("env", "arithmetic"), ("outcome", "ok"))] == 3
    assert got["huilu_trainer_kl", (("kind", "start"),)] == 0.25
    assert got["huilu_round_seconds_sum", (("phase", "train"),)] == 2.5
    assert got["huilu_round_seconds_count", (("phase", "train"),)] == 1


def test_a_label_may_hold_any_text() -> None:
    telemetry = Telemetry()
    telemetry.count("huilu_rollout_zero_variance_groups_total", env='odd "name"\\\n中文')
    assert samples(telemetry)["huilu_rollout_zero_variance_groups_total", (("env", 'odd "name"\\\n中文'),)] == 1


def test_a_plain_counter_starts_at_zero_and_a_gauge_only_when_it_was_set() -> None:
    got = samples(Telemetry())
    assert got["huilu_trainer_nonfinite_total", ()] == 0
    assert not any(name == "huilu_feedback_unaccounted" for name, _ in got)


def test_every_metric_has_its_help_and_type() -> None:
    telemetry = Telemetry()
    for metric in METRICS.values():
        tell = {"counter": telemetry.count, "gauge": telemetry.gauge, "histogram": telemetry.observe}[metric.kind]
        tell(metric.name, 1.0, **dict.fromkeys(metric.labels, "x"))
    families = {f.name: f for f in text_string_to_metric_families(exposition(telemetry).decode())}
    assert len(families) == len(METRICS)
    assert all(family.documentation and family.type != "unknown" for family in families.values())


def test_the_documented_table_is_the_registry() -> None:
    assert metrics_table() in PAGE.read_text(encoding="utf-8"), "paste metrics_table() into docs/metrics.md"


def test_every_row_of_the_table_has_five_cells() -> None:
    for line in metrics_table().splitlines():
        assert line.replace("\\|", "").count("|") == 6
