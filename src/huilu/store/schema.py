"""The tables of a run, once for SQLite and PostgreSQL: portable types, records as msgpack beside the indexed columns.

Called by `rows`, `work` and `bus`; creates nothing: migrations do, and a test compares them. Times are seconds since
the epoch, from the caller's clock.

    tasks 1--n episodes 1--n feedback        claims 1--n claimed n--1 tasks
    versions 1--1 claims                     versions 1--n states, evaluations, verdicts, releases
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

REVISION = "0001"
"""The migration that these tables are at."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("draw", BigInteger, nullable=False, unique=True),
    Column("env", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("extra", Boolean, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("owner", String(64)),
    Column("lease_until", Double),
    Column("claim_id", String(64)),
    Column("errors", Text, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("enqueued_at", Double, nullable=False),
    Column("ended_at", Double),
    Index(None, "state", "draw"),
    Index(None, "claim_id"),
)

episodes = Table(
    "episodes",
    metadata,
    Column("id", String(80), primary_key=True),
    Column("task_id", String(64), ForeignKey("tasks.id"), nullable=False),
    Column("round", Integer, nullable=False),
    Column("idx", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("reward", Double),
    Column("num_sampled", Integer, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("at", Double, nullable=False),
    UniqueConstraint("task_id", "idx"),
    Index(None, "round"),
)

feedback = Table(
    "feedback",
    metadata,
    Column("key", String(120), primary_key=True),
    Column("episode_id", String(80), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("source", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("value", Double),
    Column("text", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("issued_at", Double, nullable=False),
    Column("ended_at", Double),
    Index(None, "state"),
    Index(None, "episode_id"),
)

ledger = Table(
    "ledger",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("count", BigInteger, nullable=False),
)
"""Counters kept in the transaction of what they count, so that a lost row shows as a difference."""

claims = Table(
    "claims",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("round", Integer, nullable=False, unique=True),
    Column("state", String(16), nullable=False),
    Column("owner", String(64), nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("version", Integer),
    Column("lineage", Integer),
    Column("at", Double, nullable=False),
)

claimed = Table(
    "claimed",
    metadata,
    Column("claim_id", String(64), ForeignKey("claims.id"), primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("task_id", String(64), ForeignKey("tasks.id"), nullable=False, unique=True),
    Column("trains", Boolean, nullable=False),
)
"""Which tasks a claim holds, in draw order; `trains` is False where sampling left a group out."""

versions = Table(
    "versions",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("lineage", Integer, primary_key=True, autoincrement=False),
    Column("parent", Integer),
    Column("round", Integer, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("claim_id", String(64), nullable=False),
    Column("healthy", Boolean, nullable=False),
    Column("superseded", Boolean, nullable=False),
    Column("metrics", Text, nullable=False),
    Column("at", Double, nullable=False),
)

states = Table(
    "states",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("lineage", Integer, primary_key=True, autoincrement=False),
    Column("has_state", Boolean, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
)
"""What of a version is on disk: its weights, and the learner's state where `has_state`."""

evaluations = Table(
    "evaluations",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("lineage", Integer, primary_key=True, autoincrement=False),
    Column("split", String(32), primary_key=True),
    Column("pass_rate", Double, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("at", Double, nullable=False),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("lineage", Integer, primary_key=True, autoincrement=False),
    Column("promote", Boolean, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("at", Double, nullable=False),
)

releases = Table(
    "releases",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(16), nullable=False),
    Column("number", Integer, nullable=False),
    Column("lineage", Integer, nullable=False),
    Column("why", Text, nullable=False),
    Column("at", Double, nullable=False),
)
"""Append-only: a pointer is the newest row of its name."""
