"""Grouping: alarms of followed files become incidents, by place and time. Some alarms are silenced.

Each alarm begins as a new incident. It is then merged into an existing incident, silenced, or kept as new.
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
"""Time in seconds. An alarm within this time after an incident of the same file belongs to the incident. An
incident without an alarm for this time is over."""

MutePattern = tuple[re.Pattern[str], str]
"""A regular expression, and its place: "FILE:LINE"."""

TOLD, LIKES = 8, 64
"""Largest numbers of new values, and of digests of alarms, that an incident stores."""

_LONGEST = 120  # characters of a new value
_OF_SPEAKER = ("what", "reason", "template", "expected", "host", "service")


def mute_patterns(path: Path) -> list[MutePattern]:
    """The regular expressions of a mute file, one per line. Empty lines and lines with # are skipped.

    Raises:
        DataError: the file cannot be read, or a line is not a regular expression.
    """
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
                    remedy="write a backslash before characters such as ( or [ or * to match them literally",
                ) from None
    return patterns


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """The rules that group the alarms of a stream into incidents.

    Args:
        model: reference of the model that scores the rows.
        quiet: seconds without an alarm after which an incident is over.
        muted: patterns. An alarm whose message or template matches one opens no incident.
    """

    model: str
    quiet: float = QUIET
    muted: Sequence[MutePattern] = ()

    def over(self, incident: Incident, now: float) -> bool:
        """Whether no alarm has come for the quiet time, or the clock was set back by this time."""
        return abs(now - incident.updated.timestamp()) >= self.quiet

    def judge(
        self, rows: Sequence[tuple[int, Fields]], standing: Sequence[Incident], now: float
    ) -> tuple[list[tuple[int, Fields]], list[Change], dict[int, int]]:
        """Add rows to the incidents of their stream.

        Args:
            rows: rows with their numbers.
            standing: incidents that are not resolved, or silence similar alarms.
            now: the current time in seconds since 1970-01-01 UTC.

        Returns:
            The rows, in which silenced alarms have the field `muted`. The changes, at most two per incident.
            For each row in an incident, the number of the row that opened it.
        """
        fold = _Fold(self, now, standing)
        marked = [(number, fold.take(number, row) if row.get("alarm") else row) for number, row in rows]
        return marked, list(fold.changes.values()), fold.belongs

    def incident(self, number: int, row: Fields, now: float) -> Incident:
        """The incident that a row opens.

        Its texts are `printable`, because a log may have characters that databases refuse.
        """
        time, line = datetime.fromtimestamp(now, UTC), int(row["line"])
        texts: dict[str, Any] = {"template": "", "new": (), "reason": "", "what": "unusual lines"}
        if not row.get("sensitive"):  # incidents in sensitive data quote no data
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
    """The incidents of a stream while rows are added.

    At the start, incidents without an alarm for the quiet time are resolved.
    """

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
        """Add an alarm, and return its row. A silenced alarm has the field `muted`."""
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
        if "silence" in row:  # an acknowledged pause continues, whatever its length
            pauses = (
                incident for incident in self._silent.values() if not (incident.lines or incident.muted)
            )
            silent += [incident for incident in pauses if incident.place == alarm.place]
        if silent:  # incidents that are not resolved come first
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
    """Merge the incident of a single row into an existing incident."""
    speaks = (alarm.new_lines > 0, -alarm.p_value) > (incident.new_lines > 0, -incident.p_value)
    # A silenced alarm may come from another place.
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
    """The most frequent host or service in the lines of a row, and the number of others."""
    if name not in row:
        return None
    count = int(row.get(f"{name}s", 1)) - 1
    return _short(row[name]) + (f" and {count:,} {'other' if count == 1 else 'others'}" if count else "")


def _news(row: Fields) -> Sequence[str]:
    """Values that do not occur in the training data, or else kinds of lines that do not."""
    return row.get("never_seen") or row.get("new_kinds") or ()


def _likes(row: Fields) -> tuple[str, ...]:
    """Digests by which similar alarms are recognised.

    They identify all values and kinds of lines that were never seen. If there are none, they identify the
    fault, such as a template. The fault of a pause includes the magnitude of its length: a normal short pause
    must not silence an outage. Digests are used because the lines may be confidential.
    """
    wrong = f"what {row.get('what')}" + (f" {row['scale']}" if "scale" in row else "")
    texts = [f"new {text}" for text in _news(row)] or [wrong]
    return tuple(sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16] for text in texts)


def _meets(incident: Incident, alarm: Incident, quiet: float) -> bool:
    """Whether an alarm joins an incident: their lines touch, or they are less than `quiet` seconds apart.

    The times in the lines are compared if both have them. Otherwise the times of scoring are compared.
    """
    if alarm.start <= incident.end and alarm.end >= incident.start:
        return True
    times = (incident.first_time, incident.last_time, alarm.first_time, alarm.last_time)
    if None in times:
        return abs((alarm.updated - incident.updated).total_seconds()) < quiet
    first, last, begin, end = (datetime.fromisoformat(str(time)).timestamp() for time in times)
    return begin < last + quiet and end > first - quiet
