"""Scoring end to end with a tiny model: stops, resumes, faults, alarms, and requests that make no sense."""

from __future__ import annotations

import io
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from log_models import NORMAL, log_model, session
from scored import score_files
from stopped import stop_at
from text_models import text_model
from tiny_models import protein_model, residues

from seqmlm.anomaly.levels import record_row
from seqmlm.data.files import Source
from seqmlm.data.problems import Problems
from seqmlm.domains.logs.templates import TemplateTokenizer
from seqmlm.errors import DataError, SeqmlmError, StateError, UsageError
from seqmlm.inference import model_folder, record_batches
from seqmlm.inference.detector import Detector, JudgedRow
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.rows.file import Rows
from seqmlm.scoring import score
from seqmlm.scoring.config import ScoreConfig
from seqmlm.scoring.output import TRAINED_ON, UNSCORED, Tally, extent, warnings


class Lines:
    """Progress that is remembered."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.shares: list[float | None] = []

    def message(self, text: str) -> None:
        self.said.append(text)

    def progress(self, items: int, alarms: int = 0, share: float | None = None) -> None:
        self.shares.append(share)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    loaded = protein_model()
    folder = tmp_path_factory.mktemp("model")
    model_folder.write(folder, loaded.rows, loaded.tokenizer, loaded.card)
    return str(folder)


@pytest.fixture
def fasta(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty sequences, scored four at a time; a commit after every second batch."""
    monkeypatch.setattr(record_batches, "BATCH_RECORDS", 4)
    monkeypatch.setattr(score, "COMMIT_RECORDS", 8)
    file = workspace / "p.fasta"
    file.write_text("".join(f">p{n}\n{residues(70)[n : n + 3 + n % 9]}\n" for n in range(40)))
    return file


def _score(model: str, *paths: Path, progress: Lines | None = None, **settings: Any) -> Any:
    config = ScoreConfig(model=model, paths=tuple(map(str, paths)), **settings)
    return score_files(config, io.StringIO(), progress)


