"""The doctor: says what is here, makes nothing, and finds what is wrong with a remedy."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from seqmlm.errors import StateError
from seqmlm.registry import Registry, database
from seqmlm.tasks.doctor import examine, repair
from seqmlm.tracking import Tracker
from seqmlm.workspace import Workspace


def test_a_healthy_empty_workspace(workspace: Path) -> None:
    found = examine()
    assert found.problems == []
    assert found.versions["torch"]
    assert found.devices["device"] in ("cpu", "cuda")
    assert ": " in found.devices["attention"]
    assert {"code", "dna", "ehr", "logs", "protein", "text"} <= set(found.plugins["domains"])
    assert found.tracking["state"] == found.registry["state"] == "created when first needed"
    assert list(workspace.iterdir()) == []
    json.dumps(asdict(found))


def test_stores_in_use(tracked_workspace: Path) -> None:
    Registry(Workspace.locate()).close()
    found = examine()
    assert found.problems == []
    assert found.tracking["reachable"] is True
    assert found.registry["revision"] == found.registry["needed"] == database.history()[-1]


def test_what_is_wrong_is_named(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    (workspace / "seqmlm.db").write_bytes(b"no database, though it has its name" * 30)
    found = examine()
    assert found.tracking["reachable"] is False
    assert any("does not answer" in problem for problem in found.problems)
    assert any("not a database" in problem for problem in found.problems)


def test_an_old_schema(workspace: Path) -> None:
    sqlite3.connect(workspace / "seqmlm.db").close()
    found = examine()
    assert [problem for problem in found.problems if "seqmlm db upgrade" in problem]


def test_a_run_that_mlflow_lacks(tracked_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Workspace.locate()
    monkeypatch.setattr("seqmlm.tracking.store._probe", _fail)
    Tracker(home, warn=lambda _: None).start("lost", experiment="e", params={}).end()
    monkeypatch.undo()
    monkeypatch.setenv("SEQMLM_HOME", str(tracked_workspace))
    found = examine()
    assert found.tracking["incomplete_runs"] == ["lost"]
    assert any("seqmlm runs sync" in problem for problem in found.problems)


def _fail(uri: str) -> None:
    raise ConnectionError(uri)


def test_passwords_are_not_shown(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv("SEQMLM_DATABASE_URL", "postgresql://me:secret@127.0.0.1:1/x")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:1")
    found = examine()
    assert "secret" not in json.dumps(asdict(found))
    assert found.workspace["environment"]["MLFLOW_TRACKING_URI"] == "http://me:***@127.0.0.1:1"


def _filled(rows: int) -> Path:
    """A registry with a stream of so many rows, all of it in its file."""
    home = Workspace.locate()
    with Registry(home) as registry:
        stream = registry.begin_stream("/out.jsonl", {"model": "m"})
        registry.commit_stream(
            stream,
            files=[{"number": 1, "done": False, "offset": 7}],
            rows=[(n, n % 7 == 0, json.dumps({"id": n, "reason": "x" * 300})) for n in range(1, rows + 1)],
            counts={},
            mark={},
            written=rows,
        )
    return home.root / "seqmlm.db"


def _rows(file: Path) -> dict[int, str]:
    with closing(sqlite3.connect(file)) as base:
        assert base.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return dict(base.execute("SELECT number, line FROM seqmlm_stream_rows"))


@pytest.mark.parametrize("which", [[0], [5], [3, 9, 10], [-1]])
def test_a_repair_loses_the_rows_of_damaged_pages_alone(workspace: Path, which: list[int]) -> None:
    file = _filled(500)
    before, content = _rows(file), bytearray(file.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    leaves = _leaves(content, size)
    for n in which:
        start = leaves[n] * size
        content[start : start + size] = b"\xff" * size
    file.write_bytes(content)
    done = repair()
    after = _rows(file)
    assert done.aside is not None
    assert done.aside.read_bytes() == content
    assert after.items() <= before.items()
    assert done.kept["seqmlm_stream_rows"] == len(after)
    assert 0 < len(before) - len(after) <= len(which) * size // 300
    lost = done.lost["seqmlm_stream_rows"]
    assert lost is None if which == [-1] else lost == len(before) - len(after)
    assert set(done.lost) == {"seqmlm_stream_rows"}
    with Registry(Workspace.locate()) as registry:
        found = registry.stream("/out.jsonl")
    assert found is not None
    assert found.files == ({"number": 1, "done": False, "offset": 7},)
    assert examine().problems == []


def _leaves(content: bytearray, size: int) -> list[int]:
    """Pages of the file (from 0) that hold rows of results, in the order of these."""
    held = []
    for page in range(len(content) // size):
        block = bytes(content[page * size : (page + 1) * size])
        if block[0] == 13 and (at := re.findall(rb'{"id": (\d+), "reason"', block)):
            held.append((int(at[0]), page))
    return [page for _, page in sorted(held)]


def test_a_repair_of_no_database_and_of_a_sound_one(workspace: Path) -> None:
    file = _filled(3)
    content = file.read_bytes()
    assert repair() == database.Repaired()
    assert file.read_bytes() == content
    file.write_bytes(b"no database at all" * 1000)
    assert any("doctor --repair" in problem for problem in examine().problems)
    done = repair()
    assert done.aside is not None
    assert done.aside.read_bytes() == b"no database at all" * 1000
    assert set(done.kept.values()) == {0}
    assert set(done.lost.values()) == {None}
    assert examine().problems == []


def test_a_repair_waits_until_nobody_uses_the_database(workspace: Path) -> None:
    file = _filled(3)
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("SELECT count(*) FROM seqmlm_streams").fetchone() == (1,)
        with pytest.raises(StateError, match="is in use: stop what uses it"):
            repair()


def test_a_repair_leaves_a_newer_schema_alone(workspace: Path) -> None:
    file = _filled(500)
    with closing(sqlite3.connect(file)) as base:
        base.execute("UPDATE seqmlm_alembic_version SET version_num = '9999'")
        base.commit()
    content = bytearray(file.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    start = _leaves(content, size)[5] * size
    content[start : start + size] = b"\xff" * size
    file.write_bytes(content)
    with pytest.raises(StateError, match="of a newer version of seqmlm"):
        repair()
    assert file.read_bytes() == content
    assert [one.name for one in workspace.iterdir() if "damaged" in one.name or "repaired" in one.name] == []
