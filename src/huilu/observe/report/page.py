"""A run's facts as one HTML page. Called by `collect.write_report` and by tests; pure but for reading its template.

The page loads nothing: style, script, charts and data stand inside it, and its content policy admits only its own
script, by hash. Everything a model or a user wrote is escaped by jinja2 or travels as data (`embedded`).
"""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import jinja2
import msgspec
import yaml

from huilu.core.nouns import ReleaseName
from huilu.observe import figures
from huilu.observe.events import EvaluationEnded, RoundEnded
from huilu.observe.journal import Journal, before_after, num_rounds, wall_by_phase
from huilu.observe.report import charts
from huilu.observe.report.charts import Axes, Series
from huilu.observe.report.facts import RunFacts
from huilu.observe.summary import kv_hit_frac

_PHASES = ("rollout", "train", "record", "save", "sync")
"""Phases in the order in which a round passes through them; others follow by name."""


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A drawn chart with its legend: each series with its last value as text."""

    title: str
    caption: str
    svg: str
    legend: tuple[tuple[Series, str], ...]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How the run stands, in one word and why; `tone` is good, warn, bad or plain."""

    tone: str
    word: str
    why: tuple[str, ...]


def render(facts: RunFacts) -> str:
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("huilu.observe.report", "template"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=figures.percent,
        decimal=figures.decimal,
        significant=figures.significant,
        whole=figures.whole,
        duration=figures.duration,
        date=_date,
    )
    assert environment.loader is not None
    script = environment.loader.get_source(environment, "report.js")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html").render(
        facts=facts,
        journal=facts.journal,
        title=facts.job.get("name") or facts.run_id,
        subtitle=subtitle(facts),
        status=status(facts.journal),
        comparison=comparison(facts.journal),
        tiles=tiles(facts),
        charts=drawn(facts.journal),
        pointers=_pointers(facts),
        job_text=yaml.safe_dump(facts.job, allow_unicode=True, sort_keys=False, width=100),
        data=embedded(listing(facts)),
        script=script,
        script_hash=digest,
    )


def embedded(value: Any) -> str:
    """JSON that may stand inside a `<script>` element: pure ASCII, and no character that HTML gives a meaning."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def listing(facts: RunFacts) -> dict[str, Any]:
    """The episodes for the page's script: tasks once each, and rows that point to them."""
    used = sorted({episode.task for episode in facts.episodes})
    place = {task: i for i, task in enumerate(used)}
    tasks = [facts.tasks[task] for task in used]
    return {
        "tasks": [
            {"id": t.id, "env": t.env, "prompt": [[m.role, m.content] for m in t.prompt], "expected": t.expected}
            for t in tasks
        ],
        "episodes": [
            {
                "id": e.id,
                "task": place[e.task],
                "round": e.round,
                "version": e.version,
                "answer": e.answer,
                "reward": e.reward if e.reward is None or abs(e.reward) < float("inf") else None,
                "outcome": e.outcome.value,
                "finish": e.finish_reason,
                "tokens": e.num_tokens,
                "note": e.note,
            }
            for e in facts.episodes
        ],
    }


def subtitle(facts: RunFacts) -> str:
    """Model, algorithm and environments of the job, as far as it names them."""
    job = facts.job
    algorithm = job.get("train", {}).get("algorithm", {}).get("name")
    environments = [source.get("env") for source in job.get("data", {}).get("sources", [])]
    parts = [job.get("model", {}).get("path"), algorithm, " + ".join(filter(None, environments))]
    return " · ".join(str(part) for part in parts if part)


def status(journal: Journal) -> Status:
    """Failed, released, held, finished, or how far the run came."""
    if journal.error is not None:
        return Status(tone="bad", word="Failed", why=(journal.error.message,))
    if journal.stage is None:
        return Status(tone="plain", word="Not started", why=())
    if journal.stage.name != "done":
        rounds = f"{len(journal.rounds)} of {num_rounds(journal) or '?'} rounds ended"
        return Status(tone="plain", word="Not finished", why=(f"last stage: {journal.stage.name}", rounds))
    if not journal.verdicts:
        return Status(tone="plain", word="Finished", why=("no version was judged",))
    verdict = journal.verdicts[-1]
    word = f"Released v{verdict.version}" if verdict.promote else f"Held v{verdict.version}"
    return Status(tone="good" if verdict.promote else "warn", word=word, why=verdict.reasons)


def comparison(journal: Journal) -> dict[str, Any] | None:
    """Before and after on the held-out tasks, with intervals; None before there are two evaluations."""
    compared = before_after(journal)
    if compared is None:
        return None
    before, after = compared
    rows = [(name, e.pass_rate, *figures.interval(e.pass_rate, e.num_tasks)) for name, e in _named(before, after)]
    return {
        "before": before,
        "after": after,
        "change": figures.points(after.pass_rate - before.pass_rate),
        "better": after.pass_rate >= before.pass_rate,
        "reward_change": f"{after.mean_reward - before.mean_reward:+.2f}",
        "svg": charts.interval_chart(rows),
    }