def _killed(batch: int, model: str, *paths: Path, **settings: Any) -> None:
    """A scoring that dies in a batch."""
    with pytest.MonkeyPatch.context() as patched:
        stop_at(patched, Detector, "each", batch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            _score(model, *paths, **settings)


def test_the_share_that_is_done_is_shown(model: str, fasta: Path) -> None:
    progress = Lines()
    _score(model, fasta, progress=progress)
    lengths = [3 + n % 9 for n in range(40)]
    shares = [*filter(None, dict.fromkeys(progress.shares))]
    assert shares == pytest.approx([sum(lengths[: 4 * n]) / sum(lengths) for n in range(1, 11)])
    asked = Lines()
    _score(model, fasta, progress=asked, mode="exact")
    assert {*asked.shares} == {None}, "nobody has looked at how much there is"


def test_counts_are_mixed_in_as_the_request_says(model: str, fasta: Path) -> None:
    with pytest.raises(StateError, match="has no counts"):
        _score(model, fasta, expert="counts")
    assert _score(model, fasta, expert="none").items == 40


def test_a_signal_while_rows_are_written_writes_them_all(
    model: str, fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Rows.write

    def write(self: Rows, rows: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        written(self, rows)

    monkeypatch.setattr(Rows, "write", write)
    summary = _score(model, fasta, out=tmp_path / "out.jsonl")
    assert (summary.stopped, summary.items) == (signal.SIGINT, 4)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 4


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
    assert (summary.items, summary.figures["rows"], summary.bad) == (40, 40, 1)
    assert "scored 40 records" in summary.answer
    whole = tmp_path / "whole.jsonl"
    _score(model, fasta, out=whole, on_error="skip")
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"resume": True}, UsageError, "--out"),
        ({"max_latency": "1s"}, UsageError, "give - as the only input"),
        ({"fpr": 2.0}, UsageError, "between 0 and 1"),
        ({"fpr": 0.1, "alarms_per_day": 1.0}, UsageError, "give only one"),
        ({"alarms_only": True}, UsageError, "--fpr"),
        ({"fpr": 0.1}, StateError, "seqmlm calibrate"),
        ({"mode": "cascade"}, UsageError, "unknown mode"),
        ({"level": "word"}, UsageError, "no level 'word'"),
        ({"format_out": "parquet"}, UsageError, "standard output"),
        ({"domain": "text"}, UsageError, "is a protein model"),
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
    with pytest.raises(UsageError, match="Standard input"):
        _score(model, Path("-"), out=tmp_path / "x", resume=True)
    before = fasta.read_bytes()
    for name in ("out", "report"):
        with pytest.raises(UsageError, match=f"--{name}"):
            _score(model, fasta, **{name: fasta})
    unnamed = tmp_path / "input"
    unnamed.write_bytes(before)
    with pytest.raises(UsageError, match=r"--out .* is one of the inputs"):
        _score(model, unnamed, out=unnamed)
    assert fasta.read_bytes() == unnamed.read_bytes() == before


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_a_scoring_of_the_folder_it_writes_to_is_resumed(
    name: str, model: str, fasta: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    fasta.rename(folder / fasta.name)
    whole, out = tmp_path / name, folder / name
    _score(model, folder, out=whole)
    _killed(5, model, folder, out=out)
    assert _score(model, folder, out=out, resume=True).items == 40
    assert out.read_bytes() == whole.read_bytes()
    assert {path.name for path in folder.iterdir()} == {fasta.name, name}


def test_outputs_that_are_one_file_or_no_file_are_refused_before_any_work(
    model: str, fasta: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(fasta)
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    for settings, said in (
        ({"out": tmp_path / "x", "report": tmp_path / "." / "x"}, "the same file"),
        ({"out": tmp_path / "link"}, "leave out --out: rows go to standard output"),
        ({"report": tmp_path / "pipe"}, "--report .* is a pipe"),
        ({"report": Path("/dev/null")}, "--report /dev/null is a device"),
        ({"out": Path("/dev/stdout")}, "--out /dev/stdout is a symbolic link"),
        ({"out": Path(model) / "scores.jsonl"}, "in the folder of the model"),
        ({"report": Path(model) / "page.html"}, "in the folder of the model"),
    ):
        with pytest.raises(UsageError, match=said):
            _score(model, fasta, **settings)
    assert sorted(tmp_path.iterdir()) == before


def test_rows_without_a_score_are_counted_and_told(model: str, tmp_path: Path) -> None:
    short = tmp_path / "short.fasta"
    short.write_text(">a\nMKVLAA\n>b\nM\n>c\nXXXX\n")
    summary = _score(model, short, out=tmp_path / "scores.jsonl")
    assert (summary.items, summary.figures["rows"], summary.figures["units"]) == (3, 3, 7)
    assert f"{UNSCORED}: 2 (first: {short}:3)" in summary.answer
    rows = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows if row["score"] is None] == ["b", "c"]


def test_rows_without_p_values_are_told_with_the_command_that_gives_them(model: str, fasta: Path) -> None:
    said, command = Lines(), f"'seqmlm calibrate {model} NORMAL --level protein --mode partition:3"
    _score(model, fasta, progress=said, mode="partition:3")
    assert [one for one in said.said if "no p-values" in one and f"{command}'" in one]
    with pytest.raises(StateError, match="expert=none") as refused:
        _score(model, fasta, mode="partition:3", fpr=0.05, expert="none")
    assert f"{command} --set expert=none'" in str(refused.value)


def test_a_track_of_rows_without_a_place_is_refused_before_anything_is_read(
    model: str, workspace: Path, tmp_path: Path
) -> None:
    bad, track = workspace / "bad.fasta", tmp_path / "t.bedgraph"
    bad.write_text(">p\n1234\n")
    with pytest.raises(UsageError, match="level protein have no place"):
        _score(model, bad, out=track)
    assert list(workspace.iterdir()) == [bad]


# What is said of the whole


def _counted(p_values: list[float]) -> Tally:
    tally = Tally()
    for p_value in p_values:
        tally.add({"units": 3, "score": 1.0, "p_value": p_value})
    return tally


def _said(tally: Tally, normal: int = 400) -> str:
    return "\n".join(warnings({"rows": tally.rows, **tally.shares(normal)}))


def test_data_unlike_the_normal_ones_are_said_to_be() -> None:
    usual = [i / 100 for i in range(1, 101)]
    assert "p-values" not in _said(_counted(usual))
    assert "p-values" not in _said(_counted([0.01] * 39)), "too few to tell"
    shifted = _counted([0.1] * 80 + [0.9] * 20)
    assert "80% of the rows have p-values below .5" in _said(shifted)
    assert "p-values" not in _said(shifted, normal=39), "too few to tell"
    tail = _counted([0.02] * 25 + [0.6] * 50 + [0.2] * 25)
    assert "25% of the rows have p-values below .05" in _said(tail)
    assert "p-values" not in _said(_counted([0.02] * 12 + [0.6] * 50 + [0.2] * 38))
    some = _counted([0.1] * 66 + [0.9] * 34)  # three standard errors are .15 of a hundred rows, .17 of these
    assert "p-values" not in _said(some)
    many = _counted(([0.1] * 66 + [0.9] * 34) * 10)
    assert ["p-values" in _said(many, normal=normal) for normal in (40, 400)] == [False, True]
    assert "only 9% of the rows have p-values below .5" in _said(_counted([0.2] * 9 + [0.9] * 91))
    assert "p-values" not in _said(_counted([0.2] * 11 + [0.9] * 89))


def test_records_that_were_trained_on_and_unknown_units_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file = text_model(tmp_path, wordpiece=True), tmp_path / "a.txt"
    file.write_text("the cat\nthe \N{SNOWMAN} cat \N{SNOWMAN}\nthe cat\n")
    domain = model_folder.load(folder).domain
    known = {domain.keys.identity(one) for one in domain.read([str(file)], Problems()) if one.line != 2}
    monkeypatch.setattr("seqmlm.scoring.output.stored_trained_on", lambda folder: known)
    summary = _score(str(folder), file)
    assert summary.notes == {TRAINED_ON: 2, "word unknown to the model, not scored": 2}
    assert summary.places[TRAINED_ON] == f"{file}:1"


@pytest.mark.parametrize("wordpiece", [False, True])
def test_what_is_expected_of_a_text_are_whole_words(tmp_path: Path, *, wordpiece: bool) -> None:
    folder = text_model(tmp_path, wordpiece=wordpiece)
    tokenizer = model_folder.load(folder).tokenizer
    (tmp_path / "a.txt").write_text("the cat barks loudly.\nmany dogs\n")
    _score(str(folder), tmp_path / "a.txt", out=tmp_path / "out.jsonl", per_unit=True)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    named = [unit["expected"] for row in rows for unit in row["per_unit"]]
    words = {one["unit"] for expected in named for one in expected}
    assert words
    assert min(map(len, named)) < 3  # pieces among the three most probable tokens are left out
    for word in words:
        assert any(len(tokenizer.encode(before + word).ids) == 4 for before in ("a ", "a"))


@pytest.mark.parametrize(("sessions", "incidents"), [(False, 2), (True, 3)])
def test_windows_that_touch_are_one_incident(tmp_path: Path, *, sessions: bool, incidents: int) -> None:
    lines = [f"step {n % 3} request_id=r{n % 3 if sessions else n}" for n in range(160)]
    (tmp_path / "app.log").write_text("\n".join(lines) + "\n")
    model = log_model(TemplateTokenizer.train([session(NORMAL).raw]))
    options = {} if sessions else {"window": 32}
    records = [
        replace(record, source=Source(record.source, SimpleNamespace()))  # as of an input that is followed
        for record in model.domain.read([str(tmp_path / "app.log")], Problems(), **options)
    ]
    tally, scorer = Tally(), RecordScorer(Session(model))
    for number, one in enumerate(scorer.unit_scores(scorer.encoded(records, Problems()))):
        quiet = not sessions and number == 2  # a window in between is normal
        judged = JudgedRow(row=record_row(one, {"bits_per_unit": 1.0}), scored_record=one)
        row = {"source": one.record.source, "units": 1, "score": 1.0}
        tally.add({**row, "alarm": not quiet, "place": extent(judged)})
    assert tally.incidents() == incidents
