"""Which mode is taken where none is asked for: by what a scoring costs in each, and never by a clock."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_domain_models import patients_model
from tiny_fields import random_model
from tiny_models import RESIDUES, protein_model

from seqmlm.domains.dna import DNA
from seqmlm.engine.backbones import ModelConfig, build
from seqmlm.engine.model import MaskedRows
from seqmlm.errors import DataError, StateError, UsageError
from seqmlm.evaluation.conformal import Calibration
from seqmlm.inference import batches, model_folder
from seqmlm.inference.batches import tokens_per_second
from seqmlm.inference.calibrations import Stored
from seqmlm.inference.detector import Detector
from seqmlm.inference.estimate import work_of
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.session import Session
from seqmlm.tasks import score_plan
from seqmlm.tasks.score import score_files
from seqmlm.tasks.score_config import ScoreConfig
from seqmlm.tasks.score_plan import about, choose, choose_mode
from seqmlm.tokenizers.bases import BaseTokenizer


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    """Forty proteins of 80 to 89 residues, the first of them twice more."""
    file = tmp_path / "p.fasta"
    letters = np.random.default_rng(0).choice(list(RESIDUES), (40, 90))
    sequences = ["".join(row[: 80 + n % 10]) for n, row in enumerate(letters)]
    file.write_text("".join(f">p{n}\n{one}\n" for n, one in enumerate([*sequences, *sequences[:1] * 2])))
    return file


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The modes that every model is calibrated for: a cascade and one pass, unless a test changes it."""
    modes = {"cascade", "one-pass"}

    def stored(model: LoadedModel, level: object, mode: str) -> object:
        return Stored() if mode in modes else None

    monkeypatch.setattr(score_plan, "stored_calibration", stored)
    return modes


def request(*paths: object, **settings: Any) -> ScoreConfig:
    return ScoreConfig(model="m", paths=tuple(map(str, paths)), **settings)


def costs(session: Session, config: ScoreConfig) -> dict[str, float]:
    """Forward tokens in each mode."""
    found = work_of(session, session.domain.level(None), config.sources)
    assert found is not None
    return dict(found.tokens)


def mode(session: Session, config: ScoreConfig) -> tuple[str, str]:
    found = choose_mode(config, session, session.domain.level(None))
    return found.mode, found.why


def patience(monkeypatch: pytest.MonkeyPatch, session: Session, cost: float) -> None:
    """As long as so many forward tokens take."""
    monkeypatch.setattr(score_plan, "PATIENCE", cost / tokens_per_second(session.model))


@pytest.mark.parametrize("pattern", ["nearby.v1", "everywhere.v1"])
def test_the_most_exact_mode_is_taken_that_a_person_waits_for(
    pattern: str, fasta: Path, monkeypatch: pytest.MonkeyPatch, calibrated: set[str]
) -> None:
    session = Session(protein_model(100, pattern))
    cost = costs(session, request(fasta))
    assert cost["one-pass"] < cost["cascade"] < cost["exact"]

    def chosen(longest: float) -> str:
        patience(monkeypatch, session, longest)
        return mode(session, request(fasta))[0]

    assert [chosen(1.001 * cost[name]) for name in cost] == ["exact", "cascade", "one-pass"]
    assert [chosen(0.999 * cost[name]) for name in cost] == ["cascade", "one-pass", "one-pass"]
    calibrated.remove("cascade")
    assert chosen(0.999 * cost["exact"]) == "one-pass"
    calibrated.symmetric_difference_update({"cascade", "one-pass"})
    assert chosen(0.999 * cost["one-pass"]) == "cascade", "the cheapest of those that there are"
    calibrated.clear()
    assert chosen(0.999 * cost["exact"]) == "exact"


def test_a_calibration_with_other_counts_is_none(
    fasta: Path, monkeypatch: pytest.MonkeyPatch, calibrated: set[str]
) -> None:
    session = Session(protein_model(100))
    patience(monkeypatch, session, 1.0)
    monkeypatch.setattr(score_plan, "stored_calibration", lambda *_: Stored(counts="others"))
    assert mode(session, request(fasta))[0] == "exact"


def test_layers_that_look_nearby_are_asked_exactly_for_longer(
    fasta: Path, monkeypatch: pytest.MonkeyPatch, calibrated: set[str]
) -> None:
    near, far = (Session(protein_model(100, pattern)) for pattern in ("nearby.v1", "everywhere.v1"))
    patience(monkeypatch, near, 2 * costs(near, request(fasta))["exact"])
    assert [mode(session, request(fasta))[0] for session in (near, far)] == ["exact", "cascade"]


