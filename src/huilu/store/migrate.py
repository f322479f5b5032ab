"""Brings a database's tables to a revision, forward and back. Called when a database is opened, and by tests.

The revisions are the files of `migrations/versions`, run by Alembic inside the caller's transaction; no
alembic.ini is needed.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import Connection

from huilu import errors

FOLDER = Path(__file__).parent / "migrations"


def revision(connection: Connection) -> str | None:
    """The revision that the tables are at; None for an empty database."""
    return MigrationContext.configure(connection).get_current_revision()


def upgrade(connection: Connection, target: str = "head") -> None:
    """Forward to `target`. Raises BadDatabase when the database is from a later version of Huilu."""
    try:
        command.upgrade(_config(connection), target)
    except CommandError as error:
        raise errors.BadDatabase(str(error), fix="use the version of Huilu that made this run") from error


def downgrade(connection: Connection, target: str) -> None:
    """Back to `target`; `base` is an empty database."""
    command.downgrade(_config(connection), target)


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
