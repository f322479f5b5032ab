"""The object that `huilu run --json` prints on stdout. Called by the CLI; pure.

The fields are a promise: `schema_version` changes when one is renamed, removed or changes its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from huilu.core.nouns import Accounting, PolicyVersion, ReleaseName
from huilu.observe.events import EvaluationEnded, RoundEnded
from huilu.observe.journal import Journal, before_after, wall_by_phase

SCHEMA_VERSION = 1


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One held-out evaluation; `version` is the number of the version that was evaluated."""

    version: int
    pass_rate: float
    mean_reward: float
    num_tasks: int


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Feedback accounting; `unaccounted` is 0 or there is a bug."""

    issued: int
    accepted: int
    rejected: int
    expired: int
    infra_failed: int
    in_flight: int
    unaccounted: int


class VersionName(msgspec.Struct, frozen=True, kw_only=True):
    """A policy version by its id and digest."""

    id: str
    digest: str


class ReleaseState(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate decided last, and the version that `production` names now (None: none yet)."""

    promoted: bool
    reasons: list[str]
    production: int | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in one object. Rates are over the phase that makes them: None while it took no time.

    `rounds` is the number of rounds that ended; `episodes_per_second` divides by the rounds' whole time,
    `generated_tokens_per_second` by the phase `rollout`, `train_tokens_per_second` by the phase `train`.
    `kv_hit_ratio` is the share of prompt tokens whose KV was found in the cache.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    run_dir: str
    rounds: int
    eval_before: Score | None
    eval_after: Score | None
    episodes: int
    episodes_per_second: float | None
    generated_tokens_per_second: float | None
    train_tokens_per_second: float | None
    kv_hit_ratio: float | None
    feedback: Counts
    policy_version: VersionName | None
    release: ReleaseState | None
    wall_seconds: dict[str, float]


def summary(
    journal: Journal, accounting: Accounting, version: PolicyVersion | None, *, run_id: str, run_dir: str
) -> Summary:
    """The summary of what was told so far, with the bus's accounting and the newest version."""
    rounds = list(journal.rounds.values())
    evaluations = list(journal.evaluations.values())
    compared = before_after(journal)
    before = compared[0] if compared else evaluations[0] if evaluations else None
    seconds = {phase: sum(r.seconds.get(phase, 0.0) for r in rounds) for phase in ("rollout", "train")}
    return Summary(
        run_id=run_id,
        run_dir=run_dir,
        rounds=len(rounds),
        eval_before=_score(before),
        eval_after=_score(compared[1] if compared else None),
        episodes=sum(r.episodes for r in rounds),
        episodes_per_second=_rate(sum(r.episodes for r in rounds), sum(sum(r.seconds.values()) for r in rounds)),
        generated_tokens_per_second=_rate(sum(r.generated_tokens for r in rounds), seconds["rollout"]),
        train_tokens_per_second=_rate(sum(r.trained_tokens for r in rounds), seconds["train"]),
        kv_hit_ratio=kv_hit_frac(rounds),
        feedback=Counts(**msgspec.structs.asdict(accounting), unaccounted=accounting.unaccounted),
        policy_version=VersionName(id=version.id, digest=version.digest) if version else None,
        release=_release(journal),
        wall_seconds={phase: round(seconds, 3) for phase, seconds in wall_by_phase(journal).items()},
    )


def kv_hit_frac(rounds: Iterable[RoundEnded]) -> float | None:
    """The share of prompt tokens whose KV was found in the cache; None when no prompt was counted."""
    every = list(rounds)
    prompt = sum(ended.prompt_tokens for ended in every)
    return sum(ended.cached_tokens for ended in every) / prompt if prompt else None


def _score(evaluation: EvaluationEnded | None) -> Score | None:
    if evaluation is None:
        return None
    return Score(
        version=evaluation.version,
        pass_rate=evaluation.pass_rate,
        mean_reward=evaluation.mean_reward,
        num_tasks=evaluation.num_tasks,
    )


def _rate(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def _release(journal: Journal) -> ReleaseState | None:
    if not journal.verdicts:
        return None
    verdict = journal.verdicts[-1]
    named = [moved.version for moved in journal.releases if moved.name == ReleaseName.PRODUCTION]
    return ReleaseState(
        promoted=verdict.promote, reasons=list(verdict.reasons), production=named[-1] if named else None
    )
