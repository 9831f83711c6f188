"""The audit counts what is there and tells nothing of few people."""

from __future__ import annotations

from collections.abc import Iterator

from seqmlm.data.counts import redacted_count
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.ehr.audit import audit
from seqmlm.domains.ehr.history import Event, History

YEAR = 365.25 * 86_400


def records(count: int, rare: int) -> Iterator[Record]:
    """`count` subjects with two visits and a day without visit; the first `rare` ones are special."""
    for i in range(count):
        events = [
            Event(time=None, code="SEX//F"),
            Event(time=0.0, code="MEDS_BIRTH"),
            Event(time=40 * YEAR, code="ICD9//1", visit="a"),
            Event(time=40 * YEAR, code="ICD9//2", visit="a"),
            Event(time=41.5 * YEAR, code="ICD9//1", visit="b"),
            Event(time=41.6 * YEAR, code=f"LAB//{'rare' if i < rare else 'common'}"),
        ]
        if i < rare:
            events.append(Event(time=50.5 * YEAR, code="MEDS_DEATH"))
        raw = History(subject=str(i), birth=None if i < rare else 0.0, events=tuple(events))
        meta = {"split": "test" if i < rare else "train"}
        yield Record(id=str(i), raw=raw, source="x", line=1, document=str(i), meta=meta)


def test_counts() -> None:
    problems = Problems()
    problems.note("odd", 11)
    found = audit(records(100, 20), problems)
    assert found == {
        "subjects": 100,
        "subjects_without_birth": 20,
        "subjects_who_died": 20,
        "visits": 300,
        "events": 520,
        "static_events": 100,
        "codes": 7,
        "codes_in_10_subjects_or_fewer": 0,
        "splits": {"test": 20, "train": 80},
        "vocabularies": {"ICD9": 300, "LAB": 100, "MEDS_BIRTH": 100, "MEDS_DEATH": 20, "SEX": 100},
        "years": [2010, 2020],
        "subjects_by_year": {"2010": 100, "2011": 100, "2020": 20},
        "problems": {"odd": 11},
    }


def test_few_people_are_not_told() -> None:
    found = audit(records(100, 3))
    assert found["subjects_without_birth"] == found["subjects_who_died"] == "<11"
    assert found["codes_in_10_subjects_or_fewer"] == 2
    assert found["years"] == [2010, 2011]
    # 100 - 97 would tell it.
    assert found["splits"] == {"test": "<11", "train": "withheld"}
    assert found["vocabularies"]["vocabularies of few subjects"] == "<11"
    assert "MEDS_DEATH" not in found["vocabularies"]
    assert list(found["vocabularies"].values()).count("withheld") == 1


def test_nobody_is_told_as_nobody() -> None:
    assert [redacted_count(n) for n in (0, 1, 10, 11)] == [0, "<11", "<11", 11]
    assert audit([])["subjects"] == 0


def test_one_patient_in_many_records_is_one_person() -> None:
    once = list(records(12, 12))
    found = audit([once[0]] * 12)
    assert found["subjects"] == found["subjects_who_died"] == "<11"
    assert found["subjects_by_year"] == {}
    assert found["codes_in_10_subjects_or_fewer"] == found["codes"] == 6