def tiles(facts: RunFacts) -> list[tuple[str, str, str]]:
    """The run's key figures: (name, value, unit)."""
    rounds = list(facts.journal.rounds.values())

    def rate(tokens: int, phase: str) -> float | None:
        seconds = sum(ended.seconds.get(phase, 0.0) for ended in rounds)
        return tokens / seconds if seconds > 0 else None

    wall = wall_by_phase(facts.journal)["total"]
    return [
        ("Rounds", figures.whole(len(rounds)), ""),
        ("Episodes", figures.whole(facts.num_episodes), ""),
        ("Generated", figures.whole(rate(sum(r.generated_tokens for r in rounds), "rollout")), "tokens/s"),
        ("Trained", figures.whole(rate(sum(r.trained_tokens for r in rounds), "train")), "tokens/s"),
        ("KV cache hits", figures.percent(kv_hit_frac(rounds)), ""),
        ("Wall time", figures.duration(wall or None), ""),
    ]


def drawn(journal: Journal) -> list[Chart]:
    """The charts that have something to show."""
    rounds = list(journal.rounds.values())
    every = [_learning(journal, rounds), *_policy(rounds), *_speed(rounds)]
    return [chart for chart in every if chart.svg]


def _learning(journal: Journal, rounds: list[RoundEnded]) -> Chart:
    of_version = {ended.version: ended.round for ended in rounds}
    held_out = tuple((float(of_version.get(e.version, 0)), e.pass_rate) for e in journal.evaluations.values())
    series = [
        _of(rounds, "mean reward", "reward_mean", 1),
        _of(rounds, "pass rate", "pass_rate", 3, dashed=True),
        Series(name="held-out pass rate", points=held_out, colour=2, dots=True),
    ]
    axes = Axes(title="Reward and pass rate", unit="reward, and share that passes", format=_two, include=(0.0, 1.0))
    return _chart(axes, series, "What the policy earns while it trains, and on tasks that it never trains on.")


def _policy(rounds: list[RoundEnded]) -> list[Chart]:
    share = Axes(title="Lost to learning", unit="share", format=figures.percent, include=(0.0, 1.0))
    return [
        _chart(
            Axes(title="KL to the start", unit="nats a token"),
            [_of(rounds, "KL", "kl_start", 4)],
            "How far the policy has moved from the weights that it started from.",
        ),
        _chart(
            Axes(title="Entropy", unit="nats a token"),
            [_of(rounds, "entropy", "entropy", 6)],
            "How undecided the policy is. Near zero it no longer explores.",
        ),
        _chart(
            Axes(title="Response length", unit="tokens"),
            [_of(rounds, "mean length", "response_tokens", 1)],
            "Mean length of an answer, in tokens that the policy sampled.",
        ),
        _chart(
            share,
            [
                _of(rounds, "groups of equal rewards", "zero_variance", 2),
                _of(rounds, "truncated episodes", "truncated_frac", 5, dashed=True),
            ],
            "A group whose episodes all earned the same teaches nothing; an episode cut at the limit rarely passes.",
        ),
    ]


def _speed(rounds: list[RoundEnded]) -> list[Chart]:
    trained = tuple(
        (float(r.round), r.trained_tokens / r.seconds["train"] if r.seconds.get("train") else None) for r in rounds
    )
    found = {phase for ended in rounds for phase in ended.seconds}
    phases = [p for p in _PHASES if p in found] + sorted(found - set(_PHASES))
    cached = tuple((float(r.round), r.cached_tokens / r.prompt_tokens if r.prompt_tokens else None) for r in rounds)
    parts = [
        Series(name=phase, colour=min(i + 1, 7), points=tuple((float(r.round), r.seconds.get(phase)) for r in rounds))
        for i, phase in enumerate(phases)
    ]
    return [
        _chart(
            Axes(title="Throughput", unit="tokens/s", format=figures.whole),
            [
                _of(rounds, "generated", "generated_tokens_per_s", 1),
                Series(name="trained", points=trained, colour=2, dashed=True),
            ],
            "Tokens sampled, and tokens with a gradient, for each second of their own phase.",
        ),
        _chart(
            Axes(title="Time by phase", unit="seconds a round", format=figures.duration),
            parts,
            "Where a round's wall time goes.",
            stacked=True,
        ),
        _chart(
            Axes(title="KV cache hits", unit="share of prompt tokens", format=figures.percent, include=(0.0, 1.0)),
            [Series(name="found in the cache", points=cached, colour=5)],
            "Prompt tokens that were not computed again: a group shares its prompt.",
        ),
    ]


def _of(rounds: list[RoundEnded], name: str, field: str, colour: int, dashed: bool = False) -> Series:
    points = tuple((float(ended.round), getattr(ended, field)) for ended in rounds)
    return Series(name=name, points=points, colour=colour, dashed=dashed)


def _chart(axes: Axes, series: list[Series], caption: str, *, stacked: bool = False) -> Chart:
    svg = charts.stacked_bars(axes, series) if stacked else charts.line_chart(axes, series)
    legend = []
    for one in series:
        known = [y for _, y in one.points if y is not None]
        if known:
            legend.append((one, axes.format(known[-1])))
    return Chart(title=axes.title, caption=caption, svg=svg, legend=tuple(legend))


def _pointers(facts: RunFacts) -> dict[str, list[str]]:
    """Id of a version -> the release pointers that name it now."""
    now = {moved.name: moved.version.id for moved in facts.releases}
    pointers: dict[str, list[str]] = {}
    for name in ReleaseName:
        if name in now:
            pointers.setdefault(now[name], []).append(name.value)
    return pointers


def _named(before: EvaluationEnded, after: EvaluationEnded) -> list[tuple[str, EvaluationEnded]]:
    return [("before", before), ("after", after)]


def _two(value: float | None) -> str:
    return figures.decimal(value, 2)


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
