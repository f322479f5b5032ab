"""The tables of a run's metadata, on SQLAlchemy Core with types that SQLite and PostgreSQL share.

Read by every module that touches rows; creates nothing (migrations do). Records travel whole in a `payload`
column; the columns beside it are what queries need. Times are seconds since the epoch, from the caller's clock.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Enum,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.engine import Dialect

from huilu.core.nouns import (
    ClaimState,
    Episode,
    Evaluation,
    FeedbackKind,
    FeedbackSource,
    FeedbackState,
    Outcome,
    ReleaseName,
    Task,
    TaskState,
    Verdict,
)

REVISION = "0001"
"""The migration that these tables are at."""


class Packed(TypeDecorator[Any]):
    """A value of one type as MessagePack, which keeps what JSON loses: bytes, and numbers that are not finite."""

    impl = LargeBinary
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        return None if value is None else msgspec.msgpack.encode(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else msgspec.msgpack.decode(value, type=self.kind)


def _word(kind: type[StrEnum]) -> Enum:
    """A word of a fixed list as plain text, checked on the way in and out: a new word needs no migration."""
    return Enum(
        kind, native_enum=False, create_constraint=False, length=16, values_callable=lambda words: [w.value for w in words]
    )


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Id = String(64)
Serial = BigInteger().with_variant(Integer, "sqlite")

tasks = Table(
    "tasks",
    metadata,
    Column("id", Id, primary_key=True),
    Column("draw", BigInteger, nullable=False, unique=True),
    Column("due", Integer, nullable=False),
    Column("env", Text, nullable=False),
    Column("state", _word(TaskState), nullable=False),
    Column("round", Integer),
    Column("attempts", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("fence", Integer, nullable=False),
    Column("owner", Id),
    Column("lease_until", Double),
    Column("last_error", Text, nullable=False),
    Column("enqueued_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("payload", Packed(Task), nullable=False),
    Index(None, "state", "round", "draw"),
    comment="One row a drawn task. `round` is the round that learns from it, once claimed; `due` the last that may.",
)

attempts = Table(
    "attempts",
    metadata,
    Column("task_id", Id, ForeignKey(tasks.c.id), primary_key=True),
    Column("fence", Integer, primary_key=True),
    Column("number", Integer, nullable=False),
    Column("owner", Id, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("ending", String(16)),
    Column("error", Text, nullable=False),
    comment="One row a lease of a task. `ending` is the event that ended it.",
)

episodes = Table(
    "episodes",
    metadata,
    Column("id", Id, primary_key=True),
    Column("task_id", Id, ForeignKey(tasks.c.id), nullable=False),
    Column("index", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("env", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("outcome", _word(Outcome), nullable=False),
    Column("reward", Double),
    Column("appended_at", Double, nullable=False),
    Column("payload", Packed(Episode), nullable=False),
    UniqueConstraint("task_id", "index"),
    Index(None, "round"),
)

feedback = Table(
    "feedback",
    metadata,
    Column("key", String(128), primary_key=True),
    Column("episode_id", Id, nullable=False),
    Column("task_id", Id, ForeignKey(tasks.c.id), nullable=False),
    Column("kind", _word(FeedbackKind), nullable=False),
    Column("source", _word(FeedbackSource), nullable=False),
    Column("state", _word(FeedbackState), nullable=False),
    Column("value", Double),
    Column("text", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("issued_at", Double, nullable=False),
    Column("ended_at", Double),
    Index(None, "task_id"),
    Index(None, "state"),
    comment="One row a signal, from the moment it is owed; its episode may not exist yet.",
)

issues = Table(
    "issues",
    metadata,
    Column("key", String(128), primary_key=True),
    Column("issued_at", Double, nullable=False),
    comment="The ledger of feedback owed, written once and never changed: what the states must add up to.",
)

claims = Table(
    "claims",
    metadata,
    Column("id", Id, primary_key=True),
    Column("round", Integer, nullable=False),
    Column("lineage", Integer, nullable=False),
    Column("state", _word(ClaimState), nullable=False),
    Column("owner", Id),
    Column("lease_until", Double),
    Column("version", Integer),
    Column("task_ids", Packed(list[str]), nullable=False),
    Column("claimed_at", Double, nullable=False),
    UniqueConstraint("round", "lineage"),
    comment="What each round learns from, in order; `version` is the version it made.",
)

versions = Table(
    "versions",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("lineage", Integer, primary_key=True, autoincrement=False),
    Column("parent_number", Integer),
    Column("parent_lineage", Integer),
    Column("round", Integer, nullable=False),
    Column("digest", String(64)),
    Column("claim_id", Id, ForeignKey(claims.c.id)),
    Column("healthy", Boolean, nullable=False),
    Column("superseded_at", Double),
    Column("metrics", Packed(dict[str, float]), nullable=False),
    Column("recorded_at", Double, nullable=False),
    ForeignKeyConstraint(["parent_number", "parent_lineage"], ["versions.number", "versions.lineage"]),
)


def _names_version() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["version", "lineage"], [versions.c.number, versions.c.lineage])


states = Table(
    "states",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("lineage", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("saved_at", Double, nullable=False),
    _names_version(),
    comment="Saved learner states that are on disk, by their object's name.",
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("lineage", Integer, primary_key=True, autoincrement=False),
    Column("split", String(64), primary_key=True),
    Column("pass_rate", Double, nullable=False),
    Column("mean_reward", Double, nullable=False),
    Column("evaluated_at", Double, nullable=False),
    Column("payload", Packed(Evaluation), nullable=False),
    _names_version(),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("lineage", Integer, primary_key=True, autoincrement=False),
    Column("promote", Boolean, nullable=False),
    Column("decided_at", Double, nullable=False),
    Column("payload", Packed(Verdict), nullable=False),
    _names_version(),
)

releases = Table(
    "releases",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("name", _word(ReleaseName), nullable=False),
    Column("version", Integer, nullable=False),
    Column("lineage", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("moved_at", Double, nullable=False),
    _names_version(),
    Index(None, "name", "id"),
    comment="Every move of a release pointer; a pointer is its newest row.",
)

events = Table(
    "events",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("at", Double, nullable=False),
    Column("name", String(64), nullable=False),
    Column("subject", Id, nullable=False),
    Column("fields", Packed(dict[str, Any]), nullable=False),
    Index(None, "subject"),
    comment="What happened to a record and is not seen in its row any more: deaths, takeovers, forks.",
)

meta = Table(
    "meta",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Packed(Any), nullable=False),
    comment="Facts of the run that are no record.",
)
