"""What alarms of followed files come to: incidents, by place and time, and what an incident silences.

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

Ignored = tuple[re.Pattern[str], str]
"""A pattern, and where it was given: "FILE:LINE"."""

TOLD, LIKES = 8, 64
"""How much is kept of an incident that goes on and on."""

_LONGEST = 120  # characters of a new value
_OF_SPEAKER = ("what", "reason", "template", "expected", "host", "service")


def ignored(path: Path) -> list[Ignored]:
    """The regular expressions of a file, one a line; empty lines and those that begin with # are left out;
    DataError: the file cannot be read, or a line is no regular expression."""
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise DataError(f"cannot be read: {reason}", source=str(path)) from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                found.append((re.compile(line), f"{path}:{number}"))
            except re.error as error:
                raise DataError(
                    f"{line!r} is not a regular expression: {error}",
                    source=str(path),
                    line=number,
                    remedy="a backslash in front of a character such as ( or [ or * means that character",
                ) from None
    return found


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Puts the alarms of a stream together."""

    model: str  # reference of the one that judges
    quiet: float = QUIET
    ignored: Sequence[Ignored] = ()  # alarms whose message or template one of these fits make no incident
    private: bool = False  # incidents say nothing of what is in the data

    def over(self, incident: Incident, now: float) -> bool:
        """Whether nothing has come for the quiet time; or the clock was set back by as much."""
        return abs(now - incident.updated.timestamp()) >= self.quiet

    def judge(
        self, rows: Sequence[tuple[int, Fields]], standing: Sequence[Incident], now: float
    ) -> tuple[list[tuple[int, Fields]], list[Change], dict[int, int]]:
        """What some rows, each with its number, do at a time in seconds since 1970-01-01 UTC to the incidents
        of their stream that are `standing`: not resolved, or their likes are silenced.

        Returns:
            The rows, those that are silenced with `muted`, by what; the changes, at most two of an incident;
            and numbers of rows to the row that opened the incident each belongs to.
        """
        found = _Fold(self, now, standing)
        given = [(number, found.take(number, row) if row.get("alarm") else row) for number, row in rows]
        return given, list(found.changes.values()), found.belongs

    def begun(self, number: int, row: Fields, now: float) -> Incident:
        """The incident that a row opens; its texts are `printable`: a log may hold what no database takes."""
        at, line = datetime.fromtimestamp(now, UTC), int(row["line"])
        shown: dict[str, Any] = {"template": "", "new": (), "reason": "", "what": "unusual lines"}
        if not self.private:
            shown = {
                "template": printable(row.get("template", "")),
                "new": tuple(map(_short, _news(row)))[:TOLD],
                "expected": tuple(map(_short, row.get("expected", ()))),
                "reason": printable(row.get("reason", "")),
                "what": printable(row.get("what", "an alarm")),
                "severity": row.get("severity"),
                **{name: _named(row, name) for name in ("host", "service")},
            }
        return Incident(
            **shown,
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
            opened=at,
            updated=at,
        )


