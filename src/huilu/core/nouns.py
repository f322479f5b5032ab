"""The records that pass between rooms; see docs/architecture.md §3. Immutable, made of plain values.

Called by every room; does nothing. Token lists are aligned: `token_ids`, `logprobs`, `loss_mask` and, where
given, `token_versions` have one entry per token of the whole episode, prompt included.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Outcome(StrEnum):
    """How an episode ended. `infra_failed` is never a reward of 0: it is masked, retried and counted."""

    OK = "ok"
    TRUNCATED = "truncated"
    TASK_FAILED = "task_failed"
    INFRA_FAILED = "infra_failed"
    CANCELLED = "cancelled"


class FeedbackKind(StrEnum):
    """What a piece of feedback says."""

    SCORE = "score"
    LABEL = "label"
    CORRECTION = "correction"
    PREFERENCE = "preference"


class FeedbackSource(StrEnum):
    """Who says it."""

    VERIFIER = "verifier"
    ENVIRONMENT = "environment"
    JUDGE = "judge"
    USER = "user"


class FeedbackState(StrEnum):
    """Where a piece of feedback is. `issued` is the sum of all five."""

    IN_FLIGHT = "in_flight"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    EXPIRED = "expired"
    INFRA_FAILED = "infra_failed"


class TaskState(StrEnum):
    """Where a task of a run is; `filtered` ones were done but teach nothing."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FILTERED = "filtered"
    DEAD = "dead"
    CANCELLED = "cancelled"


class ClaimState(StrEnum):
    """leased to a learner; applied: a version contains it; acked: a saved state contains it."""

    LEASED = "leased"
    APPLIED = "applied"
    ACKED = "acked"


class ReleaseName(StrEnum):
    """The release pointers."""

    CANDIDATE = "candidate"
    PRODUCTION = "production"
    PREVIOUS = "previous"


class Message(msgspec.Struct, frozen=True):
    """One chat message."""

    role: str
    content: str


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One problem. `answer` and `metadata` are the environment's own; they never enter a prompt or a sandbox."""

    id: str
    env: str
    prompt: tuple[Message, ...]
    answer: Any = None
    metadata: dict[str, Any] = {}
    source: str = "dataset"


class Turn(msgspec.Struct, frozen=True):
    """One turn of an episode: tokens `start` to `end` (exclusive) were sampled by the policy."""

    start: int
    end: int


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a task.

    `logprobs[i]` is log p(token i | before) in nats under the sampling temperature, 0.0 where not sampled;
    `loss_mask[i]` is True where the policy sampled token i. `version` is the number of the policy version
    that sampled it (the oldest, when several did).
    """

    id: str
    task_id: str
    round: int
    index: int
    env: str
    version: int
    token_ids: list[int]
    logprobs: list[float]
    loss_mask: list[bool]
    turns: tuple[Turn, ...]
    text: str
    outcome: Outcome
    finish_reason: str
    reward: float | None = None
    temperature: float = 1.0
    metrics: dict[str, float] = {}
    note: str = ""

    @property
    def num_sampled(self) -> int:
        return sum(self.loss_mask)


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """One signal about an episode. `key` is its idempotency key: the same key is counted once."""

    key: str
    episode_id: str
    kind: FeedbackKind
    source: FeedbackSource
    state: FeedbackState = FeedbackState.IN_FLIGHT
    value: float | None = None
    text: str = ""
    note: str = ""


class Accounting(msgspec.Struct, frozen=True, kw_only=True):
    """Feedback accounting: `issued = accepted + rejected + expired + infra_failed + in_flight`, always."""

    issued: int = 0
    accepted: int = 0
    rejected: int = 0
    expired: int = 0
    infra_failed: int = 0
    in_flight: int = 0

    @property
    def unaccounted(self) -> int:
        known = self.accepted + self.rejected + self.expired + self.infra_failed + self.in_flight
        return self.issued - known


class Group(msgspec.Struct, frozen=True):
    """The episodes of one task in one round, by index."""

    task: Task
    episodes: tuple[Episode, ...]


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What one round learns from: groups in draw order, leased to one learner."""

    id: str
    round: int
    state: ClaimState
    groups: tuple[Group, ...]
    version: int | None = None
    """The number of the version that it made, once applied."""
    digest: str = ""
    """That version's digest, once known."""

    @property
    def episodes(self) -> list[Episode]:
        return [episode for group in self.groups for episode in group.episodes]


class PolicyVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Immutable weights. `lineage` counts how often the chain was forked (a replay that differed, a restore)."""

    number: int
    lineage: int
    parent: int | None
    round: int
    digest: str = ""
    claim_id: str = ""
    healthy: bool = True
    metrics: dict[str, float] = {}

    @property
    def id(self) -> str:
        return f"v{self.number}" if self.lineage == 0 else f"v{self.number}.{self.lineage}"


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the learner says of one step. `applied` is False when nothing was updated (empty or not finite)."""

    applied: bool
    healthy: bool
    metrics: dict[str, float]
    seconds: dict[str, float] = {}


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation of a version on held-out tasks."""

    version: int
    split: str
    num_tasks: int
    pass_rate: float
    mean_reward: float
    by_task: dict[str, float] = {}
    seconds: float = 0.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The gate's word on a version: promote it to production, or hold, and why."""

    version: int
    promote: bool
    reasons: tuple[str, ...]
    evidence: dict[str, float] = {}
