"""The workspace: where things are, which names are fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqmlm.errors import UsageError
from seqmlm.workspace import Workspace, check_name


def test_home_is_the_workspace(workspace: Path) -> None:
    found = Workspace.locate()
    assert found.root == workspace.resolve()
    assert found.tracking_uri == f"sqlite:///{workspace.resolve()}/mlflow.db"
    assert found.database_url == f"sqlite:///{workspace.resolve()}/seqmlm.db"
    assert found.run_dir("a-1") == workspace.resolve() / "runs" / "a-1"
    assert list(workspace.iterdir()) == []


def test_current_directory_without_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEQMLM_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert Workspace.locate().root == tmp_path.resolve()


def test_environment_overrides_the_stores(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    monkeypatch.setenv("SEQMLM_DATABASE_URL", "postgresql+psycopg://db/x")
    found = Workspace.locate()
    assert (found.tracking_uri, found.database_url) == ("http://tracker:5000", "postgresql+psycopg://db/x")
    assert not found.tracks_locally


@pytest.mark.parametrize(
    "name", ["", ".cache", "..", "a/b", "a:1", "a@b", "a b", "-x", "ä", "x" * 101, "a\n"]
)
def test_unfit_names(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a run"):
        check_name(name)


@pytest.mark.parametrize("name", ["protein-tiny-20260101-120000", "A", "x.1_2", "x" * 100])
def test_fit_names(name: str) -> None:
    assert check_name(name) == name
