"""`seqmlm incidents`: what the alarms of watched files come to; list, show, acknowledge, mute and prune."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqmlm.cli.options import Json
from seqmlm.cli.output import escape, number, print_facts, print_json, print_table, say, tell
from seqmlm.errors import number_of

if TYPE_CHECKING:
    from seqmlm.watch.store import Incident, StreamEntry

app = typer.Typer(
    no_args_is_help=True,
    help="List, show, acknowledge, mute and prune incidents: what the alarms of `watch` come to.",
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
    from seqmlm.watch.incidents import facts, list_incidents

    found, of = list_incidents(state=state, since=since, stream=stream)
    if json_output:
        print_json([facts(one, of[one.output]) for one in found])
        return
    if not found:
        begin = "no incidents; they come of: seqmlm watch MODEL 'logs/*.log' --fpr 0.001 --out OUT"
        tell("no such incidents" if state or since or stream else begin)
        return

    def cells(one: Incident) -> list[object]:
        times = (_when(at)[5:16] for at in (one.opened, one.updated))
        rows, p_value = f"{one.rows:,}", number(one.p_value)
        return [one.id, _state(one, of[one.output]), *times, rows, p_value, escape(one.title)]

    names = ["id", "state", "opened", "last alarm", "rows", "p", "what broke"]
    print_table(names, list(map(cells, found)))
    for output in dict.fromkeys(one.output for one in found if one.state != "resolved"):
        if not of[output].running:
            tell(f"{output} {of[output].sentence()}: its incidents stay as they are until it goes on")


@app.command("show")
def show(
    incident: Id,
    rows: Annotated[int, typer.Option(min=0, help="Show this many of its rows.")] = 10,
    json_output: Json = False,
) -> None:
    """Show one incident: what broke, where, what was expected instead, and its first rows.

    Example: seqmlm incidents show 7
    """
    from seqmlm.watch.incidents import columns, facts, show_incident, where

    one, stream, every, shown = show_incident(incident, rows)
    if json_output:
        print_json({**facts(one, stream), "all_rows": every, "first_rows": shown})
        return
    since = every - one.rows
    more = f"; {since:,} muted since" if since > 0 else f"; {-since:,} pruned" if since < 0 else ""
    print_facts(
        {
            "incident": one.id,
            "what broke": one.title,
            "state": _state(one),
            "stream": "" if one.state == "resolved" else stream.sentence(),
            **columns(one, _when),
            "rows": f"{one.rows:,}, of {number_of(one.lines, 'line')}{more}"
            if one.lines
            else f"{one.rows:,}",
            "lines": None,
            "smallest p": number(one.p_value),
            "resolved": "" if one.resolved is None else _when(one.resolved),
            "model": one.model,
            "output": one.output,
        }
    )
    if shown:
        say()
    for row in shown:
        say(_row(where(row), row))
    if every > len(shown):
        tell(f"{number_of(every - len(shown), 'more row')} (--rows)")


@app.command("ack")
def ack(
    incident: Id,
    normal: Annotated[
        bool,
        typer.Option(
            "--normal", help="It is a false alarm: mute what is like it, and count it as one in reports."
        ),
    ] = False,
    note: Annotated[str | None, typer.Option(help="Keep a note with it, for others.")] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take back what was said of it; open it again if it is not over.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Acknowledge an incident as a fault: while it goes on, alarms like its own join it and open no other.

    With --normal it is a false alarm: alarms like it open no incident of this stream any more, whichever
    version of the model judges, and reports count it as a false alarm. The model does not learn of it: for
    that, calibrate with a log that has such lines.

    Example: seqmlm incidents ack 7 --note "backend restarts, Ann is on it"

    Example: seqmlm incidents ack 8 --normal --note "nightly backup"
    """
    from seqmlm.watch.incidents import mark_incident

    said = {"normal" if normal else "acknowledged": not undo}
    one = mark_incident(incident, note=note, **said)
    over = one.state == "resolved"
    if undo:
        what = "is over, and nobody has said what it was" if over else "is open again"
    elif normal:
        what = "was a false alarm: alarms like it open no incident in this stream"
    elif over:
        what = f"is over, and is kept as a fault; to silence what is like it: seqmlm incidents mute {one.id}"
    else:
        what = "is acknowledged as a fault until it is over (a false alarm: --normal)"
    _told(one, what, json_output)


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
    from seqmlm.watch.incidents import mark_incident

    one = mark_incident(incident, muted=not undo, note=note)
    what = "is no longer muted" if undo else "is muted: alarms like it open no incident in this stream"
    _told(one, what, json_output)


@app.command("prune")
def prune(
    older_than: Annotated[
        str, typer.Option(metavar="DURATION", help="Delete only what was judged longer ago: 30d, 12h, ...")
    ],
    stream: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Only of the scoring that writes this file.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Delete nothing; say what would be deleted.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Delete old rows of followed files from the database, and old incidents that are over; outputs stay.

    Rows stay that are not in the output yet, that belong to an incident which is not over, and the last one.
    Incidents stay that are open, acknowledged or muted, or of which a webhook is still to be told.
    If an output is removed later, it is written anew without the rows that were pruned.

    Example: seqmlm incidents prune --older-than 30d --dry-run
    """
    from seqmlm.watch.incidents import prune_streams

    found = prune_streams(older_than, stream=stream, pretend=dry_run)
    before = [of.last - of.pruned.rows for of, _ in found]
    if json_output:
        told = zip(found, before, strict=True)
        print_json([{**asdict(one), "output": of.output, "rows_before": n} for (of, one), n in told])
        return
    verb = "would be deleted" if dry_run else "deleted"
    for (of, one), rows in zip(found, before, strict=True):
        incidents = number_of(one.incidents, "incident")
        say(f"{of.output}: {one.rows:,} of {rows:,} rows and {incidents} {verb}")
    if not found:
        tell("no scoring of this workspace follows files: there is nothing to prune")


def _told(one: Incident, what: str, json_output: bool) -> None:
    from seqmlm.watch.incidents import facts

    if json_output:
        print_json(facts(one))
    else:
        say(f"incident {one.id} {what}: {one.title}")


def _state(one: Incident, of: StreamEntry | None = None) -> str:
    """With how its stream stands, where it is not over and nobody looks at it."""
    stopped = of is not None and not of.running and one.state != "resolved"
    return f"{one.full_state}, scoring stopped" if stopped else one.full_state


def _when(moment: datetime) -> str:
    """In the local time zone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _row(place: str, row: Mapping[str, Any]) -> str:
    """A row in one line: where, how unusual, why."""
    p_value = "" if row.get("p_value") is None else f"  p {row['p_value']:.2g}"
    muted = f"  muted by {row['muted']}" if "muted" in row else ""
    reason = f"  {row['reason']}" if row.get("reason") else ""
    return " ".join(f"{place}{p_value}{muted}{reason}".split("\n"))
