"""The tables of streams: as declared, beside those of the registry, and made of those of before."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from receiver import incident
from registered import commit, origin
from sqlalchemy import Engine, inspect, text
from written import written

from seqmlm.errors import StateError
from seqmlm.registry import database
from seqmlm.registry.tables import REGISTRY
from seqmlm.watch.store import Change, Notice, Streams
from seqmlm.watch.tables import STREAMS, Base
from seqmlm.workspace import Workspace


def differences(engine: Engine) -> list[Any]:
    """What the database has in other ways than the code declares, of the tables of streams."""
    options = {
        "version_table": STREAMS.version_table,
        "compare_type": True,
        "include_name": lambda name, kind, parents: kind != "table" or name in Base.metadata.tables,
    }
    with engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata))


def columns(engine: Engine) -> dict[str, set[str]]:
    return {
        name: {column["name"] for column in inspect(engine).get_columns(name)}
        for name in Base.metadata.tables
    }


def test_the_migration_makes_the_declared_tables(empty_url: str) -> None:
    engine = database.engine(empty_url)
    database.upgrade(engine, STREAMS)
    database.upgrade(engine, STREAMS)
    assert differences(engine) == []
    assert database.revisions(engine, STREAMS) == (STREAMS.head,) * 2
    assert database.revisions(engine, REGISTRY)[0] is None, "each schema has its version"
    engine.dispose()


def test_the_revisions_are_those_of_the_migrations() -> None:
    scripts = ScriptDirectory.from_config(database.configuration(None, STREAMS))
    assert [one.revision for one in scripts.walk_revisions()][::-1] == list(STREAMS.revisions)


def test_a_folder_with_a_space_and_a_percent_sign_is_one_folder(tmp_path: Path) -> None:
    engine = database.engine(f"sqlite:///{tmp_path / 'a b%20'}/seqmlm.db")
    database.upgrade(engine, STREAMS)
    assert differences(engine) == []
    engine.dispose()


def _as_before(engine: Engine) -> None:
    """Take a database back to what the first migration of the registry made, with rows in all tables."""
    json = "JSON" if engine.dialect.name == "postgresql" else "JSON NOT NULL DEFAULT '{}'"
    with engine.begin() as connection:
        for statement in (
            f"DROP TABLE {STREAMS.version_table}",
            f"ALTER TABLE seqmlm_streams ADD COLUMN rolling {json}",
            "CREATE TABLE seqmlm_stream_statistics ("
            "stream_id INTEGER NOT NULL REFERENCES seqmlm_streams (id), number INTEGER NOT NULL, "
            "PRIMARY KEY (stream_id, number))",
            "INSERT INTO seqmlm_stream_statistics (stream_id, number) SELECT id, 1 FROM seqmlm_streams",
        ):
            connection.execute(text(statement))


def test_a_database_of_before_keeps_every_row(home: Workspace) -> None:
    folder = written(home.root / "model" / "config.json", "{}").parent
    with Streams(home) as registry:
        registry.register("app", folder, origin())
        stream = registry.begin_stream("/out.jsonl", {"files": ["/a.log"]})
        notice = Notice(sink="hook", key="k", incident=1, kind="opened", body={"a": 1})
        commit(
            registry,
            stream,
            Change(kind="opened", incident=incident(id=0, row=1)),
            rows=[(1, True, "{}"), (2, False, "{}")],
            files=[{"number": 1, "done": False, "offset": 7}],
            notify=lambda changes: [notice],
        )
        kept = registry.stream("/out.jsonl"), registry.incidents(), registry.stream_rows(stream, 0, 9)
        _as_before(registry.engine)
    if not home.database_url.startswith("sqlite"):
        with pytest.raises(StateError, match=r"is at schema None, not 0001_streams; run `seqmlm db upgrade`"):
            Streams(home)
        engine = database.engine(home.database_url)
        database.upgrade(engine, STREAMS)
        engine.dispose()
    with Streams(home) as registry:
        found = registry.stream("/out.jsonl"), registry.incidents(), registry.stream_rows(stream, 0, 9)
        assert found == kept
        queue = registry.notices(stream)
        assert [one.key for one in queue.due("hook", datetime(2999, 1, 1, tzinfo=UTC))] == ["k"]
        assert registry.get("app").version == 1
        assert differences(registry.engine) == []
        assert "rolling" not in columns(registry.engine)["seqmlm_streams"]
        assert not inspect(registry.engine).has_table("seqmlm_stream_statistics")
        registry.begin_stream("/other.jsonl", {})
        assert len(registry.streams()) == 2
