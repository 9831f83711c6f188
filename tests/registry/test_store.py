"""The registry: versions, aliases, origin, and two processes at once; on SQLite and on PostgreSQL."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from registered import origin
from sqlalchemy import Engine, func, select
from sqlalchemy.exc import IntegrityError, OperationalError
from written import written

from seqmlm.errors import StateError, UsageError
from seqmlm.registry import database, tables
from seqmlm.registry.entries import CalibrationEntry, DatasetEntry, ModelEntry, Origin
from seqmlm.registry.schema import Schema
from seqmlm.registry.store import Registry
from seqmlm.workspace import Workspace

Register = Callable[..., ModelEntry]


def test_a_model_comes_back_as_it_was_registered(register: Register, registry: Registry, home: Workspace):
    before = datetime.now(UTC)
    parent = register("a")
    child = register(
        "a", "second", init="a@champion", parent=parent, mlflow_run_id="r" * 32, aliases=["champion"]
    )
    found = registry.get("a", version=2)
    assert found == child
    assert Origin(**{one.name: getattr(found, one.name) for one in fields(Origin)}) == replace(
        origin(), init="a@champion", mlflow_run_id="r" * 32
    )
    assert (found.parent, found.aliases) == ("a:1", ("champion",))
    assert found.path == home.root / "runs" / "second" / "model"
    assert before - timedelta(seconds=1) <= found.created <= datetime.now(UTC)
    assert registry.lineage(found) == [parent]
    assert registry.lineage(parent) == []


def test_counts_may_hold_numbers_of_numpy(register: Register) -> None:
    counts = {"records": np.int64(3), "mean": np.float32(1.5), "path": Path("x")}
    data = DatasetEntry(fingerprint="n", domain="protein", sources=(), counts=counts)
    assert register("a", dataset=data).dataset.counts == {"records": 3, "mean": 1.5, "path": "x"}


def test_data_sets_and_tokenizers_are_kept_once(register: Register, registry: Registry) -> None:
    register("a")
    register("b")
    register("c", fingerprint="f2")
    with registry.reading() as session:
        assert session.scalar(select(func.count()).select_from(tables.Dataset)) == 2
        assert session.scalar(select(func.count()).select_from(tables.Tokenizer)) == 1


def test_a_resumed_run_registers_once(register: Register, registry: Registry) -> None:
    register("a")
    again = register("a", mlflow_run_id="later")
    assert (again.version, again.mlflow_run_id) == (1, "later")
    assert len(registry.models("a")) == 1


def test_calibrations_are_replaced_as_a_whole(register: Register, registry: Registry) -> None:
    one, two = register("a", "1"), register("a", "2")
    first = [
        CalibrationEntry(level="residue", mode=mode, rows=n, source="f") for n, mode in enumerate("ab", 11)
    ]
    registry.set_calibrations(one, first)
    registry.set_calibrations(two, first[:1])
    assert registry.calibrations(one) == first
    later = [CalibrationEntry(level="residue", mode="b", rows=99, source="g")]
    registry.set_calibrations(one, later)
    assert (registry.calibrations(one), registry.calibrations(two)) == (later, first[:1])


def test_aliases_move_and_belong_to_their_name(register: Register, registry: Registry) -> None:
    one, two = register("a", "1", aliases=["champion"]), register("a", "2")
    other = register("b", aliases=["champion"])
    assert registry.get("a", alias="champion") == one
    assert (registry.get("b", alias="champion").name, other.aliases) == ("b", ("champion",))
    registry.set_alias(two, "champion")
    assert registry.get("a", alias="champion").version == two.version
    assert registry.get("a", version=1).aliases == ()
    assert registry.get("a", alias="latest").version == registry.get("a").version == 2


@pytest.mark.parametrize("alias", ["latest", "Latest", "v1", "V12", "3", "a b", "", "a@b"])
def test_reserved_aliases(alias: str, register: Register, registry: Registry) -> None:
    model = register("a")
    with pytest.raises(UsageError, match="cannot be an alias"):
        registry.set_alias(model, alias)


def test_a_folder_without_a_model_is_refused(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"has no config\.json"):
        registry.register("a", tmp_path, origin())


def test_models_are_listed_newest_first(register: Register, registry: Registry) -> None:
    for name in ("a", "b", "a2"):
        register(name)
    assert [model.name for model in registry.models()] == ["a2", "b", "a"]
    assert registry.names() == ["a", "a2", "b"]


def test_processes_that_register_at_once_get_versions_of_their_own(home: Workspace, registry: Registry):
    """Also the same new data set, which both try to insert."""
    _at_once(_register_many, home)
    assert sorted(model.version for model in registry.models("a")) == list(range(1, 17))
    assert len({model.path for model in registry.models("a")}) == 16


def _at_once(work: Callable[..., None], home: Workspace) -> None:
    """In two processes."""
    start = multiprocessing.get_context("spawn")
    barrier = start.Barrier(2)
    workers = [start.Process(target=work, args=(home, barrier, number)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]


def _register_many(home: Workspace, barrier: Any, number: int) -> None:
    with Registry(home) as registry:
        barrier.wait()
        for index in range(8):
            config = written(home.root / "runs" / f"{number}-{index}" / "config.json", "")
            registry.register("a", config.parent, origin(f"new{index}", "new"))


def test_two_processes_make_the_file_at_once(workspace: Path) -> None:
    _at_once(_open, Workspace.locate())


def _open(home: Workspace, barrier: Any, number: int) -> None:
    barrier.wait()
    with Registry(home) as registry:
        assert registry.models() == []


def test_a_workspace_can_be_moved(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = written(workspace / "runs" / "a" / "model" / "config.json", "").parent
    with Registry(Workspace.locate()) as registry:
        registry.register("a", folder, origin())
    moved = tmp_path_factory.mktemp("elsewhere") / "workspace"
    os.rename(workspace, moved)
    workspace.mkdir()
    with Registry(Workspace.locate(moved)) as registry:
        assert registry.get("a").path == (moved / "runs" / "a" / "model").resolve()
        assert registry.get("a").present


class Restarting:
    """A database server that is starting up for a number of connections; `pauses` is what was waited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
        self.left, self.pauses = refused, list[float]()
        monkeypatch.setenv("SEQMLM_DATABASE_URL", "postgresql+psycopg://me:secret@127.0.0.1:1/x")
        monkeypatch.setattr(database, "revisions", self.revisions)

    def revisions(self, made: Engine, schema: Schema) -> tuple[str, str]:
        with database.reachable(made):
            self.left -= 1
            if self.left >= 0:
                reason = Exception("FATAL: the database system is not yet accepting connections")
                raise OperationalError("", None, reason)
        return "1", "1"

    def open(self) -> str:
        Registry(Workspace.locate()).close()
        return "open"


def test_a_server_that_is_restarted_is_waited_for(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    server = Restarting(monkeypatch, refused=3)
    assert database.patiently(server.open, server.pauses.append) == "open"
    assert len(server.pauses) == 3
    assert server.pauses == sorted(server.pauses)
    server.left = 1
    with pytest.raises(database.UnreachableError, match="not yet accepting"):
        server.open()  # who does not ask for patience hears of it at once


def test_a_server_that_stays_down_is_given_up_after_a_minute(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg")
    server = Restarting(monkeypatch, refused=1000)
    with pytest.raises(database.UnreachableError, match="not yet accepting") as caught:
        database.patiently(server.open, server.pauses.append)
    assert "secret" not in str(caught.value)
    assert 60 <= sum(server.pauses) <= 90


def test_what_a_server_refuses_is_not_asked_again(workspace: Path) -> None:
    pytest.importorskip("psycopg")
    made = database.engine("postgresql+psycopg://me@127.0.0.1:1/x")
    pauses: list[float] = []

    def refused() -> None:
        with database.reachable(made):
            raise IntegrityError("", None, Exception("duplicate key"))

    with pytest.raises(StateError, match="duplicate key"):
        database.patiently(refused, pauses.append)
    assert pauses == []
