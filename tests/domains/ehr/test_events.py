"""Events and histories: equal strings mean equal histories, and codes are found in them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.domains.ehr.history import Event, History, is_birth, is_death, iso

words = st.text(
    st.characters(codec="utf-8", exclude_characters="\t\n\r", exclude_categories=("Cc",)), max_size=8
)
times = st.none() | st.floats(-5e9, 5e9).map(lambda t: round(t, 3) + 0.0)
events = st.builds(
    Event,
    time=times,
    code=words.map(lambda word: "X//" + word),
    value=st.none() | st.floats(allow_nan=False, allow_infinity=False).map(lambda v: v + 0.0),  # no -0.0
    text=st.none() | words.filter(bool),
    unit=st.none(),
    visit=st.none() | words.filter(bool),
    kind=st.sampled_from(["", "inpatient"]),
)
histories = st.builds(History, subject=words, birth=times, events=st.lists(events, max_size=4).map(tuple))


@given(histories, histories)
def test_equal_strings_are_equal_histories(one: History, two: History) -> None:
    assert (str(one) == str(two)) == (one == two)


@given(histories, st.data())
def test_any_change_changes_the_string(history: History, data: st.DataObject) -> None:
    other = dataclasses.replace(history, events=(*history.events, data.draw(events)))
    assert str(other) != str(history)


@given(histories)
def test_codes_stand_where_their_spans_say(history: History) -> None:
    text = str(history)
    assert [text[start:end] for start, end in history.code_spans()] == [
        event.code for event in history.events
    ]
    assert [line.split("\t")[1] for line in text.split("\n")][:-1] == [event.code for event in history.events]


def test_the_lines_of_a_history() -> None:
    history = History(
        subject="7",
        birth=-86_400.0,
        events=(
            Event(time=None, code="SEX//F"),
            Event(time=-86_400.0, code="MEDS_BIRTH"),
            Event(time=0.5, code="LAB//1", value=5.0, text="high", visit="v1", kind="inpatient"),
        ),
    )
    assert str(history).split("\n") == [
        "-\tSEX//F\t\t\t\t",
        "1969-12-31T00:00:00\tMEDS_BIRTH\t\t\t\t",
        "1970-01-01T00:00:00.500000\tLAB//1\t5.0\thigh\tv1\tinpatient",
        "7\t1969-12-31T00:00:00",
    ]
    with pytest.raises(AttributeError):
        history.events[0].code = "SEX//M"  # type: ignore[misc]


def test_birth_and_death_also_as_prefixes() -> None:
    assert is_birth("MEDS_BIRTH")
    assert is_birth("MEDS_BIRTH//hospital")
    assert not is_birth("MEDS_BIRTHDAY")
    assert is_death("MEDS_DEATH//in hospital")
    assert not is_death("DEATH")
    assert iso(None) == "-"
