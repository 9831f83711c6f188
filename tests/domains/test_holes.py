"""Gaps in raw sequences of every field: written by people, filled, and framed by templates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm import plugins
from seqmlm.domains.code.lexers.source import SourceText
from seqmlm.domains.ehr.history import Event, History
from seqmlm.domains.holes import escape_holes, fill_holes, frame, read_holes
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.errors import UsageError

FORMS = ("[MASK]", "<mask>")
DAY = 86_400.0


@given(st.lists(st.sampled_from(["[MASK]", "<mask>", "\\", "[MASK:2]", "a", " "])).map("".join))
def test_data_are_read_as_they_are_once_escaped(text: str):
    assert read_holes(escape_holes(text, FORMS), FORMS) == (text, [])
    assert read_holes(frame("{text} [MASK]", {"text": text}, FORMS), FORMS)[1][-1].tokens == 1


@given(st.lists(st.sampled_from(["[MASK]", "<mask>", "a", " "])), st.text("xyz", max_size=3))
def test_what_is_put_into_gaps_stands_where_it_is_said_to(pieces: list[str], new: str):
    text, holes = read_holes("".join(pieces), FORMS)
    filled, places = fill_holes(text, holes, [new] * len(holes))
    assert filled == "".join(new if piece in FORMS else piece for piece in pieces)
    assert [filled[place.start : place.end] for place in places] == [new] * len(holes)


def test_a_line_of_a_log_is_a_gap():
    logs = plugins.domain("logs")
    raw = LogLines(lines=("a", " [MASK] ", "\\[MASK]", "x [MASK] y"), times=(1.0, 2.0, 3.0, 4.0))
    prompt = logs.gaps.prompt(raw, FORMS)
    assert prompt.raw.lines == ("a", " [MASK] ", "[MASK]", "x [MASK] y")
    assert [hole[:2] for hole in prompt.holes] == [(2, 10)]
    filled = logs.gaps.filled(prompt, ["ready"])
    assert filled.raw == LogLines(lines=("a", "ready", "[MASK]", "x [MASK] y"), times=raw.times)
    [hole] = filled.holes
    assert filled.raw.text[hole.start : hole.end] == "ready"


def test_lines_around_a_log():
    logs = plugins.domain("logs")
    raw = LogLines(lines=("[MASK]", "b"), times=(1.0, 2.0))
    framed = logs.gaps.framed(raw, "first\n{text}\n[MASK]\nlast {n}", {"n": 7}, FORMS)
    assert framed.lines == ("first", "\\[MASK]", "b", "[MASK]", "last 7")
    assert framed.times == (1.0, 1.0, 2.0, 2.0, 2.0)
    prompt = logs.gaps.prompt(framed, FORMS)
    assert prompt.raw.lines == ("first", "[MASK]", "b", "[MASK]", "last 7")
    assert len(prompt.holes) == 1
    assert logs.gaps.framed(logs.text.empty, "{text}\n[MASK]", {}, FORMS).lines == ("[MASK]",)


def test_an_event_of_a_history_is_a_gap():
    ehr = plugins.domain("ehr")
    events = (Event(time=0.0, code="ICD//[MASK]", value=3.0), Event(time=DAY, code="DRUG//a"))
    raw = History(subject="p", birth=None, events=events)
    prompt = ehr.gaps.prompt(raw, FORMS)
    filled = ehr.gaps.filled(prompt, ["ICD//I50"])
    assert [(event.code, event.value) for event in filled.raw.events] == [
        ("ICD//I50", None),
        ("DRUG//a", None),
    ]
    [hole] = filled.holes
    assert str(filled.raw)[hole.start : hole.end] == "ICD//I50"


def test_visits_behind_a_history():
    ehr = plugins.domain("ehr")
    raw = History(subject="p", birth=None, events=(Event(time=5 * DAY, code="DRUG//a"),))
    framed = ehr.gaps.framed(raw, "{text}\n+30d VISIT [MASK]\nDRUG//b", {}, FORMS)
    assert [(event.time, event.code) for event in framed.events] == [
        (5 * DAY, "DRUG//a"),
        (35 * DAY, "VISIT"),
        (35 * DAY, "[MASK]"),
        (36 * DAY, "DRUG//b"),
    ]
    for template in ("[MASK]\n{text}", "{text}\n+soon [MASK]"):
        with pytest.raises(UsageError):
            ehr.gaps.framed(raw, template, {}, FORMS)


def test_code_stays_in_its_language():
    code = plugins.domain("code")
    raw = SourceText("x = [MASK]", "java")
    prompt = code.gaps.prompt(code.gaps.framed(raw, "{text}; y = [MASK]", {}, FORMS), FORMS)
    assert str(prompt.raw) == "x = [MASK]; y = [MASK]"
    assert prompt.raw.language == "java"
    assert len(prompt.holes) == 1
    assert code.gaps.filled(prompt, ["1"]).raw == "x = [MASK]; y = 1"


def test_a_template_names_fields_that_are_there():
    assert frame("{{a}} {b}", {"b": 1}, FORMS) == "{a} 1"
    with pytest.raises(UsageError, match="did you mean 'text'"):
        frame("{texd} [MASK]", {"text": ""}, FORMS)
