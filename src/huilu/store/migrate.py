"""Brings a database's tables to a revision, forward and back. Called when a database is opened, and by tests.

The revisions are the files of `migrations/versions`, run by Alembic inside the caller's transaction.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from alembic.script.revision import ResolutionError
from sqlalchemy import Connection

from huilu import errors

FOLDER = Path(__file__).with_name("migrations")


def revision(connection: Connection) -> str | None:
    """The revision that a database is at; None when it has no tables yet."""
    return MigrationContext.configure(connection).get_current_revision()


def upgrade(connection: Connection, target: str = "head") -> None:
    """Forward to `target`. Raises BadDatabase when the database is from a later version of Huilu."""
    _run(connection, target, ScriptDirectory(FOLDER)._upgrade_revs)


def downgrade(connection: Connection, target: str) -> None:
    """Back to `target` (`base` is an empty database)."""
    _run(connection, target, ScriptDirectory(FOLDER)._downgrade_revs)
