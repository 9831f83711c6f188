"""Which mode is taken where none is asked for: by what an exact scoring costs, and never by a clock."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_domain_models import patients, patients_model
from tiny_fields import random_model
from tiny_models import RESIDUES, protein_model

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.correction import Correction
from seqmlm.errors import DataError, StateError
from seqmlm.inference import batches, model_folder
from seqmlm.inference.batches import forward_tokens, tokens_per_second
from seqmlm.inference.calibrations import Stored
from seqmlm.inference.detector import Detector
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.tasks import score_plan
from seqmlm.tasks.score import score_files
from seqmlm.tasks.score_plan import ScoreConfig, choose, choose_mode, exact_tokens
from seqmlm.tokenizers.kmer import BaseTokenizer

ALL = float("inf")


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    """Forty proteins of 80 to 89 residues, the first of them twice more."""
    file = tmp_path / "p.fasta"
    letters = np.random.default_rng(0).choice(list(RESIDUES), (40, 90))
    sequences = ["".join(row[: 80 + n % 10]) for n, row in enumerate(letters)]
    file.write_text("".join(f">p{n}\n{one}\n" for n, one in enumerate([*sequences, *sequences[:1] * 2])))
    return file


@pytest.fixture
def cascades(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model has a cascade, and no other calibration."""

    def stored(model: LoadedModel, level: object, mode: str) -> object:
        return Stored() if mode == "cascade" else None

    monkeypatch.setattr(score_plan, "stored_calibration", stored)


def request(*paths: object, **settings: Any) -> ScoreConfig:
    return ScoreConfig(model="m", paths=tuple(map(str, paths)), **settings)


def tokens(session: Session, config: ScoreConfig, most: float = ALL) -> float:
    found = exact_tokens(config, session, session.domain.level(None), most=most)
    assert found is not None
    return found


def cost(session: Session, residues: int) -> float:
    """Of a protein, whose ends are not asked."""
    return forward_tokens(session.model)(residues + 2) * residues / (residues + 2)


def mode(session: Session, config: ScoreConfig) -> tuple[str, str]:
    return choose_mode(config, session, session.domain.level(None))


def patience(monkeypatch: pytest.MonkeyPatch, session: Session, cost: float) -> None:
    """As long as so many forward tokens take."""
    monkeypatch.setattr(score_plan, "PATIENCE", cost / tokens_per_second(session.model))


@pytest.mark.parametrize("pattern", ["nearby.v1", "everywhere.v1"])
def test_an_input_costs_what_its_records_cost_equal_ones_once(pattern: str, fasta: Path) -> None:
    session = Session(protein_model(100, pattern))
    assert tokens(session, request(fasta)) == pytest.approx(
        sum(cost(session, 80 + n % 10) for n in range(40))
    )


@pytest.mark.parametrize("pattern", ["nearby.v1", "everywhere.v1"])
def test_the_mode_changes_where_the_cost_passes_what_a_person_waits_for(
    pattern: str, fasta: Path, monkeypatch: pytest.MonkeyPatch, cascades: None
) -> None:
    session = Session(protein_model(100, pattern))
    cost = tokens(session, request(fasta))
    patience(monkeypatch, session, cost * 1.001)
    assert mode(session, request(fasta)) == (
        "exact",
        "the forward passes take less than a minute, by estimate",
    )
    patience(monkeypatch, session, cost * 0.999)
    assert mode(session, request(fasta))[0] == "cascade"
    monkeypatch.setattr(score_plan, "stored_calibration", lambda *_: None)
    name, why = mode(session, request(fasta))
    assert name == "exact"
    assert "no cascade is calibrated for these scores of level protein" in why


def test_layers_that_look_nearby_are_asked_exactly_for_longer(
    fasta: Path, monkeypatch: pytest.MonkeyPatch, cascades: None
) -> None:
    near, far = (Session(protein_model(100, pattern)) for pattern in ("nearby.v1", "everywhere.v1"))
    patience(monkeypatch, near, 2 * tokens(near, request(fasta)))
    assert [mode(session, request(fasta))[0] for session in (near, far)] == ["exact", "cascade"]


def test_what_is_told_is_how_long_it_takes(
    fasta: Path, monkeypatch: pytest.MonkeyPatch, cascades: None
) -> None:
    session = Session(protein_model(100))
    cost = tokens(session, request(fasta))
    for minutes, told in ((0.2, "take less than a minute"), (1, "take 1 minute,"), (7, "take 7 minutes,")):
        monkeypatch.setattr(score_plan, "tokens_per_second", lambda _, m=minutes: cost / (60 * m))
        assert told in mode(session, request(fasta))[1]
    monkeypatch.setattr(score_plan, "tokens_per_second", lambda _: cost / 660)
    name, why = mode(session, request(fasta))
    assert name == "cascade"
    assert why == "the forward passes of --mode exact would take more than 10 minutes, by estimate"


