"""Fitting and keeping calibrations: deterministic, within a budget, atomic, with backgrounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_domain_models import code_model
from tiny_models import RESIDUES, protein_model, random_model

from seqmlm import plugins
from seqmlm.anomaly.levels import UNKNOWN, Background, Level, RecordLevel, UnitLevel, mean, record_row
from seqmlm.anomaly.statistic_names import Statistics
from seqmlm.anomaly.values import Row, ScoredRecord
from seqmlm.data.identity import TrainedOn
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.code.levels import ClassNorms
from seqmlm.engine.types import InMemory, Sequences
from seqmlm.engine.units import EXACT, Mode
from seqmlm.errors import DataError, StateError
from seqmlm.inference.calibrations import (
    BACKGROUND,
    CALIBRATION,
    TRAINED_ON,
    store,
    store_backgrounds,
    store_trained_on,
    stored_background,
    stored_calibration,
    stored_calibrations,
    stored_trained_on,
)
from seqmlm.inference.detector import Detector
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.privacy import handling_sensitive_data
from seqmlm.scoring import calibrate
from seqmlm.scoring.calibrate import Calibrator, Records, default_modes
from seqmlm.scoring.output import line
from seqmlm.tokenizers.base import Tokenizer


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    masking = {"masker": "uniform.v1", "rate": 0.15, "mask": 0.8, "random": 0.1, "keep": 0.1}
    found = protein_model()
    return replace(found, path=str(tmp_path), card=replace(found.card, masking=masking))


def normal(count: int, seed: int = 0, longest: int = 18) -> Records:
    rng = np.random.default_rng(seed)
    raws = ["".join(rng.choice(list(RESIDUES), size=int(rng.integers(4, longest)))) for _ in range(count)]
    records = [Record(id=str(n), raw=raw, source="n.fasta", line=n) for n, raw in enumerate(raws, 1)]
    return Records(records=records, of=count, source="f")


def calibrator(model: LoadedModel, **options: Any) -> Calibrator:
    return Calibrator(session=Session(model), problems=Problems(), **options)


class Lengths(Background):
    """Mean surprisal of normal records, from half of them."""

    needs_scores = True

    def __init__(self, windows: int, usual: float = 0.0) -> None:
        self.windows, self.usual = windows, usual

    @classmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Lengths:
        return cls(len(train))

    def learn(self, normal: Any) -> Lengths:
        return Lengths(self.windows, float(np.mean([mean(one) for one in normal])))

    def arrays(self) -> dict[str, Any]:
        return {"values": np.array([self.windows, self.usual])}

    @classmethod
    def load(cls, arrays: Mapping[str, Any], tokenizer: Tokenizer) -> Lengths:
        return cls(int(arrays["values"][0]), float(arrays["values"][1]))


class Beyond(Level):
    """How far above the usual."""

    name, background = "beyond", Lengths
    statistics = Statistics(dict.fromkeys(("above", "length"), ""))

    def rows(self, scored: ScoredRecord, background: Background | None) -> list[Row]:
        return [record_row(scored, {"above": mean(scored) - background.usual, "length": float(len(scored))})]


def test_the_same_records_give_the_same_calibrations(model: LoadedModel, tmp_path: Path) -> None:
    level, records = RecordLevel("protein"), normal(80)
    written = []
    for name in "ab":
        one = calibrator(model)
        found = one.calibrate(level, default_modes(one.session), records, None)
        assert [mode for _, mode in found] == ["one-pass", "partition:4"]
        (tmp_path / name).mkdir()
        store(tmp_path / name, {key: replace(s, created="now") for key, s in found.items()})
        written.append((tmp_path / name / CALIBRATION).read_bytes())
    assert written[0] == written[1]
    back = stored_calibration(replace(model, path=str(tmp_path / "a")), level, "one-pass")
    assert (back.rows, back.source, back.created) == (80, "f", "now")


@pytest.mark.parametrize("pattern", ["nearby.v1", "everywhere.v1"])
def test_a_budget_bounds_what_is_asked(pattern: str) -> None:
    one = calibrator(protein_model(100, pattern), budget=400_000)
    found = one.calibrate(RecordLevel("protein"), ["one-pass", "exact"], normal(3000, longest=90), None)
    rows = {mode: stored.rows for (_, mode), stored in found.items()}
    assert 1000 <= rows["one-pass"] < 1300, "as many as are enough"
    assert 100 < rows["exact"] < 1000
    assert one.session.forward_tokens == pytest.approx(400_000 - 50_000, rel=0.2), "what one pass left"


def test_a_short_training_calibrates_its_cheapest_mode_with_rows_enough() -> None:
    records, said = normal(3000), list[str]()
    one, told = calibrator(protein_model(100), budget=1, notify=said.append), list[tuple[str, float, int]]()
    one.progress = lambda *given: told.append(given)
    found = one.calibrate(RecordLevel("protein"), ["one-pass", "exact"], records, None)
    assert found["protein", "one-pass"].rows == 100
    assert ("protein", "exact") not in found, "a row or two would allow no rate"
    assert any("not calibrated in mode exact" in text for text in said)
    assert found["protein", "one-pass"].fitted.smallest_rate < 0.01
    shares = [share for mode, share, _ in told if mode == "one-pass"]
    assert shares == sorted(shares)
    assert shares[-1] == 1


@pytest.mark.parametrize(("budget", "thinned"), [(1, True), (1, False), (None, True)])
def test_a_background_of_units_learns_from_some_of_each(
    budget: int | None, thinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all cost more than the budget; what it learns from is scored as all would be."""
    monkeypatch.setattr(calibrate, "_LEARNT", 300)
    monkeypatch.setattr(Lengths, "learns_units", thinned)
    learnt = list[ScoredRecord]()
    monkeypatch.setattr(Lengths, "learn", lambda self, normal: learnt.extend(normal) or self)
    one, records = calibrator(protein_model(100), budget=budget), normal(40, longest=90)
    one.background(Beyond(), records, InMemory([]))
    plain, shares = calibrator(one.session.model), list[float]()
    for scored in learnt:
        whole = plain._background_scores(Beyond(), [scored.record], thinned=False)[0]
        chosen = np.isin(whole.number, scored.number)
        assert scored.surprisal == pytest.approx(whole.surprisal[chosen], abs=1e-4)
        shares.append(chosen.mean())
    assert (np.mean(shares) < 0.6) == (budget is not None and thinned)
    assert len(learnt) == (20 if budget is None else 11)


