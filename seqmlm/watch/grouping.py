"""Grouping: the alarms of followed files become incidents, by place and time; some silence others.

A fold over rows: each alarm is an incident of its own, which is joined to one that stands, or is silenced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from seqmlm.data.severities import highest
from seqmlm.errors import DataError, printable
from seqmlm.streams.sinks import Fields
from seqmlm.watch.store import Change, Incident

QUIET = 300.0
"""Seconds: an alarm that follows an incident of its file so soon belongs to it, and an incident without one
for so long is over."""

MutePattern = tuple[re.Pattern[str], str]
"""A pattern, and its place: "FILE:LINE"."""

TOLD, LIKES = 8, 64
"""How much is kept of an incident that goes on and on."""

_LONGEST = 120  # characters of a new value
_OF_SPEAKER = ("what", "reason", "template", "expected", "host", "service")


def mute_patterns(path: Path) -> list[MutePattern]:
    """The regular expressions of a mute file, one a line, without empty lines and those that begin with #;
    DataError: the file cannot be read, or a line is no regular expression."""
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise DataError(f"cannot be read: {reason}", source=str(path)) from None
    patterns = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                patterns.append((re.compile(line), f"{path}:{number}"))
            except re.error as error:
                raise DataError(
                    f"{line!r} is not a regular expression: {error}",
                    source=str(path),
                    line=number,
                    remedy="a backslash in front of a character such as ( or [ or * means that character",
                ) from None
    return patterns


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Groups the alarms of a stream to incidents."""

    model: str  # reference of the one that judges
    quiet: float = QUIET
    muted: Sequence[MutePattern] = ()  # alarms whose message or template one of these fits make no incident

    def over(self, incident: Incident, now: float) -> bool:
        """Whether nothing has come for the quiet time; or the clock was set back by as much."""
        return abs(now - incident.updated.timestamp()) >= self.quiet

    def judge(
        self, rows: Sequence[tuple[int, Fields]], standing: Sequence[Incident], now: float
    ) -> tuple[list[tuple[int, Fields]], list[Change], dict[int, int]]:
        """Add rows, each with its number, at a time in seconds since 1970-01-01 UTC to the incidents of their
        stream that are `standing`: not resolved, or their likes are silenced.

        Returns:
            The rows, those that are silenced with `muted`, by what; the changes, at most two of an incident;
            and numbers of rows to the row that opened the incident each belongs to.
        """
        fold = _Fold(self, now, standing)
        marked = [(number, fold.take(number, row) if row.get("alarm") else row) for number, row in rows]
        return marked, list(fold.changes.values()), fold.belongs

    def incident(self, number: int, row: Fields, now: float) -> Incident:
        """The incident that a row opens; its texts are `printable`: a log may hold what no database takes."""
        time, line = datetime.fromtimestamp(now, UTC), int(row["line"])
        texts: dict[str, Any] = {"template": "", "new": (), "reason": "", "what": "unusual lines"}
        if not row.get("sensitive"):  # else incidents say nothing of what is in the data
            texts = {
                "template": printable(row.get("template", "")),
                "new": tuple(map(_short, _news(row)))[:TOLD],
                "expected": tuple(map(_short, row.get("expected", ()))),
                "reason": printable(row.get("reason", "")),
                "what": printable(row.get("what", "an alarm")),
                "severity": row.get("severity"),
                **{name: _name_and_count(row, name) for name in ("host", "service")},
            }
        return Incident(
            **texts,
            row=number,
            model=self.model,
            place=printable(row["source"]),
            first_time=row.get("time"),
            last_time=row.get("last_time"),
            rows=1,
            lines=int(row.get("lines", 1)),
            new_lines=int(row.get("new_lines", 0)),
            p_value=1.0 if row.get("p_value") is None else float(row["p_value"]),
            start=line,
            end=int(row.get("last_line", line)) + 1,
            likes=_likes(row),
            opened=time,
            updated=time,
        )


