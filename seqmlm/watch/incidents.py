"""Incidents and their streams for users: list, show and mark incidents, and prune old rows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from seqmlm.errors import StateError, UsageError, nearest, printable
from seqmlm.parsing import duration
from seqmlm.watch.request import judged_by
from seqmlm.watch.store import STATES, Incident, Pruned, StreamEntry, Streams, span

_FACTS = (
    *("id", "stream_id", "output", "model", "place", "state", "muted", "verdict", "note", "title", "what"),
    *("reason", "template", "new", "expected", "first_line", "last_line", "first_time", "last_time"),
    *("severity", "host", "service", "rows", "lines", "new_lines", "p_value", "opened", "updated"),
    "resolved",
)
_PLACE = ("id", "source", "line", "last_line", "lines", "p_value", "alarm", "muted", "sensitive")
_BEGIN = "to begin one: seqmlm watch {} 'logs/*.log' --fpr 0.001 --out OUT"


def facts(incident: Incident, stream: StreamEntry | None = None) -> dict[str, Any]:
    """An incident as JSON values; with `stream`, also whether that runs and when it last scored a row."""
    values = {name: getattr(incident, name) for name in _FACTS}
    if stream is not None:
        values |= {"stream_running": stream.running, "stream_judged": stream.judged}
    return values


def columns(incident: Incident, format_time: Callable[[datetime], str]) -> dict[str, Any]:
    """An incident as named facts for people. Unknown facts are None or ""."""
    places = {
        "first line": (incident.first_line, incident.first_time),
        "last line": (incident.last_line, incident.last_time),
    }
    return {
        "note": incident.note,
        "new": ", ".join(incident.new),
        "template": incident.template,
        "expected": " | ".join(incident.expected),
        **{name: getattr(incident, name) for name in ("severity", "host", "service")},
        **{name: place if time is None else f"{place} ({time})" for name, (place, time) in places.items()},
        "rows": incident.rows,
        "lines": incident.lines,
        "smallest p": incident.p_value,
        "reason": incident.reason,
        "opened": format_time(incident.opened),
        "last alarm": format_time(incident.updated),
    }


def where(row: Mapping[str, Any]) -> str:
    """The file and lines of a row."""
    return printable(span(Path(str(row["source"])).name, row["line"], row.get("last_line")))


def list_incidents(
    *, state: str | None = None, since: str | None = None, stream: Path | None = None
) -> tuple[list[Incident], dict[str, StreamEntry]]:
    """The incidents of this workspace, newest first, and its streams.

    Args:
        state: only incidents in this state.
        since: only incidents with an alarm within this duration ("24h").
        stream: only incidents of the stream that writes this file.

    Returns:
        The incidents, and all streams by the file of their rows.

    Raises:
        UsageError: the state or the duration is invalid.
        StateError: no stream writes this file.
    """
    if state is not None and state not in STATES:
        raise UsageError(f"--state: no state {state!r}{nearest(state, STATES)}")
    begin = None if since is None else datetime.now(UTC) - since_of(since)
    with Streams.here() as registry:
        output = None if stream is None else stream_of(registry, stream).output
        incidents = registry.incidents(state=state, since=begin, output=output)[::-1]
        return incidents, {stream.output: stream for stream in registry.streams()}


def show_incident(incident: int, limit: int) -> tuple[Incident, StreamEntry, int, list[Mapping[str, Any]]]:
    """An incident, its stream, the number of its rows including silenced ones, and its first rows.

    Raises:
        StateError: there is no such incident.
    """
    with Streams.here() as registry:
        entry = registry.incident(incident)
        return entry, stream_of(registry, Path(entry.output)), *first_rows(registry, entry, limit)


def first_rows(registry: Streams, incident: Incident, limit: int) -> tuple[int, list[Mapping[str, Any]]]:
    """The number of rows of an incident, and its first rows. For sensitive data, rows have only places."""
    number, lines = registry.incident_rows(incident, limit)
    rows = map(json.loads, lines)
    return number, [{n: row[n] for n in _PLACE if n in row} if row.get("sensitive") else row for row in rows]


def mark_incident(
    incident: int,
    *,
    acknowledged: bool | None = None,
    normal: bool | None = None,
    muted: bool | None = None,
    note: str | None = None,
) -> Incident:
    """Change the marks of an incident. Marks that are None stay unchanged.

    Args:
        incident: its id.
        acknowledged: True if it is a known fault. False removes any verdict.
        normal: True if it was a false alarm: it is then acknowledged and muted. False removes only this
            verdict.
        muted: whether similar alarms are silenced for good.
        note: a note to store.

    Returns:
        The changed incident.

    Raises:
        StateError: there is no such incident, or a verdict to be removed does not exist.
    """
    decided = acknowledged if normal is None else normal
    state = None if decided is None else "acknowledged" if decided else "open"
    marks = {"state": state, "muted": muted, "note": None if note is None else printable(note)}
    if normal:
        marks |= {"verdict": "normal", "muted": True}
    with Streams.here() as registry:
        if normal is False and registry.incident(incident).verdict != "normal":
            raise StateError(
                f"incident {incident} is not marked as normal; to withdraw an acknowledgement as a fault: "
                f"seqmlm incidents ack {incident} --undo"
            )
        return registry.mark_incident(
            incident, **{name: mark for name, mark in marks.items() if mark is not None}
        )


def stream_of(registry: Streams, output: Path) -> StreamEntry:
    """The stream that writes its rows to a file.

    Raises:
        StateError: there is no such stream in this workspace.
    """
    stream = registry.stream(str(output.expanduser().resolve()))
    if stream is None:
        raise StateError(f"no stream of this workspace writes {output}")
    return stream


def streams_of(registry: Streams, model: str | None) -> list[StreamEntry]:
    """The streams that a model scored.

    Args:
        model: NAME for any version, NAME:VERSION, NAME@ALIAS or a folder; None for all streams.

    Raises:
        StateError: there is no such alias or no such stream.
    """
    streams = registry.streams()
    if model is None:
        if not streams:
            raise StateError(f"this workspace has no streams; {_BEGIN.format('MODEL')}")
        return streams
    name, _, alias = model.partition("@")
    reference = registry.get(name, alias=alias).reference if alias else model
    versions = registry.models(reference.partition(":")[0])
    folders = {str(version.path) for version in versions if reference in (version.name, version.reference)}
    folders |= {model, os.path.join(model, "model")}
    paths = {os.path.realpath(folder) for folder in folders}
    judged = [stream for stream in streams if judged_by(stream.request, {model, reference}, paths)]
    if not judged:
        raise StateError(f"no stream of this workspace uses {model}; {_BEGIN.format(model)}")
    return judged


def since_of(text: str, option: str = "--since") -> timedelta:
    """The duration in the value of an option.

    Raises:
        UsageError: the text is not a duration, or the duration is too long.
    """
    seconds = duration(text)
    if not seconds:
        raise UsageError(f"{option} is a duration such as 24h or 30m; got {text!r}")
    try:
        datetime.now(UTC) - timedelta(seconds=seconds)
    except OverflowError:
        raise UsageError(f"{option} {text} is too long; give a shorter duration") from None
    return timedelta(seconds=seconds)


def prune_streams(
    older_than: str, *, stream: Path | None = None, pretend: bool = False
) -> list[tuple[StreamEntry, Pruned]]:
    """Delete rows and incidents that are older than a duration and no longer needed.

    Args:
        older_than: a duration such as "30d".
        stream: only for the stream that writes this file; None for all streams.
        pretend: delete nothing.

    Returns:
        Each stream before the deletion, and the rows and incidents that were (or would be) deleted.

    Raises:
        UsageError: the duration is invalid.
        StateError: no stream writes this file.
    """
    until = datetime.now(UTC) - since_of(older_than, "--older-than")
    with Streams.here() as registry:
        streams = registry.streams() if stream is None else [stream_of(registry, stream)]
        return [(entry, registry.prune(entry.id, until, pretend=pretend)) for entry in streams]
