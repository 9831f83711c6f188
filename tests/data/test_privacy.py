"""Small counts and extremes of sensitive data are not told."""

from __future__ import annotations

import pickle

import pytest

from seqmlm import plugins
from seqmlm.data.counts import Things, redacted, redacted_counts, released
from seqmlm.data.problems import Problems
from seqmlm.inference.calibrations import BACKGROUND, CALIBRATION, TRAINED_ON
from seqmlm.inference.model_folder import COUNTS
from seqmlm.privacy import PERSONAL, handling_sensitive_data

FACTS = {
    "records": 10,
    "tokens": 11,
    "unknown_tokens": 0,
    "share": 0.5,
    "problems": {"no time": 3, "no code": 30},
    "train": {"records": 9, "tokens": 4000},
    "length_quantiles": {"0.0": 2, "0.5": 7, "1.0": 90},
}


def test_sensitive_counts():
    told = redacted(FACTS)
    assert told["records"] == "<11"
    assert told["tokens"] == 11
    assert told["unknown_tokens"] == 0
    assert told["share"] == 0.5
    assert told["problems"] == {"no time": "<11", "no code": 30}
    assert told["train"] == {"records": "<11", "tokens": 4000}
    assert told["length_quantiles"] == {"0.5": 7}, "the shortest and the longest are one person each"


def test_other_data_are_told_as_they_are():
    assert released(FACTS) == FACTS
    with handling_sensitive_data():
        assert released(FACTS) == redacted(FACTS)


def test_files_about_records_are_known_by_name():
    assert set(PERSONAL) == {TRAINED_ON, CALIBRATION, BACKGROUND, COUNTS}


def test_counts_of_things_are_told_however_small():
    told = redacted({"alarms": Things(3), "people": 3, "more": {"files": Things(1)}})
    assert told == {"alarms": 3, "people": "<11", "more": {"files": 1}}
    parts = redacted_counts({"train": 56, "tables": Things(2)}, parts=True)
    assert parts == {"train": 56, "tables": 2}, "a count of things gives no person away"


@pytest.mark.parametrize("way", ["here", "replayed", "apart"])
def test_a_note_says_once_for_all_whether_it_counts_things(way: str):
    """A missing table is one thing, whoever counted it; a record without a time may be one person."""
    problems = Problems("skip", sensitive=True)

    def read(met: Problems) -> None:
        met.note("no table visits in the folder", Things(1))
        met.note("no time", 2)
        met.note("no time")

    if way == "replayed":
        with problems.replaying(
            {**problems.snapshot(), "notes": {"no table visits in the folder": 1, "no time": 3}}
        ):
            read(problems)
    elif way == "apart":
        other = problems.for_worker()
        read(other)
        problems.add(pickle.loads(pickle.dumps(other.take_counts())))
    else:
        read(problems)
    told = redacted(problems.counts)
    assert told == {"no table visits in the folder": 1, "no time": "<11"}


def test_each_level_says_whether_a_row_may_be_a_person() -> None:
    """A level that nobody has thought of is not in this list, and fails."""
    people = {
        (name, level.name)
        for name in plugins.names("domains")
        for level in plugins.domain(name).levels
        if level.counts_people
    }
    assert people == {
        ("code", "file"),
        ("dna", "record"),
        ("ehr", "patient"),
        ("ehr", "patient-whole"),
        ("protein", "protein"),
        ("text", "sentence"),
    }
