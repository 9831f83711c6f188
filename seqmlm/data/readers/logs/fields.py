"""Which field of a JSON object or column of a table is the message, the time, the session, the label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from seqmlm.data.timestamps import NAN, Clock, epoch

MESSAGE = ("message", "content", "msg", "log", "text", "@message", "body", "event")
LISTS = ("templates", "sequence", "lines", "messages", "events", "eventsequence")
TIME = ("timestamp", "@timestamp", "__realtime_timestamp", "datetime", "ts", "asctime")
TIME_PARTS = ("month", "date", "day", "time")
SESSION = ("session", "session_id", "sessionid", "seq_id", "blockid", "trace_id", "traceid", "request_id")
LABEL = ("label", "anomaly", "is_anomaly")


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Names of fields; None: found by their usual names.

    Args:
        message: what is said, or the list of a session's lines.
        time: one name, or several with commas between them (date,time).
        session: id of the session.
        label: what the file calls it.
    """

    message: str | None = None
    time: str | None = None
    session: str | None = None
    label: str | None = None

    def among(self, names: Sequence[str]) -> Found:
        """Choose among the names that are there."""
        lower = {name.lower(): name for name in reversed(names)}

        def usual(wanted: str | None, known: Iterable[str]) -> str | None:
            return wanted if wanted is not None else next((lower[k] for k in known if k in lower), None)

        if self.time is not None:
            times = tuple(self.time.split(","))
        elif (one := usual(None, TIME)) is not None:
            times = (one,)
        else:
            times = tuple(n for n in names if n.lower() in TIME_PARTS) if "time" in lower else ()
        return Found(
            message=usual(self.message, (*MESSAGE, *LISTS)),
            times=times,
            session=usual(self.session, SESSION),
            label=usual(self.label, LABEL),
        )


@dataclass(frozen=True, kw_only=True)
class Found:
    """The fields of one file; as `Fields`."""

    message: str | None
    times: tuple[str, ...]
    session: str | None
    label: str | None

    def missing(self, asked: Fields, names: Iterable[str]) -> tuple[str, str] | None:
        """(name, option) of the first field that was asked for, or needed, and is not there."""
        there = set(names)
        if self.message is None or self.message not in there:
            return self.message or "message", "message_field"
        for name in self.times if asked.time is not None else ():
            if name not in there:
                return name, "time_field"
        wanted = ((self.session, "session_field"), (self.label, "label_field"))
        return next(((n, option) for n, option in wanted if n is not None and n not in there), None)


def read_time(value: Any, clock: Clock) -> float:
    """Seconds since 1970-01-01 UTC of a field's value; not a number where it says no time."""
    if isinstance(value, str):
        return clock[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return NAN
    return epoch(float(value))
