"""Which mode is taken where none is asked for: by what a scoring costs in each, and never by a clock."""

from __future__ import annotations

import io
import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scored import score_files
from stopped import stop_at
from tiny_domain_models import patients_model
from tiny_models import protein_model, random_model

from seqmlm.anomaly.judge import Normal
from seqmlm.domains.dna import DNA
from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.engine.backbones import build
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.shapes import ModelConfig
from seqmlm.engine.units import EXACT, ONE_PASS, Mode
from seqmlm.errors import DataError, StateError, UsageError, duration_text, number_of
from seqmlm.inference import model_folder, record_batches
from seqmlm.inference.calibrations import Stored, rate_above
from seqmlm.inference.detector import Detector
from seqmlm.inference.estimate import work_of
from seqmlm.inference.record_batches import tokens_per_second
from seqmlm.inference.session import Session
from seqmlm.scoring import plan as score_plan
from seqmlm.scoring.config import ScoreConfig, ScoringRequest
from seqmlm.scoring.plan import choose, choose_mode
from seqmlm.scoring.review import ReviewConfig


def rows(count: int, **facts: Any) -> Stored:
    """A calibration of so many rows."""
    values = np.random.default_rng(0).normal(size=count)
    return Stored(fitted=Normal.fit({"pll": values}, np.full(count, 10), seed=0), **facts)


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> dict[str, Stored]:
    """The calibrations by mode that every level of every model has."""
    found = {"partition:4": rows(400), "one-pass": rows(400)}
    levels = ("protein", "window")
    monkeypatch.setattr(
        score_plan,
        "stored_calibrations",
        lambda _: {(level, mode): one for level in levels for mode, one in found.items()},
    )
    monkeypatch.setattr(score_plan, "stored_calibration", lambda _, __, mode: found.get(mode))
    return found


def request(*paths: object, **settings: Any) -> ScoreConfig:
    return ScoreConfig(model="m", paths=tuple(map(str, paths)), **settings)


def costs(session: Session, config: ScoreConfig) -> dict[str, float]:
    """Forward tokens in each mode."""
    modes = [EXACT, Mode("partition", 4), ONE_PASS]
    found = work_of(session, session.domain.level(None), modes, config.sources)
    return dict(found.tokens)


def mode(session: Session, config: ScoringRequest) -> tuple[str, str]:
    found = choose_mode(config, session, session.domain.level(None))
    return found.mode, found.why


def patience(monkeypatch: pytest.MonkeyPatch, session: Session, cost: float) -> None:
    """As long as so many forward tokens take."""
    monkeypatch.setattr(score_plan, "PATIENCE", cost / tokens_per_second(session.model))


def test_the_field_says_how_it_is_scored_as_long_as_a_person_waits(
    fasta: Path, monkeypatch: pytest.MonkeyPatch, calibrated: dict[str, Stored]
) -> None:
    session = Session(protein_model(100))
    cost = costs(session, request(fasta))
    assert cost["one-pass"] < cost["partition:4"] < cost["exact"]
    patience(monkeypatch, session, 1.001 * cost["partition:4"])
    assert mode(session, request(fasta))[0] == "partition:4"
    patience(monkeypatch, session, 0.999 * cost["partition:4"])
    assert mode(session, request(fasta))[0] == "one-pass"
    del calibrated["one-pass"]
    assert mode(session, request(fasta))[0] == "partition:4", "no other one is calibrated"
    calibrated["exact"] = rows(400)
    del calibrated["partition:4"]
    assert mode(session, request(fasta))[0] == "exact"
    calibrated.clear()
    assert mode(session, request(fasta))[0] == "one-pass", "the cheapest, where none is calibrated"
    patience(monkeypatch, session, 1.001 * cost["partition:4"])
    assert mode(session, request(fasta))[0] == "partition:4"


