"""Records to rows: windows of long records, parts asked anew, order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_domain_models import patients, patients_model
from tiny_models import residues

from seqmlm.anomaly.judge import Normal
from seqmlm.anomaly.levels import RecordLevel, UnitLevel
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.types import InMemory
from seqmlm.engine.units import ONE_PASS
from seqmlm.inference.detector import Detector, table
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.record_batches import encoded
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.scoring.output import Tally, line
from seqmlm.scoring.plan import EXPECTED


def _records(*lengths: int) -> list[Record]:
    return [
        Record(id=f"r{i}", raw=residues(length), source="x.fasta", line=i)
        for i, length in enumerate(lengths, start=1)
    ]


def test_rows_of_units_point_at_their_letters(model: LoadedModel) -> None:
    scorer = RecordScorer(Session(model))
    detector = Detector(scorer, UnitLevel("residue"), mode=ONE_PASS, want=EXPECTED)
    [record] = _records(50)
    rows = list(detector.judged_rows([record], Problems()))
    assert [record.raw[one.row.start : one.row.end] for one in rows] == list(record.raw)
    fields = line(rows[7], model.tokenizer, per_unit=True)
    assert fields["id"] == "r1#7"
    assert fields["units"] == 1
    assert fields["score"] == fields["bits_per_unit"] == fields["top"][0]["surprisal"]
    expected = fields["per_unit"][0]["expected"]
    assert len(expected) == 3
    assert expected[0]["p"] >= expected[1]["p"]


def test_a_record_without_units_has_no_score(model: LoadedModel) -> None:
    detector = Detector(RecordScorer(Session(model)), RecordLevel("protein"))
    [row] = detector.judged_rows([Record(id="e", raw="", source="x", line=1)], Problems())
    assert row.row.score is None
    fields = line(row, model.tokenizer)
    assert fields["bits_per_unit"] is None
    assert fields["pll"] == 0


# Rows that say nothing


@pytest.fixture(scope="module")
def visits() -> tuple[Detector, list[Record]]:
    """A detector of visits, calibrated, with an alarm rate; and patients whose codes it does not know."""
    known = patients_model()
    session = Session(known)
    level = known.domain.level("visit")
    background = level.background.fit(  # type: ignore[union-attr]
        InMemory([one.encoding for one in encoded(known.domain, known.tokenizer, patients(20), Problems())]),
        known.tokenizer,
        seed=0,
    )
    plain = Detector(RecordScorer(session), level, background=background)
    rows = [one.row for one in plain.judged_rows(patients(40), Problems()) if one.row.score is not None]
    calibration = Normal.fit(*table(rows, level.statistics.judging), seed=0, fusion=level.statistics.fusion)
    foreign = [
        replace(
            one, raw=replace(one.raw, events=tuple(e._replace(code=f"ZZZ:{e.code}") for e in one.raw.events))
        )
        for one in patients(5)
    ]
    scorer = RecordScorer(session)
    return Detector(scorer, level, background=background, calibration=calibration, alpha=0.05), foreign


def test_a_row_of_which_nothing_is_known_is_no_alarm(visits: tuple[Detector, list[Record]]) -> None:
    detector, foreign = visits
    judged = list(detector.judged_rows(foreign, Problems()))
    strange = [one for one in judged if one.unfamiliar]
    assert any(one.row.score is None for one in strange)
    for one in strange:
        assert (one.p_value, one.p_values, one.alarm) == (None, {}, False)
        fields = line(one, detector.scorer.session.tokenizer, calibrated=True, level=detector.level)
        assert (fields["alarm"], fields["unfamiliar"], fields["p_value"]) == (False, True, None)
        assert "reason" not in fields
    assert all(one.unfamiliar for one in judged if one.row.score is None)


def test_where_the_unknown_is_evidence_a_row_of_which_nothing_is_known_is_an_alarm_of_its_own(
    visits: tuple[Detector, list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    detector, foreign = visits
    monkeypatch.setattr(type(detector.level), "unknown_is_evidence", True)
    judged = list(detector.judged_rows(foreign, Problems()))
    silent = [one for one in judged if one.row.score is None]
    assert silent
    for one in silent:
        assert (one.p_value, one.p_values, one.alarm, one.unfamiliar) == (None, {}, True, True)
        told = line(one, detector.scorer.session.tokenizer)
        assert (told["alarm"], told["unfamiliar"], told["score"]) == (True, True, None)
        assert "p_value" not in told
        assert line(one, detector.scorer.session.tokenizer, calibrated=True)["p_value"] is None
    tally = Tally()
    for one in judged:
        tally.add(line(one, detector.scorer.session.tokenizer))
    others = sum(one.alarm is True for one in judged if one.row.score)
    assert tally.unfamiliar == len(silent) == tally.alarms - others


def test_a_row_of_which_nothing_is_known_is_no_alarm_where_more_normal_rows_are_so(
    visits: tuple[Detector, list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    detector, foreign = visits
    monkeypatch.setattr(type(detector.level), "unknown_is_evidence", True)
    known = detector.calibration
    assert isinstance(known, Normal)
    for unfamiliar, alarms in ((known.rows // 40, True), (known.rows // 10, False)):
        calibration = Normal.from_state(*replace(known, unfamiliar=unfamiliar).to_state())
        assert calibration.unfamiliar_rate == (1 + unfamiliar) / (known.rows + unfamiliar + 1)
        assert (calibration.unfamiliar_rate <= 0.05) is alarms
        again = Detector(
            detector.scorer,
            detector.level,
            background=detector.background,
            calibration=calibration,
            alpha=0.05,
        )
        silent = [one for one in again.judged_rows(foreign, Problems()) if one.row.score is None]
        assert silent
        assert all(one.unfamiliar and one.alarm is alarms for one in silent)


def test_what_is_known_is_not_unfamiliar(visits: tuple[Detector, list[Record]]) -> None:
    detector, _ = visits
    for one in detector.judged_rows(patients(10), Problems()):
        assert not one.unfamiliar
        assert (one.p_value is None) == (one.row.score is None)
        assert one.row.score is not None or one.alarm is False


def test_unknown_units_are_found_where_they_stand(visits: tuple[Detector, list[Record]]) -> None:
    detector, foreign = visits
    scorer = detector.scorer
    [known, strange] = scorer.unit_scores(scorer.encoded([patients(1)[0], foreign[0]], Problems()))
    ids = scorer.session.tokenizer.units.facts.unfamiliar
    assert len(known.unknown(ids)) == 0
    found = [strange.raw[a:b] for a, b in strange.unknown(ids).tolist()]
    assert all("ZZZ:" in text for text in found)
    assert len(found) == str(strange.raw).count("ZZZ:")
