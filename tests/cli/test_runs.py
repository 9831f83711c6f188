"""`seqmlm runs`, `models`, `db`, `doctor` through the entry point: output and exit codes."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fork_server import Run
from registered import origin
from tiny_models import protein_model, residues, saved

from seqmlm.inference import model_folder
from seqmlm.registry.store import Registry
from seqmlm.tasks.register import register_model, track_model
from seqmlm.tracking import Tracker
from seqmlm.workspace import Workspace


@pytest.fixture
def two_runs(tracked_workspace: Path) -> Path:
    """Runs `one` and `two`, both FINISHED, with a model each; the second was trained on from the first."""
    home, tiny = Workspace.locate(), protein_model()
    parent: str | None = None
    for name, loss in (("one", 2.0), ("two", 1.5)):
        params = {"learning_rate": loss, "seed": 0}
        with Tracker(home).start(name, experiment="e", params=params) as run:
            run.log_metrics(1, {"train/loss": loss})
            metrics = {"eval/bits_per_unit": loss + 1}
            model = saved(tiny, run.directory / "model", metrics=metrics, parent=parent)
            entry = register_model(model, name, origin(init=parent, mlflow_run_id=run.run_id))
            track_model(run, entry, {"train/loss": loss})
            parent = str(model)
    return tracked_workspace


def test_a_newcomer_is_told_how_to_start(seqmlm: Run) -> None:
    for command in ("runs", "models"):
        done = seqmlm(command, "list")
        assert (done.code, done.out) == (0, "")
        assert "seqmlm train --domain protein" in done.err
        assert seqmlm(command, "list", "--json").json == []


def test_runs_are_listed_shown_and_compared(two_runs: Path, seqmlm: Run) -> None:
    lines = seqmlm("runs", "list").out.splitlines()
    assert [line.split("\t")[:2] for line in lines[1:]] == [["two", "FINISHED"], ["one", "FINISHED"]]
    found = seqmlm("runs", "list", "--json").json
    assert [(run["name"], run["metrics"]["train/loss"]) for run in found] == [("two", 1.5), ("one", 2.0)]
    done = seqmlm("runs", "show", "one")
    assert "FINISHED" in done.out
    assert str(two_runs / "runs" / "one") in done.out
    run_id = seqmlm("runs", "show", "one", "--json").json["run_id"]
    assert seqmlm("runs", "show", run_id, "--json").json["name"] == "one"
    missing = seqmlm("runs", "show", "ones")
    assert (missing.code, missing.err) == (4, "error: no run 'ones'; did you mean 'one'?\n")
    assert seqmlm("runs", "compare", "one", "two").out.splitlines() == [
        *("\t\tone\ttwo", "\tstatus\tFINISHED\tFINISHED"),
        *("param\tlearning_rate\t2.0\t1.5", "metric\ttrain/loss\t2\t1.5 *"),
    ]
    found = seqmlm("runs", "compare", "one", "two", "one", "--json").json
    assert [run["name"] for run in found["runs"]] == ["one", "two"]
    assert found["best"] == {"train/loss": ["two"]}
    assert seqmlm("runs", "compare", "one").code == 2
    assert seqmlm("runs", "sync", "--json").json == {}


def test_runs_of_the_workspaces_own_database_are_those_of_its_folders(
    two_runs: Path, empty_store: Path, seqmlm: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    every = seqmlm("runs", "list", "--json").json
    tracked = [{**run, "tags": {**run["tags"], "seqmlm.key": ...}} for run in every]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:////{two_runs}/mlflow.db")  # the same, as of others
    of_mlflow = seqmlm("runs", "list", "--json").json
    assert [{**run, "tags": {**run["tags"], "seqmlm.key": ...}} for run in of_mlflow] == tracked
    shutil.copyfile(empty_store, tmp_path / "other.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
    assert [run["tracked"] for run in seqmlm("runs", "list", "--json").json] == [False, False]
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    (two_runs / "mlflow.db").write_text("is not opened")
    done = seqmlm("runs", "list", "--json")
    assert (done.json, done.err) == (every, "")


def test_models(two_runs: Path, seqmlm: Run, tmp_path: Path) -> None:
    lines = seqmlm("models", "list").out.splitlines()
    assert [line.split("\t")[:4] for line in lines[1:]] == [
        ["two:1", "champion", "protein", "2.5"],
        ["one:1", "champion", "protein", "3"],
    ]
    shown = seqmlm("models", "show", "one@champion")
    assert "residue.v1, 33 tokens" in shown.out
    assert "masker uniform.v1, rate 0.15" in shown.out
    assert "calibrations      none: seqmlm calibrate" in shown.out
    assert seqmlm("models", "show", "one", "--json").json["masking"]["rate"] == 0.15
    told = seqmlm("models", "alias", "one:1", "fine", "--json")
    assert told.json == {"name": "one", "version": 1, "alias": "fine"}
    given = seqmlm("models", "alias", "one:1", "good")
    assert given.out == "one@good is now version 1\n"
    assert seqmlm("models", "alias", "one:1", "latest").code == 2
    assert seqmlm("models", "show", "one@bad").code == 4
    exported = seqmlm("models", "export", "one@good", "--out", tmp_path / "out", "--json").json
    assert {"config.json", "model.safetensors", "seqmlm.json", "tokenizer.json"} <= set(exported["files"])
    assert seqmlm("models", "export", "one", "--out", tmp_path / "out").code == 4
    given = seqmlm("models", "export", "one@good", tmp_path / "placed", "--json").json
    assert given == {"out": str(tmp_path / "placed"), "files": exported["files"]}
    for wrong in ((), (tmp_path / "a", "--out", tmp_path / "b")):
        refused = seqmlm("models", "export", "one", *wrong)
        assert (refused.code, refused.out) == (2, "")
        assert "folder" in refused.err


def _damage(file: Path, table: str | None) -> bytes:
    """Overwrite the first page of a SQLite file, or of a table of it; all that the file holds then."""
    with closing(sqlite3.connect(file)) as base:
        base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = base.execute("PRAGMA page_size").fetchone()[0]
        roots = dict(base.execute("SELECT name, rootpage FROM sqlite_schema WHERE type = 'table'"))
    content, page = bytearray(file.read_bytes()), roots[table] - 1 if table else 0
    content[page * size : (page + 1) * size] = b"\xff" * size
    file.write_bytes(content)
    return bytes(content)


@pytest.mark.parametrize("table", [None, "seqmlm_models", "seqmlm_aliases"])
def test_a_damaged_registry_is_made_anew(two_runs: Path, seqmlm: Run, tmp_path: Path, table: str) -> None:
    peptides = tmp_path / "peptides.fasta"
    peptides.write_text("".join(f">p{n}\n{residues(n)}\n" for n in range(8, 30)))
    seqmlm("calibrate", "one", peptides)
    calibrated = seqmlm("models", "show", "one", "--json").json["calibrations"]
    seqmlm("models", "alias", "one:1", "good")
    damaged = _damage(two_runs / "seqmlm.db", table)
    seqmlm("models", "list").refused(4, "is damaged", "`seqmlm models rescan`")

    done = seqmlm("models", "rescan")
    assert (done.code, done.out.split()) == (0, ["one:1", "two:1"])
    aside = two_runs / "seqmlm.db.damaged"
    assert f"it was moved to {aside}" in done.err
    assert "champion is now the first version of each name" in done.err
    assert aside.read_bytes() == damaged
    found = seqmlm("models", "list", "--json").json
    assert {(one["name"], one["version"], *one["aliases"]) for one in found} == {
        ("one", 1, "champion"),
        ("two", 1, "champion"),
    }
    assert seqmlm("models", "show", "two", "--json").json["ancestors"] == ["one:1"]
    assert seqmlm("models", "show", "one", "--json").json["calibrations"] == calibrated
    with Registry(Workspace.locate()) as registry:
        assert registry.calibrations(registry.get("one"))
    assert seqmlm("models", "show", "one@good").code == 4
    scored = seqmlm("score", "one", peptides)
    assert (scored.code, len(scored.out.splitlines())) == (0, 22)

    again = seqmlm("models", "rescan", "--json").json
    assert again == {"added": [], "known": 2, "aside": None, "broken": {}}
    _damage(two_runs / "seqmlm.db", table)
    assert seqmlm("models", "rescan", "--json").json["aside"] == f"{aside}-2"


def test_a_rescan_registers_versions_in_order_and_says_what_is_broken(two_runs: Path, seqmlm: Run) -> None:
    runs = two_runs / "runs"
    for number, steps in ((30, 30), (4, 4)):
        shutil.copytree(runs / "one" / "model", folder := runs / "one" / f"model-{number}")
        card = model_folder.read_card(folder)
        head = {"kind": "class", "label": "pet", "names": ["cat", "dog"]} if steps == 30 else {}
        model_folder.seal(folder, replace(card, steps=steps, head=head))
    shutil.copytree(runs / "one" / "model", runs / "one" / "model-5.tmp")
    (runs / "two" / "model" / "seqmlm.json").write_text("{")
    (two_runs / "seqmlm.db").unlink()
    done = seqmlm("models", "rescan", "--json")
    assert (done.code, done.json["added"]) == (4, ["one:1", "one:2", "one:3"])
    ((folder, reason),) = done.json["broken"].items()
    assert folder == str(runs / "two" / "model")
    assert "is not a model card" in reason
    with Registry(Workspace.locate()) as registry:
        assert [registry.get("one", version=n).path.name for n in (1, 2, 3)] == [
            "model",
            "model-4",
            "model-30",
        ]
        assert registry.get("one", alias="champion").version == 1
        assert registry.get("one", version=3).masking == {}, "labels were taught, no masks"


def test_a_registry_in_use_is_not_moved(two_runs: Path, seqmlm: Run) -> None:
    with closing(sqlite3.connect(two_runs / "seqmlm.db")) as other:
        other.execute("BEGIN")
        assert other.execute("SELECT count(*) FROM seqmlm_models").fetchone() == (2,)
        seqmlm("models", "rescan").refused(4, "is in use: stop the program that uses it")


def test_db(seqmlm: Run, workspace: Path) -> None:
    assert seqmlm("db", "current", "--json").json["schema"] is None
    assert not (workspace / "seqmlm.db").exists()
    done = seqmlm("db", "upgrade")
    assert done.out.endswith("schema none -> 0001_one_store, of streams none -> 0001_streams\n")
    done = seqmlm("db", "upgrade")
    assert done.out.endswith("is already at schema 0001_one_store (streams: 0001_streams)\n")
    assert seqmlm("db", "current", "--json").json["schema"] == "0001_one_store"


def test_doctor(seqmlm: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = seqmlm("doctor").ok()
    assert "no problems found" in done.out
    assert re.search(r"^  tree-sitter +installed; needed to parse Java", done.out, re.MULTILINE)
    monkeypatch.setenv("SEQMLM_DATABASE_URL", "mysql://x/y")
    done = seqmlm("doctor", "--json").refused(4)
    assert len(done.json["problems"]) == 1