class _Fold:
    """What rows do to incidents as they stand; those that nothing was added to for long are over."""

    def __init__(self, grouping: Grouping, now: float, standing: Sequence[Incident]) -> None:
        self._grouping, self._now = grouping, now
        self._open: dict[str, Incident] = {}
        self._silent: dict[int, Incident] = {}
        self.changes: dict[tuple[int, bool], Change] = {}
        self.belongs: dict[int, int] = {}
        for one in standing:
            if one.state != "resolved" and grouping.over(one, now):
                one = self._end(one)
            if one.silences:
                self._silent[one.row] = one
            elif one.state != "resolved":
                self._open[one.place] = one
        self._likes = {row: frozenset(one.likes) for row, one in self._silent.items()}

    def take(self, number: int, row: Fields) -> Fields:
        """Take an alarm; returns it, marked where it is silenced."""
        texts = [str(row[name]) for name in ("message", "template") if name in row]
        for pattern, where in self._grouping.ignored:
            if any(map(pattern.search, texts)):
                return {**row, "muted": where}
        new = self._grouping.begun(number, row, self._now)
        known = [one for one in self._silent.values() if self._likes[one.row].issuperset(new.likes)]
        if "silence" in row:  # one that somebody knows of goes on, however long it gets
            going_on = (one for one in self._silent.values() if not (one.lines or one.muted))
            known += [one for one in going_on if one.place == new.place]
        if known:  # first one that goes on
            one = min(known, key=lambda one: (one.state == "resolved", one.row))
            self.belongs[number] = one.row
            if one.state != "resolved":
                self._silent[one.row] = self._change("updated", _joined(one, new))
            return {**row, "muted": f"incident {one.id}"}
        before = self._open.get(new.place)
        if before is not None and not _meets(before, new, self._grouping.quiet):
            self._end(before)
            before = None
        one = new if before is None else _joined(before, new)
        self._open[new.place] = self._change("updated" if before else "opened", one)
        self.belongs[number] = one.row
        return row

    def _end(self, one: Incident) -> Incident:
        at = datetime.fromtimestamp(self._now, UTC)
        return self._change("resolved", replace(one, state="resolved", resolved=at))

    def _change(self, kind: Literal["opened", "updated", "resolved"], one: Incident) -> Incident:
        key = (one.row, kind == "resolved")
        earlier = self.changes.get(key)
        self.changes[key] = Change(kind=earlier.kind if earlier else kind, incident=one)
        return one


def _joined(one: Incident, new: Incident) -> Incident:
    """An incident with one more row, given as the incident that it alone would be."""
    speaks = (new.new_lines > 0, -new.p_value) > (one.new_lines > 0, -one.p_value)
    near = [one, new] if new.place == one.place else [one]  # an alarm that is silenced may be of another
    times = [x for x in (one.first_time, one.last_time, new.first_time, new.last_time) if x is not None]
    return replace(
        one,
        **({name: getattr(new, name) for name in _OF_SPEAKER} if speaks else {}),
        **{name: getattr(one, name) + getattr(new, name) for name in ("rows", "lines", "new_lines")},
        new=tuple(dict.fromkeys((*one.new, *new.new)))[:TOLD],
        likes=tuple(dict.fromkeys((*one.likes, *new.likes)))[:LIKES],
        first_time=min(times, default=None),
        last_time=max(times, default=None),
        severity=highest((one.severity, new.severity)),
        p_value=min(one.p_value, new.p_value),
        start=min(x.start for x in near),
        end=max(x.end for x in near),
        updated=new.updated,
    )


def _short(text: object) -> str:
    shown = printable(text)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."


def _named(row: Fields, name: str) -> str | None:
    """The host or service that most lines of a row name, and how many others there are."""
    if name not in row:
        return None
    more = int(row.get(f"{name}s", 1)) - 1
    return _short(row[name]) + (f" and {more:,} {'other' if more == 1 else 'others'}" if more else "")


def _news(row: Fields) -> Sequence[str]:
    """What a row has that training never had: values by name, or else kinds of lines."""
    return row.get("never_seen") or row.get("new_kinds") or ()


def _likes(row: Fields) -> tuple[str, ...]:
    """What alarms are recognised by: all that was never seen, or else what is wrong, which names a template,
    or a pause, which has the order of its length: a short one that is normal makes no outage normal.

    Digests, for what the lines say may not be shown.
    """
    wrong = f"what {row.get('what')} {row['scale']}" if "scale" in row else f"what {row.get('what')}"
    texts = [f"new {one}" for one in _news(row)] or [wrong]
    return tuple(sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16] for text in texts)


def _meets(one: Incident, new: Incident, quiet: float) -> bool:
    """Whether a row joins an incident: it touches it, or follows it soon, by the times of their lines where
    both have them, else by when they were judged."""
    if new.start <= one.end and new.end >= one.start:
        return True
    times = (one.first_time, one.last_time, new.first_time, new.last_time)
    if None in times:
        return abs((new.updated - one.updated).total_seconds()) < quiet
    first, last, begin, end = (datetime.fromisoformat(str(at)).timestamp() for at in times)
    return begin < last + quiet and end > first - quiet
