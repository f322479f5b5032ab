"""The tables that migrations make are those that the code declares, forward and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect

from huilu import errors
from huilu.store import migrate, schema, sqlite


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return sqlite.writer_engine(tmp_path / "run.db")


def test_migrated_tables_are_the_declared_ones(engine: Engine) -> None:
    with engine.begin() as connection:
        migrate.upgrade(connection)
        differences = compare_metadata(MigrationContext.configure(connection), schema.metadata)
        assert differences == []


def test_a_declared_column_that_no_migration_makes_would_be_noticed(engine: Engine) -> None:
    with engine.begin() as connection:
        migrate.upgrade(connection)
        connection.exec_driver_sql("ALTER TABLE episodes DROP COLUMN reward")
        (difference,) = compare_metadata(MigrationContext.configure(connection), schema.metadata)
        assert difference[0] == "add_column"


def test_names_of_constraints_follow_the_convention(engine: Engine) -> None:
    with engine.begin() as connection:
        migrate.upgrade(connection)
        for name, table in schema.metadata.tables.items():
            found = inspect(connection)
            made = {key["name"] for key in found.get_foreign_keys(name)} | {found.get_pk_constraint(name)["name"]}
            declared = {str(key.name) for key in table.foreign_key_constraints} | {str(table.primary_key.name)}
            assert made == declared


def test_a_downgrade_leaves_an_empty_database_that_upgrades_again(engine: Engine) -> None:
    with engine.begin() as connection:
        migrate.upgrade(connection)
        migrate.downgrade(connection, "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
        assert migrate.revision(connection) is None
        migrate.upgrade(connection)
        assert set(schema.metadata.tables) < set(inspect(connection).get_table_names())


def test_a_migration_that_fails_half_way_leaves_nothing(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE releases (name TEXT)")
    with pytest.raises(Exception, match="already exists"), engine.begin() as connection:
        migrate.upgrade(connection)
    with engine.begin() as connection:
        assert inspect(connection).get_table_names() == ["releases"]


def test_the_declared_revision_is_the_newest() -> None:
    assert ScriptDirectory(str(migrate.FOLDER)).get_heads() == [schema.REVISION]


def test_a_database_of_a_later_version_is_refused_by_name(engine: Engine) -> None:
    with engine.begin() as connection:
        migrate.upgrade(connection)
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(errors.BadDatabase, match="9999"), engine.begin() as connection:
        migrate.upgrade(connection)
