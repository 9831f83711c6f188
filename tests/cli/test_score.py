"""`seqmlm score` as a person starts it: a process of its own, killed, starved of disk, fed through a pipe."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fork_server import Finished, ForkServer, Run
from tiny_models import protein_model, proteins, random_model, saved
from written import rows

from seqmlm.anomaly.judge import Normal
from seqmlm.data.counts import redacted
from seqmlm.data.problems import Problems
from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.inference.calibrations import Stored, store
from seqmlm.inference.detector import Detector, table
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.scoring.config import ScoreConfig
from seqmlm.scoring.output import Tally
from seqmlm.scoring.score import Score
from seqmlm.tasks.task import open_model

SECONDS = 240  # patience with a busy machine


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A workspace beside the folder of a calibrated model, `mine`."""
    home = tmp_path_factory.mktemp("home")
    (home / "mlflow.db").write_bytes(empty_store.read_bytes())
    calibrated(home / "mine", home / "normal.fasta")
    return home


def calibrated(folder: Path, normal: Path, **card: Any) -> Path:
    """The folder of a model that is calibrated with 200 proteins, which are written to a file."""
    loaded = protein_model()
    saved(loaded, folder, **card)
    detector = Detector(RecordScorer(Session(loaded)), loaded.domain.level(None))
    records = loaded.domain.read([proteins(normal, 200, 1)], Problems())
    found = [one.row for one in detector.judged_rows(records, Problems())]
    calibration = Normal.fit(*table(found, detector.level.statistics.judging), seed=0)
    store(folder, {(detector.level.name, "exact"): Stored(fitted=calibration)})
    return folder


@pytest.fixture
def run(home: Path, forks: ForkServer) -> Callable[..., Finished]:
    """Runs a command line in the workspace to its end."""

    def run(*words: object, **settings: Any) -> Finished:
        done = forks.run(*words, environment={"SEQMLM_HOME": str(home)}, seconds=SECONDS, **settings)
        return replace(done, err=" ".join(done.err.split()))

    return run


def test_alarms_by_the_stored_calibration(run: Run, home: Path, tmp_path: Path) -> None:
    source, out, report = (proteins(tmp_path / "n.fasta", 60, 6), tmp_path / "x.jsonl", tmp_path / "r.html")
    asked = ("--fpr", "0.2", "--out", out, "--report", report, "--json")
    done = run("score", home / "mine", source, "--mode", "exact", *asked).ok()
    summary, found = done.json, rows(out)
    assert [row["alarm"] for row in found] == [row["p_value"] <= 0.2 for row in found]
    assert summary["alarms"] == sum(row["alarm"] for row in found) > 0
    assert 0 < summary["incidents"] <= summary["alarms"]
    [kept] = (home / "mlartifacts").rglob("r.html")
    assert kept.read_bytes() == report.read_bytes()
    assert "sensitive" not in found[0]


def test_a_model_and_a_file_in_the_wrong_order(run: Run, home: Path, tmp_path: Path) -> None:
    source = proteins(tmp_path / "n.fasta", 3, 6)
    run("score", source, "mine").refused(2, "no file or folder mine, and", "give the model first")
    run("score", home / "mine", tmp_path / "none.fasta").refused(3, "no such file or folder")


def test_rows_keep_what_a_fasta_header_says(run: Run, home: Path, tmp_path: Path) -> None:
    source, report = tmp_path / "n.fasta", tmp_path / "n.html"
    source.write_text(">P1 thr operon leader peptide\nMKRISTTITTTITITTGNGAG\n>P2\nMKRISTTIT\n")
    given = ("score", home / "mine", source, "--mode", "exact")
    one, other = run(*given).ok().rows
    assert (one["id"], one["description"], other.get("description")) == (
        "P1",
        "thr operon leader peptide",
        None,
    )
    part, *_ = run(*given, "--level", "residue").ok().rows
    assert "description" not in part
    run(*given, "--report", report).ok()
    assert "thr operon leader peptide" in report.read_text()


