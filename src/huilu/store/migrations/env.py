"""Alembic's entry: runs migrations on the connection that `store.migrate` hands over."""

from __future__ import annotations

from alembic import context

from huilu.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite cannot alter most things in place
    transaction_per_migration=False,
)
context.run_migrations()
