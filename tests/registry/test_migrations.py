"""Migrations: from the first on they lead to the tables the code declares, and back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, MetaData, create_engine, inspect, text

from seqmlm.registry import database
from seqmlm.registry.tables import VERSION_TABLE, Base


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
        if table.startswith("seqmlm_") and table != VERSION_TABLE
    }


def _told(index: Any) -> str:
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return str({**index, "dialect_options": options})


def _differences(engine: Engine) -> list[Any]:
    options = {"version_table": VERSION_TABLE, "compare_type": True}
    with engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata))


def test_every_migration_one_by_one_gives_the_declared_tables(empty_url: str) -> None:
    engine = database.engine(empty_url)
    assert database.history()[0] == "0001"
    for revision in database.history():
        with engine.execution_options(**database.WRITING).begin() as connection:
            command.upgrade(database.configuration(connection), revision)
        assert database.revisions(engine)[0] == revision
    migrated = _schema(engine)
    assert _differences(engine) == []

    with engine.execution_options(**database.WRITING).begin() as connection:
        command.downgrade(database.configuration(connection), "base")
    assert _schema(engine) == {}
    assert database.revisions(engine)[0] is None

    Base.metadata.create_all(engine)
    assert _schema(engine) == migrated
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
    assert database.revisions(engine) == (database.history()[-1],) * 2
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


def test_what_was_acknowledged_before_there_were_rolling_calibrations_is_real(empty_url: str) -> None:
    """An incident that goes on says so; of one that is over it is not known any more."""
    engine = database.engine(empty_url)
    earlier = database.history()[database.history().index("0007") - 1]
    with engine.execution_options(**database.WRITING).begin() as connection:
        command.upgrade(database.configuration(connection), earlier)
    with engine.begin() as connection:
        tables = MetaData()
        tables.reflect(connection, only=["seqmlm_streams", "seqmlm_incidents"])
        now = datetime.now(UTC)
        stream = {
            "id": 1,
            "output": "/a",
            "request": {},
            "counts": {},
            "mark": {},
            "written": 0,
            "created": now,
        }
        connection.execute(tables.tables["seqmlm_streams"].insert(), stream)
        incidents = tables.tables["seqmlm_incidents"]
        fill: dict[type, Any] = {str: "", int: 0, float: 0.0, bool: False, datetime: now}
        given = {one.name: fill.get(one.type.python_type, []) for one in incidents.c}
        for number, state in enumerate(("open", "acknowledged", "resolved", "acknowledged"), 1):
            own = {"id": number, "stream_id": 1, "row": number, "state": state, "muted": number == 4}
            connection.execute(incidents.insert(), {**given, **own})
    with engine.execution_options(**database.WRITING).begin() as connection:
        command.upgrade(database.configuration(connection), "0007")
    real = "SELECT is_real FROM seqmlm_incidents ORDER BY id"
    with engine.connect() as connection:
        assert [bool(one) for (one,) in connection.execute(text(real))] == [False, True, False, True]
    database.upgrade(engine)  # what was real is a fault, and real again for an earlier version
    verdict = "SELECT verdict FROM seqmlm_incidents ORDER BY id"
    with engine.connect() as connection:
        assert [one for (one,) in connection.execute(text(verdict))] == [None, "fault", None, "normal"]
    with engine.begin() as connection:
        connection.execute(text("UPDATE seqmlm_incidents SET verdict = 'normal' WHERE id = 3"))
    with engine.execution_options(**database.WRITING).begin() as connection:
        command.downgrade(database.configuration(connection), "0007")
    with engine.connect() as connection:
        assert [bool(one) for (one,) in connection.execute(text(real))] == [False, True, False, False]
    engine.dispose()
