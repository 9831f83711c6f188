"""Scoring end to end with a tiny model: stops, resumes, faults, alarms, and requests that make no sense."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tiny_models import protein_model, residues

from seqmlm.errors import DataError, SeqmlmError, StateError, UsageError
from seqmlm.inference import batches, model_folder, runner
from seqmlm.inference.detector import Detector
from seqmlm.tasks import score_plan
from seqmlm.tasks.score import score_files
from seqmlm.tasks.score_plan import ScoreConfig


class Lines:
    """Progress that is remembered."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)

    def progress(self, records: int, rows: int, alarms: int) -> None: ...


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    loaded = protein_model()
    folder = tmp_path_factory.mktemp("model")
    model_folder.write(folder, loaded.rows, loaded.tokenizer, loaded.card)
    return str(folder)


@pytest.fixture
def fasta(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty sequences, scored four at a time; a commit after every second batch."""
    monkeypatch.setattr(batches, "BATCH_RECORDS", 4)
    monkeypatch.setattr(runner, "COMMIT_RECORDS", 8)
    file = workspace / "p.fasta"
    file.write_text("".join(f">p{n}\n{residues(70)[n : n + 3 + n % 9]}\n" for n in range(40)))
    return file


def _score(model: str, *paths: Path, progress: Lines | None = None, **settings: Any) -> Any:
    config = ScoreConfig(model=model, paths=tuple(map(str, paths)), **settings)
    return score_files(config, io.StringIO(), progress)


def _stop_after(monkeypatch: pytest.MonkeyPatch, batches: int, error: BaseException | None) -> None:
    """End the scoring in its n-th batch: by an error that kills it, or by a polite signal."""
    judged, done = Detector.encoded, 0

    def batch(self: Detector, encoded: Any) -> Any:
        nonlocal done
        done += 1
        if done == batches:
            if error is not None:
                raise error
            os.kill(os.getpid(), signal.SIGTERM)
        return judged(self, encoded)

    monkeypatch.setattr(Detector, "encoded", batch)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("stopped", [2, 3, 8])
def test_a_stopped_scoring_goes_on_to_the_same_bytes(
    model: str, fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, stopped: int
) -> None:
    whole, out = tmp_path / f"whole.{suffix}", tmp_path / f"out.{suffix}"
    _score(model, fasta, out=whole, per_unit=True)
    with monkeypatch.context() as patched:
        _stop_after(patched, stopped, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            _score(model, fasta, out=out, per_unit=True)
    progress = Lines()
    summary = _score(model, fasta, out=out, per_unit=True, resume=True, progress=progress)
    assert out.read_bytes() == whole.read_bytes()
    assert (summary.records, summary.rows) == (40, 40)
    assert "continuing" in " ".join(progress.said)
    assert not out.with_name(out.name + ".resume.json").exists()


def test_a_signal_ends_within_the_batch_and_nothing_is_lost(
    model: str, fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    _score(model, fasta, out=whole)
    with monkeypatch.context() as patched:
        _stop_after(patched, 5, None)
        summary = _score(model, fasta, out=out)
    assert (summary.stopped, summary.records) == (signal.SIGTERM, 16)
    assert out.read_bytes() == b"".join(whole.read_bytes().splitlines(keepends=True)[:16])
    assert _score(model, fasta, out=out, resume=True).records == 40
    assert out.read_bytes() == whole.read_bytes()


def test_a_signal_while_rows_are_written_writes_them_all(
    model: str, fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = runner.Output.write

    def write(self: runner.Output, rows: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        written(self, rows)

    monkeypatch.setattr(runner.Output, "write", write)
    summary = _score(model, fasta, out=tmp_path / "out.jsonl")
    assert (summary.stopped, summary.records) == (signal.SIGINT, 4)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 4


def test_another_request_does_not_go_on(
    model: str, fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    with monkeypatch.context() as patched:
        _stop_after(patched, 5, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            _score(model, fasta, out=out)
    with pytest.raises(StateError, match="mode was exact and is whole-unit"):
        _score(model, fasta, out=out, resume=True, mode="whole-unit")
    with pytest.raises(StateError, match="precision was fp32 and is bf16"):
        _score(model, fasta, out=out, resume=True, precision="bf16")
    with fasta.open("a") as file:
        file.write(">more\nMKV\n")
    with pytest.raises(StateError, match=r"input .*p\.fasta has changed"):
        _score(model, fasta, out=out, resume=True)
    progress = Lines()
    assert _score(model, fasta, out=out, progress=progress).records == 41
    assert "started over" in progress.said[-1]


def test_quarantine_does_not_double(
    model: str, fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = fasta.read_text().replace(">p9\n", ">empty\n>p9\n").replace(">p20\n", ">odd\nMK1\n>p20\n")
    fasta.write_text(text)
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    summary = _score(model, fasta, out=whole, on_error="quarantine")
    aside = Path(f"{whole}.quarantine.jsonl").read_text()
    assert len(aside.splitlines()) == summary.bad == 2
    for stopped in (4, 7, 8):
        Path(f"{out}.quarantine.jsonl").unlink(missing_ok=True)
        with monkeypatch.context() as patched:
            _stop_after(patched, stopped, KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                _score(model, fasta, out=out, on_error="quarantine")
        again = _score(model, fasta, out=out, on_error="quarantine", resume=True)
        assert out.read_bytes() == whole.read_bytes()
        assert Path(f"{out}.quarantine.jsonl").read_text() == aside
        assert (again.bad, again.problems) == (summary.bad, summary.problems)
    with monkeypatch.context() as patched:
        _stop_after(patched, 8, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            _score(model, fasta, out=out, on_error="quarantine")
    _score(model, fasta, out=out, on_error="quarantine")  # started over
    assert Path(f"{out}.quarantine.jsonl").read_text() == aside * 2, "an earlier scoring's, and this one's"


@pytest.mark.parametrize("bad", [">bad\n", ">bad\nMK1\n"])
def test_rows_before_a_bad_record_are_kept_and_gone_on_with(
    model: str, fasta: Path, tmp_path: Path, bad: str
) -> None:
    fasta.write_text(fasta.read_text().replace(">p21\n", f"{bad}>p21\n"))
    out = tmp_path / "out.jsonl"
    with pytest.raises(DataError):
        _score(model, fasta, out=out)
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [f"p{n}" for n in range(21)]
    summary = _score(model, fasta, out=out, resume=True, on_error="skip")
    assert (summary.records - summary.bad, summary.bad) in {(40, 1), (39, 1)}
    whole = tmp_path / "whole.jsonl"
    _score(model, fasta, out=whole, on_error="skip")
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"resume": True}, UsageError, "--out"),
        ({"max_latency": "1s"}, UsageError, "give - as the one input"),
        ({"fpr": 2.0}, UsageError, "between 0 and 1"),
        ({"fpr": 0.1, "alarms_per_day": 1.0}, UsageError, "give one"),
        ({"alarms_only": True}, UsageError, "--fpr"),
        ({"fpr": 0.1}, StateError, "seqmlm calibrate"),
        ({"mode": "cascade"}, StateError, "seqmlm calibrate"),
        ({"mode": "cascades"}, UsageError, "unknown mode"),
        ({"level": "word"}, UsageError, "no level 'word'"),
        ({"format_out": "parquet"}, UsageError, "standard output"),
        ({"domain": "text"}, UsageError, "is a protein model"),
        ({"mode": "one-pass"}, UsageError, "one-pass|one pass|unmasked"),
    ],
)
def test_requests_that_make_no_sense(
    model: str, fasta: Path, settings: dict[str, Any], error: type[SeqmlmError], said: str
) -> None:
    with pytest.raises(error, match=said):
        _score(model, fasta, **settings)


def test_standard_input_is_not_resumed_and_inputs_are_not_written(
    model: str, fasta: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="standard input"):
        _score(model, Path("-"), out=tmp_path / "x", resume=True)
    before = fasta.read_bytes()
    for name in ("out", "report", "track"):
        with pytest.raises(UsageError, match=f"--{name}"):
            _score(model, fasta, **{name: fasta})
    assert fasta.read_bytes() == before


def test_a_track_of_rows_without_a_place_is_refused_before_anything_is_read(
    model: str, workspace: Path, tmp_path: Path
) -> None:
    bad, out, track = workspace / "bad.fasta", tmp_path / "o.jsonl", tmp_path / "t.bedgraph"
    bad.write_text(">p\n1234\n")
    with pytest.raises(UsageError, match="level protein have no place"):
        _score(model, bad, out=out, track=track)
    assert not out.exists()
    assert list(workspace.iterdir()) == [bad]


def test_large_inputs_are_screened_where_the_model_is_calibrated(
    model: str, fasta: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = model_folder.load(model)
    level = loaded.domain.level(None)
    assert score_plan.choose_mode([str(fasta)], loaded, level)[0] == "exact"
    monkeypatch.setattr(score_plan, "LARGE", 100)
    assert "no cascade" in score_plan.choose_mode([str(fasta)], loaded, level)[1]
    monkeypatch.setattr(score_plan, "stored_calibration", lambda *_: object())
    assert score_plan.choose_mode([str(fasta)], loaded, level)[0] == "cascade"
    assert score_plan.choose_mode(["-"], loaded, level)[0] == "cascade"
