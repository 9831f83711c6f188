"""The report of a period of followed files: what was judged when, which incidents there were, what stopped.

Silence is not health: a stream that has stopped, or judged nothing, is said at the top, before any figure.
All times of the page are UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from seqmlm.reports.drawing import Bar
from seqmlm.reports.page import Cell, Page

DETAILED = 20
"""Incidents that have a part of their own; all others are in the table."""

LANES = 40
"""Incidents that are drawn."""

_LISTED = ("severity", "host", "service", "opened", "last alarm", "rows", "smallest p")

Longs = NDArray[np.int64]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StreamPart:
    """One stream in the period.

    Args:
        output, files: where its rows go, and what it follows.
        state: "running" or "not running".
        alive, judged: its last commit and its last row; None where none was judged.
        rows, gaps: of the period.
        alarms: of them; text where they are not told; None where it raises none.
    """

    output: str
    files: str
    state: str
    alive: datetime
    judged: datetime | None
    rows: int
    gaps: int
    alarms: int | str | None


@dataclass(frozen=True, kw_only=True)
class IncidentPart:
    """One incident.

    Args:
        number, title, state: as they are listed.
        begin, end: seconds since 1970 UTC between which it is drawn.
        over: it is resolved; else its end is not known.
        facts: what else is known, by name.
        rows: the first of its rows: place, time in the log, p-value, what it says.
    """

    number: int
    title: str
    state: str
    begin: float
    end: float
    over: bool
    facts: Mapping[str, Cell]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, kw_only=True)
class Period:
    """What was judged between two times.

    Args:
        title: of the page.
        begin, end: of the period.
        verdict: what it came to, in sentences.
        warnings: what was not judged, a sentence each.
        streams, incidents: in the order they are shown.
        edges: (B + 1,) seconds since 1970 UTC of the bins of time.
        rows: (B,) rows judged in each.
        alarms: (B,) of these; None where they are not told.
        low: (B,) share of p-values of at most .05 in each, NaN where there are none.
        p_edges, p_counts: (C + 1,), (C,) the p-values of the period; no counts where they are not told.
        p_told: what they say.
        differing: rows that one of two versions alone alarms: place, time in the log, the version that does,
            p-values of the version that served and of its shadow, what the row says.
    """

    title: str
    begin: datetime
    end: datetime
    verdict: Sequence[str]
    warnings: Sequence[str]
    streams: Sequence[StreamPart]
    incidents: Sequence[IncidentPart]
    edges: Doubles
    rows: Longs
    alarms: Longs | None
    low: Doubles
    p_edges: Doubles
    p_counts: Longs
    p_told: str
    differing: Sequence[Sequence[Cell]] = ()


def moment(at: datetime | None) -> str:
    """A time in UTC; "never" for None."""
    return "never" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def period_page(period: Period) -> Page:
    """The page of a period."""
    page = Page(period.title, f"judged from {moment(period.begin)} to {moment(period.end)}; times are UTC")
    page.section("", " ".join(period.verdict))
    if period.warnings:
        page.warnings(period.warnings)
    if period.differing:
        page.table(
            "Rows that versions judge differently",
            ["row", "time in the log", "alarmed by", "p", "p of the shadow", "what it says"],
            period.differing,
        )
    _cards(page, period)
    if period.rows.sum():
        hidden = period.alarms is None
        note = _width(period.edges) + ("" if hidden else "; red: alarms")
        page.activity(
            "Rows" if hidden else "Rows and alarms", period.edges, period.rows, period.alarms, note=note
        )
    if period.incidents:
        _incidents(page, period)
    if np.isfinite(period.low).any():
        page.timeline(
            "Share of p-values of at most 0.05",
            (period.edges[:-1] + period.edges[1:]) / 2,
            period.low,
            threshold=0.05,
            period=(float(period.edges[0]), float(period.edges[-1])),
            y_label="share of rows",
            note="the line is where normal rows lie on average",
        )
    if period.p_counts.sum():
        expected = float(period.p_counts.sum() / len(period.p_counts))
        page.histogram(
            "P-values of the period",
            period.p_counts,
            period.p_edges,
            x_label="p-value",
            expected=expected,
            note=f"{period.p_told}; the level line is what normal rows give",
        )
    page.table(
        "Streams",
        ["rows go to", "follows", "state", "last row judged", "last commit", "rows", "alarms", "gaps"],
        [
            [
                one.output,
                one.files,
                one.state,
                moment(one.judged),
                moment(one.alive),
                one.rows,
                "none asked" if one.alarms is None else one.alarms,
                one.gaps,
            ]
            for one in period.streams
        ],
    )
    for incident in period.incidents[:DETAILED]:
        _detail(page, incident)
    return page


def _cards(page: Page, period: Period) -> None:
    alarms = None if period.alarms is None else int(period.alarms.sum())
    running = sum(one.state == "running" for one in period.streams)
    page.cards(
        {
            "rows judged": int(period.rows.sum()),
            **({} if alarms is None else {"alarms": alarms}),
            "incidents": len(period.incidents),
            "not over": sum(not one.over for one in period.incidents),
            "streams running": f"{running} of {len(period.streams)}",
            "gaps": sum(one.gaps for one in period.streams),
        }
    )


def _incidents(page: Page, period: Period) -> None:
    bars = [
        Bar(
            begin=one.begin,
            end=one.end,
            label=f"{one.number} {one.title}",
            tip=f"incident {one.number}, {one.state}\n{one.title}",
            over=one.over,
        )
        for one in period.incidents
    ]
    left_out = len(bars) - LANES
    note = "pale: not over"
    page.bars(
        "Incidents in time",
        bars[:LANES],
        float(period.edges[0]),
        float(period.edges[-1]),
        note=f"{note}; {left_out:,} more are in the table" if left_out > 0 else note,
    )
    told = [
        name for name in _LISTED if any(one.facts.get(name) not in (None, "") for one in period.incidents)
    ]
    page.table(
        "Incidents",
        ["id", "what broke", "state", *told],
        [
            [one.number, one.title, one.state, *(one.facts.get(name) for name in told)]
            for one in period.incidents
        ],
    )


def _detail(page: Page, one: IncidentPart) -> None:
    page.facts(f"Incident {one.number}", {"what broke": one.title, "state": one.state, **one.facts})
    if one.rows:
        page.table("", ["first rows", "time in the log", "p", "what they say"], one.rows)


def _width(edges: Doubles) -> str:
    seconds = float(edges[1] - edges[0])
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            number = seconds / size
            return f"a bar is {number:g} {unit}{'' if number == 1 else 's'}"
    return f"a bar is {seconds:g} s"