def test_what_is_told_is_how_long_it_takes(
    fasta: Path, monkeypatch: pytest.MonkeyPatch, calibrated: set[str]
) -> None:
    session = Session(protein_model(100, "everywhere.v1"))
    cost = costs(session, request(fasta))

    def told(minutes: float) -> tuple[str, str]:
        """Where an exact scoring takes so long."""
        monkeypatch.setattr(score_plan, "tokens_per_second", lambda _: cost["exact"] / (60 * minutes))
        return mode(session, request(fasta))

    for minutes, said in ((0.2, "less than a minute"), (1, "1 minute"), (7, "7 minutes")):
        assert told(minutes) == ("exact", f"the forward passes take {said}, by estimate")
    share = cost["cascade"] / cost["exact"]
    assert told(8 / share) == (
        "cascade",
        f"the forward passes take 8 minutes, by estimate (--mode exact: {about(480 / share)})",
    )
    calibrated.clear()
    name, why = told(60 * 27)
    assert (name, why) == (
        "exact",
        f"the forward passes take 27 hours, by estimate (--mode one-pass: "
        f"{about(27 * 3600 * cost['one-pass'] / cost['exact'])}; it is not calibrated for these scores)",
    )


def test_a_genome_takes_minutes_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calibrated: set[str]
) -> None:
    """Of 61 kb and 1.85 Mb, by a model of the default size and layers of DNA, on two cores."""
    monkeypatch.setattr(batches, "_RATES", dict.fromkeys((False, True), batches._RATES[False]))
    defaults = DNA.defaults
    model = random_model("dna", BaseTokenizer(), max_length=defaults.max_length)
    shape = ModelConfig(size=defaults.size, max_length=defaults.max_length, **defaults.model)
    model = replace(model, rows=MaskedRows(build(shape, model.tokenizer.space), model.tokenizer.space))
    session = Session(model)
    file = tmp_path / "g.fa"
    for bases, name in ((5_000, "cascade"), (61_000, "cascade"), (1_850_000, "one-pass")):
        file.write_text(">c\n" + "".join(random.Random(bases).choices("ACGT", k=bases)) + "\n")
        assert mode(session, request(file))[0] == name
        seconds = costs(session, request(file))[name] / tokens_per_second(session.model)
        assert seconds < 20 * 60


def test_pipes_are_not_read_for_it_and_changes_are_few(calibrated: set[str], tmp_path: Path) -> None:
    session = Session(protein_model(100))
    unknown = "how much there is to score is not known"
    assert mode(session, request("-")) == ("cascade", unknown)
    calibrated.remove("cascade")
    assert mode(session, request("-")) == (
        "exact",
        f"{unknown}, but no cascade is calibrated for these scores of level protein",
    )
    for changed in ({"since": "main"}, {"diff": tmp_path / "no.diff"}):
        assert mode(session, request(tmp_path / "nowhere", **changed))[0] == "exact"


def rows(count: int) -> Stored:
    """A calibration of so many rows, half of which guarantee a rate."""
    values = np.random.default_rng(0).normal(size=count)
    sizes = np.full(count, 10)
    return Stored(calibration=Calibration.fit({"pll": values}, sizes, seed=0))


def test_a_rate_is_asked_of_the_mode_that_has_rows_enough(
    fasta: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"exact": rows(20), "cascade": rows(20), "one-pass": rows(2000)}
    monkeypatch.setattr(score_plan, "stored_calibration", lambda _, __, mode: known.get(mode))
    session = Session(protein_model(100))
    plan = choose(request(fasta, fpr=0.01), session)
    assert plan.mode_name == "one-pass"
    assert "its 2,000 normal rows are enough for the rate, the 20 of exact are not" in plan.notes[0]
    assert choose(request(fasta, fpr=0.2), session).mode_name == "exact"
    del known["one-pass"]
    with pytest.raises(UsageError, match="the 20 normal rows that level protein"):
        choose(request(fasta, fpr=0.01), session)


def test_a_bad_input_is_for_the_scoring_to_refuse(tmp_path: Path, workspace: Path) -> None:
    session = Session(protein_model(100))
    empty = tmp_path / "empty.fasta"
    empty.write_text("")
    assert mode(session, request(empty))[0] == "exact"
    folder = tmp_path / "model"
    model_folder.write(folder, session.model.rows, session.tokenizer, session.card)
    with pytest.raises(DataError, match="the file is empty"):
        score_files(ScoreConfig(model=str(folder), paths=(str(empty),)), io.StringIO())


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
