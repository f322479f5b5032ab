"""A run so far, folded from its events: the state behind the live view, the summary and the report.

Called with one event at a time (`advance`) or with all that a log holds (`fold`). Pure: clocks are arguments.
What a resumed run tells again (a replayed round, a repeated evaluation) replaces what was told before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from huilu.observe.events import (
    ErrorRaised,
    EvaluationEnded,
    Event,
    ProgressMade,
    ReleaseMoved,
    RoundEnded,
    StageBegan,
    VerdictGiven,
    WarningGiven,
)

PACE_ROUNDS = 8
"""Rounds that the estimate of the time left looks back on: answers grow or shrink as training goes on."""


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """What has been told. `rounds` is keyed by round, `evaluations` by (split, version), in order of first telling.

    `marks` are the times at which this process's first round began and each of its rounds ended. `stage_s` is
    wall time by stage over all processes of the run, not counting the time in which none ran.
    """

    stage: StageBegan | None = None
    progress: ProgressMade | None = None
    rounds: dict[int, RoundEnded] = {}
    evaluations: dict[tuple[str, int], EvaluationEnded] = {}
    verdicts: tuple[VerdictGiven, ...] = ()
    releases: tuple[ReleaseMoved, ...] = ()
    warnings: tuple[WarningGiven, ...] = ()
    error: ErrorRaised | None = None
    marks: tuple[float, ...] = ()
    stage_s: dict[str, float] = {}


def fold(events: Iterable[Event]) -> Journal:
    """The journal of these events, in order."""
    journal = Journal()
    for event in events:
        journal = advance(journal, event)
    return journal


def advance(journal: Journal, event: Event) -> Journal:
    """The journal after one more event."""
    changes: dict[str, Any]
    match event:
        case StageBegan():
            changes = _begin(journal, event)
        case ProgressMade():
            changes = {"progress": event}
        case RoundEnded():
            rounds = dict(sorted({**journal.rounds, event.round: event}.items()))
            changes = {"rounds": rounds, "progress": None, "marks": (*journal.marks, event.at)}
        case EvaluationEnded():
            evaluations = {**journal.evaluations, (event.split, event.version): event}
            changes = {"evaluations": evaluations, "progress": None}
        case VerdictGiven():
            changes = {"verdicts": (*journal.verdicts, event)}
        case ReleaseMoved():
            changes = {"releases": (*journal.releases, event)}
        case WarningGiven():
            changes = {"warnings": (*journal.warnings, event)}
        case ErrorRaised():
            changes = {"error": event}
    return msgspec.structs.replace(journal, **changes)


def before_after(journal: Journal) -> tuple[EvaluationEnded, EvaluationEnded] | None:
    """The first and the last evaluation of the split that was evaluated first; None before the second one."""
    every = list(journal.evaluations.values())
    same = [evaluation for evaluation in every if evaluation.split == every[0].split]
    return (same[0], same[-1]) if len(same) > 1 else None


def num_rounds(journal: Journal) -> int | None:
    """How many rounds the run will have, once told."""
    if journal.rounds:
        return next(reversed(journal.rounds.values())).rounds
    return journal.stage.total if journal.stage and journal.stage.name == "round" else None


def time_left_s(journal: Journal, now: float) -> float | None:
    """Seconds to the end of the run, from the pace of its last rounds (evaluations between them included) and the
    length of its first evaluation for the last one; None before a round of this process has ended.
    """
    total = num_rounds(journal)
    if total is None or len(journal.marks) < 2:
        return None
    marks = journal.marks[-PACE_ROUNDS - 1 :]
    pace_s = (marks[-1] - marks[0]) / (len(marks) - 1)
    left = total - next(reversed(journal.rounds))
    last_evaluation_s = next((e.seconds for e in journal.evaluations.values()), 0.0)
    if left == 0 and journal.stage and journal.stage.name == "round":
        return last_evaluation_s
    return max(0.0, left * pace_s + last_evaluation_s - (now - marks[-1]))


def wall_by_phase(journal: Journal) -> dict[str, float]:
    """Seconds of the whole run by phase: the rounds' own phases, and the stages that are none of these.

    `other` is what no phase accounts for (none when rounds overlap); `total` is the sum over stages.
    """
    in_rounds: dict[str, float] = {}
    for ended in journal.rounds.values():
        for phase, seconds in ended.seconds.items():
            in_rounds[phase] = in_rounds.get(phase, 0.0) + seconds
    # A stage that is also a phase (save) lasts until the next one is told: the phase's own clock is the better one.
    phases = {name: s for name, s in journal.stage_s.items() if name != "round" and name not in in_rounds} | in_rounds
    total = sum(journal.stage_s.values())
    other = total - sum(phases.values())
    if other > 1e-3:
        phases["other"] = other
    return {**phases, "total": total}


def _begin(journal: Journal, stage: StageBegan) -> dict[str, Any]:
    """A stage ends the one before it, unless it is the first of a new process."""
    changes: dict[str, Any] = {"stage": stage, "progress": None}
    before = journal.stage
    if stage.name == "preflight":
        return {**changes, "marks": (), "error": None}
    if before is not None:
        spent = journal.stage_s.get(before.name, 0.0) + stage.at - before.at
        changes["stage_s"] = {**journal.stage_s, before.name: spent}
    if stage.name == "round" and not journal.marks:
        changes["marks"] = (stage.at,)
    return changes
