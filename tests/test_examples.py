"""The examples run as they stand, from a sample to predictions; their commands in forked processes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import small_samples
from fork_server import ForkServer, Run

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
    for words in ("$ seqmlm train --domain protein", "$ seqmlm models list", "$ seqmlm score demo"):
        assert words in done.err
    assert "bits per residue\tp-value" in done.out
    assert "... and 15 more usual ones" in done.out
    rows = [json.loads(line) for line in (home / "scores.jsonl").read_text().splitlines()]
    assert len(rows) == 25
    assert (home / "report.html").exists()
    (home / "seqmlm.db").unlink()
    seqmlm("demo", "--out", home).refused(4, "is no demo of ours")


def test_readmes_picture_is_drawn_from_what_models_find(
    forks: ForkServer, tracked_workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tracked_workspace)
    forks.run(script=EXAMPLES / "picture.py", environment={"N": "300", "TIME": "0.5s"}).ok()
    drawn = (tracked_workspace / "picture.svg").read_text()
    assert "found (blue) and known (red)" in drawn
    assert "request_id=" in drawn