def test_a_calibration_with_other_counts_is_none(fasta: Path, calibrated: dict[str, Stored]) -> None:
    session = Session(protein_model(100))
    assert mode(session, request(fasta))[0] == "partition:4"
    calibrated["partition:4"] = rows(400, counts="others")
    assert mode(session, request(fasta))[0] == "one-pass"


def test_what_is_told_is_which_mode_and_how_long_it_takes(
    fasta: Path, monkeypatch: pytest.MonkeyPatch, calibrated: dict[str, Stored]
) -> None:
    session = Session(protein_model(100))
    cost = costs(session, request(fasta))
    share = cost["one-pass"] / cost["partition:4"]

    def told(minutes: float) -> tuple[str, str]:
        """Where the field's mode takes so long."""
        monkeypatch.setattr(score_plan, "tokens_per_second", lambda _: cost["partition:4"] / (60 * minutes))
        return mode(session, request(fasta))

    own = "the protein default"
    for minutes, said in ((0.2, "less than a minute"), (1, "1 minute"), (7, "7 minutes")):
        assert told(minutes) == ("partition:4", f", {own} (estimated time: {said})")
    said = f" (estimated time: {duration_text(27 * 3600 * share)}); partition:4, {own}, would take 27 hours"
    assert told(27 * 60) == ("one-pass", said)
    calibrated.clear()
    assert told(27 * 60) == ("one-pass", said)
    units = session.tokenizer.units
    monkeypatch.setattr(units, "facts", replace(units.facts, one_pass=False))
    assert told(27 * 60)[0] == "exact", "units that other tokens show, too"


def test_a_genome_takes_minutes_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calibrated: dict[str, Stored]
) -> None:
    """Of 61 kb and 1.85 Mb, by a model of the default size and layers of DNA, on two cores."""
    monkeypatch.setattr(record_batches, "_RATES", dict.fromkeys((False, True), record_batches._RATES[False]))
    defaults = DNA.defaults
    model = random_model("dna", BaseTokenizer(), max_length=defaults.max_length)
    shape = ModelConfig(size=defaults.size, max_length=defaults.max_length, **defaults.model)
    model = replace(model, rows=MaskedRows(build(shape, model.tokenizer.space), model.tokenizer.space))
    session = Session(model)
    file = tmp_path / "g.fa"
    for bases, name in ((61_000, "partition:4"), (1_850_000, "one-pass")):
        file.write_text(">c\n" + "".join(random.Random(bases).choices("ACGT", k=bases)) + "\n")
        assert mode(session, request(file))[0] == name
        seconds = costs(session, request(file))[name] / tokens_per_second(session.model)
        assert seconds < 20 * 60


def test_pipes_and_changes_are_not_read_for_it(calibrated: dict[str, Stored], tmp_path: Path) -> None:
    session, own = Session(protein_model(100)), ", the protein default"
    assert mode(session, request("-")) == ("partition:4", own)
    for changed in ({"since": "main"}, {"diff": tmp_path / "no.diff"}):
        asked = ReviewConfig(model="m", paths=(str(tmp_path / "nowhere"),), **changed)  # type: ignore[arg-type]
        assert mode(session, asked) == ("partition:4", own)
    del calibrated["partition:4"]
    told = "one-pass", f"; partition:4{own}, has no calibration for this level and these counts"
    assert mode(session, request("-")) == told


def test_a_rate_is_asked_of_a_mode_that_has_rows_enough(fasta: Path, calibrated: dict[str, Stored]) -> None:
    session = Session(protein_model(100))
    calibrated["partition:4"] = rows(20)
    plan = choose(request(fasta, fpr=0.01), session)
    assert plan.mode == ONE_PASS
    assert "has too few calibration rows for this rate (20)" in plan.notes[0]
    assert choose(request(fasta, fpr=0.2), session).mode == Mode("partition", 4)
    calibrated["one-pass"] = rows(30)
    with pytest.raises(UsageError, match="level protein has 30 calibration rows"):
        choose(request(fasta, fpr=0.01), session)
    calibrated.clear()
    with pytest.raises(StateError, match="has none for level protein in mode partition:4"):
        choose(request(fasta, fpr=0.01), session)


