"""`seqmlm score` as a person starts it: a process of its own, killed, starved of disk, fed through a pipe."""

from __future__ import annotations

import csv
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_fields import random_model
from tiny_models import protein_model

from seqmlm.data.problems import Problems
from seqmlm.evaluation.conformal import Calibration
from seqmlm.inference import model_folder
from seqmlm.inference.calibrations import Stored, store
from seqmlm.inference.detector import Detector, table
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.tokenizers.kmer import BaseTokenizer

PACED = Path(__file__).resolve().parents[1] / "support" / "paced_cli.py"
SECONDS = 240  # patience with a busy machine


def fasta(path: Path, count: int, seed: int, *, longest: int = 30) -> Path:
    rng = np.random.default_rng(seed)
    letters = list("LAGVSERTIDPKQNFYMHWC")
    sequences = ["".join(rng.choice(letters, size=int(rng.integers(8, longest)))) for _ in range(count)]
    path.write_text("".join(f">p{seed}.{n}\n{one}\n" for n, one in enumerate(sequences)))
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A workspace beside the folder of a calibrated model, `mine`."""
    home = tmp_path_factory.mktemp("home")
    (home / "mlflow.db").write_bytes(empty_store.read_bytes())
    loaded = protein_model()
    folder = home / "mine"
    model_folder.write(folder, loaded.rows, loaded.tokenizer, loaded.card)
    detector = Detector(RecordScorer(Session(loaded)), loaded.domain.level(None))
    records = loaded.domain.read([fasta(home / "normal.fasta", 200, 1)], Problems())
    found = [one.row for one in detector.judged(records, Problems())]
    calibration = Calibration.fit(*table(found, detector.level.statistics), seed=0)
    store(folder, {(detector.level.name, "exact"): Stored(calibration=calibration)})
    return home


def started(home: Path, *arguments: object, program: Path | None = None, **settings: Any) -> Any:
    named = [str(program)] if program is not None else ["-m", "seqmlm"]
    environment = {**os.environ, "SEQMLM_HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *named, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


def run(home: Path, *arguments: object, **settings: Any) -> subprocess.CompletedProcess[str]:
    process = started(home, *arguments, **settings)
    out, err = process.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess(process.args, process.returncode, out, " ".join(err.split()))


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_killed_in_the_middle_and_gone_on_with(home: Path, tmp_path: Path, suffix: str) -> None:
    source = fasta(tmp_path / "many.fasta", 1200, 5, longest=60)
    source.write_text(source.read_text().replace(">p5.700\n", ">odd\nMK1\n>p5.700\n"))
    whole, out = tmp_path / f"whole.{suffix}", tmp_path / f"out.{suffix}"
    common = ("score", home / "mine", source, "--mode", "exact", "--on-error", "quarantine")
    assert run(home, *common, "--out", whole, program=PACED).returncode == 0
    cursor = Path(f"{out}.resume.json")
    kills = 0
    for least in (40, 400, 800):
        process = started(home, *common, "--out", out, "--resume", program=PACED)
        while process.poll() is None and not (cursor.exists() and _records(cursor) >= least):
            time.sleep(0.002)
        process.kill()
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
    assert kills == 3
    assert 800 <= _records(cursor) < 1201
    last = run(home, *common, "--out", out, "--resume", program=PACED)
    assert last.returncode == 0, last.stderr
    assert "continuing" in last.stderr
    assert "scored 1,200 records" in last.stderr
    assert ", 1 bad record left out" in last.stderr
    assert out.read_bytes() == whole.read_bytes()
    assert Path(f"{out}.quarantine.jsonl").read_bytes() == Path(f"{whole}.quarantine.jsonl").read_bytes()


def _records(cursor: Path) -> int:
    return int(json.loads(cursor.read_text())["position"]["records"])


def test_alarms_by_the_stored_calibration(home: Path, tmp_path: Path) -> None:
    source, out, report = fasta(tmp_path / "n.fasta", 60, 6), tmp_path / "x.jsonl", tmp_path / "r.html"
    asked = ("--fpr", "0.2", "--out", out, "--report", report, "--json")
    done = run(home, "score", home / "mine", source, "--mode", "exact", *asked)
    assert done.returncode == 0, done.stderr
    summary, found = json.loads(done.stdout), rows(out)
    assert [row["alarm"] for row in found] == [row["p_value"] <= 0.2 for row in found]
    assert summary["alarms"] == sum(row["alarm"] for row in found) > 0
    assert 0 < summary["incidents"] <= summary["alarms"]
    assert f"{summary['alarms']} alarms in {summary['incidents']} incidents" in done.stderr
    [kept] = (home / "mlartifacts").rglob("r.html")
    assert kept.read_bytes() == report.read_bytes()
    assert "sensitive" not in found[0]


def test_a_track_is_kept_with_a_run(home: Path, tmp_path: Path) -> None:
    loaded = random_model("dna", BaseTokenizer(), max_length=64)
    model_folder.write(tmp_path / "dna", loaded.rows, loaded.tokenizer, loaded.card)
    source, track = tmp_path / "g.fasta", tmp_path / "g.bedgraph"
    source.write_text(">chr1\n" + "ACGTTGCAAT" * 30 + "\n")
    done = run(home, "score", tmp_path / "dna", source, "--track", track, "--out", tmp_path / "x.jsonl")
    assert done.returncode == 0, done.stderr
    assert "chr1\t" in track.read_text()
    [kept] = (home / "mlartifacts").rglob("g.bedgraph")
    assert kept.read_bytes() == track.read_bytes()


def test_of_sensitive_data_nothing_is_kept_with_the_run_and_every_row_says_so(
    home: Path, tmp_path: Path
) -> None:
    loaded = protein_model()
    card = replace(loaded.card, sensitive=True)
    model_folder.write(tmp_path / "private", loaded.rows, loaded.tokenizer, card)
    source, report = fasta(tmp_path / "s.fasta", 12, 4), tmp_path / "private.html"
    common = ("score", tmp_path / "private", source, "--mode", "partition:4")
    refused = run(home, *common)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--out" in refused.stderr
    for name in ("x.jsonl", "x.csv", "x.parquet"):
        out = tmp_path / name
        done = run(home, *common, "--out", out, *(["--report", report] if name == "x.jsonl" else []))
        assert done.returncode == 0, done.stderr
        assert (done.stdout, out.stat().st_mode & 0o777) == ("", 0o600)
    assert all(row["sensitive"] is True for row in rows(tmp_path / "x.jsonl"))
    with (tmp_path / "x.csv").open(newline="") as table:
        assert {row["sensitive"] for row in csv.DictReader(table)} == {"true"}
    labels = tmp_path / "labels.csv"
    ids = [row["id"] for row in rows(tmp_path / "x.jsonl")]
    labels.write_text("id,label\n" + "".join(f"{name},{int(n < 3)}\n" for n, name in enumerate(ids)))
    told = run(home, "evaluate", tmp_path / "x.parquet", "--labels", labels, "--json")
    assert told.returncode != 0
    assert "11" in told.stderr
    assert "0.25" not in told.stderr + told.stdout
    assert report.stat().st_mode & 0o777 == 0o600
    assert not list((home / "mlartifacts").rglob("private.html"))


def test_a_line_of_100_mb_and_bytes_that_are_no_text(home: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "odd.fasta", tmp_path / "x.jsonl"
    with source.open("wb") as file:
        file.write(b">a\nMKVL\n>long\n")
        for _ in range(100):
            file.write(b"M" * (1 << 20))
        file.write(b"\n>b\nMK\xff\xfeV\n>c\nMKLV\n")
    raised = run(home, "score", home / "mine", source, "--out", out)
    assert raised.returncode == 3
    assert f"{source}:" in raised.stderr
    assert "--on-error skip ignores bad records" in raised.stderr
    done = run(home, "score", home / "mine", source, "--out", out, "--on-error", "skip", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["id"] for row in rows(out)] == ["a", "c"]
    assert json.loads(done.stdout)["bad"] >= 2


def test_what_is_empty_strange_or_nowhere_is_named(home: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.fasta").write_text("")
    good = fasta(tmp_path / "good.fasta", 3, 7)
    for arguments, code, words in (
        (("calibrate", home / "mine", tmp_path / "empty.fasta"), 3, "empty"),
        (("score", home / "mine", good, "--domain", "text"), 2, "is a protein model"),
        (
            ("score", home / "mine", good, "--fpr", "0.1", "--baseline", tmp_path / "none.jsonl"),
            3,
            "none.jsonl",
        ),
        (("score", home / "mine", tmp_path / "nowhere.fasta"), 3, "nowhere.fasta"),
    ):
        done = run(home, *arguments)
        assert done.returncode == code, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
        assert "hint: --on-error" not in done.stderr, "skipping would not help"


def _limited(size: int) -> Callable[[], None]:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


@pytest.mark.filterwarnings("ignore:.*preexec_fn.*:DeprecationWarning")
def test_a_full_disk_keeps_what_was_committed(home: Path, tmp_path: Path) -> None:
    source = fasta(tmp_path / "many.fasta", 400, 8)
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert (
        run(home, "score", home / "mine", source, "--per-unit", "--out", whole, program=PACED).returncode == 0
    )
    room = whole.stat().st_size // 2
    common = ("score", home / "mine", source, "--per-unit", "--out", out)
    full = run(home, *common, program=PACED, preexec_fn=_limited(room))
    assert full.returncode == 4, full.stderr
    assert "--resume" in full.stderr
    assert "Traceback" not in full.stderr
    done = run(home, *common, "--resume", program=PACED)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == whole.read_bytes()


def test_a_target_that_cannot_be_written_is_named(home: Path, tmp_path: Path) -> None:
    source = fasta(tmp_path / "few.fasta", 3, 9)
    (tmp_path / "file").write_text("")
    done = run(home, "score", home / "mine", source, "--out", tmp_path / "file" / "x.jsonl")
    assert done.returncode == 4, done.stderr
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    if os.geteuid():
        folder = tmp_path / "closed"
        folder.mkdir(mode=0o500)
        assert run(home, "score", home / "mine", source, "--out", folder / "x.jsonl").returncode == 4


def test_rows_come_in_time_while_the_pipe_stays_open(home: Path) -> None:
    process = started(
        home, "score", home / "mine", "-", "--format", "fasta", "--max-latency", "1s", stdin=subprocess.PIPE
    )
    process.stdin.write(">a\nMKVLA\n>b\nMK\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["id"] == "a"  # the model is loaded from here on
    for name in ("c", "d"):
        sent = time.monotonic()
        process.stdin.write(f"VLA\n>{name}\nMKVV\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == chr(ord(name) - 1)
        assert time.monotonic() - sent < 1 + 4, "the latency, and a busy machine's slack"
        assert process.poll() is None
    process.stdin.close()
    process.wait(SECONDS)
    assert process.returncode == 0
    process.stdout.close()
    process.stderr.close()
