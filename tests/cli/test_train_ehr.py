"""Patients through the command line: training, channels, scores, and that nothing of one patient gets out."""

from __future__ import annotations

import json
import stat
import struct
from pathlib import Path

import histories as patients
import pytest
from fork_server import Run
from tiny_models import TINY
from written import written

FAST = (*TINY, "--set", "train.tokens_per_row=512", "--set", "train.tokens_per_batch=1024", "--json")
CHANNELS = ("--set", "tokenizer.options.channels=[age, time, visit, segment]")
CANARY = ("canarysubject", "CANARYCODE", "canarytext", "canaryvisit", "canarytime", "31337.4242")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = patients.table(patients.histories(80))
    return written(tmp_path / "data" / "events.csv", "\n".join(lines) + "\n")


def test_train_with_channels_score_and_go_on(seqmlm: Run, table: Path, workspace: Path) -> None:
    seqmlm("train", "-d", "ehr", table, *FAST, *CHANNELS, "--name", "first", "--max-steps", 3).ok()
    folder = workspace / "runs/first/model"
    card = json.loads((folder / "seqmlm.json").read_text())
    assert sorted(card["channels"]) == ["age", "segment", "time", "visit"]
    assert card["sensitive"]
    for path in (workspace / "runs/first").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert not (workspace / "runs/first/predictions.txt").exists()
    scores = workspace / "scores.jsonl"
    seqmlm("score", "first", table, "--set", "per_unit=true", "--out", scores).ok()
    lines = [json.loads(line) for line in scores.read_text().splitlines()]
    assert len({line["id"].split("#")[0] for line in lines}) == 80
    assert len({line["id"] for line in lines}) == len(lines) > 80  # a row a visit
    assert all(line["visit"] >= 1 and "missing" in line for line in lines)
    assert lines[0]["per_unit"][0]["unit"].startswith("DRUG//")
    assert seqmlm("models", "export", "first", "--out", workspace / "out").code == 0
    assert (workspace / "out/channels.safetensors").exists()
    seqmlm(
        "train", "-d", "ehr", table, "--init", "first", "--name", "more", "--max-steps", 2, *FAST[-3:]
    ).ok()
    again = json.loads((workspace / "runs/more/model/seqmlm.json").read_text())
    assert again["channels"] == card["channels"]
    (workspace / "out/channels.safetensors").unlink()
    seqmlm("score", workspace / "out", table, "--out", scores).refused(4, "channels.safetensors")


def test_nothing_of_one_patient_gets_out(seqmlm: Run, table: Path, workspace: Path) -> None:
    lines = patients.table(patients.histories(80))
    lines[5:5] = [
        "canarysubject,2001-01-01,CANARYCODE,31337.4242,,canaryvisit",
        "canarysubject,2001-01-02,LAB//2345-7,31337.4242,,canaryvisit",
        "canarysubject,2001-01-02,LAB//5778-6,,canarytext,canaryvisit",
        "canarysubject,canarytime,CANARYCODE,31337.4242,canarytext,canaryvisit",
    ]
    table.write_text("\n".join(lines) + "\n")
    spoken = []
    for arguments in (
        ("train", "-d", "ehr", table, *FAST, *CHANNELS, "--name", "raised", "--max-steps", 3),
        (
            *("train", "-d", "ehr", table, *FAST, *CHANNELS, "--name", "kept", "--max-steps", 3),
            *("--set", "data.on_error=quarantine"),
        ),
        ("models", "export", "kept", "--out", workspace / "exported"),
        ("models", "show", "kept"),
        ("train", "-d", "ehr", table, *FAST, "--option", "code=nothing", "--name", "wrong"),
        ("train", "-d", "ehr", table, *FAST, "--set", "tokenizer.options.min_subjects=900"),
    ):
        done = seqmlm(*arguments)
        spoken.append((done.code, done.out + done.err))
    assert [code for code, _ in spoken] == [3, 0, 0, 0, 3, 3]
    for _, text in spoken:
        assert not [trace for trace in CANARY if trace in text], text
    needles = [trace.encode() for trace in CANARY]
    needles += [struct.pack("<d", 31337.4242), struct.pack("<f", 31337.4242)]
    cache = workspace / "runs" / ".cache"
    searched = 0
    for path in workspace.rglob("*"):
        if not path.is_file() or path == table:
            continue
        found = [needle for needle in needles if needle in path.read_bytes()]
        if cache in path.parents:
            # Prepared data say which subject a row is of; they are for their owner alone, and hold no value.
            private = any(stat.S_IMODE(own.stat().st_mode) == 0o700 for own in path.parents)
            assert not found or (found == [b"canarysubject"] and private), (path, found)
        else:
            assert not found, (path, found)
        searched += 1
    assert searched > 20
    aside = workspace / "runs/kept/quarantine.jsonl"
    assert stat.S_IMODE(aside.stat().st_mode) == 0o600
    assert json.loads(aside.read_text().splitlines()[0])["line"] == 9