class _Fold:
    """Incidents to which rows are added; those that had none for long are over."""

    def __init__(self, grouping: Grouping, now: float, standing: Sequence[Incident]) -> None:
        self._grouping, self._now = grouping, now
        self._open: dict[str, Incident] = {}
        self._silent: dict[int, Incident] = {}
        self.changes: dict[tuple[int, bool], Change] = {}
        self.belongs: dict[int, int] = {}
        for incident in standing:
            if incident.state != "resolved" and grouping.over(incident, now):
                incident = self._end(incident)
            if incident.silences:
                self._silent[incident.row] = incident
            elif incident.state != "resolved":
                self._open[incident.place] = incident
        self._likes = {row: frozenset(incident.likes) for row, incident in self._silent.items()}

    def take(self, number: int, row: Fields) -> Fields:
        """Take an alarm; returns it, marked where it is silenced."""
        texts = [str(row[name]) for name in ("message", "template") if name in row]
        for pattern, where in self._grouping.muted:
            if any(map(pattern.search, texts)):
                return {**row, "muted": where}
        alarm = self._grouping.incident(number, row, self._now)
        silent = [
            incident
            for incident in self._silent.values()
            if self._likes[incident.row].issuperset(alarm.likes)
        ]
        if "silence" in row:  # one that somebody knows of goes on, however long it gets
            pauses = (
                incident for incident in self._silent.values() if not (incident.lines or incident.muted)
            )
            silent += [incident for incident in pauses if incident.place == alarm.place]
        if silent:  # first one that goes on
            incident = min(silent, key=lambda incident: (incident.state == "resolved", incident.row))
            self.belongs[number] = incident.row
            if incident.state != "resolved":
                self._silent[incident.row] = self._change("updated", _merge(incident, alarm))
            return {**row, "muted": f"incident {incident.id}"}
        earlier = self._open.get(alarm.place)
        if earlier is not None and not _meets(earlier, alarm, self._grouping.quiet):
            self._end(earlier)
            earlier = None
        incident = alarm if earlier is None else _merge(earlier, alarm)
        self._open[alarm.place] = self._change("updated" if earlier else "opened", incident)
        self.belongs[number] = incident.row
        return row

    def _end(self, incident: Incident) -> Incident:
        time = datetime.fromtimestamp(self._now, UTC)
        return self._change("resolved", replace(incident, state="resolved", resolved=time))

    def _change(self, kind: Literal["opened", "updated", "resolved"], incident: Incident) -> Incident:
        key = (incident.row, kind == "resolved")
        earlier = self.changes.get(key)
        self.changes[key] = Change(kind=earlier.kind if earlier else kind, incident=incident)
        return incident


def _merge(incident: Incident, alarm: Incident) -> Incident:
    """Merge another row into an incident; the row comes as the incident that it alone would be."""
    speaks = (alarm.new_lines > 0, -alarm.p_value) > (incident.new_lines > 0, -incident.p_value)
    # A silenced alarm may be of another place.
    near = [incident, alarm] if alarm.place == incident.place else [incident]
    times = (incident.first_time, incident.last_time, alarm.first_time, alarm.last_time)
    present = [time for time in times if time is not None]
    sums = {name: getattr(incident, name) + getattr(alarm, name) for name in ("rows", "lines", "new_lines")}
    return replace(
        incident,
        **({name: getattr(alarm, name) for name in _OF_SPEAKER} if speaks else {}),
        **sums,
        new=tuple(dict.fromkeys((*incident.new, *alarm.new)))[:TOLD],
        likes=tuple(dict.fromkeys((*incident.likes, *alarm.likes)))[:LIKES],
        first_time=min(present, default=None),
        last_time=max(present, default=None),
        severity=highest((incident.severity, alarm.severity)),
        p_value=min(incident.p_value, alarm.p_value),
        start=min(part.start for part in near),
        end=max(part.end for part in near),
        updated=alarm.updated,
    )


def _short(text: object) -> str:
    line = printable(text)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def _name_and_count(row: Fields, name: str) -> str | None:
    """The host or service that most lines of a row name, and how many others there are."""
    if name not in row:
        return None
    count = int(row.get(f"{name}s", 1)) - 1
    return _short(row[name]) + (f" and {count:,} {'other' if count == 1 else 'others'}" if count else "")


def _news(row: Fields) -> Sequence[str]:
    """Values by name that training never had, or else kinds of lines."""
    return row.get("never_seen") or row.get("new_kinds") or ()


def _likes(row: Fields) -> tuple[str, ...]:
    """Digests by which alarms are recognised: all that was never seen, or else what is wrong, which names a
    template, or a pause, which has the order of its length: a short one that is normal makes no outage
    normal.

    Digests, for what the lines say may not be shown.
    """
    wrong = f"what {row.get('what')} {row['scale']}" if "scale" in row else f"what {row.get('what')}"
    texts = [f"new {text}" for text in _news(row)] or [wrong]
    return tuple(sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16] for text in texts)


def _meets(incident: Incident, alarm: Incident, quiet: float) -> bool:
    """Whether a row joins an incident: it touches it, or follows it soon, by the times of their lines where
    both have them, else by when they were judged."""
    if alarm.start <= incident.end and alarm.end >= incident.start:
        return True
    times = (incident.first_time, incident.last_time, alarm.first_time, alarm.last_time)
    if None in times:
        return abs((alarm.updated - incident.updated).total_seconds()) < quiet
    first, last, begin, end = (datetime.fromisoformat(str(time)).timestamp() for time in times)
    return begin < last + quiet and end > first - quiet
