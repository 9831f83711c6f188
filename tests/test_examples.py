"""The examples run as they stand, from a sample to predictions; their commands in forked processes."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
import small_samples
from fork_server import ForkServer, Run

from seqmlm.cli.demo import MADE
from seqmlm.errors import StateError
from seqmlm.management.demo_folder import MANIFEST, DemoFolder

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SMALL = Path(small_samples.__file__)
FIELDS = {path.stem: path for path in EXAMPLES.glob("*.sh")}

# What `seqmlm` is to a script: its words go to the test, whose answer is the exit code.
COMMAND = """#!/bin/bash
printf '%s\\n' "$@" > "$ASKED"
exit "$(cat "$ANSWERED")"
"""


def test_every_field_has_an_example() -> None:
    assert sorted(FIELDS) == ["code", "dna", "english", "logs", "patients", "proteins"]


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_an_example_trains_fine_tunes_and_predicts(
    name: str, forks: ForkServer, tracked_workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked, answered = tmp_path / "here", tmp_path / "asked", tmp_path / "answered"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for pipe in (asked, answered):
        os.mkfifo(pipe)
    command = tmp_path / "bin" / "seqmlm"
    command.parent.mkdir()
    command.write_text(COMMAND)
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "ASKED": str(asked),
        "ANSWERED": str(answered),
        "N": "80",
        "TIME": "0.2s",
    }
    told: list[str] = []
    line = 'bash "$0"; echo "exit $?" > "$ASKED"'
    with subprocess.Popen(["bash", "-c", line, str(FIELDS[name])], env=environment) as script:
        try:
            while not (words := asked.read_text().splitlines())[0].startswith("exit "):
                done = forks.run(*words, script=SMALL)
                told.append(done.err)
                answered.write_text(str(done.code))
        finally:
            script.kill()
    assert words == ["exit 0"], told[-1]
    rows = [json.loads(row) for row in (folder / f"{name}.jsonl").read_text().splitlines()]
    assert len(rows) == 20
    assert all(0 <= row["probability"] <= 1 for row in rows)


def test_a_demo_ends_with_alarms_and_a_report(
    seqmlm: Run, tracked_workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tracked_workspace}/mlflow.db")
    home = tracked_workspace / "demo"
    done = seqmlm("demo", "--out", home, "--max-time", "0.2s").ok()
    for words in ("seqmlm train --domain protein", "seqmlm models list", "seqmlm score demo"):
        assert words in done.err
    assert "bits per residue\tp-value" in done.out
    assert "... and 15 less unusual ones" in done.out
    rows = [json.loads(line) for line in (home / "scores.jsonl").read_text().splitlines()]
    assert len(rows) == 25
    assert (home / "report.html").exists()
    assert seqmlm("models", "list", "--json").json == []  # nothing of it is in the workspace around it
    for line in commands_of(done.out):  # they are whole: no word has to be on the PATH
        assert shutil.which(line[0]), line
    seqmlm("demo", "--out", home, "--remove").ok()
    assert not home.exists(), "all files of a demo are listed"


def commands_of(shown: str) -> list[list[str]]:
    """The words of each command that a demo ends with, without the variables before them."""
    lines = [shlex.split(line) for line in shown.splitlines() if line.startswith("    ")]
    found = [[*itertools.dropwhile(lambda word: "=" in word, words)] for words in lines]
    assert len(found) == 3
    return found


def entries(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with its content."""
    return {str(one): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


@pytest.mark.parametrize("what", ["file", "notes", "workspace", "broken", "elsewhere"])
def test_a_demo_touches_no_folder_that_it_did_not_make(
    seqmlm: Run, tmp_path: Path, tracked_workspace: Path, what: str
) -> None:
    out = tmp_path / "mine"
    if what == "file":
        out.write_text("thesis")
        seqmlm("demo", "--out", out).refused(2, "is a file")
        assert out.read_text() == "thesis"
        return
    (out / "runs" / "mine").mkdir(parents=True)
    (out / "thesis.txt").write_text("a year of work")
    (out / "runs" / "mine" / "config.yaml").write_text("seed: 1")
    if what == "workspace":
        sqlite3.connect(out / "seqmlm.db").close()
    if what == "broken":
        (out / MANIFEST).write_text("{")
    if what == "elsewhere":  # a list that was copied here, or made by hand, reaches no other folder
        (out / MANIFEST).write_text(json.dumps({"files": {"../kept.txt": [4, 0]}, "work": []}))
        (tmp_path / "kept.txt").write_text("kept")
    before = entries(tmp_path)
    for more in ((), ("--remove",)):
        seqmlm("demo", "--out", out, *more).refused(4, "--out")
        assert entries(tmp_path) == before


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The folder of a demo that has ended, with a file of the user's."""
    home, folder = tmp_path / "demo", DemoFolder(tmp_path / "demo")
    folder.begin(MADE)
    (home / "runs" / "demo").mkdir(parents=True)
    (home / "runs" / "demo" / "config.yaml").write_text("seed: 1")
    for name, table, column in (("seqmlm.db", "seqmlm_models", "name"), ("mlflow.db", "runs", "run_uuid")):
        with closing(sqlite3.connect(home / name)) as database:
            database.execute(f"create table {table} ({column} text, version integer)")
    (home / "report.html").write_text("report")
    folder.list_files()
    (home / "runs" / "demo" / "notes.txt").write_text("notes")
    return home


@pytest.mark.parametrize("remove", [True, False])
def test_the_next_demo_deletes_what_the_last_one_listed(made: Path, remove: bool) -> None:
    folder = DemoFolder(made)
    folder.remove() if remove else folder.clear()
    assert [*entries(made)] == [str(made / "runs" / "demo" / "notes.txt")]
    if not remove:
        folder.begin(MADE)
        (made / "new.fasta").write_text(">a\nMK\n")
        folder.list_files()
        DemoFolder(made).remove()
        assert [*entries(made)] == [str(made / "runs" / "demo" / "notes.txt")]


def test_what_others_save_while_a_demo_runs_is_not_its_own(made: Path) -> None:
    folder = DemoFolder(made)
    folder.clear()
    folder.begin(MADE)
    (made / "sample").mkdir()
    (made / "sample" / "protein.fasta").write_text(">a\nMK\n")
    others = ("thesis.txt", "sample/mine.fasta", "notes/new.fasta", "runs.txt")
    for name in others:
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text("a year of work")
    folder.list_files()
    DemoFolder(made).remove()
    left = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()}
    assert left == {*others, "runs/demo/notes.txt"}