def test_of_a_terminal_an_alarm_is_two_lines(home: Path, tmp_path: Path) -> None:
    source = proteins(tmp_path / "n.fasta", 3, 6)
    config = ScoreConfig(model=str(home / "mine"), paths=(str(source),), mode="exact", fpr=0.2)
    task = Score(config, open_model(config))
    row = {"id": "p6.0", "source": "n.fasta", "line": 1, "p_value": 0.0712, "bits_per_unit": 4.25}
    assert task.line(row) == "n.fasta:1  p 0.071  p6.0  4.25 bits per residue"
    alarm = {**row, "alarm": True, "reason": "An unusual protein.", "start": 2, "end": 5}
    expected = "n.fasta:1  p 0.071  ALARM  p6.0  3 to 5  4.25 bits per residue\n    An unusual protein."
    assert task.line(alarm) == expected
    assert task.line({**row, "p_value": None, "bits_per_unit": None}) == "n.fasta:1  p6.0"
    named = {**row, "description": "thr operon leader peptide " * 3}
    first, second = "thr operon leader peptide thr operon leader ...", "  4.25 bits per residue"
    assert task.line(named) == f"n.fasta:1  p 0.071  p6.0  {first}{second}"
    assert not task.output.hint, "the usual one, about a report"
    silent = Score(replace(config, fpr=None), task.session)
    assert silent.output.hint.startswith("next: add --fpr 0.05")


def test_a_track_takes_the_place_of_rows_and_is_kept_with_a_report(
    run: Run, home: Path, tmp_path: Path
) -> None:
    saved(random_model("dna", BaseTokenizer(), max_length=64), tmp_path / "dna")
    source, track = tmp_path / "g.fasta", tmp_path / "g.bedgraph"
    source.write_text(">chr1\n" + "ACGTTGCAAT" * 30 + "\n")
    done = run("score", tmp_path / "dna", source, "--out", track, "--report", tmp_path / "g.html").ok()
    assert done.out == ""
    assert "chr1\t" in track.read_text()
    [kept] = (home / "mlartifacts").rglob("g.bedgraph")
    assert kept.read_bytes() == track.read_bytes()
    refused = run("score", tmp_path / "dna", source, "--out", track, "--resume")
    assert (refused.code, "a file of rows" in refused.err) == (2, True)
    mine = run("score", home / "mine", proteins(tmp_path / "n.fasta", 3, 6), "--out", track)
    assert (mine.code, "have no place on a coordinate axis" in mine.err) == (2, True)


def test_a_page_that_lists_rows_of_sensitive_data_hides_no_count_of_them(run: Run, tmp_path: Path) -> None:
    """Elsewhere a count of records is one of people: 1 to 10 of them are not told."""
    model = calibrated(tmp_path / "private", tmp_path / "normal.fasta", sensitive=True)
    source, out, report = proteins(tmp_path / "n.fasta", 9, 6), tmp_path / "x.jsonl", tmp_path / "r.html"
    asked = ("--mode", "exact", "--fpr", "0.5", "--out", out, "--report", report)
    done = run("score", model, source, *asked).ok()
    alarms = sum(row["alarm"] for row in rows(out))
    assert 0 < alarms < 9
    verb = "raises" if alarms == 1 else "raise"
    assert f"{alarms} of 9 proteins {verb} an alarm at 50 %" in report.read_text()
    assert "&lt;11" not in report.read_text()
    assert "scored <11 records" in done.err
    assert "<11 alarms in <11 incidents" in done.err
    told = run("score", model, source, *asked[:-4], "--out", tmp_path / "y.jsonl", "--json").ok().json
    assert (told["rows"], told["alarms"], told["items"]) == ("<11", "<11", "<11")


