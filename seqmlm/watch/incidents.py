"""Incidents and the streams they are of, found again: what a person says of them, and what is pruned."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from seqmlm.errors import StateError, UsageError, nearest, printable
from seqmlm.parsing import duration
from seqmlm.registry.references import resolve
from seqmlm.registry.store import Registry
from seqmlm.watch.store import STATES, Incident, Pruned, StreamEntry, Streams, span
from seqmlm.workspace import Workspace

_FACTS = (
    *("id", "stream_id", "output", "model", "place", "state", "muted", "verdict", "note", "title", "what"),
    *("reason", "template", "new", "expected", "first_line", "last_line", "first_time", "last_time"),
    *("severity", "host", "service", "rows", "lines", "new_lines", "p_value", "opened", "updated"),
    "resolved",
)
_PLACE = ("id", "source", "line", "last_line", "lines", "p_value", "alarm", "muted", "sensitive")
_BEGIN = "to begin one: seqmlm watch {} 'logs/*.log' --fpr 0.001 --out OUT"


def facts(incident: Incident, stream: StreamEntry | None = None) -> dict[str, Any]:
    """An incident for JSON; with `stream`, whether that runs and when it last judged a row."""
    found = {name: getattr(incident, name) for name in _FACTS}
    if stream is not None:
        found |= {"stream_running": stream.running, "stream_judged": stream.judged}
    return found


def columns(one: Incident, told: Callable[[datetime], str]) -> dict[str, Any]:
    """An incident for people, what is not known as None or ""; `told` makes a text of a time."""
    places = {"first line": (one.first_line, one.first_time), "last line": (one.last_line, one.last_time)}
    return {
        "note": one.note,
        "new": ", ".join(one.new),
        "template": one.template,
        "expected": " | ".join(one.expected),
        **{name: getattr(one, name) for name in ("severity", "host", "service")},
        **{name: place if at is None else f"{place} ({at})" for name, (place, at) in places.items()},
        "rows": one.rows,
        "lines": one.lines,
        "smallest p": one.p_value,
        "reason": one.reason,
        "opened": told(one.opened),
        "last alarm": told(one.updated),
    }


def where(row: Mapping[str, Any]) -> str:
    """The file and lines of a row."""
    return printable(span(Path(str(row["source"])).name, row["line"], row.get("last_line")))


def list_incidents(
    *, state: str | None = None, since: str | None = None, stream: Path | None = None
) -> tuple[list[Incident], dict[str, StreamEntry]]:
    """The incidents of this workspace, the newest first, perhaps those alone of a `state`, with an alarm
    `since` so long ("24h") or of the scoring that writes `stream`; and all its streams, by the file of their
    rows; UsageError: no such state, or no duration; StateError: no scoring follows files for this output."""
    if state is not None and state not in STATES:
        raise UsageError(f"--state: no state {state!r}{nearest(state, STATES)}")
    begin = None if since is None else datetime.now(UTC) - since_of(since)
    with Streams(Workspace.locate()) as registry:
        output = None if stream is None else stream_of(registry, stream).output
        found = registry.incidents(state=state, since=begin, output=output)[::-1]
        return found, {one.output: one for one in registry.streams()}


def show_incident(incident: int, most: int) -> tuple[Incident, StreamEntry, int, list[Mapping[str, Any]]]:
    """One incident with its stream, how many rows it has, those that it silenced included, and the first;
    StateError: there is none of this id."""
    with Streams(Workspace.locate()) as registry:
        found = registry.incident(incident)
        return found, stream_of(registry, Path(found.output)), *shown_rows(registry, found, most)


def shown_rows(registry: Streams, incident: Incident, most: int) -> tuple[int, list[Mapping[str, Any]]]:
    """How many rows an incident has, and the first of them; of sensitive data where they lie, and no more."""
    number, lines = registry.incident_rows(incident, most)
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
    """Say what an incident is to a person; what is None stays as it is; StateError: there is none of this id,
    or what is to be taken back was not said.

    Args:
        acknowledged: it is a fault that somebody knows of. False takes back whatever was said of it.
        normal: it was a false alarm: that is acknowledged, and muted. False takes that back, and no more.
        muted: its likes are silenced for good.
    """
    decided = acknowledged if normal is None else normal
    state = None if decided is None else "acknowledged" if decided else "open"
    said = {"state": state, "muted": muted, "note": None if note is None else printable(note)}
    if normal:
        said |= {"verdict": "normal", "muted": True}
    with Streams(Workspace.locate()) as registry:
        if normal is False and registry.incident(incident).verdict != "normal":
            raise StateError(
                f"incident {incident} is not marked as normal; that it was acknowledged as a fault is taken "
                f"back by 'seqmlm incidents ack {incident} --undo'"
            )
        return registry.mark_incident(incident, **{k: v for k, v in said.items() if v is not None})


def stream_of(registry: Streams, output: Path) -> StreamEntry:
    """The stream whose rows go to a file; StateError: there is none in this workspace."""
    found = registry.stream(str(output.expanduser().resolve()))
    if found is None:
        raise StateError(f"no scoring of this workspace follows files and writes {output}")
    return found


def streams_of(registry: Registry, found: list[StreamEntry], model: str | None) -> list[StreamEntry]:
    """Those of some streams that a model judged, whichever version of it where none is named; None: all;
    StateError: no such model, or no stream that it judged."""
    if model is None:
        if not found:
            raise StateError(f"no scoring of this workspace follows files; {_BEGIN.format('MODEL')}")
        return found
    folders = {os.path.realpath(one.path) for one in registry.models(model)}
    if not folders:
        folders = {os.path.realpath(resolve(model).location)}

    def judged(request: Mapping[str, Any]) -> bool:
        """By this folder, or by what an alias of the model names, which may be any of its versions."""
        alias, files = str(request.get("model", "")), request.get("model file", ())
        by_alias = "@" in alias and model in (alias, alias.partition("@")[0])
        return by_alias or any(os.path.realpath(Path(file).parent) in folders for file in files)

    if own := [one for one in found if judged(one.request)]:
        return own
    raise StateError(f"no scoring of this workspace follows files with {model}; {_BEGIN.format(model)}")


def since_of(text: str, option: str = "--since") -> timedelta:
    """The duration that an option asks for; UsageError: it is none."""
    seconds = duration(text)
    if not seconds:
        raise UsageError(f"{option} is a duration such as 24h or 30m; got {text!r}")
    try:
        datetime.now(UTC) - timedelta(seconds=seconds)
    except OverflowError:
        raise UsageError(f"{option} {text} is before all calendars; give a shorter duration") from None
    return timedelta(seconds=seconds)


def prune_streams(
    older_than: str, *, stream: Path | None = None, pretend: bool = False
) -> list[tuple[StreamEntry, Pruned]]:
    """Delete what is older than a duration ("30d") and no longer needed, of all scorings or of the one that
    writes `stream`, or `pretend` to; of each how it stood, and what was deleted of it; UsageError: no
    duration; StateError: no scoring follows files for this output."""
    before = datetime.now(UTC) - since_of(older_than, "--older-than")
    with Streams(Workspace.locate()) as registry:
        found = registry.streams() if stream is None else [stream_of(registry, stream)]
        return [(one, registry.prune(one.id, before, pretend=pretend)) for one in found]
