"""Incidents of followed files: found again, and what a person says of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seqmlm.errors import StateError, UsageError, nearest, printable
from seqmlm.watch.store import Incident, Streams
from seqmlm.watch.store.incidents import STATES
from seqmlm.watch.streams import Standing, since_of, standing
from seqmlm.workspace import Workspace

__all__ = [
    "Incident",
    "ShownIncident",
    "facts",
    "list_incidents",
    "mark_incident",
    "show_incident",
    "standings",
]

_OURS = ("row", "start", "end", "likes")  # what only the stream needs
_PLACE = ("id", "source", "line", "last_line", "lines", "p_value", "alarm", "muted", "sensitive")


@dataclass(frozen=True, kw_only=True)
class ShownIncident:
    """An incident with its rows.

    Args:
        incident: all of it.
        standing: how its stream stands.
        number: of its rows, those that it silenced included.
        rows: the first of them; of sensitive data where they lie, and no more.
    """

    incident: Incident
    standing: Standing
    number: int
    rows: list[Mapping[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**facts(self.incident, self.standing), "all_rows": self.number, "first_rows": self.rows}


def facts(incident: Incident, standing: Standing | None = None) -> dict[str, Any]:
    """An incident for JSON; with `standing`, whether its stream runs and when that last judged a row."""
    found = {one.name: getattr(incident, one.name) for one in fields(incident) if one.name not in _OURS}
    if standing is not None:
        found |= {"stream_running": standing.running, "stream_judged": standing.judged}
    return found


def standings(incidents: Iterable[Incident]) -> dict[str, Standing]:
    """How the streams of incidents stand, by the file of their rows."""
    outputs, workspace = {one.output for one in incidents}, Workspace.locate()
    if not outputs:
        return {}
    with Streams(workspace) as registry:
        return {one.output: standing(one, workspace) for one in registry.streams() if one.output in outputs}


def list_incidents(
    *, state: str | None = None, since: str | None = None, stream: Path | None = None
) -> list[Incident]:
    """The incidents of this workspace, the newest first.

    Args:
        state: only those that are open, acknowledged or resolved.
        since: a duration ("24h"): only those with an alarm since then.
        stream: only those of the scoring that writes this file.

    Raises:
        UsageError: no such state, or no duration.
        StateError: no scoring follows files for this output.
    """
    if state is not None and state not in STATES:
        raise UsageError(f"--state: no state {state!r}{nearest(state, STATES)}")
    begin = None if since is None else datetime.now(UTC) - since_of(since)
    with Streams(Workspace.locate()) as registry:
        output = None if stream is None else str(stream.expanduser().resolve())
        if output is not None and registry.stream(output) is None:
            raise StateError(f"no scoring of this workspace follows files and writes {stream}")
        return registry.incidents(state=state, since=begin, output=output)[::-1]


def show_incident(incident: int, most: int) -> ShownIncident:
    """One incident, and the first rows of it.

    Raises:
        StateError: there is none of this id.
    """
    with Streams(Workspace.locate()) as registry:
        found = registry.incident(incident)
        number, rows = shown_rows(registry, found, most)
    of = standings([found])[found.output]
    return ShownIncident(incident=found, standing=of, number=number, rows=rows)


def shown_rows(registry: Streams, incident: Incident, most: int) -> tuple[int, list[Mapping[str, Any]]]:
    """How many rows an incident has, and the first of them; of sensitive data where they lie, and no more."""
    number, lines = registry.incident_rows(incident, most)
    return number, [_row(json.loads(one)) for one in lines]


def mark_incident(
    incident: int,
    *,
    acknowledged: bool | None = None,
    normal: bool | None = None,
    muted: bool | None = None,
    note: str | None = None,
) -> Incident:
    """Say what an incident is to a person; what is None stays as it is.

    Args:
        incident: id.
        acknowledged: somebody knows of it, and it is a fault: its likes are silenced while it goes on. False
            takes back whatever was said of it.
        normal: it was a false alarm: that is acknowledged, and its likes are silenced for good. False takes
            that back, and nothing else.
        muted: its likes are silenced for good.
        note: for others.

    Raises:
        StateError: there is none of this id, or what is to be taken back was not said.
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


def _row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: row[name] for name in _PLACE if name in row} if row.get("sensitive") else row