@pytest.mark.parametrize(("people", "shown"), [(True, "<11"), (False, 3)])
def test_alarms_of_parts_of_records_are_no_people(people: bool, shown: object) -> None:
    tally = Tally()
    for number in range(3):
        found = {"units": 4, "score": 1.0, "source": "f", "line": number, "place": (f"{number}", 0.0, 1.0)}
        tally.add({**found, "alarm": True})
    plan: Any = SimpleNamespace(level=SimpleNamespace(counts_people=people), alpha=0.05, stored=None)
    told = redacted(tally.figures(plan))
    assert (told["rows"], told["alarms"], told["incidents"], told["units"]) == (shown, shown, shown, 12)


def test_every_row_of_sensitive_data_says_so(run: Run, tmp_path: Path) -> None:
    saved(protein_model(), tmp_path / "private", sensitive=True)
    source = proteins(tmp_path / "s.fasta", 12, 4)
    for name in ("x.jsonl", "x.csv", "x.parquet"):
        out = tmp_path / name
        done = run("score", tmp_path / "private", source, "--mode", "partition:4", "--out", out).ok()
        assert (done.out, out.stat().st_mode & 0o777) == ("", 0o600)
    assert all(row["sensitive"] is True for row in rows(tmp_path / "x.jsonl"))
    with (tmp_path / "x.csv").open(newline="") as table:
        assert {row["sensitive"] for row in csv.DictReader(table)} == {"true"}
    labels = tmp_path / "labels.csv"
    ids = [row["id"] for row in rows(tmp_path / "x.jsonl")]
    labels.write_text("id,label\n" + "".join(f"{name},{int(n < 3)}\n" for n, name in enumerate(ids)))
    told = run("evaluate", tmp_path / "x.parquet", "--labels", labels, "--json")
    assert told.code != 0
    assert "11" in told.err
    assert "0.25" not in told.err + told.out


def test_rows_come_in_time_while_the_pipe_stays_open(forks: ForkServer, home: Path) -> None:
    process = forks.start(
        *("score", home / "mine", "-", "--set", "format=fasta", "--max-latency", "1s"),
        stdin=None,
        environment={"SEQMLM_HOME": str(home)},
    )
    process.stdin.write(">a\nMKVLA\n>b\nMK\n")
    process.stdin.flush()
    assert json.loads(process.line(0, SECONDS))["id"] == "a"  # the model is loaded from here on
    for number, name in enumerate("cd", start=1):
        sent = time.monotonic()
        process.stdin.write(f"VLA\n>{name}\nMKVV\n")
        process.stdin.flush()
        assert json.loads(process.line(number, SECONDS))["id"] == chr(ord(name) - 1)
        assert time.monotonic() - sent < 1 + 4, "the latency, and a busy machine's slack"
        assert process.poll() is None
    assert process.wait(SECONDS).code == 0


def test_alarms_of_a_live_input_come_to_the_file_while_the_pipe_stays_open(
    forks: ForkServer, home: Path, tmp_path: Path
) -> None:
    out = tmp_path / "alarms.jsonl"
    asked = ("--mode", "exact", "--fpr", "0.9", "--set", "alarms_only=true", "--out", out)
    process = forks.start(
        *("score", home / "mine", "-", "--set", "format=fasta", "--max-latency", "1s", *asked),
        stdin=None,
        environment={"SEQMLM_HOME": str(home)},
    )
    process.stdin.write("".join(f">p{n}\n{'WCHM'[n % 4] * 9}MKVLA\n" for n in range(40)))
    process.stdin.flush()
    began = time.monotonic()
    while not (out.exists() and out.read_text()):
        assert time.monotonic() - began < SECONDS
        time.sleep(0.05)
    assert process.poll() is None
    done = process.wait(SECONDS)
    assert done.code == 0, done.err
    found = rows(out)
    assert all(row["alarm"] for row in found)
    assert f"{len(found)} alarms in" in done.err


def test_what_is_no_source_code_is_not_reviewed(run: Run, home: Path, tmp_path: Path) -> None:
    refused = run("review", home / "mine", proteins(tmp_path / "n.fasta", 3, 6))
    assert (refused.code, "use 'seqmlm score'" in refused.err) == (2, True)