def test_rows_a_day_stand_for_all_records(model: LoadedModel) -> None:
    class Timed(RecordLevel):
        def rows(self, scored: ScoredRecord, background: Background | None) -> list[Row]:
            line = scored.record.line
            time = 60.0 * line if line <= self.timed else None
            return [replace(row, time=time) for row in super().rows(scored, background)]

        def __init__(self, name: str, timed: int = 60) -> None:
            super().__init__(name)
            self.timed = timed

    records = replace(normal(60), of=600)
    found = calibrator(model).calibrate(Timed("protein"), ["partition:2"], records, None)
    assert found["protein", "partition:2"].rows_per_day == pytest.approx(24 * 60 * 10)
    private = replace(model, card=replace(model.card, sensitive=True))
    for timed, told in ((10, False), (11, True)):
        found = calibrator(private).calibrate(Timed("protein", timed), ["partition:2"], records, None)
        assert (found["protein", "partition:2"].rows_per_day is not None) == told, "dates of few people"


def test_what_teaches_a_background_does_not_calibrate(model: LoadedModel, tmp_path: Path) -> None:
    level, records = Beyond(), normal(60)
    one = calibrator(model)
    background, rest = one.background(level, records, None)
    assert background.windows == 30
    assert 2 < background.usual < 8
    assert [record.id for record in rest.records] == [str(n) for n in range(2, 61, 2)]
    found = one.calibrate(level, [str(EXACT)], rest, background)
    assert found["beyond", "exact"].rows == 30
    with handling_sensitive_data():
        store_backgrounds(tmp_path, {level.name: background})
    back = stored_background(model, level)
    assert isinstance(back, Lengths)
    assert back.arrays()["values"].tolist() == background.arrays()["values"].tolist()
    assert (tmp_path / BACKGROUND).stat().st_mode & 0o777 == 0o600
    assert stored_background(model, RecordLevel("protein")) is None


def test_levels_with_one_kind_of_background_share_it(tmp_path: Path) -> None:
    code = replace(code_model(), path=str(tmp_path))
    norms = ClassNorms(np.zeros((17, 4, 3)))
    store_backgrounds(tmp_path, {"line": norms})
    for name in ("line", "token", "function"):
        found = stored_background(code, code.domain.level(name))
        assert isinstance(found, ClassNorms)
        assert all((found.arrays()[k] == v).all() for k, v in norms.arrays().items())
    assert stored_background(code, code.domain.level("file")) is None, "which needs none"


def test_records_without_scores_are_no_calibration(model: LoadedModel) -> None:
    empty = Records(records=[Record(id="e", raw="", source="x", line=1)], of=1, source="")
    with pytest.raises(DataError, match="nothing to calibrate with"):
        calibrator(model).calibrate(RecordLevel("protein"), ["exact"], empty, None)


