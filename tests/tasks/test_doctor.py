"""The doctor: says what is here, makes nothing, and finds what is wrong with a remedy."""

from __future__ import annotations

import json
import sqlite3
import tomllib
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from seqmlm.management.doctor import EXTRAS, examine
from seqmlm.registry.store import Registry
from seqmlm.tracking import Tracker
from seqmlm.workspace import Workspace


def test_a_healthy_empty_workspace(workspace: Path) -> None:
    found = examine()
    assert found.problems == []
    assert found.versions["torch"]
    assert found.extras["postgres"]["installed"] is True  # as the tests' own extra installs it
    assert found.devices["device"] in ("cpu", "cuda")
    assert ": " in found.devices["attention"]
    assert {"code", "dna", "ehr", "logs", "protein", "text"} <= set(found.plugins["domains"])
    assert found.tracking["state"] == found.registry["state"] == "created when first needed"
    assert list(workspace.iterdir()) == []
    json.dumps(asdict(found))


def test_every_extra_is_explained() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert sorted(EXTRAS) == sorted(project["optional-dependencies"])


def test_stores_in_use(tracked_workspace: Path) -> None:
    Registry(Workspace.locate()).close()
    found = examine()
    assert found.problems == []
    assert found.tracking["reachable"] is True
    assert found.registry["revision"] == found.registry["needed"] == "0001_one_store"


def test_what_is_wrong_is_named(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    (workspace / "seqmlm.db").write_bytes(b"no database, though it has its name" * 30)
    found = examine()
    assert found.tracking["reachable"] is False
    away, damaged = found.problems
    assert "does not answer" in away
    assert "not a database" in damaged
    assert "models rescan" in damaged


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DROP TABLE seqmlm_alembic_version", ("seqmlm db upgrade",)),
        ("UPDATE seqmlm_alembic_version SET version_num = '9999'", ("at schema 9999", "models rescan")),
    ],
)
def test_a_schema_that_is_another(workspace: Path, statement: str, words: tuple[str, ...]) -> None:
    Registry(Workspace.locate()).close()
    with closing(sqlite3.connect(workspace / "seqmlm.db")) as base:
        base.execute(statement)
        base.commit()
    (problem,) = examine().problems
    assert not [one for one in words if one not in problem]


def test_a_run_that_mlflow_lacks(tracked_workspace: Path) -> None:
    with pytest.MonkeyPatch.context() as offline:
        offline.setattr("seqmlm.tracking.store._probe", None)  # to call it fails
        Tracker(Workspace.locate(), warn=str).start("lost", experiment="e", params={}).end()
    found = examine()
    assert found.tracking["incomplete_runs"] == ["lost"]
    assert any("seqmlm runs sync" in problem for problem in found.problems)


def test_passwords_are_not_shown(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv("SEQMLM_DATABASE_URL", "postgresql://me:secret@127.0.0.1:1/x")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:1")
    found = examine()
    assert "secret" not in json.dumps(asdict(found))
    assert found.workspace["environment"]["MLFLOW_TRACKING_URI"] == "http://me:***@127.0.0.1:1"
