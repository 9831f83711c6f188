"""Rows of histories: where they are, what was missing, what is too rare to be known."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from histories import histories
from scored_records import scored
from tiny_domain_models import loaded, patients, patients_model

from seqmlm.anomaly.values import Row, ScoredRecord
from seqmlm.data.record import Record
from seqmlm.domains.ehr.history import Event
from seqmlm.domains.ehr.levels import (
    LEVELS,
    CodeCounts,
    CodePairs,
    EventLevel,
    HistoryLevel,
    PatientLevel,
    PatientUnits,
    VisitLevel,
    code_places,
)
from seqmlm.domains.ehr.tokenizer import EventsTokenizer
from seqmlm.errors import StateError
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.reports.report import unit_tip as report_told
from seqmlm.scoring.output import unit_fields


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return patients_model()


def counts(model: LoadedModel) -> CodeCounts:
    return CodeCounts.fit(model.tokenizer.encode_batch(histories(60)), model.tokenizer, seed=0)


def rows(model: LoadedModel, level: PatientLevel, record: Record) -> tuple[ScoredRecord, list[Row]]:
    [one] = scored(model, [record], want=level.want, view=level.view)
    return one, list(level.rows(one, counts(model)))


@pytest.mark.parametrize("past", [True, False])
def test_visits(model, past):
    record = patients(4)[3]
    level = VisitLevel(past=past)
    one, found = rows(model, level, record)
    names = list(dict.fromkeys(e.visit for e in record.raw.events if e.visit is not None))
    assert [row.extra["visit_id"] for row in found] == names
    assert [row.extra["visit"] for row in found] == list(range(1, len(names) + 1))
    assert sorted(np.concatenate([row.units for row in found]).tolist()) == list(range(len(one)))
    for row, name in zip(found, names, strict=True):
        own = [e for e in record.raw.events if e.visit == name]
        begins = min(e.time for e in own if e.time is not None)
        assert row.time == begins
        assert row.extra["date"] == datetime.fromtimestamp(begins, UTC).date().isoformat()
        assert row.statistics["mean"] == pytest.approx(one.surprisal[row.units].mean())
        assert row.statistics["max"] == row.score == one.surprisal[row.units].max()
        assert {one.text(unit) for unit in row.units.tolist()} <= {e.code for e in own}
        assert row.statistics["unknown"] == 0


def test_codes_that_nobody_knows_are_counted_and_a_visit_of_them_has_a_row(model):
    history = patients(1)[0].raw
    last = history.events[-1]
    assert last.time is not None
    strange = [
        Event(time=last.time + 86400 * days, code=f"NEW//{n}", visit=f"x{days}")
        for days, n in ((1, 1), (1, 2), (9, 3))
    ]
    record = Record(id="p", raw=replace(history, events=(*history.events, *strange)), source="t", line=1)
    _, found = rows(model, VisitLevel(), record)
    assert [row.statistics["unknown"] for row in found[-3:]] == [0, 2, 1]
    assert np.isnan(found[-1].statistics["mean"])
    assert found[-1].score is None
    assert str(record.raw)[found[-1].start : found[-1].end] == "NEW//3"
    _, [whole] = rows(model, HistoryLevel(), record)
    assert whole.statistics["unknown"] == 3


def test_missing_codes_are_likely_absent_ones(model):
    record = patients(4)[3]
    one, found = rows(model, VisitLevel(), record)
    own = counts(model)
    place = max(range(len(found)), key=lambda visit: len(found[visit].units))
    units = found[place].units
    assert len(units) > 1
    there = int(one.encoding.ids[code_places(one)[units[0]]])
    strange = [t for t in model.tokenizer.space.ordinary.tolist() if t not in one.encoding.ids]
    absent = next(t for t in strange if own.clinical[t])
    frame = next(t for t in strange if not own.clinical[t])
    ids = np.full((len(one), 2), -1)
    ids[units] = [absent, there]
    log_probs = np.full((len(one), 2), -np.inf)
    log_probs[units] = np.log([0.3, 0.6])
    told = replace(one, values={"top_ids": ids, "top_log_probs": log_probs})
    [named] = VisitLevel().rows(told, own)[place].extra["missing"]
    assert named == {"unit": own.names[absent], "p": pytest.approx(1 - 0.7 ** len(units))}
    rare = replace(
        told, values={"top_ids": ids, "top_log_probs": np.full_like(log_probs, np.log(0.5 / len(units)))}
    )
    assert VisitLevel().rows(rare, own)[place].extra["missing"] == []
    framed = replace(told, values={**told.values, "top_ids": np.where(ids == absent, frame, ids)})
    assert VisitLevel().rows(framed, own)[place].extra["missing"] == []


def test_patients_and_events(model):
    record = patients(4)[3]
    one, [patient] = rows(model, HistoryLevel(), record)
    _, by_visit = rows(model, VisitLevel(), record)
    _, by_event = rows(model, EventLevel(), record)
    assert patient.id == record.id
    assert patient.score == pytest.approx(one.surprisal.mean())
    worst = max(by_visit, key=lambda row: row.statistics["mean"])
    assert patient.statistics["worst_visit"] == worst.statistics["mean"]
    assert patient.extra["worst_visit_id"] == worst.extra["visit_id"]
    assert patient.time == by_visit[0].time
    assert [row.statistics["surprisal"] for row in by_event] == one.surprisal.tolist()
    assert [str(record.raw)[row.start : row.end] for row in by_event] == [
        one.text(u) for u in range(len(one))
    ]


def test_a_patient_without_events(model):
    record = Record(id="e", raw=replace(patients(1)[0].raw, events=()), source="t", line=1)
    for level in LEVELS:
        assert isinstance(level, PatientLevel)
        _, found = rows(model, level, record)
        assert [row.score for row in found] == ([None] if level.kind == "patient" else [])


def test_no_background_is_said(model):
    [one] = scored(model, patients(1))
    with pytest.raises(StateError, match="seqmlm calibrate"):
        VisitLevel().rows(one, None)


def test_codes_that_rarely_meet_are_rarer_together_than_by_chance() -> None:
    own = [np.array([1, 3])] * 60 + [np.array([2, 4])] * 60 + [np.array([1, 4])] * 3 + [np.array([5])]
    counts = np.bincount(np.concatenate(own), minlength=7)
    met = CodePairs.of(own, counts)
    bits = met.bits(np.array([1, 4, 2, 3, 6]))
    assert bits[0, 0] == 0.0
    assert bits[0, 1] == pytest.approx(np.log2(63 * 63 / 124 / 5))  # 3 patients count as 5
    assert bits[1, 3] == pytest.approx(np.log2(63 * 60 / 124 / 5))  # and so do none
    assert bits[0, 3] == pytest.approx(np.log2(63 * 60 / 124 / 60))
    assert not bits[4].any()  # not known
    np.testing.assert_array_equal(bits, bits.T)
    assert not (set(range(5)) | set(range(6, 11))) & set(met.together.ravel().tolist())


def test_a_code_is_judged_by_those_known_at_its_visit(model: LoadedModel) -> None:
    background = counts(model)
    again = CodeCounts.load(background.arrays(), model.tokenizer)
    records = [Record(id=str(i), raw=one, source="s", line=1) for i, one in enumerate(histories(5))]
    for one in scored(model, records):
        patient = PatientUnits(one)
        tokens, since = one.encoding.ids[code_places(one)].astype(np.int64), patient.visits
        bits = background.pairs.bits(tokens)
        expected = [
            max(max(bits[u, o], 0.0) for o in range(len(tokens)) if since[o] <= since[u])
            for u in range(len(one))
        ]
        found, others = patient.rarest_pairs(again)
        assert found == pytest.approx(np.array(expected))
        named = [background.pairs.bits(np.array([a, b]))[0, 1] for a, b in zip(tokens, others, strict=False)]
        assert np.where(found > 0, named, 0.0) == pytest.approx(np.array(expected))


def test_a_reason_names_two_codes_that_rarely_meet_and_those_that_are_not_known(model: LoadedModel) -> None:
    level, background = VisitLevel(), counts(model)
    [one] = scored(model, patients(1))
    patient = PatientUnits(one)
    own = one.encoding.ids[code_places(one)[patient.visits == patient.visits[0]]].astype(np.int64)
    code, other = own[0], next(token for token in own if token != own[0])
    apart = CodePairs.of([np.array([other])] * 60 + [np.array([code])] * 60, np.bincount([other, code]))
    [first, *_] = level.patient_rows(patient, CodeCounts(apart, background.names, background.clinical))
    assert first.statistics["pair"] == pytest.approx(np.log2(60 * 60 / 120 / 5))
    named = [background.names[code], background.names[other]]
    assert first.extra["pair"] == named
    assert level.reasons.meaning(
        "pair", first
    ) == "{!r} and {!r}, which rarely occur in the same patient".format(*named)
    strange = replace(first, extra={**first.extra, "unknown": ["X//1", "X//2"]})
    assert level.reasons.meaning("unknown", strange).endswith("outside the vocabulary: 'X//1', 'X//2'")
    assert level.reasons.meaning("unknown", first) == level.statistics["unknown"]


@pytest.mark.parametrize("past", [True, False])
def test_what_is_expected_are_clinical_codes_with_what_they_mean(past):
    meanings = {"LAB//2345-7": "Glucose", "DRUG//furosemide": "Furosemide"}
    train = [replace(history, meanings=meanings) for history in histories(60)]
    tokenizer = EventsTokenizer.train(train)
    model = loaded("ehr", tokenizer, 256)
    # Untrained, it expects anything.
    one, found = rows(model, EventLevel(past=past), patients(4)[3])
    tokens = one.values["top_ids"]
    expected = [
        alternative
        for unit in range(len(one))
        for alternative in unit_fields(found[unit], one, unit, tokenizer)["expected"]
    ]
    everything = [tokenizer.spelling.surface(token) for token in tokens.ravel().tolist()]
    frame = ("[", "SEX//", "VISIT//")
    assert any(name.startswith(frame) for name in everything)
    assert [alternative["unit"] for alternative in expected] == [
        name for name in everything if not name.startswith(frame)
    ]
    for alternative in expected:
        code = alternative["unit"].partition("//Q")[0]
        assert alternative.get("description") == meanings.get(code)
    assert [
        unit_fields(found[unit], one, unit, tokenizer).get("description") for unit in range(len(one))
    ] == [meanings.get(one.text(unit)) for unit in range(len(one))]
    assert any("description" in alternative for alternative in expected)
    told = report_told(one, 0, tokenizer.spelling.unit_text, lambda text: f"the meaning of {text}")
    assert told.startswith(f"{one.text(0)} (the meaning of {one.text(0)}): ")
