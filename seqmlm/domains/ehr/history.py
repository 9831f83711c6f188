"""The raw form of patient histories: events of a subject, in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

BIRTH = "MEDS_BIRTH"
DEATH = "MEDS_DEATH"

_EPOCH = datetime(1970, 1, 1)


class Event(NamedTuple):
    """One thing that is recorded of a subject; a tuple, for there are hundreds of millions of them.

    time: seconds since 1970-01-01 UTC, negative before; None for what has no time (sex, race).
    code: vocabulary, "//" and the code ("ICD9//250.00", "LAB//2345-7", "SEX//F"), or "MEDS_BIRTH" and
        "MEDS_DEATH", alone or in front of "//"; without tabs and line ends.
    value: a measured number.
    text: a value in words, short; without tabs and line ends.
    unit: of the value, as the source spells it; None where it says nothing.
    visit: the source's id of the visit.
    kind: "inpatient", "outpatient" or "emergency" for the event that opens a visit, else "".
    """

    time: float | None
    code: str
    value: float | None = None
    text: str | None = None
    unit: str | None = None
    visit: str | None = None
    kind: str = ""

    @property
    def line(self) -> str:
        """Time or "-", code, value, text, visit and kind, with tabs between them."""
        value = "" if self.value is None else repr(self.value)
        return f"{iso(self.time)}\t{self.code}\t{value}\t{self.text or ''}\t{self.visit or ''}\t{self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All events of one subject: `Record.raw` of patient histories.

    Args:
        subject: the source's id.
        birth: seconds since 1970-01-01 UTC; None if unknown.
        events: those without a time first, then in order of time; without duplicates.
        meanings: descriptions of codes, shared by all histories of an input.
    """

    subject: str
    birth: float | None
    events: tuple[Event, ...]
    meanings: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        """One event a line (`Event.line`), then subject and birth.

        Line i, counted from 0, is event i. Equal strings mean equal histories, to the microsecond, but for
        the units of values: what a model was trained on is known by this text, and units came later.
        """
        lines = [event.line for event in self.events]
        lines.append(f"{self.subject}\t{iso(self.birth)}")
        return "\n".join(lines)

    def code_spans(self) -> list[tuple[int, int]]:
        """Where the code of each event stands in `str(self)`: (start, end) characters."""
        spans, at = [], 0
        for event in self.events:
            line = event.line
            start = at + line.index("\t") + 1
            spans.append((start, start + len(event.code)))
            at += len(line) + 1
        return spans


def iso(time: float | None) -> str:
    """ISO 8601 text of a time in seconds since 1970, "-" for None."""
    return "-" if time is None else (_EPOCH + timedelta(seconds=time)).isoformat()


def is_birth(code: str) -> bool:
    """Whether a code says that the subject was born ("MEDS_BIRTH", also in front of "//")."""
    return code.startswith(BIRTH) and (len(code) == len(BIRTH) or code.startswith("//", len(BIRTH)))


def is_death(code: str) -> bool:
    """Whether a code says that the subject died ("MEDS_DEATH", also in front of "//")."""
    return code.startswith(DEATH) and (len(code) == len(DEATH) or code.startswith("//", len(DEATH)))
