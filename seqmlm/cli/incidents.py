"""`seqmlm incidents`: what the alarms of followed files come to; list, show, acknowledge and mute."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqmlm.cli.options import Json
from seqmlm.cli.output import say, tell

if TYPE_CHECKING:
    from seqmlm.tasks.incidents import Incident

app = typer.Typer(
    no_args_is_help=True,
    help="List, show, acknowledge and mute incidents: what the alarms of `score --follow` come to.",
)

Id = Annotated[int, typer.Argument(metavar="ID", min=1, max=(1 << 31) - 1, help="Number of an incident.")]


@app.command("list")
def list_(
    state: Annotated[
        str | None, typer.Option(help="Only those that are open, acknowledged or resolved.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Only those with an alarm in the last 24h, 30m, ..."),
    ] = None,
    stream: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Only those of the scoring that writes this file.")
    ] = None,
    json_output: Json = False,
) -> None:
    """List incidents, newest first.

    Example: seqmlm incidents list --state open --since 24h
    """
    from seqmlm.cli.output import escape, number, print_json, print_table
    from seqmlm.tasks.incidents import facts, list_incidents

    found = list_incidents(state=state, since=since, stream=stream)
    if json_output:
        print_json([facts(one) for one in found])
        return
    if not found:
        asked = state or since or stream
        tell(
            "no such incidents"
            if asked
            else "no incidents; they come of: seqmlm score MODEL 'logs/*.log' --follow --fpr 0.001 --out OUT"
        )
        return
    print_table(
        ["id", "state", "opened", "last alarm", "rows", "p", "what broke"],
        [
            [
                one.id,
                _state(one),
                _when(one.opened)[5:16],
                _when(one.updated)[5:16],
                f"{one.rows:,}",
                number(one.p_value),
                escape(one.title),
            ]
            for one in found
        ],
    )


@app.command("show")
def show(
    incident: Id,
    rows: Annotated[int, typer.Option(min=0, help="Show this many of its rows.")] = 10,
    json_output: Json = False,
) -> None:
    """Show one incident: what broke, where, what was expected instead, and its first rows.

    Example: seqmlm incidents show 7
    """
    from seqmlm.cli.output import number, print_facts, print_json
    from seqmlm.tasks.incidents import show_incident

    found = show_incident(incident, rows)
    if json_output:
        print_json(found.to_dict())
        return
    one = found.incident
    since = found.number - one.rows
    print_facts(
        {
            "incident": one.id,
            "what broke": one.title,
            "state": _state(one),
            "note": one.note,
            "new": ", ".join(one.new),
            "template": one.template,
            "expected": " | ".join(one.expected),
            "first line": _placed(one.first_line, one.first_time),
            "last line": _placed(one.last_line, one.last_time),
            "rows": f"{one.rows:,}, of {one.lines:,} lines" + (f"; {since:,} muted since" if since else ""),
            "smallest p": number(one.p_value),
            "reason": one.reason,
            "opened": _when(one.opened),
            "last alarm": _when(one.updated),
            "resolved": "" if one.resolved is None else _when(one.resolved),
            "model": one.model,
            "output": one.output,
        }
    )
    if found.rows:
        say()
    for row in found.rows:
        say(_row(row))
    if found.number > len(found.rows):
        tell(f"{found.number - len(found.rows):,} more rows (--rows)")


@app.command("ack")
def ack(
    incident: Id,
    note: Annotated[str | None, typer.Option(help="Keep a note with it, for others.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Open it again.")] = False,
    json_output: Json = False,
) -> None:
    """Acknowledge an incident: while it goes on, alarms like its own join it and open no other.

    A rolling calibration leaves its rows out, also when it is over.

    Example: seqmlm incidents ack 7 --note "backend restarts, Ann is on it"
    """
    from seqmlm.tasks.incidents import mark_incident

    one = mark_incident(incident, acknowledged=not undo, note=note)
    if one.state == "resolved":
        real = "" if undo else ", and is kept as a real one"
        _told(one, f"is over{real}; to silence what is like it: seqmlm incidents mute {one.id}", json_output)
    else:
        _told(one, "is open again" if undo else "is acknowledged until it is over", json_output)


@app.command("mute")
def mute(
    incident: Id,
    note: Annotated[str | None, typer.Option(help="Keep a note with it, for others.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Let what is like it open incidents again.")] = False,
    json_output: Json = False,
) -> None:
    """Mute what is like an incident, for good: such alarms are written and counted, and open no incident.

    Example: seqmlm incidents mute 7 --note "nightly backup"
    """
    from seqmlm.tasks.incidents import mark_incident

    one = mark_incident(incident, muted=not undo, note=note)
    what = "is no longer muted" if undo else "is muted: alarms like it open no incident in this stream"
    _told(one, what, json_output)


def _told(one: Incident, what: str, json_output: bool) -> None:
    from seqmlm.cli.output import print_json
    from seqmlm.tasks.incidents import facts

    if json_output:
        print_json(facts(one))
    else:
        say(f"incident {one.id} {what}: {one.title}")


def _state(one: Incident) -> str:
    return f"{one.state}, muted" if one.muted else one.state


def _when(moment: datetime) -> str:
    """In the local time zone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _placed(place: str, moment: str | None) -> str:
    return place if moment is None else f"{place} ({moment})"


def _row(row: Mapping[str, Any]) -> str:
    """A row in one line: where, how unusual, why."""
    line, last = row["line"], row.get("last_line")
    place = f"{Path(str(row['source'])).name}:{line}" + (f"-{last}" if last not in (None, line) else "")
    p_value = "" if row.get("p_value") is None else f"  p {row['p_value']:.2g}"
    muted = f"  muted by {row['muted']}" if "muted" in row else ""
    reason = "" if row.get("sensitive") else f"  {row.get('reason', '')}"
    return " ".join(f"{place}{p_value}{muted}{reason}".split("\n"))
