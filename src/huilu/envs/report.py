"""What a job's data looks like: sizes, repeated prompts, lengths, and held-out tasks that are trained on.

Called by `huilu data check`. Reads every task once; judges none.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from huilu.envs.sources import Source, prompt_digest


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths of texts, in characters; all 0 when there are none."""

    shortest: int
    median: int
    p95: int
    longest: int

    def __str__(self) -> str:
        return f"{self.shortest} to {self.longest}, median {self.median}, 95 % up to {self.p95}"


class SourceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One source of tasks."""

    name: str
    num_tasks: int
    num_train: int
    num_holdout: int
    num_repeated: int
    """Tasks whose prompt an earlier task of this source has."""
    num_leaked: int
    """Held-out tasks whose prompt also stands among the tasks to train on, of any source; the draws skip the latter."""
    num_without_gold: int
    prompt_chars: Lengths
    gold_chars: Lengths

    def rows(self) -> list[tuple[str, ...]]:
        """The report as (fact, value) lines for people."""
        return [
            ("tasks", str(self.num_tasks)),
            ("to train on", str(self.num_train)),
            ("held out", str(self.num_holdout)),
            ("repeated prompts", str(self.num_repeated)),
            ("held-out prompts also in training (skipped there)", str(self.num_leaked)),
            ("without a known answer", str(self.num_without_gold)),
            ("prompt, characters", str(self.prompt_chars)),
            ("answer, characters", str(self.gold_chars)),
        ]


class _Facts(msgspec.Struct, frozen=True):
    """What the report needs of one task."""

    digest: bytes
    prompt_chars: int
    gold_chars: int | None


def report_sources(sources: Sequence[Source]) -> list[SourceReport]:
    """A report a source, in their order."""
    facts = [[_facts(source, index) for index in range(len(source.environment))] for source in sources]
    trained = {rows[i].digest for source, rows in zip(sources, facts, strict=True) for i in source.to_train}
    return [_report(source, rows, trained) for source, rows in zip(sources, facts, strict=True)]


def _facts(source: Source, index: int) -> _Facts:
    task = source.environment.task(index)
    gold = source.environment.gold(task)
    return _Facts(
        digest=prompt_digest(task),
        prompt_chars=sum(len(message.content) for message in task.prompt),
        gold_chars=None if gold is None else len(gold),
    )


def _report(source: Source, rows: list[_Facts], trained: set[bytes]) -> SourceReport:
    gold_chars = [row.gold_chars for row in rows if row.gold_chars is not None]
    return SourceReport(
        name=source.name,
        num_tasks=len(rows),
        num_train=len(source.to_train),
        num_holdout=len(source.held_out),
        num_repeated=len(rows) - len({row.digest for row in rows}),
        num_leaked=sum(rows[index].digest in trained for index in source.held_out),
        num_without_gold=len(rows) - len(gold_chars),
        prompt_chars=_lengths([row.prompt_chars for row in rows]),
        gold_chars=_lengths(gold_chars),
    )


def _lengths(chars: list[int]) -> Lengths:
    """Nearest-rank quantiles."""
    if not chars:
        return Lengths(shortest=0, median=0, p95=0, longest=0)
    ordered = sorted(chars)
    last = len(ordered) - 1
    return Lengths(shortest=ordered[0], median=ordered[last // 2], p95=ordered[round(last * 0.95)], longest=ordered[-1])