def test_no_more_is_counted_than_is_needed(fasta: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_RECORDS", 4)
    session = Session(protein_model(100))
    read: list[Record] = []
    reader = session.reader

    def watched(*given: Any, **options: Any) -> Any:
        def records(problems: Problems) -> Iterator[Record]:
            for record in reader(*given, **options)(problems):
                read.append(record)
                yield record

        return records

    monkeypatch.setattr(session, "reader", watched)
    assert tokens(session, request(fasta), most=1.0) > 1
    assert len(read) == 4


def test_the_rest_of_a_large_input_is_taken_to_be_like_its_beginning(
    fasta: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_RECORDS", 4)
    session = Session(protein_model(100))
    whole = tokens(session, request(fasta))
    monkeypatch.setattr(score_plan, "LOOK", 1)
    assert tokens(session, request(fasta)) == pytest.approx(whole, rel=0.15)


def test_pipes_are_not_read_for_it_and_changes_are_few(cascades: None, tmp_path: Path) -> None:
    session = Session(protein_model(100))
    assert exact_tokens(request("-"), session, session.domain.level(None), most=ALL) is None
    assert mode(session, request("-")) == ("cascade", "how much there is to score is not known")
    for changed in ({"since": "main"}, {"diff": tmp_path / "no.diff"}):
        assert mode(session, request(tmp_path / "nowhere", **changed))[0] == "exact"


def test_a_bad_input_is_for_the_scoring_to_refuse(tmp_path: Path, workspace: Path) -> None:
    session = Session(protein_model(100))
    bad = tmp_path / "bad.fasta"
    bad.write_text(">p\n1234\n>q\nMKV\n")
    assert tokens(session, request(bad)) == cost(session, 3)
    empty = tmp_path / "empty.fasta"
    empty.write_text("")
    assert tokens(session, request(empty)) == 0
    folder = tmp_path / "model"
    model_folder.write(folder, session.model.rows, session.tokenizer, session.card)
    with pytest.raises(DataError, match="the file is empty"):
        score_files(ScoreConfig(model=str(folder), paths=(str(empty),)), io.StringIO())


def test_an_input_is_read_as_the_request_says(tmp_path: Path) -> None:
    session = Session(protein_model(100))
    file = tmp_path / "p.fasta"
    file.write_text(">a\nMKV\n>b\nMKVLAGMKVLAG\n")
    assert tokens(session, request(file)) == cost(session, 3) + cost(session, 12)
    assert tokens(session, request(file, options={"max_bytes": 8})) == cost(session, 3)


def test_a_resumed_scoring_goes_on_in_the_mode_it_began_with(
    fasta: Path, tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_RECORDS", 8)
    monkeypatch.setattr("seqmlm.inference.runner.COMMIT_RECORDS", 8)
    loaded, folder = protein_model(100), tmp_path / "model"
    model_folder.write(folder, loaded.rows, loaded.tokenizer, loaded.card)
    config = ScoreConfig(model=str(folder), paths=(str(fasta),), out=tmp_path / "out.jsonl")
    judged, done = Detector.encoded, 0

    def killed(self: Detector, encoded: Any) -> Any:
        nonlocal done
        done += 1
        if done == 3:
            raise KeyboardInterrupt
        return judged(self, encoded)

    with monkeypatch.context() as patched:
        patched.setattr(Detector, "encoded", killed)
        with pytest.raises(KeyboardInterrupt):
            score_files(config, io.StringIO())
    monkeypatch.setattr(score_plan, "PATIENCE", 0.0)  # as another device, or another version, may have it
    stored = score_plan.stored_calibration

    def cascade(model: LoadedModel, level: Any, mode: str) -> Any:
        return Stored() if mode == "cascade" else stored(model, level, mode)

    monkeypatch.setattr(score_plan, "stored_calibration", cascade)
    session = Session(model_folder.load(str(folder)))
    assert mode(session, config)[0] == "cascade"
    again = ScoreConfig(model=config.model, paths=config.paths, out=config.out, resume=True)
    assert mode(session, again) == ("exact", "as the scoring that is continued began")
    summary = score_files(again, io.StringIO())
    assert (summary.records, summary.rows) == (42, 42)


def patient_files(count: int) -> tuple[LoadedModel, list[Record]]:
    return patients_model(), patients(count)


def strands(count: int) -> tuple[LoadedModel, list[Record]]:
    model = random_model("dna", BaseTokenizer(), max_length=100)
    raws = ["".join("ACGT"[(n * i * i + i) % 4] for i in range(80)) for n in range(1, count + 1)]
    return model, [Record(id=str(n), raw=raw, source="x", line=n) for n, raw in enumerate(raws, 1)]


@pytest.mark.parametrize(
    ("made", "level"), [(patient_files, "visit"), (patient_files, "visit-whole"), (strands, "window")]
)
def test_the_estimate_counts_what_a_level_asks(
    made: Any, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, records = made(5)
    session = Session(model, correction=Correction())
    monkeypatch.setattr(session, "reader", lambda *_, **__: lambda problems: iter(records))
    file = tmp_path / "some"
    file.write_text("some")
    chosen = model.domain.level(level)
    estimate = exact_tokens(request(file), session, chosen, most=ALL)
    detector = Detector(RecordScorer(session), chosen)
    detector.scored(detector.scorer.encoded(records, Problems()))
    assert estimate == pytest.approx(session.forward_tokens, rel=0.2)


@pytest.mark.parametrize(("level", "rests"), [("visit", True), ("visit-whole", False)])
def test_counts_matter_to_a_calibration_only_where_they_are_mixed_in(
    level: str, rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(patients_model())
    monkeypatch.setattr(score_plan, "stored_calibration", lambda *_: Stored(counts="others"))
    plan = choose(request("some", level=level, mode="exact"), session)
    assert (plan.stored is not None) is rests
    assert any("other counts" in note for note in plan.notes) is not rests
    if not rests:
        with pytest.raises(StateError, match="with other counts"):
            choose(request("some", level=level, mode="cascade"), session)
