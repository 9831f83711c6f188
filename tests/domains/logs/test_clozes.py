"""Gaps made of sessions: each line once in its place, and once as the next one."""

from __future__ import annotations

from seqmlm.data.record import Record
from seqmlm.domains.holes import MASK
from seqmlm.domains.logs import LOGS
from seqmlm.domains.logs.clozes import KINDS, LATER
from seqmlm.domains.logs.readers.events import LogLines

LINES = ("job began", "a [MASK] came", "job ended level=error service=db")


def record(**meta: object) -> Record:
    raw = LogLines(lines=LINES, times=(1.0, 2.0, 4.0))
    return Record(id="a", raw=raw, source="x.log", line=3, meta=meta)


def test_each_line_is_a_gap_among_the_others() -> None:
    asked = list(LOGS.questions(record(lines=[3, 5, 9]), ("event",)))
    assert [(one.line, one.stands, one.answer) for one in asked] == [(3, 0, ""), (5, 1, ""), (9, 2, "")]
    for place, one in enumerate(asked):
        [hole] = one.prompt.holes
        assert one.prompt.raw == record().raw
        assert one.prompt.raw.text[hole.start : hole.end] == LINES[place]


def test_of_the_next_line_only_those_before_are_known() -> None:
    asked = list(LOGS.questions(record(), ("next",)))
    assert [one.line for one in asked] == [3, 3, 3]
    for place, one in enumerate(asked):
        raw = one.prompt.raw
        assert raw.lines == (*LINES[:place], *[MASK] * (1 + LATER))
        assert len(one.prompt.holes) == 1 + LATER  # "[MASK]" that is a line's own text is none
        assert raw.times == (*(1.0, 2.0, 4.0)[:place], *[(1.0, 2.0, 4.0)[max(0, place - 1)]] * (1 + LATER))


def test_severity_and_service_are_what_headers_or_lines_say() -> None:
    inside = list(LOGS.questions(record(), KINDS[2:]))
    assert [(one.kind, one.stands, one.answer) for one in inside] == [
        ("severity", 2, "ERROR"),
        ("service", 2, "db"),
    ]
    origins = [("info", "h", "web"), ("", "h", "web"), ("warning", "h", "")]
    given = list(LOGS.questions(record(origins=origins), KINDS[2:]))
    assert [(one.kind, one.stands, one.answer) for one in given] == [
        ("severity", 0, "info"),
        ("service", 0, "web"),
        ("service", 1, "web"),
        ("severity", 2, "warning"),
    ]
    assert not list(LOGS.questions(Record(id="a", raw="text", source="x", line=1), KINDS))