@pytest.mark.parametrize("work", ["model", "folder"])
def test_work_of_others_while_a_demo_runs_is_not_its_own(made: Path, work: str) -> None:
    folder = DemoFolder(made)
    with closing(sqlite3.connect(made / "seqmlm.db")) as database, database:
        database.execute("insert into seqmlm_models values ('demo', 1)")
        if work == "model":
            database.execute("insert into seqmlm_models values ('mine', 1)")
    if work == "folder":
        (made / "runs" / "mine").mkdir()
    folder.list_files()
    with pytest.raises(StateError, match="mine"):
        DemoFolder(made).clear()


def test_a_demo_whose_time_is_no_duration_deletes_nothing(seqmlm: Run, made: Path) -> None:
    before = entries(made)
    seqmlm("demo", "--out", made, "--max-time", "foo").refused(2, "is not a duration")
    assert entries(made) == before


@pytest.mark.parametrize("work", ["model", "run", "folder", "changed", "damaged", "new"])
def test_a_demo_that_was_worked_in_is_not_deleted(made: Path, work: str) -> None:
    if work in ("model", "run"):
        name, table = ("seqmlm.db", "seqmlm_models") if work == "model" else ("mlflow.db", "runs")
        with closing(sqlite3.connect(made / name)) as database, database:
            database.execute(f"insert into {table} values ('mine', 1)")
    elif work == "folder":
        (made / "runs" / "mine").mkdir()
    elif work == "changed":
        (made / "report.html").write_text("my notes on the report")
    elif work == "damaged":
        (made / "seqmlm.db").write_bytes(b"no database" * 100)
    before = entries(made)
    if work == "new":  # a name that the demo needs
        (made / "new.fasta").write_text(">a\nMK\n")
        before = entries(made)
        with pytest.raises(StateError, match=r"new\.fasta"):
            DemoFolder(made).clear(("new.fasta",))
        assert entries(made) == before, "the earlier demo is deleted only where the next one can begin"
        return
    with pytest.raises(StateError, match="--out"):
        DemoFolder(made).clear()
    assert entries(made) == before


def test_readmes_picture_is_drawn_from_what_models_find(
    forks: ForkServer, tracked_workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tracked_workspace)
    forks.run(script=EXAMPLES / "picture.py", environment={"N": "300", "TIME": "0.5s"}).ok()
    drawn = (tracked_workspace / "picture.svg").read_text()
    assert "found (blue) and known (red)" in drawn
    assert "request_id=" in drawn
