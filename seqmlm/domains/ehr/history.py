"""The raw form of patient histories: the events of a subject in order of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

BIRTH = "MEDS_BIRTH"
DEATH = "MEDS_DEATH"

_EPOCH = datetime(1970, 1, 1)


class Event(NamedTuple):
    """One recorded event of a subject. It is a tuple to save memory, because there are hundreds of millions.

    Attributes:
        time: seconds since 1970-01-01 UTC, negative before; None if the event has no time (sex, race).
        code: vocabulary, "//" and code ("ICD9//250.00", "LAB//2345-7", "SEX//F"). Birth and death are
            "MEDS_BIRTH" and "MEDS_DEATH", optionally followed by "//" and more. It has no tabs or line ends.
        value: a measured number.
        text: a short value in words, without tabs or line ends.
        unit: the unit of the value, as spelled in the source; None if the source has none.
        visit: the id of the visit in the source.
        kind: "inpatient", "outpatient" or "emergency" if the event opens a visit, otherwise "".
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
        """The event as text: time or "-", code, value, text, visit and kind, separated by tabs."""
        value = "" if self.value is None else repr(self.value)
        return f"{iso(self.time)}\t{self.code}\t{value}\t{self.text or ''}\t{self.visit or ''}\t{self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All events of one subject. It is the `Record.raw` of patient histories.

    Args:
        subject: the id of the subject in the source.
        birth: seconds since 1970-01-01 UTC; None if unknown.
        events: the events without duplicates. Events without a time come first, then the others by time.
        meanings: descriptions of codes, shared by all histories of an input.
    """

    subject: str
    birth: float | None
    events: tuple[Event, ...]
    meanings: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        """One line per event (`Event.line`), and a last line with the subject and birth.

        Line i, counted from 0, is event i. Histories with equal strings are equal to the microsecond, except
        for the units of values. Units are left out because models recognize their training data by this text,
        and earlier versions had no units.
        """
        lines = [event.line for event in self.events]
        lines.append(f"{self.subject}\t{iso(self.birth)}")
        return "\n".join(lines)

    def code_spans(self) -> list[tuple[int, int]]:
        """The position of each event's code in `str(self)`: its start and end (half open) in characters."""
        spans, at = [], 0
        for event in self.events:
            line = event.line
            start = at + line.index("\t") + 1
            spans.append((start, start + len(event.code)))
            at += len(line) + 1
        return spans


def iso(time: float | None) -> str:
    """A time in seconds since 1970 as ISO 8601 text; "-" for None."""
    return "-" if time is None else (_EPOCH + timedelta(seconds=time)).isoformat()


def is_birth(code: str) -> bool:
    """Whether a code is the birth of the subject ("MEDS_BIRTH", also followed by "//")."""
    return code.startswith(BIRTH) and (len(code) == len(BIRTH) or code.startswith("//", len(BIRTH)))


def is_death(code: str) -> bool:
    """Whether a code is the death of the subject ("MEDS_DEATH", also followed by "//")."""
    return code.startswith(DEATH) and (len(code) == len(DEATH) or code.startswith("//", len(DEATH)))
