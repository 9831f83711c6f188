"""What a model judged of followed files in a period: rows, alarms, incidents and p-values; HTML and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.anomaly.findings import small
from seqmlm.data.privacy import redacted_count
from seqmlm.errors import number_of, printable
from seqmlm.tasks.score_shift import FEWEST_TOLD, shifted
from seqmlm.watch.incidents import facts, shown_rows
from seqmlm.watch.page import IncidentPart, Period, StreamPart, moment, period_page
from seqmlm.watch.store import Incident, StreamEntry, Streams
from seqmlm.watch.streams import Standing, since_of, standing, streams_of
from seqmlm.workspace import Workspace

FIRST_ROWS = 5
"""Rows of an incident that the report has."""

DIFFERING = 20
"""Rows that two versions judge differently which the report has."""

P_BINS = 20

_WIDTHS = (1, 5, 15, 60, 300, 900, 3600, 7200, 21_600, 43_200, 86_400, 604_800)  # seconds of a bin of time
_MOST_BINS = 100
_LOW = 0.05


@dataclass(kw_only=True)
class Comparison:
    """Two versions of a model that judged the same rows of the period: one served, one was its shadow.

    Args:
        output: where the rows are.
        served, shadow: references of the versions; `served` is "" where rows do not name it.
        alias: that named the shadow.
        partial: rows that the shadow alone would alarm are not kept; `alone` are those of the whole stream.
        sensitive: of sensitive data.
        rows, alarms: that both judged, and of them the version that served alarmed.
        shadow_alarms, common: of them the shadow would alarm, and both do.
        differing: rows that one of them alone alarms, those with the smallest p-values.
    """

    output: str
    served: str
    shadow: str
    alias: str
    partial: bool = False
    alone: int = 0
    sensitive: bool = False
    rows: int = 0
    alarms: int = 0
    shadow_alarms: int = 0
    common: int = 0
    differing: list[Mapping[str, Any]] = field(default_factory=list)

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a row that both judged."""
        own, other = bool(row.get("alarm")), bool(row["shadow"]["alarm"])
        self.sensitive = self.sensitive or bool(row.get("sensitive"))
        self.rows += 1
        self.alarms += own
        self.shadow_alarms += other
        self.common += own and other
        if own != other:
            self.differing.append(row)
            if len(self.differing) > 10 * DIFFERING:
                self.differing = self.shown()

    def shown(self) -> list[Mapping[str, Any]]:
        """Rows that one of them alone alarms, the smallest p-values first; none of sensitive data."""

        def smallest(row: Mapping[str, Any]) -> float:
            given = (row.get("p_value"), row["shadow"]["p_value"])
            return min((one for one in given if one is not None), default=0.0)  # without one: unfamiliar

        return [] if self.sensitive else sorted(self.differing, key=smallest)[:DIFFERING]

    def lines(self) -> list[str]:
        """The same rows, a line each."""
        served, shadow = self._names
        return [
            f"{_where(row)}: {served if row.get('alarm') else shadow} alone alarms "
            f"(p {_p(row.get('p_value'))}, of the shadow {_p(row['shadow']['p_value'])})"
            for row in self.shown()
        ]

    @property
    def _names(self) -> tuple[str, str]:
        """The version that served and the shadow, as a person calls them."""
        served = f"version {self.served.rpartition(':')[2]}" if self.served else "the version that served"
        return served, f"{self.alias} (version {self.shadow.rpartition(':')[2]})"

    def sentence(self) -> str:
        """What came of it."""
        served, shadow = self._names
        if self.sensitive:  # differences of counts would tell small ones
            return f"{shadow} judged the same rows as {served}; of sensitive data no more is told."
        if self.partial:
            return (
                f"{shadow} would have raised {self.common:,} of the {number_of(self.alarms, 'alarm')} of "
                f"{served}. "
                "What it alone would have raised is not kept (--alarms-only): "
                f"{number_of(self.alone, 'alarm')} of shadows since the stream began."
            )
        return (
            f"{shadow} would have raised {number_of(self.shadow_alarms, 'alarm')} where {served} raised "
            f"{self.alarms:,}: {self.common:,} in common, of {number_of(self.rows, 'row')} that both judged."
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""

        def content(number: int) -> int | None:
            return None if self.sensitive else number

        return {
            "output": self.output,
            "served": self.served or None,
            "alias": self.alias,
            "shadow": self.shadow,
            "rows": self.rows,
            "alarms": content(self.alarms),
            "shadow_alarms": None if self.partial else content(self.shadow_alarms),
            "common": content(self.common),
            "differing": self.shown(),
        }


@dataclass
class StreamPeriod:
    """One stream in the period.

    Args:
        standing: how it stands.
        rows, alarms, gaps, never_seen: of the period.
        rated: whether its rows were judged by a rate of alarms; None: there are none to tell by.
        sensitive: its rows are of sensitive data.
        pruned_until: rows judged before this time were pruned; None: none were.
        comparisons: of versions that judged the same rows.
    """

    standing: Standing
    rows: int = 0
    alarms: int = 0
    gaps: int = 0
    never_seen: int = 0
    rated: bool | None = None
    sensitive: bool = False
    pruned_until: datetime | None = None
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def told_alarms(self) -> int | str | None:
        """Alarms as they may be told; None where none were asked for."""
        if self.rated is False:
            return None
        return redacted_count(self.alarms) if self.sensitive else self.alarms

    def notes(self, begin: datetime) -> list[str]:
        """What a person should know before believing that all is well."""
        of, name = self.standing, self.standing.output
        found = []
        if not of.running:
            since = "yet" if of.judged is None else f"since {moment(of.judged)} UTC"
            found.append(f"{name} is not running: nothing was judged {since}. Start its command again.")
        elif not self.rows and not of.alarms_only:
            since = "yet" if of.judged is None else f"since {moment(of.judged)} UTC"
            found.append(
                f"{name} is running, but nothing was judged {since}: see that its files are still written to "
                f"({', '.join(of.files)})."
            )
        if of.alarms_only:
            found.append(
                f"{name} keeps the rows of alarms alone (--alarms-only): how many others were judged, and "
                "their p-values, are not known here."
            )
        if self.rated is False:
            found.append(f"{name} is scored without --fpr or alarms_per_day, so it raises no alarms.")
        if self.gaps:
            found.append(
                f"{name} has {number_of(self.gaps, 'place')} where bytes were destroyed before they could be "
                "read."
            )
        if self.pruned_until is not None and self.pruned_until > begin:
            found.append(
                f"{name} was pruned: of what was judged before {moment(self.pruned_until)} UTC "
                "not all is here."
            )
        return found


@dataclass(kw_only=True)
class Timeline:
    """What was judged between two times; counts are of rows.

    Args:
        model: reference; None for all.
        begin, end: of the period.
        streams: each in the period.
        incidents: with an alarm in the period, or not over; those that are not over first, then the newest.
        first_rows: of each, by number.
        edges: (B + 1,) seconds since 1970 UTC of the bins of time.
        rows, alarms, with_p, low: (B,) in each; `low` have a p-value of at most .05.
        p_counts: (P_BINS,) of the period; `half` is how many are at most .5.
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
        bins = len(self.edges) - 1
        self.rows, self.alarms, self.with_p, self.low = np.zeros((4, bins), dtype=np.int64)
        self.p_counts = np.zeros(P_BINS, dtype=np.int64)

    @property
    def sensitive(self) -> bool:
        """Whether anything in it is of sensitive data: then alarms in time and p-values are not told."""
        return any(one.sensitive for one in self.streams)

    @property
    def standing(self) -> list[Incident]:
        """Incidents that are not over."""
        return [one for one in self.incidents if one.state != "resolved"]

    @property
    def comparisons(self) -> list[Comparison]:
        """Of versions that judged the same rows, of all streams."""
        return [one for stream in self.streams for one in stream.comparisons]

    def p_told(self) -> str:
        """Whether the p-values are as those of normal rows; "" where there are none, or they are not told."""
        number = int(self.p_counts.sum())
        if self.sensitive or not number:
            return ""
        if number < FEWEST_TOLD:
            return f"{number:,} are too few to say whether they are uniform, as those of normal rows are"
        low, lowest = self.half / number, int(self.low.sum()) / number
        if (shift := shifted(low, lowest)) is not None:
            return shift[1]
        return f"about uniform, as those of normal rows: {low:.0%} are at most 0.5, {lowest:.1%} at most 0.05"

    def warnings(self) -> list[str]:
        """What was not judged, a sentence each; a report that has some is no "all clear"."""
        found = [note for one in self.streams for note in one.notes(self.begin)]
        if not self.rows.sum() and not any(
            one.standing.alarms_only and one.standing.running for one in self.streams
        ):
            found.insert(
                0,
                "Nothing was judged in this period: this is not an all-clear. Look further back with a "
                "longer --since, and see that the scoring runs.",
            )
        return found

    def verdict(self) -> list[str]:
        """What it came to, in sentences."""
        rows, going = int(self.rows.sum()), len(self.standing)
        over = len(self.incidents) - going
        said = []
        if going:
            said.append(f"{number_of(going, 'incident')} {'is' if going == 1 else 'are'} not over.")
        if over:
            said.append(f"{number_of(over, 'incident')} {'is' if over == 1 else 'are'} over.")
        said += self._verdicts()
        how = "kept" if any(one.standing.alarms_only for one in self.streams) else "judged"
        said.append(f"{number_of(rows, 'row')} {how}{self._alarmed() if rows else ''}.")
        said += [one.sentence() for one in self.comparisons]
        told = self.p_told()
        return [*said, *([f"P-values: {told}."] if told else [])]

    @property
    def verdicts(self) -> dict[str, int]:
        """Incidents by what people took them for; "none" where nobody has said."""
        told = [one.verdict or "none" for one in self.incidents]
        return {name: told.count(name) for name in ("fault", "normal", "none")}

    def _verdicts(self) -> list[str]:
        """What people said of the incidents, where they said something; of the others nothing is known."""
        found = self.verdicts
        judged = found["fault"] + found["normal"]
        if not judged:
            return []
        what = f"{found['normal']:,} of {number_of(judged, 'incident')} that people judged"
        share = f"{what} ({found['normal'] / judged:.0%}) "
        share += "was a false alarm" if found["normal"] == 1 else "were false alarms"
        return [f"{share}; of {found['none']:,} more nobody has said it." if found["none"] else f"{share}."]

    def _alarmed(self) -> str:
        """How many of the rows alarmed, where that was asked for."""
        alarms = sum(one.alarms for one in self.streams)
        if any(one.rated is False for one in self.streams):
            return ""
        if not alarms:
            return ", no alarm"
        told = redacted_count(alarms) if self.sensitive else alarms
        opened = "" if self.incidents else ", which opened no incident: they were muted or ignored"
        return f", {number_of(told, 'alarm')}{opened}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        hidden = self.sensitive
        of = {one.standing.output: one.standing for one in self.streams}
        return {
            "model": self.model,
            "begin": self.begin,
            "end": self.end,
            "verdict": self.verdict(),
            "warnings": self.warnings(),
            "streams": [
                {
                    "output": one.standing.output,
                    "files": list(one.standing.files),
                    "running": one.standing.running,
                    "judged": one.standing.judged,
                    "committed": one.standing.alive,
                    "rows": one.rows,
                    "alarms": one.told_alarms,
                    "never_seen": redacted_count(one.never_seen) if one.sensitive else one.never_seen,
                    "gaps": one.gaps,
                    "sensitive": one.sensitive,
                }
                for one in self.streams
            ],
            "shadows": [one.to_dict() for one in self.comparisons],
            "bins": {
                "begin": [datetime.fromtimestamp(at, UTC) for at in self.edges[:-1].tolist()],
                "seconds": float(self.edges[1] - self.edges[0]),
                "rows": self.rows.tolist(),
                "alarms": None if hidden else self.alarms.tolist(),
                "p_values": None if hidden else self.with_p.tolist(),
                "p_values_to_0.05": None if hidden else self.low.tolist(),
            },
            "p_values": None
            if hidden
            else {"upper": [(n + 1) / P_BINS for n in range(P_BINS)], "rows": self.p_counts.tolist()},
            "verdicts": self.verdicts,
            "incidents": [
                {**facts(one, of[one.output]), "first_rows": self.first_rows[one.id]}
                for one in self.incidents
            ],
        }

    def write(self, path: Path) -> None:
        """Write the page; of sensitive data only the owner may read it.

        Raises:
            StateError: it cannot be written.
        """
        of = {one.standing.output: one.standing for one in self.streams}
        low = np.divide(self.low, self.with_p, out=np.full(len(self.low), np.nan), where=self.with_p > 0)
        hidden = self.sensitive
        period = Period(
            title="What was judged of followed files" + (f" by {self.model}" if self.model else ""),
            begin=self.begin,
            end=self.end,
            verdict=self.verdict(),
            warnings=self.warnings(),
            streams=[_stream(one) for one in self.streams],
            incidents=[
                _incident(one, of[one.output], self.end, self.first_rows[one.id]) for one in self.incidents
            ],
            edges=self.edges,
            rows=self.rows,
            alarms=None if hidden else self.alarms,
            low=np.full(len(low), np.nan) if hidden else low,
            p_edges=np.linspace(0, 1, P_BINS + 1),
            p_counts=np.zeros(P_BINS, dtype=np.int64) if hidden else self.p_counts,
            p_told=self.p_told(),
            differing=[_differing(one, row) for one in self.comparisons for row in one.shown()],
        )
        period_page(period).write(path, private=hidden)


def timeline(model: str | None = None, since: str = "24h") -> Timeline:
    """What was judged in a period that ends now.

    Args:
        model: reference; of a name without a version all versions; None for all models.
        since: how long the period is: "24h".

    Raises:
        UsageError: no duration.
        StateError: no such model, or none of its scorings follows files.
    """
    workspace, end = Workspace.locate(), datetime.now(UTC)
    begin = end - since_of(since)
    with Streams(workspace) as registry:
        entries = streams_of(registry, model)
        found = Timeline(
            model=model,
            begin=begin,
            end=end,
            streams=[StreamPeriod(standing(one, workspace)) for one in entries],
            edges=_edges(begin, end),
        )
        for entry, stream in zip(entries, found.streams, strict=True):
            _count(registry, entry, stream, found)
        incidents = [
            one
            for entry in entries
            for one in registry.incidents(stream=entry.id)
            if one.state != "resolved" or one.updated >= begin or (one.resolved or begin) > begin
        ]
        found.incidents = sorted(
            incidents, key=lambda one: (one.state == "resolved", -one.opened.timestamp())
        )
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


def _count(registry: Streams, entry: StreamEntry, stream: StreamPeriod, into: Timeline) -> None:
    """Count the rows that a stream judged in the period."""
    first, width = float(into.edges[0]), float(into.edges[1] - into.edges[0])
    for at, alarm, line in registry.rows_since(entry.id, into.begin):
        row = json.loads(line)
        place = min(max(int((at.timestamp() - first) // width), 0), len(into.rows) - 1)
        if "gap" in row:
            stream.gaps += 1
            continue
        stream.rows += 1
        stream.alarms += alarm
        stream.never_seen += bool(row.get("never_seen"))
        stream.rated = stream.rated or "alarm" in row
        if "shadow" in row:
            _compare(entry, stream, row)
        stream.sensitive = stream.sensitive or bool(row.get("sensitive"))
        into.rows[place] += 1
        into.alarms[place] += alarm
        if (p_value := row.get("p_value")) is not None and not stream.standing.alarms_only:
            into.with_p[place] += 1
            into.low[place] += p_value <= _LOW
            into.half += p_value <= 0.5
            into.p_counts[min(max(int(np.ceil(p_value * P_BINS)) - 1, 0), P_BINS - 1)] += 1
    if entry.pruned.rows:
        stream.pruned_until = next(
            (at for at, _, _ in registry.rows_since(entry.id, datetime.fromtimestamp(0, UTC))), None
        )


def _compare(entry: StreamEntry, stream: StreamPeriod, row: Mapping[str, Any]) -> None:
    """Count a row that two versions judged."""
    served, beside = str(row.get("model", "")), row["shadow"]
    if served == beside["version"]:
        return  # the shadow serves by now: a version is not compared with itself
    which = (served, beside["version"], beside["alias"])
    known = {(one.served, one.shadow, one.alias): one for one in stream.comparisons}
    found = known.get(which)
    if found is None:
        alone = int(entry.counts.get("shadow_alarms", 0)) - int(entry.counts.get("shadow_common", 0))
        found = Comparison(
            output=entry.output,
            served=served,
            shadow=beside["version"],
            alias=beside["alias"],
            partial=stream.standing.alarms_only,
            alone=alone,
        )
        stream.comparisons.append(found)
    found.add(row)


def _differing(of: Comparison, row: Mapping[str, Any]) -> list[Any]:
    place, time, p_value, said = _row(row)
    who = of.served if row.get("alarm") else of.shadow
    return [place, time, who or "the version that served", p_value, row["shadow"]["p_value"], said]


def _p(p_value: float | None) -> str:
    return "none" if p_value is None else small(p_value)


def _stream(one: StreamPeriod) -> StreamPart:
    of = one.standing
    return StreamPart(
        output=of.output,
        files=", ".join(of.files),
        state="running" if of.running else "not running",
        alive=of.alive,
        judged=of.judged,
        rows=one.rows,
        gaps=one.gaps,
        alarms=one.told_alarms,
    )


def _incident(one: Incident, of: Standing, end: datetime, rows: Sequence[Mapping[str, Any]]) -> IncidentPart:
    over = one.state == "resolved"
    seen = end if of.running else one.updated  # of a scoring that stopped nobody knows what came later
    state = one.told_state
    if not over and not of.running:
        state += f", but its scoring is not running (nothing judged since {moment(of.judged)})"
    return IncidentPart(
        number=one.id,
        title=one.title,
        state=state,
        begin=one.opened.timestamp(),
        end=(one.resolved or one.updated if over else seen).timestamp(),
        over=over,
        facts={
            "severity": one.severity,
            "host": one.host,
            "service": one.service,
            "opened": moment(one.opened),
            "last alarm": moment(one.updated),
            "rows": one.rows,
            "lines": one.lines,
            "smallest p": one.p_value,
            "first in the log": _placed(one.first_line, one.first_time),
            "last in the log": _placed(one.last_line, one.last_time),
            "new": ", ".join(one.new),
            "template": one.template,
            "expected": " | ".join(one.expected),
            "note": one.note,
            "reason": one.reason,
        },
        rows=[_row(row) for row in rows],
    )


def _placed(place: str, at: str | None) -> str:
    return place if at is None else f"{place} ({at})"


def _where(row: Mapping[str, Any]) -> str:
    line, last = row["line"], row.get("last_line")
    return printable(
        f"{Path(str(row['source'])).name}:{line}" + (f"-{last}" if last not in (None, line) else "")
    )


def _row(row: Mapping[str, Any]) -> list[Any]:
    said = "" if row.get("sensitive") else row.get("message") or row.get("reason", "")
    return [_where(row), row.get("time"), row.get("p_value"), printable(said)]