def test_no_calibration_of_few_rows_is_chosen_where_there_is_a_better_one(
    fasta: Path, calibrated: dict[str, Stored]
) -> None:
    """Where no rate is asked for, p-values of .05 must be possible; else the first line says that they are
    not, whether the mode was asked for or is the best there is."""
    session = Session(protein_model(100))
    counts = (None, 1, 4, 18, 19, 60)
    for own, other in itertools.product(counts, counts):
        sizes = {"partition:4": own, "one-pass": other}
        calibrated.clear()
        calibrated.update({mode: rows(count) for mode, count in sizes.items() if count})
        for asked in (None, *sizes):
            plan = choose(request(fasta, mode=asked), session)
            rate = plan.stored.fitted.smallest_rate if plan.stored is not None else None
            best = min((one.fitted.smallest_rate for one in calibrated.values()), default=None)
            if asked is None and best is not None:
                assert rate == best or rate <= 0.05
            said = [note.startswith("no p-value can be below") for note in plan.notes]
            assert any(said) == (rate is not None and rate > 0.05)
            assert not any(said[1:])
            if any(said):
                assert f"below {rate_above(rate)}:" in plan.notes[0]
                assert f"with only {number_of(plan.stored.rows, 'normal row')};" in plan.notes[0]


def test_a_bad_input_is_for_the_scoring_to_refuse(tmp_path: Path, workspace: Path) -> None:
    session = Session(protein_model(100))
    empty = tmp_path / "empty.fasta"
    empty.write_text("")
    assert mode(session, request(empty))[0] == "partition:4"
    folder = tmp_path / "model"
    model_folder.write(folder, session.model.rows, session.tokenizer, session.card)
    with pytest.raises(DataError, match="the file is empty"):
        score_files(ScoreConfig(model=str(folder), paths=(str(empty),)), io.StringIO())


def test_a_resumed_scoring_goes_on_in_the_mode_it_began_with(
    fasta: Path, tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_batches, "BATCH_RECORDS", 8)
    monkeypatch.setattr("seqmlm.scoring.score.COMMIT_RECORDS", 8)
    loaded, folder = protein_model(100), tmp_path / "model"
    model_folder.write(folder, loaded.rows, loaded.tokenizer, loaded.card)
    config = ScoreConfig(model=str(folder), paths=(str(fasta),), out=tmp_path / "out.jsonl")
    with monkeypatch.context() as patched:
        stop_at(patched, Detector, "each", 3, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            score_files(config, io.StringIO())
    monkeypatch.setattr(score_plan, "PATIENCE", 0.0)  # as another device, or another version, may have it
    session = Session(model_folder.load(str(folder)))
    assert mode(session, config)[0] == "one-pass"
    again = ScoreConfig(model=config.model, paths=config.paths, out=config.out, resume=True)
    assert mode(session, again) == ("partition:4", ", the mode of the scoring that is continued")
    summary = score_files(again, io.StringIO())
    assert (summary.items, summary.figures["rows"]) == (42, 42)


@pytest.mark.parametrize(("level", "rests"), [("visit", True), ("visit-whole", False)])
def test_counts_matter_to_a_calibration_only_where_they_are_mixed_in(
    level: str, rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(patients_model())
    monkeypatch.setattr(score_plan, "stored_calibration", lambda *_: rows(20, counts="others"))
    plan = choose(request("some", level=level, mode="exact"), session)
    assert (plan.stored is not None) is rests
    assert any("other n-gram counts" in note for note in plan.notes) is not rests
    if not rests:
        with pytest.raises(StateError, match="other n-gram counts"):
            choose(request("some", level=level, mode="exact", fpr=0.1), session)
