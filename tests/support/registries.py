"""Registries to test on: a file in an empty workspace, and a PostgreSQL server where one is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from registered import origin
from written import written

from seqmlm.registry import database
from seqmlm.registry.entries import ModelEntry
from seqmlm.registry.store import Registry
from seqmlm.watch.tables import STREAMS
from seqmlm.workspace import Workspace


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Address of an empty database, once for each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'seqmlm.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def home(empty_url: str, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace with a migrated registry of each kind."""
    monkeypatch.setenv("SEQMLM_DATABASE_URL", empty_url)
    engine = database.engine(empty_url)
    database.upgrade(engine)
    database.upgrade(engine, STREAMS)
    engine.dispose()
    return Workspace.locate()


@pytest.fixture
def registry(home: Workspace) -> Iterator[Registry]:
    with Registry(home) as opened:
        yield opened


@pytest.fixture
def register(home: Workspace, registry: Registry) -> Callable[..., ModelEntry]:
    """Register a model folder made for the purpose; keyword arguments are facts of its origin, and others."""

    def make(name: str, folder: str | None = None, **facts: Any) -> ModelEntry:
        config = written(home.root / "runs" / (folder or name) / "model" / "config.json", "{}")
        others = {key: facts.pop(key) for key in ("parent", "aliases") if key in facts}
        return registry.register(name, config.parent, origin(**facts), **others)

    return make
