"""The migration makes the tables that the code declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, inspect, text

from seqmlm.errors import StateError
from seqmlm.management.doctor import schema
from seqmlm.registry import database
from seqmlm.registry.store import Registry
from seqmlm.registry.tables import REGISTRY, Base
from seqmlm.workspace import Workspace

VERSION = REGISTRY.version_table


def _schema(engine: Engine) -> dict[str, Any]:
    """Everything the database says about our tables, without the order it says it in."""
    found = inspect(engine)
    return {
        table: {
            "columns": {
                column["name"]: (str(column["type"]), column["nullable"])
                for column in found.get_columns(table)
            },
            "key": found.get_pk_constraint(table),
            "unique": sorted(map(str, found.get_unique_constraints(table))),
            "foreign": sorted(map(str, found.get_foreign_keys(table))),
            "indexes": sorted(map(_told, found.get_indexes(table))),
        }
        for table in sorted(found.get_table_names())
        if table.startswith("seqmlm_") and table != VERSION
    }


def _told(index: Any) -> str:
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return str({**index, "dialect_options": options})


def _differences(engine: Engine) -> list[Any]:
    options = {"version_table": VERSION, "compare_type": True}
    with engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata))


def test_the_migration_makes_the_declared_tables(empty_url: str) -> None:
    engine = database.engine(empty_url)
    database.upgrade(engine)
    assert _differences(engine) == []
    migrated = _schema(engine)
    Base.metadata.drop_all(engine)
    assert _schema(engine) == {}
    Base.metadata.create_all(engine)
    assert _schema(engine) == migrated
    engine.dispose()


@pytest.mark.parametrize("registry_at", ["0008", "9999"])
def test_an_unknown_schema_is_one_sentence_with_a_remedy(
    empty_url: str, workspace: Path, monkeypatch: pytest.MonkeyPatch, registry_at: str
) -> None:
    monkeypatch.setenv("SEQMLM_DATABASE_URL", empty_url)
    engine = database.engine(empty_url)
    database.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION} SET version_num = '{registry_at}'"))
    with pytest.raises(StateError, match=f"is at schema {registry_at}, .*`seqmlm models rescan`") as caught:
        Registry(Workspace.locate())
    assert "\n" not in str(caught.value)
    assert ("`seqmlm db upgrade`" in str(caught.value)) == (engine.dialect.name == "postgresql")
    with pytest.raises(StateError, match="does not know"):
        schema(upgrade=True)
    engine.dispose()


def test_the_comparison_sees_a_difference(empty_url: str) -> None:
    engine = database.engine(empty_url)
    database.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE seqmlm_aliases ADD COLUMN extra INTEGER"))
    assert len(_differences(engine)) == 1
    engine.dispose()


def test_a_database_shared_with_mlflow_keeps_mlflows_version(empty_url: str) -> None:
    engine = create_engine(empty_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('mlflows')"))
    engine.dispose()
    engine = database.engine(empty_url)
    database.upgrade(engine)
    database.upgrade(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == [
            "mlflows"
        ]
    assert database.revisions(engine) == (REGISTRY.head,) * 2
    engine.dispose()


def test_sqlite_is_opened_for_many_processes(tmp_path: object) -> None:
    engine = database.engine(f"sqlite:///{tmp_path}/sub/seqmlm.db")
    with engine.connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 30_000}
    engine.dispose()


@pytest.mark.parametrize("url", ["mysql://x/y", "nonsense", "oracle+x://y", ""])
def test_other_databases_are_refused(url: str) -> None:
    from seqmlm.errors import UsageError

    with pytest.raises(UsageError, match="SEQMLM_DATABASE_URL"):
        database.engine(url)


def test_plain_postgresql_urls_take_psycopg_3() -> None:
    pytest.importorskip("psycopg")
    assert database.parse("postgresql://u@h/d").drivername == "postgresql+psycopg"


def test_the_revisions_are_those_of_the_migrations() -> None:
    scripts = ScriptDirectory.from_config(database.configuration(None))
    assert [one.revision for one in scripts.walk_revisions()][::-1] == list(REGISTRY.revisions)
