"""The report of a period: rows, alarms, incidents and p-values of followed files, as a page and as JSON.

No alarms do not mean that all is well. A stream that has stopped, or has scored nothing, is therefore
reported at the top, before all figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.errors import number_of, printable
from seqmlm.reports.page import Cell, Page
from seqmlm.scoring.live import period_sentence
from seqmlm.streams.outputs import check_outputs
from seqmlm.watch.incidents import columns, facts, first_rows, since_of, streams_of, where
from seqmlm.watch.store import Incident, StreamEntry, Streams

FIRST_ROWS, DETAILED, LANES = 5, 20, 40
"""Limits of the page: rows per incident, incidents in detail, incidents in the picture."""

P_BINS = 20

_WIDTHS = (1, 5, 15, 60, 300, 900, 3600, 7200, 21_600, 43_200, 86_400, 604_800)  # seconds of a time bin
_MOST_BINS = 100
_LOW = 0.05
_UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60))
_LISTED = ("severity", "host", "service", "opened", "last alarm", "rows", "smallest p")


def format_time(time: datetime | None) -> str:
    """A time in UTC; "never" for None."""
    return "never" if time is None else time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


@dataclass
class StreamPeriod:
    """Counts of a stream in the period.

    Attributes:
        entry: the stream.
        rows: number of rows.
        alarms: number of rows with an alarm.
        gaps: number of places where bytes could not be read.
        never_seen: number of rows with values that were never seen.
        rated: whether rows were scored with a false positive rate; None without rows.
        sensitive: whether a row has sensitive data.
        pruned_until: time of the oldest remaining row, if rows were pruned.
    """

    entry: StreamEntry
    rows: int = 0
    alarms: int = 0
    gaps: int = 0
    never_seen: int = 0
    rated: bool | None = None
    sensitive: bool = False
    pruned_until: datetime | None = None

    def count(self, alarm: bool, row: Mapping[str, Any]) -> None:
        """Count a row."""
        self.rows += 1
        self.alarms += alarm
        self.never_seen += bool(row.get("never_seen"))
        self.rated = self.rated or "alarm" in row
        self.sensitive = self.sensitive or bool(row.get("sensitive"))

    @property
    def alarm_count(self) -> int | None:
        """The number of alarms; None if the stream has no false positive rate."""
        return None if self.rated is False else self.alarms

    def notes(self, begin: datetime) -> list[str]:
        """Warnings about this stream: reasons why few alarms may not mean that all is well."""
        entry, name = self.entry, self.entry.output
        since = "yet" if entry.judged is None else f"since {format_time(entry.judged)} UTC"
        files, places = ", ".join(entry.follows), number_of(self.gaps, "place")
        pruned = self.pruned_until is not None and self.pruned_until > begin
        silent = entry.running and not self.rows and not entry.alarms_only
        reasons = {
            f"is not running: nothing was scored {since}. Start its command again.": not entry.running,
            f"is running, but nothing was scored {since}: check that its files are still written "
            f"({files}).": silent,
            "stores only rows with alarms (alarms_only): the number and p-values of other rows are "
            "unknown.": entry.alarms_only,
            "is scored without --fpr or alarms_per_day, so it raises no alarms.": self.rated is False,
            f"has {places} where bytes could not be read (rows with gap have the reason).": self.gaps,
            f"was pruned: rows from before {format_time(self.pruned_until)} UTC are incomplete.": pruned,
        }
        return [f"{name} {reason}" for reason, holds in reasons.items() if holds]

    def facts(self) -> dict[str, Any]:
        """The counts as JSON values."""
        entry = self.entry
        return {
            "output": entry.output,
            "files": entry.follows,
            "running": entry.running,
            "judged": entry.judged,
            "committed": entry.alive,
            "rows": self.rows,
            "alarms": self.alarm_count,
            "gaps": self.gaps,
            "never_seen": self.never_seen,
            "sensitive": self.sensitive,
        }

    def cells(self) -> list[Cell]:
        """The cells of a table row."""
        entry, alarms = self.entry, "no rate" if self.alarm_count is None else self.alarm_count
        state = "running" if entry.running else "not running"
        times = [format_time(entry.judged), format_time(entry.alive)]
        return [entry.output, ", ".join(entry.follows), state, *times, self.rows, alarms, self.gaps]


@dataclass(kw_only=True)
class Timeline:
    """The rows that were scored between two times.

    Attributes:
        model: reference of the model; None for all models.
        begin: begin of the period.
        end: end of the period.
        streams: the counts of each stream.
        edges: (B + 1,) edges of the time bins, in seconds since 1970 UTC.
        incidents: incidents of the period; first those that are not over, then the newest.
        first_rows: the first rows of each incident, by its id.
        half: number of p-values of at most .5.
        rows: (B,) number of rows per bin.
        alarms: (B,) number of alarms per bin.
        with_p: (B,) number of rows with a p-value per bin.
        low: (B,) number of p-values of at most .05 per bin.
        p_counts: (P_BINS,) histogram of the p-values of the period.
    """

    model: str | None
    begin: datetime
    end: datetime
    streams: list[StreamPeriod]
    edges: np.ndarray[Any, np.dtype[np.float64]]
    incidents: list[Incident] = field(default_factory=list)
    first_rows: dict[int, list[Mapping[str, Any]]] = field(default_factory=dict)
    half: int = 0

    def __post_init__(self) -> None:
        self.rows, self.alarms, self.with_p, self.low = np.zeros((4, len(self.edges) - 1), dtype=np.int64)
        self.p_counts = np.zeros(P_BINS, dtype=np.int64)

    @property
    def sensitive(self) -> bool:
        """Whether any row has sensitive data. Alarms over time and p-values are then withheld."""
        return any(stream.sensitive for stream in self.streams)

    @property
    def open_count(self) -> int:
        """The number of incidents that are not over."""
        return sum(incident.state != "resolved" for incident in self.incidents)

    @property
    def verdicts(self) -> dict[str, int]:
        """The number of incidents by verdict; "none" counts incidents without a verdict."""
        verdicts = [incident.verdict or "none" for incident in self.incidents]
        return {name: verdicts.count(name) for name in ("fault", "normal", "none")}

    def stream_of(self, incident: Incident) -> StreamEntry:
        """The stream of an incident."""
        return next(stream.entry for stream in self.streams if stream.entry.output == incident.output)

    def count(self, registry: Streams, stream: StreamPeriod) -> None:
        """Count the rows that a stream scored in the period."""
        entry = stream.entry
        first, width = float(self.edges[0]), float(self.edges[1] - self.edges[0])
        for time, alarm, line in registry.rows_since(entry.id, self.begin):
            row = json.loads(line)
            if "gap" in row:
                stream.gaps += 1
                continue
            stream.count(alarm, row)
            bin = min(max(int((time.timestamp() - first) // width), 0), len(self.rows) - 1)
            self.rows[bin] += 1
            self.alarms[bin] += alarm
            if (p_value := row.get("p_value")) is not None and not entry.alarms_only:
                self.with_p[bin] += 1
                self.low[bin] += p_value <= _LOW
                self.half += p_value <= 0.5
                self.p_counts[min(max(int(np.ceil(p_value * P_BINS)) - 1, 0), P_BINS - 1)] += 1
        if entry.pruned.rows:
            rows = registry.rows_since(entry.id, datetime.fromtimestamp(0, UTC))
            stream.pruned_until = next((time for time, _, _ in rows), None)

    # in sentences

    def p_sentence(self) -> str:
        """A sentence that compares the p-values with p-values of normal rows; "" if none can be shown."""
        if self.sensitive:
            return ""
        return period_sentence(int(self.p_counts.sum()), self.half, int(self.low.sum()))

    def warnings(self) -> list[str]:
        """Sentences about rows that were not scored. A report with warnings is not an all-clear."""
        notes = [note for stream in self.streams for note in stream.notes(self.begin)]
        entries = [stream.entry for stream in self.streams]
        if self.rows.sum() or any(entry.alarms_only and entry.running for entry in entries):
            return notes
        nothing = (
            "Nothing was scored in this period: this is not an all-clear. Use a longer --since, and check "
            "that `seqmlm watch` runs."
        )
        return [nothing, *notes]

    def verdict(self) -> list[str]:
        """The results of the period, in sentences."""
        rows, over = int(self.rows.sum()), len(self.incidents) - self.open_count
        counts = {"not over": self.open_count, "over": over}
        sentences = [
            f"{number_of(number, 'incident')} {'is' if number == 1 else 'are'} {state}."
            for state, number in counts.items()
            if number
        ]
        verdicts = self.verdicts
        if judged := verdicts["fault"] + verdicts["normal"]:
            was = "was a false alarm" if verdicts["normal"] == 1 or judged == 1 else "were false alarms"
            unjudged = f"; without a verdict: {verdicts['none']:,}" if verdicts["none"] else ""
            sentences.append(
                f"{verdicts['normal']:,} of {number_of(judged, 'incident')} with a verdict "
                f"({verdicts['normal'] / judged:.0%}) {was}{unjudged}."
            )
        verb = "stored" if any(stream.entry.alarms_only for stream in self.streams) else "scored"
        sentences.append(f"{number_of(rows, 'row')} {verb}{self._alarms_of_rows() if rows else ''}.")
        return sentences + ([f"P-values: {p_values}."] if (p_values := self.p_sentence()) else [])

    def _alarms_of_rows(self) -> str:
        """The number of alarms, for streams with a false positive rate."""
        alarms = sum(stream.alarms for stream in self.streams)
        if any(stream.rated is False for stream in self.streams):
            return ""
        if not alarms:
            return ", no alarm"
        opened = "" if self.incidents else ", but no incident: the alarms were muted or ignored"
        return f", {number_of(alarms, 'alarm')}{opened}"

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        bins = {"alarms": self.alarms, "p_values": self.with_p, "p_values_to_0.05": self.low}
        upper = [(n + 1) / P_BINS for n in range(P_BINS)]
        return {
            **{name: getattr(self, name) for name in ("model", "begin", "end")},
            "verdict": self.verdict(),
            "warnings": self.warnings(),
            "streams": [stream.facts() for stream in self.streams],
            "bins": {
                "begin": [datetime.fromtimestamp(at, UTC) for at in self.edges[:-1].tolist()],
                "seconds": float(self.edges[1] - self.edges[0]),
                "rows": self.rows.tolist(),
                **{name: None if self.sensitive else counts.tolist() for name, counts in bins.items()},
            },
            "p_values": None if self.sensitive else {"upper": upper, "rows": self.p_counts.tolist()},
            "verdicts": self.verdicts,
            "incidents": [
                {**facts(incident, self.stream_of(incident)), "first_rows": self.first_rows[incident.id]}
                for incident in self.incidents
            ],
        }

    # as a page

    def write(self, path: Path) -> None:
        """Write the page. With sensitive data, only its owner can read it.

        Raises:
            StateError: the page cannot be written.
        """
        check_outputs({"--report": path})
        title = "Followed files" + (f", scored by {self.model}" if self.model else "")
        page = Page(title, " ".join(self.verdict()), sensitive=self.sensitive)
        if warnings := self.warnings():
            page.warnings(warnings)
        running = sum(stream.entry.running for stream in self.streams)
        page.head(
            {
                "period": f"{format_time(self.begin)} to {format_time(self.end)} UTC",
                "rows scored": int(self.rows.sum()),
                "alarms": int(self.alarms.sum()),
                "incidents": len(self.incidents),
                "not over": self.open_count,
                "streams running": f"{running} of {len(self.streams)}",
                "gaps": sum(stream.gaps for stream in self.streams),
            }
        )
        self._draw(page)
        for incident in self.incidents[:DETAILED]:
            state = {"what broke": incident.title, "state": self._state(incident)}
            page.facts(f"Incident {incident.id}", {**state, **columns(incident, format_time)})
            if rows := self.first_rows[incident.id]:
                page.table("", ["first rows", "time in the log", "p", "message"], list(map(_row, rows)))
        page.write(path)

    def _draw(self, page: Page) -> None:
        """Draw rows, incidents and p-values over time, and the table of streams."""
        hidden = self.sensitive
        if self.rows.sum():
            title, note = "Rows" if hidden else "Rows and alarms", "" if hidden else "; red: alarms"
            alarms = None if hidden else self.alarms
            page.activity(title, self.edges, self.rows, alarms, note=_width(self.edges) + note)
        if self.incidents:
            self._draw_incidents(page)
        if self.with_p.any() and not hidden:
            low = np.divide(self.low, self.with_p, out=np.full(len(self.low), np.nan), where=self.with_p > 0)
            page.timeline(
                "Share of p-values of at most 0.05",
                (self.edges[:-1] + self.edges[1:]) / 2,
                low,
                threshold=_LOW,
                period=(float(self.edges[0]), float(self.edges[-1])),
                y_label="share of rows",
                note="the line is the average for normal rows",
            )
            page.histogram(
                "P-values of the period",
                self.p_counts,
                np.linspace(0, 1, P_BINS + 1),
                x_label="p-value",
                expected=float(self.p_counts.sum() / P_BINS),
                note=f"{self.p_sentence()}; the horizontal line is the expectation for normal rows",
            )
        names = ["output", "follows", "state", "last row scored", "last commit", "rows", "alarms"]
        page.table("Streams", [*names, "gaps"], [stream.cells() for stream in self.streams])

    def _draw_incidents(self, page: Page) -> None:
        bars = []
        for incident in self.incidents[:LANES]:
            over = incident.state == "resolved"
            # If the stream is not running, nothing is known about the time after the last alarm.
            last = self.end if self.stream_of(incident).running else incident.updated
            end = (incident.resolved or incident.updated) if over else last
            span = {"begin": incident.opened.timestamp(), "end": end.timestamp()}
            tip = f"incident {incident.id}, {self._state(incident)}\n{incident.title}"
            bars.append(page.Bar(**span, label=f"{incident.id} {incident.title}", tip=tip, over=over))
        undrawn = len(self.incidents) - LANES
        note = "pale: not over" + (f"; {undrawn:,} more are in the table" if undrawn > 0 else "")
        page.bars("Incidents in time", bars, float(self.edges[0]), float(self.edges[-1]), note=note)
        cells = [columns(incident, format_time) for incident in self.incidents]
        names = [name for name in _LISTED if any(row[name] not in (None, "") for row in cells)]
        rows = [
            [incident.id, incident.title, self._state(incident), *(row[name] for name in names)]
            for incident, row in zip(self.incidents, cells, strict=True)
        ]
        page.table("Incidents", ["id", "what broke", "state", *names], rows)

    def _state(self, incident: Incident) -> str:
        stream, state = self.stream_of(incident), incident.full_state
        if incident.state == "resolved" or stream.running:
            return state
        return f"{state}, but its stream is not running (nothing scored since {format_time(stream.judged)})"


def timeline(model: str | None = None, since: str = "24h") -> Timeline:
    """The report of a period that ends now.

    Args:
        model: reference of a model. A name without a version means all versions, None means all models.
        since: length of the period, such as "24h".

    Raises:
        UsageError: the duration is invalid.
        StateError: there is no such model, or it has no streams.
    """
    end = datetime.now(UTC)
    begin = end - since_of(since)
    with Streams.here() as registry:
        streams = [StreamPeriod(entry) for entry in streams_of(registry, model)]
        report = Timeline(model=model, begin=begin, end=end, streams=streams, edges=_edges(begin, end))
        for stream in streams:
            report.count(registry, stream)
            report.incidents += [
                incident
                for incident in registry.incidents(stream=stream.entry.id)
                if incident.state != "resolved"
                or incident.updated >= begin
                or (incident.resolved or begin) > begin
            ]
        report.incidents.sort(key=lambda incident: -incident.opened.timestamp())
        report.incidents.sort(key=lambda incident: incident.state == "resolved")
        report.first_rows = {
            incident.id: first_rows(registry, incident, FIRST_ROWS)[1] for incident in report.incidents
        }
    return report


def default_page(model: str | None) -> Path:
    """The default path of the page: in the workspace, with the name of the model."""
    name = "report" if model is None else f"report-{Path(model).name.replace(':', '-').replace('@', '-')}"
    with Streams.here() as registry:
        return registry.root / f"{name}.html"


def _edges(begin: datetime, end: datetime) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The edges of the time bins: whole seconds, minutes, hours or days in UTC, at most `_MOST_BINS` bins."""
    seconds = (end - begin).total_seconds()
    width = next((width for width in _WIDTHS if seconds / width <= _MOST_BINS), None)
    if width is None:
        width = _WIDTHS[-1] * int(np.ceil(seconds / _WIDTHS[-1] / _MOST_BINS))
    first, last = begin.timestamp() // width * width, end.timestamp()
    return np.arange(first, last + width, width, dtype=np.float64)


def _width(edges: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    seconds = float(edges[1] - edges[0])
    unit, size = next(((unit, size) for unit, size in _UNITS if seconds >= size), ("", 1))
    return f"a bar is {number_of(round(seconds / size), unit)}" if unit else f"a bar is {seconds:g} s"


def _row(row: Mapping[str, Any]) -> list[Cell]:
    text = "" if row.get("sensitive") else row.get("message") or row.get("reason", "")
    return [where(row), row.get("time"), row.get("p_value"), printable(text)]
