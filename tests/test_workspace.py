"""The workspace: where things are, which names are fit, and locks that outlive nobody."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from seqmlm.errors import StateError, UsageError
from seqmlm.workspace import FileLock, Workspace, check_name


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


def test_lock_excludes_a_second_holder_in_the_same_process(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock"), pytest.raises(StateError, match="the run is in use"):
        FileLock(tmp_path / "lock", wait=0, holder="the run").acquire()
    with FileLock(tmp_path / "lock", wait=0):
        pass


def test_a_refused_lock_does_not_free_the_held_one(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock"):
        refused = FileLock(tmp_path / "lock", wait=0)
        with pytest.raises(StateError):
            refused.acquire()
        refused.release()
        assert _acquire_elsewhere(tmp_path / "lock") == "refused"


def test_lock_excludes_another_process_and_dies_with_its_holder(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock", wait=0)
    with lock:
        assert _acquire_elsewhere(tmp_path / "lock") == "refused"
    # The other process ends without releasing; its lock goes with it.
    assert _acquire_elsewhere(tmp_path / "lock") == "taken"
    with lock:
        pass


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_workers_do_not_keep_the_lock(tmp_path: Path) -> None:
    """A loader worker outliving its killed parent must not block the resume."""
    lock = FileLock(tmp_path / "lock", wait=0)
    lock.acquire()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    lock.release()
    assert _acquire_elsewhere(tmp_path / "lock") == "taken"
    os.close(writer)
    os.waitpid(child, 0)
    os.close(reader)


def test_lock_in_an_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="SEQMLM_HOME"):
        FileLock(tmp_path / "file" / "lock").acquire()


def _acquire_elsewhere(path: Path) -> str:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_acquire, (path,))


def _acquire(path: Path) -> str:
    try:
        FileLock(path, wait=0).acquire()
    except StateError:
        return "refused"
    return "taken"
