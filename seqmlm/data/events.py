"""What is known of a patient: events in time, from whatever system they came, one history a subject."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

BIRTH = "MEDS_BIRTH"
DEATH = "MEDS_DEATH"

_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Event:
    """One thing that is recorded of a subject.

    Args:
        time: seconds since 1970-01-01 UTC, negative before; None for what has no time (sex, race).
        code: vocabulary, "//" and the code ("ICD9//250.00", "LAB//2345-7", "SEX//F"), or "MEDS_BIRTH" and
            "MEDS_DEATH", alone or in front of "//"; without tabs and line ends.
        value: a measured number.
        text: a value in words, short; without tabs and line ends.
        visit: the source's id of the visit.
        kind: "inpatient", "outpatient" or "emergency" for the event that opens a visit, else "".
    """

    time: float | None
    code: str
    value: float | None
    text: str | None
    visit: str | None
    kind: str

    # Written out for speed, as that of `Record`.
    def __init__(
        self,
        *,
        time: float | None,
        code: str,
        value: float | None = None,
        text: str | None = None,
        visit: str | None = None,
        kind: str = "",
    ) -> None:
        _set_time(self, time)
        _set_code(self, code)
        _set_value(self, value)
        _set_text(self, text)
        _set_visit(self, visit)
        _set_kind(self, kind)


_set_time, _set_code, _set_value, _set_text, _set_visit, _set_kind = (
    Event.__dict__[name].__set__ for name in ("time", "code", "value", "text", "visit", "kind")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All events of one subject: `Record.raw` of patient histories.

    Args:
        subject: the source's id.
        birth: seconds since 1970-01-01 UTC; None if unknown.
        events: those without a time first, then in order of time; without duplicates.
    """

    subject: str
    birth: float | None
    events: tuple[Event, ...]

    def __str__(self) -> str:
        """One event a line (time or "-", code, value, text, visit, kind; tabs), then subject and birth.

        Line i, counted from 0, is event i. Equal strings mean equal histories, to the microsecond.
        """
        lines = [_line(event) for event in self.events]
        lines.append(f"{self.subject}\t{iso(self.birth)}")
        return "\n".join(lines)

    def code_spans(self) -> list[tuple[int, int]]:
        """Where the code of each event stands in `str(self)`: (start, end) characters."""
        spans, at = [], 0
        for event in self.events:
            line = _line(event)
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


def _line(event: Event) -> str:
    value = "" if event.value is None else repr(event.value)
    return f"{iso(event.time)}\t{event.code}\t{value}\t{event.text or ''}\t{event.visit or ''}\t{event.kind}"
