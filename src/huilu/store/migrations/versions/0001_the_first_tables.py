"""The first tables

Revision: 0001
Follows:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "claims",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("lineage", sa.Integer(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_claims")),
        sa.UniqueConstraint("round", name=op.f("uq_claims_round")),
    )
    op.create_table(
        "evaluations",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lineage", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("split", sa.String(length=32), nullable=False),
        sa.Column("pass_rate", sa.Double(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("number", "lineage", "split", name=op.f("pk_evaluations")),
    )
    op.create_table(
        "feedback",
        sa.Column("key", sa.String(length=120), nullable=False),
        sa.Column("episode_id", sa.String(length=80), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("issued_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_feedback")),
    )
    with op.batch_alter_table("feedback", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_feedback_episode_id"), ["episode_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_feedback_state"), ["state"], unique=False)

    op.create_table(
        "ledger",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_ledger")),
    )
    op.create_table(
        "releases",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=16), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("lineage", sa.Integer(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_releases")),
    )
    op.create_table(
        "states",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lineage", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("has_state", sa.Boolean(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("number", "lineage", name=op.f("pk_states")),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("draw", sa.BigInteger(), nullable=False),
        sa.Column("env", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("extra", sa.Boolean(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("claim_id", sa.String(length=64), nullable=True),
        sa.Column("errors", sa.Text(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("enqueued_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("draw", name=op.f("uq_tasks_draw")),
    )
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_tasks_claim_id"), ["claim_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_tasks_state_draw"), ["state", "draw"], unique=False)

    op.create_table(
        "verdicts",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lineage", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("promote", sa.Boolean(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("number", "lineage", name=op.f("pk_verdicts")),
    )
    op.create_table(
        "versions",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lineage", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("claim_id", sa.String(length=64), nullable=False),
        sa.Column("healthy", sa.Boolean(), nullable=False),
        sa.Column("superseded", sa.Boolean(), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("number", "lineage", name=op.f("pk_versions")),
    )
    op.create_table(
        "claimed",
        sa.Column("claim_id", sa.String(length=64), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("trains", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["claim_id"], ["claims.id"], name=op.f("fk_claimed_claim_id")),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_claimed_task_id")),
        sa.PrimaryKeyConstraint("claim_id", "place", name=op.f("pk_claimed")),
        sa.UniqueConstraint("task_id", name=op.f("uq_claimed_task_id")),
    )
    op.create_table(
        "episodes",
        sa.Column("id", sa.String(length=80), nullable=False),
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("idx", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("num_sampled", sa.Integer(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_episodes_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_episodes")),
        sa.UniqueConstraint("task_id", "idx", name=op.f("uq_episodes_task_id_idx")),
    )
    with op.batch_alter_table("episodes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_episodes_round"), ["round"], unique=False)


def downgrade() -> None:
    """Drop every table."""
    with op.batch_alter_table("episodes", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_episodes_round"))

    op.drop_table("episodes")
    op.drop_table("claimed")
    op.drop_table("versions")
    op.drop_table("verdicts")
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_tasks_state_draw"))
        batch_op.drop_index(batch_op.f("ix_tasks_claim_id"))

    op.drop_table("tasks")
    op.drop_table("states")
    op.drop_table("releases")
    op.drop_table("ledger")
    with op.batch_alter_table("feedback", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_feedback_state"))
        batch_op.drop_index(batch_op.f("ix_feedback_episode_id"))

    op.drop_table("feedback")
    op.drop_table("evaluations")
    op.drop_table("claims")