class Parts(Level):
    """Five rows of a record, two statistics of each: one says which record it is of."""

    name = "parts"
    statistics = Statistics(dict.fromkeys(("owner", "place"), ""))

    def rows(self, scored: ScoredRecord, background: Background | None) -> list[Row]:
        of = float(scored.record.line)
        return [record_row(scored, {"owner": of, "place": float(place)}) for place in range(5)]


@pytest.mark.parametrize(("groups", "folds"), [(12, 5), (3, 3), (1, 5)])
def test_few_rows_are_divided_as_training_divides_data(model: LoadedModel, groups: int, folds: int) -> None:
    """By groups, of proteins equal sequences; by records, where all are of one group."""
    records = normal(12).records
    records = [replace(one, raw=records[one.line % groups].raw) for one in records]
    given = Records(records=records, of=12, source="f")
    made = calibrator(model).calibrate(Parts(), ("exact",), given, None)["parts", "exact"].fitted
    assert (made.rows, len(made.folds)) == (60, folds)
    taught = [{v for own in fold.ranks["owner"].bins for v in own} for fold in made.folds]
    lines = {float(one.line) for one in records}
    left_out = [lines - own for own in taught]
    assert sorted(v for own in left_out for v in own) == sorted(lines)
    if groups == 3:
        assert all(len({line % 3 for line in own}) == 1 for own in left_out)


def test_sensitive_data_of_few_rows_leave_nothing(model: LoadedModel) -> None:
    said: list[str] = []
    private = replace(model, card=replace(model.card, sensitive=True))
    for count, modes in ((10, 0), (11, 1)):
        one = calibrator(private, notify=said.append)
        assert len(one.calibrate(RecordLevel("protein"), ["exact"], normal(count), None)) == modes
    assert len(said) == 1
    rows = calibrator(private, notify=said.append).calibrate(
        UnitLevel("residue"), ["exact"], normal(10), None
    )
    assert rows == {}, "many rows of ten records are ten people's"


def test_folders_without_calibration_and_broken_ones(tmp_path: Path) -> None:
    assert stored_calibrations(tmp_path) == {}
    assert stored_trained_on(tmp_path) is None
    for name, load in ((CALIBRATION, stored_calibrations), (TRAINED_ON, stored_trained_on)):
        (tmp_path / name).write_bytes(b"not this")
        with pytest.raises(StateError, match=f"{name} cannot be read.*seqmlm calibrate"):
            load(tmp_path)
    store_trained_on(tmp_path, TrainedOn([(np.array([5], dtype=np.uint64), b"s" * 16)]))
    found = stored_trained_on(tmp_path)
    assert found is not None
    assert "anything" not in found


@pytest.mark.parametrize("field", plugins.names("domains"))
def test_every_alarm_of_every_field_and_level_has_a_reason(field: str, tmp_path: Path) -> None:
    domain = plugins.domain(field)
    sample = domain.sample.draw(tmp_path, n=60)
    records = list(islice(domain.read([str(one) for one in sample.files], Problems("skip")), 18))
    cut = len(records) * 2 // 3
    kind = plugins.tokenizer_class(domain.defaults.tokenizer)
    options = dict(domain.defaults.tokenizer_options)
    texts = (one.raw for one in records)
    known = random_model(
        field, kind.train(texts, **options) if kind.traits.trainable else kind(**options), max_length=256
    )
    alarms = 0
    for level in domain.levels:
        assert UNKNOWN in level.statistics.judging or UNKNOWN not in level.statistics
        made = calibrator(known, notify=lambda text: None)
        background, rest = made.background(level, replace(normal(0), records=records[:cut], of=cut), None)
        [stored] = made.calibrate(level, ["partition:4"], rest, background).values()
        detector = Detector(
            RecordScorer(Session(known)),
            level,
            mode=Mode("partition", 4),
            background=background,
            calibration=stored.fitted,
            alpha=max(0.5, stored.fitted.smallest_rate),
        )
        for one in detector.judged_rows(records[cut:], Problems()):
            told = line(one, known.tokenizer, level=level)
            assert ("reason" in told) is bool(one.alarm)
            if one.alarm:
                alarms += 1
                small = max(0.05, detector.alpha or 0.0)
                assert (one.fired is None) is (min(one.p_values.values(), default=1.0) > small)
                why = (
                    "by itself" if one.fired is None else level.reasons.meaning(one.fired, one.row, one.usual)
                )
                if len(one.p_values) == 1 and why in ("by itself", *level.statistics.values()):
                    assert "Most telling" not in told["reason"], "what judges alone says nothing"
                else:
                    assert ("unfamiliar" if one.unfamiliar else why) in told["reason"]
                if one.row.peak is not None and "Least expected" in told["reason"]:
                    named = one.scored_record.text(one.row.peak).strip()
                    assert (repr(named) if named else "white space") in told["reason"]
    assert alarms
