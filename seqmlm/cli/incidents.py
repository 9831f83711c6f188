"""`seqmlm incidents`: list, show, acknowledge, mute and prune groups of related alarms from `watch`."""

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
    help="List, show, acknowledge, mute and prune incidents, i.e. groups of related alarms from `watch`.",
)

Id = Annotated[int, typer.Argument(metavar="ID", min=1, max=(1 << 31) - 1, help="Number of an incident.")]


@app.command("list")
def list_(
    state: Annotated[
        str | None, typer.Option(help="Only incidents in this state: open, acknowledged or resolved.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Only incidents with an alarm in the last 24h, 30m, ..."),
    ] = None,
    stream: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Only incidents of the stream written to this file.")
    ] = None,
    json_output: Json = False,
) -> None:
    """List incidents, newest first.

    Example: seqmlm incidents list --state open --since 24h
    """
    from seqmlm.watch.incidents import facts, list_incidents

    incidents, streams = list_incidents(state=state, since=since, stream=stream)
    if json_output:
        print_json([facts(incident, streams[incident.output]) for incident in incidents])
        return
    if not incidents:
        begin = "no incidents yet; to find some: seqmlm watch MODEL 'logs/*.log' --fpr 0.001 --out OUT"
        tell("no incidents match" if state or since or stream else begin)
        return

    def cells(incident: Incident) -> list[object]:
        times = (_when(at)[5:16] for at in (incident.opened, incident.updated))
        rows, p_value = f"{incident.rows:,}", number(incident.p_value)
        return [
            incident.id,
            _state(incident, streams[incident.output]),
            *times,
            rows,
            p_value,
            escape(incident.title),
        ]

    names = ["id", "state", "opened", "last alarm", "rows", "p", "what broke"]
    print_table(names, list(map(cells, incidents)))
    for output in dict.fromkeys(incident.output for incident in incidents if incident.state != "resolved"):
        if not streams[output].running:
            tell(f"{output} {streams[output].sentence()}: its incidents do not change until it runs again")


@app.command("show")
def show(
    incident: Id,
    rows: Annotated[int, typer.Option(min=0, help="Number of rows to show.")] = 10,
    json_output: Json = False,
) -> None:
    """Show one incident: the fault, its place, the expected lines, and its first rows.

    Example: seqmlm incidents show 7
    """
    from seqmlm.watch.incidents import columns, facts, show_incident, where

    entry, stream, row_count, first_rows = show_incident(incident, rows)
    if json_output:
        print_json({**facts(entry, stream), "all_rows": row_count, "first_rows": first_rows})
        return
    since = row_count - entry.rows
    later_change = f"; {since:,} muted since" if since > 0 else f"; {-since:,} pruned" if since < 0 else ""
    print_facts(
        {
            "incident": entry.id,
            "what broke": entry.title,
            "state": _state(entry),
            "stream": "" if entry.state == "resolved" else stream.sentence(),
            **columns(entry, _when),
            "rows": f"{entry.rows:,}, of {number_of(entry.lines, 'line')}{later_change}"
            if entry.lines
            else f"{entry.rows:,}",
            "lines": None,
            "smallest p": number(entry.p_value),
            "resolved": "" if entry.resolved is None else _when(entry.resolved),
            "model": entry.model,
            "output": entry.output,
        }
    )
    if first_rows:
        say()
    for row in first_rows:
        say(_row(where(row), row))
    if row_count > len(first_rows):
        tell(f"{number_of(row_count - len(first_rows), 'more row')} (--rows)")


