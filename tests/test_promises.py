"""README's own command lines on real files: they end well, within their limits, and say what they did.

Each test takes a small part of a real data set, so that it takes seconds; the same lines on the whole files
are run by hand before a release. These tests judge whatever is changed below them.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fork_server import Run
from tiny_models import SMALL

from seqmlm.inference.calibrations import stored_calibrations
from seqmlm.scoring import calibrate
from seqmlm.scoring import plan as score_plan
from seqmlm.training import finalize

FEW_STEPS = ("--set", "train.max_steps=4", "--set", "train.evaluation_records=32", "--set", SMALL)
"""A training of seconds: what is promised holds for a small model that has learnt nothing, too."""


def entries(path: Path) -> Iterator[str]:
    """The records of a FASTA file, each as it stands there."""
    with gzip.open(path, "rt") as file:
        for text in file.read().split(">")[1:]:
            yield f">{text}"


@pytest.fixture
def proteins(real_data: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Short proteins of E. coli to train on, nine tenths of them, and the others."""
    found = entries(real_data / "protein" / "pretrain" / "ecoli_k12_proteome.faa.gz")
    short = [one for one in found if len(one) < 260][:660]
    known, new = tmp_path / "my_proteins.fasta.gz", tmp_path / "new.fasta"
    known.write_bytes(gzip.compress("".join(one for n, one in enumerate(short) if n % 10).encode()))
    new.write_text("".join(short[::10]))
    return known, new


@pytest.fixture
def patients(real_data: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Folders with all tables of some patients of Synthea, and of others."""
    source = real_data / "ehr" / "synthea_ibm"
    tables = {}
    for name in ("patients", "conditions", "medications", "allergies"):
        with gzip.open(source / f"{name}.csv.gz", "rt", newline="") as file:
            tables[name] = list(csv.reader(file))
    folders = tmp_path / "known", tmp_path / "new"
    for folder, some in zip(folders, (slice(1, 121), slice(121, 146)), strict=True):
        folder.mkdir()
        kept = {row[tables["patients"][0].index("ID")] for row in tables["patients"][some]}
        for name, (header, *rows) in tables.items():
            own = header.index("ID" if name == "patients" else "PATIENT")
            with (folder / f"{name}.csv").open("w", newline="") as out:
                csv.writer(out).writerows([header, *(row for row in rows if row[own] in kept)])
    return folders


@pytest.fixture
def genome(real_data: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The first 100 kb of E. coli, and the next 10 kb."""
    [text] = entries(real_data / "dna" / "genomes" / "ecoli_k12_GCF_000005845.2.fna.gz")
    known, new = tmp_path / "genome.fa", tmp_path / "new.fa"
    known.write_text(text[:101_000] + "\n")
    new.write_text(">new\n" + text[101_000:111_000] + "\n")
    return known, new


@pytest.fixture
def every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is told whenever there is any."""
    monkeypatch.setattr("seqmlm.cli.console.SECONDS_BETWEEN_LINES", 0.0)


def rows_of(home: Path, name: str) -> dict[str, int]:
    """Rows that a model's default level is calibrated with, by mode."""
    found = stored_calibrations(home / "runs" / name / "model")
    return {mode: one.rows for (_, mode), one in found.items()}


def test_proteins_at_one_alarm_in_a_hundred(
    proteins: tuple[Path, Path], seqmlm: Run, tracked_workspace: Path, tmp_path: Path, every_line: None
) -> None:
    known, new = proteins
    train = ("train", "--domain", "protein", known, "--max-time", "60s", "--name", "enzymes")
    done = seqmlm(*train, *FEW_STEPS).ok()
    assert "calibrating one-pass: " in done.err
    assert max(rows_of(tracked_workspace, "enzymes").values()) >= 99, "--fpr 0.01 needs so many"
    report, out = tmp_path / "new.html", tmp_path / "scores.jsonl"
    done = seqmlm("score", "enzymes", new, "--fpr", "0.01", "--report", report, "--out", out).ok()
    assert done.err.startswith("using "), "which mode, and why"
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 66
    assert all(0 < row["p_value"] <= 1 and row["alarm"] == (row["p_value"] <= 0.01) for row in rows)
    assert report.read_text().startswith("<!doctype html>")


def test_proteins_too_few_to_hold_enough_out(
    proteins: tuple[Path, Path], seqmlm: Run, tmp_path: Path
) -> None:
    few = tmp_path / "few.fasta"
    few.write_text(">".join(gzip.decompress(proteins[0].read_bytes()).decode().split(">")[:201]))
    done = seqmlm("train", "--domain", "protein", few, "--max-time", "60s", "--name", "few", *FEW_STEPS).ok()
    told = done.err.partition("step 1")[0]
    assert (
        "(0.01 needs 99). Give more data, or calibrate after the training: seqmlm calibrate few NORMAL"
        in told
    )


def test_patients_at_one_alarm_in_twenty(
    patients: tuple[Path, Path], seqmlm: Run, tracked_workspace: Path, tmp_path: Path
) -> None:
    known, new = patients
    train = ("train", "--domain", "ehr", known, "--max-time", "60s", "--name", "cohort")
    assert seqmlm(*train, *FEW_STEPS).code == 0
    assert rows_of(tracked_workspace, "cohort")
    report, out = tmp_path / "out.html", tmp_path / "out.jsonl"
    seqmlm("score", "cohort", new, "--fpr", "0.05", "--report", report, "--out", out).ok()
    assert len(out.read_text().splitlines()) > 100
    assert report.stat().st_size > 1000


def test_a_genome(
    genome: tuple[Path, Path],
    seqmlm: Run,
    tracked_workspace: Path,
    every_line: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged: list[int] = []
    portions = calibrate.Calibrator._portions

    def watched(*given: Any) -> Iterator[calibrate.Portion]:
        for portion in portions(*given):
            judged.extend(len(one.record.raw) for one in portion.records)
            yield portion

    monkeypatch.setattr(calibrate.Calibrator, "_portions", watched)
    train = ("train", "--domain", "dna", genome[0], "--max-time", "60s", "--name", "genome")
    done = seqmlm(*train, *FEW_STEPS).ok()
    assert "calibrating one-pass: " in done.err
    rows = rows_of(tracked_workspace, "genome")
    assert rows["one-pass"] >= 100
    assert max(judged) < 3000, "stretches of windows, never a block of 16,384 bases"
    track = tracked_workspace / "out.bedGraph"
    seqmlm("score", "genome", genome[1], "--fpr", "0.01", "--out", track).ok()
    assert len(track.read_text().splitlines()) > 100


def test_a_kill_while_a_genome_is_calibrated_leaves_a_model(
    genome: tuple[Path, Path], seqmlm: Run, tracked_workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    train = ("train", "--domain", "dna", genome[0], "--max-time", "60s", "--name", "genome")
    with monkeypatch.context() as patched:
        patched.setattr(finalize, "calibrate_trained", killed)
        assert seqmlm(*train, *FEW_STEPS).code == 130
    assert rows_of(tracked_workspace, "genome") == {}
    with monkeypatch.context() as patched:
        patched.setattr(score_plan, "PATIENCE", 0.01)  # of a whole genome, exactly scored, it were hours
        done = seqmlm("score", "genome", genome[1], "--out", tracked_workspace / "raw.jsonl").ok()
    assert done.err.splitlines()[0].startswith("using one-pass")
    assert seqmlm("train", "--resume", "genome").code == 0
    assert rows_of(tracked_workspace, "genome")
    assert [one["version"] for one in seqmlm("models", "list", "--json").json] == [1]
