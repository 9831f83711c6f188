"""What a model judged of followed files in a period: rows, alarms, incidents and p-values; a page and JSON.

Silence is not health: a stream that has stopped, or judged nothing, is said at the top, before any figure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import nsmallest
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.anomaly.findings import small
from seqmlm.errors import number_of, printable
from seqmlm.reports.drawing import Bar
from seqmlm.reports.page import Cell, Page
from seqmlm.scoring.shift import FEWEST_TOLD, TOO_LOW_LIVE, shifted
from seqmlm.streams.outputs import check_outputs
from seqmlm.watch.incidents import columns, facts, shown_rows, since_of, streams_of, where
from seqmlm.watch.store import Incident, StreamEntry, Streams
from seqmlm.workspace import Workspace

Row = Mapping[str, Any]

FIRST_ROWS, DIFFERING, DETAILED, LANES = 5, 20, 20, 40
"""What the page has, at most: rows of an incident, rows that two versions judge differently, incidents with a
part of their own, incidents that are drawn; all are in its table."""

P_BINS = 20

_WIDTHS = (1, 5, 15, 60, 300, 900, 3600, 7200, 21_600, 43_200, 86_400, 604_800)  # seconds of a bin of time
_MOST_BINS = 100
_LOW = 0.05
_UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60))
_FEW = 0.35  # of p-values of at most .5: less is not as half
_LISTED = ("severity", "host", "service", "opened", "last alarm", "rows", "smallest p")


def moment(at: datetime | None) -> str:
    """A time in UTC; "never" for None."""
    return "never" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


@dataclass
class Comparison:
    """Two versions of a model that judged the same rows of the period: one served, one was its shadow."""

    stream: StreamPeriod
    served: str  # reference of the version; "" where rows do not name it
    shadow: str
    alias: str  # that named the shadow
    judged: Counter[tuple[bool, bool]] = field(default_factory=Counter)  # by whether each of them alarms
    differing: list[Row] = field(default_factory=list)  # one alone alarms; with the smallest p-values

    def add(self, row: Row) -> None:
        """Count a row that both judged."""
        which = bool(row.get("alarm")), bool(row["shadow"]["alarm"])
        self.judged[which] += 1
        if which[0] != which[1]:
            self.differing.append(row)
            if len(self.differing) > 10 * DIFFERING:
                self.differing = self.shown()

    @property
    def counts(self) -> dict[str, int]:
        """Rows that both judged; of them those that one, the other, both alarm."""
        both, own, other = (self.judged[one] for one in ((True, True), (True, False), (False, True)))
        alarms = {"alarms": own + both, "common": both, "shadow_alarms": other + both}
        return {"rows": self.judged.total(), **alarms}

    def shown(self) -> list[Row]:
        """Rows that one of them alone alarms, the smallest p-values first; none of sensitive data."""

        def smallest(row: Row) -> float:
            given = (row.get("p_value"), row["shadow"]["p_value"])
            return min((one for one in given if one is not None), default=0.0)  # without one: unfamiliar

        return [] if self.stream.sensitive else nsmallest(DIFFERING, self.differing, key=smallest)

    def lines(self) -> list[str]:
        """The same rows, a line each."""

        def told(p: float | None) -> str:
            return "none" if p is None else small(p)

        return [
            f"{place}: {who} alone alarms (p {told(own)}, of the shadow {told(p)})"
            for place, _, who, own, p, _ in self.cells()
        ]

    def cells(self) -> Iterator[list[Any]]:
        """The same rows for a table."""
        served, shadow = self._names
        for row in self.shown():
            place, time, p_value, said = _row(row)
            who = served if row.get("alarm") else shadow
            yield [place, time, who, p_value, row["shadow"]["p_value"], said]

    @property
    def _names(self) -> tuple[str, str]:
        """The version that served and the shadow, as a person calls them."""
        served = f"version {self.served.rpartition(':')[2]}" if self.served else "the version that served"
        return served, f"{self.alias} (version {self.shadow.rpartition(':')[2]})"

    def sentence(self) -> str:
        """What came of it."""
        (served, shadow), of = self._names, self.counts
        if self.stream.sensitive:  # differences of counts would tell small ones
            return f"{shadow} judged the same rows as {served}; of sensitive data no more is told."
        if self.stream.standing.alarms_only:
            counts = self.stream.standing.counts
            alone = int(counts.get("shadow_alarms", 0)) - int(counts.get("shadow_common", 0))
            return (
                f"{shadow} would have raised {of['common']:,} of the {number_of(of['alarms'], 'alarm')} of "
                f"{served}. What it alone would have raised is not kept (alarms_only): "
                f"{number_of(alone, 'alarm')} of shadows since the stream began."
            )
        return (
            f"{shadow} would have raised {number_of(of['shadow_alarms'], 'alarm')} where {served} raised "
            f"{of['alarms']:,}: {of['common']:,} in common, of {number_of(of['rows'], 'row')} that both "
            "judged."
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        of, hidden = self.stream.standing, self.stream.sensitive
        counts = {name: None if hidden and name != "rows" else one for name, one in self.counts.items()}
        counts |= {"shadow_alarms": None} if of.alarms_only else {}
        named = {"output": of.output, "alias": self.alias, "shadow": self.shadow}
        return {**named, **counts, "served": self.served or None, "differing": self.shown()}


@dataclass
class StreamPeriod:
    """One stream in the period; counts are of that."""

    standing: StreamEntry
    rows: int = 0
    alarms: int = 0
    gaps: int = 0
    never_seen: int = 0
    rated: bool | None = None  # whether rows were judged by a rate of alarms; None: there are none
    sensitive: bool = False
    pruned_until: datetime | None = None  # rows judged before this time were pruned
    comparisons: dict[tuple[str, str, str], Comparison] = field(default_factory=dict)

    def count(self, alarm: bool, row: Row) -> None:
        """Count a row, and compare what two versions say of it."""
        self.rows += 1
        self.alarms += alarm
        self.never_seen += bool(row.get("never_seen"))
        self.rated = self.rated or "alarm" in row
        self.sensitive = self.sensitive or bool(row.get("sensitive"))
        served, beside = str(row.get("model", "")), row.get("shadow")
        if beside is None or served == beside["version"]:
            return  # the shadow serves by now: a version is not compared with itself
        which = served, beside["version"], beside["alias"]
        self.comparisons.setdefault(which, Comparison(self, *which)).add(row)

    @property
    def told_alarms(self) -> int | None:
        """Alarms; None where none were asked for."""
        if self.rated is False:
            return None
        return self.alarms

    def notes(self, begin: datetime) -> list[str]:
        """What a person should know before believing that all is well."""
        of, name = self.standing, self.standing.output
        since = "yet" if of.judged is None else f"since {moment(of.judged)} UTC"
        files, places = ", ".join(of.follows), number_of(self.gaps, "place")
        pruned = self.pruned_until is not None and self.pruned_until > begin
        silent = of.running and not self.rows and not of.alarms_only
        told = {
            f"is not running: nothing was judged {since}. Start its command again.": not of.running,
            f"is running, but nothing was judged {since}: see that its files are still written to "
            f"({files}).": silent,
            "keeps the rows of alarms alone (alarms_only): how many others were judged, and their p-values, "
            "are not known here.": of.alarms_only,
            "is scored without --fpr or alarms_per_day, so it raises no alarms.": self.rated is False,
            f"has {places} where bytes could not be read (rows with gap say why).": self.gaps,
            f"was pruned: of what was judged before {moment(self.pruned_until)} UTC not all is here.": pruned,
        }
        return [f"{name} {text}" for text, so in told.items() if so]

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        of = self.standing
        return {
            "output": of.output,
            "files": of.follows,
            "running": of.running,
            "judged": of.judged,
            "committed": of.alive,
            "rows": self.rows,
            "alarms": self.told_alarms,
            "gaps": self.gaps,
            "never_seen": self.never_seen,
            "sensitive": self.sensitive,
        }

    def cells(self) -> list[Cell]:
        """For a table."""
        of, alarms = self.standing, "none asked" if self.told_alarms is None else self.told_alarms
        state, times = "running" if of.running else "not running", [moment(of.judged), moment(of.alive)]
        return [of.output, ", ".join(of.follows), state, *times, self.rows, alarms, self.gaps]


@dataclass(kw_only=True)
class Timeline:
    """What was judged between two times; counts are of rows.

    Attributes:
        rows, alarms, with_p, low: (B,) in each bin; `low` have a p-value of at most .05.
        p_counts: (P_BINS,) of the period; `half` is how many are at most .5.
    """

    model: str | None  # reference; None for all
    begin: datetime
    end: datetime
    streams: list[StreamPeriod]
    edges: np.ndarray[Any, np.dtype[np.float64]]  # (B + 1,) seconds since 1970 UTC of the bins of time
    incidents: list[Incident] = field(default_factory=list)  # that are not over first, then the newest
    first_rows: dict[int, list[Row]] = field(default_factory=dict)  # of each, by its id
    half: int = 0

    def __post_init__(self) -> None:
        self.rows, self.alarms, self.with_p, self.low = np.zeros((4, len(self.edges) - 1), dtype=np.int64)
        self.p_counts = np.zeros(P_BINS, dtype=np.int64)

    @property
    def sensitive(self) -> bool:
        """Whether anything in it is of sensitive data: then alarms in time and p-values are not told."""
        return any(one.sensitive for one in self.streams)

    @property
    def comparisons(self) -> list[Comparison]:
        """Of versions that judged the same rows, of all streams."""
        return [one for stream in self.streams for one in stream.comparisons.values()]

    @property
    def verdicts(self) -> dict[str, int]:
        """Incidents by what people took them for; "none" where nobody has said."""
        told = [one.verdict or "none" for one in self.incidents]
        return {name: told.count(name) for name in ("fault", "normal", "none")}

    def standing(self, one: Incident) -> StreamEntry:
        """How the stream of an incident stands."""
        return next(of.standing for of in self.streams if of.standing.output == one.output)

    def count(self, registry: Streams, stream: StreamPeriod) -> None:
        """Count the rows that a stream judged in the period."""
        entry = stream.standing
        first, width = float(self.edges[0]), float(self.edges[1] - self.edges[0])
        for at, alarm, line in registry.rows_since(entry.id, self.begin):
            row = json.loads(line)
            if "gap" in row:
                stream.gaps += 1
                continue
            stream.count(alarm, row)
            place = min(max(int((at.timestamp() - first) // width), 0), len(self.rows) - 1)
            self.rows[place] += 1
            self.alarms[place] += alarm
            if (p_value := row.get("p_value")) is not None and not entry.alarms_only:
                self.with_p[place] += 1
                self.low[place] += p_value <= _LOW
                self.half += p_value <= 0.5
                self.p_counts[min(max(int(np.ceil(p_value * P_BINS)) - 1, 0), P_BINS - 1)] += 1
        if entry.pruned.rows:
            kept = registry.rows_since(entry.id, datetime.fromtimestamp(0, UTC))
            stream.pruned_until = next((at for at, _, _ in kept), None)

    # in sentences

    def p_told(self) -> str:
        """Whether the p-values are as those of normal rows; "" where there are none, or they are not told."""
        number = int(self.p_counts.sum())
        if self.sensitive or not number:
            return ""
        if number < FEWEST_TOLD:
            return f"{number:,} are too few to say whether they are uniform, as those of normal rows are"
        low, lowest = self.half / number, int(self.low.sum()) / number
        if (shift := shifted(low, lowest, judged=number, normal=number, least=TOO_LOW_LIVE)) is not None:
            return shift[1]
        alike = "about uniform, as those of normal rows"
        if low < _FEW:
            alike = "fewer are small than of normal rows, as of repeats and of what the training had"
        return f"{alike}: {low:.0%} are at most 0.5, {lowest:.1%} at most 0.05"

    def warnings(self) -> list[str]:
        """What was not judged, a sentence each; a report that has some is no "all clear"."""
        found = [note for one in self.streams for note in one.notes(self.begin)]
        of = [one.standing for one in self.streams]
        if self.rows.sum() or any(one.alarms_only and one.running for one in of):
            return found
        nothing = (
            "Nothing was judged in this period: this is not an all-clear. Look further back with a longer "
            "--since, and see that the scoring runs."
        )
        return [nothing, *found]

    def verdict(self) -> list[str]:
        """What it came to, in sentences."""
        rows, over = int(self.rows.sum()), sum(one.state == "resolved" for one in self.incidents)
        counted = {"not over": len(self.incidents) - over, "over": over}
        said = [
            f"{number_of(number, 'incident')} {'is' if number == 1 else 'are'} {state}."
            for state, number in counted.items()
            if number
        ]
        found = self.verdicts
        if judged := found["fault"] + found["normal"]:  # of the others nothing is known
            was = "was a false alarm" if found["normal"] == 1 else "were false alarms"
            more = f"; of {found['none']:,} more nobody has said it" if found["none"] else ""
            said.append(
                f"{found['normal']:,} of {number_of(judged, 'incident')} that people judged "
                f"({found['normal'] / judged:.0%}) {was}{more}."
            )
        how = "kept" if any(one.standing.alarms_only for one in self.streams) else "judged"
        said.append(f"{number_of(rows, 'row')} {how}{self._alarmed() if rows else ''}.")
        said += [one.sentence() for one in self.comparisons]
        return said + ([f"P-values: {told}."] if (told := self.p_told()) else [])

    def _alarmed(self) -> str:
        """How many of the rows alarmed, where that was asked for."""
        alarms = sum(one.alarms for one in self.streams)
        if any(one.rated is False for one in self.streams):
            return ""
        if not alarms:
            return ", no alarm"
        opened = "" if self.incidents else ", which opened no incident: they were muted or ignored"
        return f", {number_of(alarms, 'alarm')}{opened}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        bins = {"alarms": self.alarms, "p_values": self.with_p, "p_values_to_0.05": self.low}
        upper = [(n + 1) / P_BINS for n in range(P_BINS)]
        return {
            **{name: getattr(self, name) for name in ("model", "begin", "end")},
            "verdict": self.verdict(),
            "warnings": self.warnings(),
            "streams": [one.facts() for one in self.streams],
            "shadows": [one.to_dict() for one in self.comparisons],
            "bins": {
                "begin": [datetime.fromtimestamp(at, UTC) for at in self.edges[:-1].tolist()],
                "seconds": float(self.edges[1] - self.edges[0]),
                "rows": self.rows.tolist(),
                **{name: None if self.sensitive else one.tolist() for name, one in bins.items()},
            },
            "p_values": None if self.sensitive else {"upper": upper, "rows": self.p_counts.tolist()},
            "verdicts": self.verdicts,
            "incidents": [
                {**facts(one, self.standing(one)), "first_rows": self.first_rows[one.id]}
                for one in self.incidents
            ],
        }

    # as a page

    def write(self, path: Path) -> None:
        """Write the page; of sensitive data only the owner may read it; StateError: it cannot be written."""
        check_outputs({"--report": path})
        title = "What was judged of followed files" + (f" by {self.model}" if self.model else "")
        page = Page(title, " ".join(self.verdict()))
        if warnings := self.warnings():
            page.warnings(warnings)
        if differing := [cells for one in self.comparisons for cells in one.cells()]:
            names = ["row", "time in the log", "alarmed by", "p", "p of the shadow", "what it says"]
            page.table("Rows that versions judge differently", names, differing)
        running = sum(one.standing.running for one in self.streams)
        page.head(
            {
                "period": f"{moment(self.begin)} to {moment(self.end)} UTC",
                "rows judged": int(self.rows.sum()),
                "alarms": int(self.alarms.sum()),
                "incidents": len(self.incidents),
                "not over": sum(one.state != "resolved" for one in self.incidents),
                "streams running": f"{running} of {len(self.streams)}",
                "gaps": sum(one.gaps for one in self.streams),
            }
        )
        self._draw(page)
        for one in self.incidents[:DETAILED]:
            said = {"what broke": one.title, "state": self._state(one), **columns(one, moment)}
            page.facts(f"Incident {one.id}", said)
            if rows := self.first_rows[one.id]:
                page.table("", ["first rows", "time in the log", "p", "what they say"], list(map(_row, rows)))
        page.write(path, private=self.sensitive)

    def _draw(self, page: Page) -> None:
        """Rows, incidents and p-values in time, and the streams."""
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
                note="the line is where normal rows lie on average",
            )
            page.histogram(
                "P-values of the period",
                self.p_counts,
                np.linspace(0, 1, P_BINS + 1),
                x_label="p-value",
                expected=float(self.p_counts.sum() / P_BINS),
                note=f"{self.p_told()}; the level line is what normal rows give",
            )
        names = ["rows go to", "follows", "state", "last row judged", "last commit", "rows", "alarms"]
        page.table("Streams", [*names, "gaps"], [one.cells() for one in self.streams])

    def _draw_incidents(self, page: Page) -> None:
        bars = []
        for one in self.incidents[:LANES]:
            over = one.state == "resolved"
            seen = self.end if self.standing(one).running else one.updated  # later nobody looked
            span = one.opened, (one.resolved or one.updated) if over else seen
            begin, end = (at.timestamp() for at in span)
            tip = f"incident {one.id}, {self._state(one)}\n{one.title}"
            bars.append(Bar(begin=begin, end=end, label=f"{one.id} {one.title}", tip=tip, over=over))
        left_out = len(self.incidents) - LANES
        note = "pale: not over" + (f"; {left_out:,} more are in the table" if left_out > 0 else "")
        page.bars("Incidents in time", bars, float(self.edges[0]), float(self.edges[-1]), note=note)
        known = [columns(one, moment) for one in self.incidents]
        told = [name for name in _LISTED if any(of[name] not in (None, "") for of in known)]
        rows = [
            [one.id, one.title, self._state(one), *(of[name] for name in told)]
            for one, of in zip(self.incidents, known, strict=True)
        ]
        page.table("Incidents", ["id", "what broke", "state", *told], rows)

    def _state(self, one: Incident) -> str:
        of = self.standing(one)
        if one.state == "resolved" or of.running:
            return one.told_state
        return f"{one.told_state}, but its scoring is not running (nothing judged since {moment(of.judged)})"


def timeline(model: str | None = None, since: str = "24h") -> Timeline:
    """What was judged in a period that ends now, as long as `since` says ("24h"), by a model (of a name
    without a version by all versions; None: by all models); UsageError: no duration; StateError: no such
    model, or none of its scorings follows files."""
    end = datetime.now(UTC)
    begin = end - since_of(since)
    with Streams(Workspace.locate()) as registry:
        streams = [StreamPeriod(one) for one in streams_of(registry, registry.streams(), model)]
        found = Timeline(model=model, begin=begin, end=end, streams=streams, edges=_edges(begin, end))
        for stream in streams:
            found.count(registry, stream)
            found.incidents += [
                one
                for one in registry.incidents(stream=stream.standing.id)
                if one.state != "resolved" or one.updated >= begin or (one.resolved or begin) > begin
            ]
        found.incidents.sort(key=lambda one: (one.state == "resolved", -one.opened.timestamp()))
        found.first_rows = {one.id: shown_rows(registry, one, FIRST_ROWS)[1] for one in found.incidents}
    return found


def default_page(model: str | None) -> Path:
    """Where the page goes if nobody says: into the workspace, named after the model."""
    name = "report" if model is None else f"report-{Path(model).name.replace(':', '-').replace('@', '-')}"
    return Workspace.locate().root / f"{name}.html"


def _edges(begin: datetime, end: datetime) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Bins of time, whole minutes, hours or days of UTC, `_MOST_BINS` at most."""
    seconds = (end - begin).total_seconds()
    width = next((one for one in _WIDTHS if seconds / one <= _MOST_BINS), None)
    if width is None:
        width = _WIDTHS[-1] * int(np.ceil(seconds / _WIDTHS[-1] / _MOST_BINS))
    first, last = begin.timestamp() // width * width, end.timestamp()
    return np.arange(first, last + width, width, dtype=np.float64)


def _width(edges: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    seconds = float(edges[1] - edges[0])
    unit, size = next(((unit, size) for unit, size in _UNITS if seconds >= size), ("", 1))
    return f"a bar is {number_of(round(seconds / size), unit)}" if unit else f"a bar is {seconds:g} s"


def _row(row: Row) -> list[Cell]:
    said = "" if row.get("sensitive") else row.get("message") or row.get("reason", "")
    return [where(row), row.get("time"), row.get("p_value"), printable(said)]