@app.command("ack")
def ack(
    incident: Id,
    normal: Annotated[
        bool,
        typer.Option(
            "--normal", help="False alarm: mute similar alarms, and count it as a false alarm in reports."
        ),
    ] = False,
    note: Annotated[str | None, typer.Option(help="Note to store with the incident.")] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Withdraw the verdict; reopen the incident unless it is over.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Acknowledge an incident as a fault. While it lasts, similar alarms join it and open no other incident.

    With --normal it is marked as a false alarm, and reports count it as one. Similar alarms in this stream no
    longer open incidents, for any version of the model. The model itself does not change. To adapt it,
    calibrate with a log that has such lines.

    Example: seqmlm incidents ack 7 --note "backend restarts, Ann is on it"

    Example: seqmlm incidents ack 8 --normal --note "nightly backup"
    """
    from seqmlm.watch.incidents import mark_incident

    marks = {"normal" if normal else "acknowledged": not undo}
    marked = mark_incident(incident, note=note, **marks)
    over = marked.state == "resolved"
    if undo:
        outcome = "is over, and has no verdict" if over else "is open again"
    elif normal:
        outcome = "was a false alarm: similar alarms open no incident in this stream"
    elif over:
        mute = f"seqmlm incidents mute {marked.id}"
        outcome = f"is over and is recorded as a fault; to silence similar alarms: {mute}"
    else:
        outcome = "is acknowledged as a fault until it is over (for a false alarm: --normal)"
    _print_outcome(marked, outcome, json_output)


@app.command("mute")
def mute(
    incident: Id,
    note: Annotated[str | None, typer.Option(help="Note to store with the incident.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Let similar alarms open incidents again.")] = False,
    json_output: Json = False,
) -> None:
    """Mute alarms similar to an incident for good. They are still written and counted, but open no incident.

    Example: seqmlm incidents mute 7 --note "nightly backup"
    """
    from seqmlm.watch.incidents import mark_incident

    marked = mark_incident(incident, muted=not undo, note=note)
    outcome = "is no longer muted" if undo else "is muted: similar alarms open no incident in this stream"
    _print_outcome(marked, outcome, json_output)


@app.command("prune")
def prune(
    older_than: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="Delete only rows and incidents older than this: 30d, 12h, ..."
        ),
    ],
    stream: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Only for the stream written to this file.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Delete nothing; show what would be deleted.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Delete old rows of followed files from the database, and old incidents that are over. Outputs are kept.

    These rows are kept: rows that are not in the output yet, rows of an incident that is not over, and the
    last row. These incidents are kept: open, acknowledged and muted ones, and incidents that a webhook still
    has to receive. If an output is removed later, it is rewritten without the pruned rows.

    Example: seqmlm incidents prune --older-than 30d --dry-run
    """
    from seqmlm.watch.incidents import prune_streams

    prunings = prune_streams(older_than, stream=stream, pretend=dry_run)
    row_counts = [entry.last - entry.pruned.rows for entry, _ in prunings]
    if json_output:
        counted = zip(prunings, row_counts, strict=True)
        print_json(
            [
                {**asdict(pruned), "output": entry.output, "rows_before": row_count}
                for (entry, pruned), row_count in counted
            ]
        )
        return
    verb = "would be deleted" if dry_run else "deleted"
    for (entry, pruned), rows in zip(prunings, row_counts, strict=True):
        incidents = number_of(pruned.incidents, "incident")
        say(f"{entry.output}: {pruned.rows:,} of {rows:,} rows and {incidents} {verb}")
    if not prunings:
        tell("this workspace has no streams of `seqmlm watch`, so there is nothing to prune")


def _print_outcome(incident: Incident, outcome: str, json_output: bool) -> None:
    """Print an incident as JSON, or a sentence with the outcome of a command."""
    from seqmlm.watch.incidents import facts

    if json_output:
        print_json(facts(incident))
    else:
        say(f"incident {incident.id} {outcome}: {incident.title}")


def _state(incident: Incident, stream: StreamEntry | None = None) -> str:
    """The state of an incident, with "scoring stopped" if it is not over and its stream is not running."""
    stopped = stream is not None and not stream.running and incident.state != "resolved"
    return f"{incident.full_state}, scoring stopped" if stopped else incident.full_state


def _when(moment: datetime) -> str:
    """A time in the local time zone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _row(place: str, row: Mapping[str, Any]) -> str:
    """A row in one line: its place, p-value and reason."""
    p_value = "" if row.get("p_value") is None else f"  p {row['p_value']:.2g}"
    muted = f"  muted by {row['muted']}" if "muted" in row else ""
    reason = f"  {row['reason']}" if row.get("reason") else ""
    return " ".join(f"{place}{p_value}{muted}{reason}".split("\n"))
