"""What a report says of units and rows, in words."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.values import Row, Scored
from seqmlm.domains.code.picture import add_source
from seqmlm.domains.ehr.picture import add_history
from seqmlm.reports.page import Cell, Page

_UNLIKELY = math.log(0.005)  # alternatives below half a percent are not named
_LONGEST = 80
_MOST = 5  # alternatives that are named of a unit that is pointed at
_IN_TABLE = 3
_CHANNELS = 4  # p-values that a table names
_SEEN = str.maketrans({"\n": "↵", "\r": "", " ": "␣", "\t": "⇥"})


def told(scored: Scored, unit: int, surface: Callable[[int], str], *, most: int = _MOST) -> str:
    """A unit: its text, its surprisal, and what was expected.

    Args:
        scored: the record.
        unit: index into it.
        surface: spelling of a letter.
        most: alternatives that are named.
    """
    text = f"{visible(scored.text(unit))[:_LONGEST]}: {scored.surprisal[unit]:.1f} bits"
    values = {name: own[unit] for name, own in scored.values.items()}
    if "entropy" in values:
        text += f", entropy {values['entropy']:.1f}"
    if "top_ids" not in values:
        return text
    pairs = zip(values["top_ids"].tolist(), values["top_log_probs"].tolist(), strict=True)
    likely = [(token, 100 * math.exp(p)) for token, p in pairs if token >= 0 and p > _UNLIKELY][:most]
    shares = ", ".join(f"{visible(surface(token))} {share:.0f} %" for token, share in likely)
    return f"{text}\nexpected: {shares}" if shares else text


def standing_out(row: Row, scored: Scored, surface: Callable[[int], str]) -> str:
    """The most surprising unit of a row, in one line; empty for a row without units."""
    if not len(row.units):
        return ""
    worst = int(row.units[scored.surprisal[row.units].argmax()])
    return told(scored, worst, surface, most=_IN_TABLE).replace("\n", "; ")


def visible(text: str) -> str:
    """A text without the white space around it; white space alone by signs for it.

    >>> visible(" a "), visible("\\n    ")
    ('a', '↵␣␣␣␣')
    """
    return text.strip() or text.translate(_SEEN)


def firing(channels: Mapping[str, float]) -> str:
    """The smallest p-values among channels, in one line; those that say nothing are left out.

    >>> firing({"length": 1.0, "pll": 0.012, "misses": 0.5})
    'pll 0.012, misses 0.5'
    """
    ordered = sorted(channels.items(), key=lambda one: one[1])[:_CHANNELS]
    return ", ".join(f"{name} {p:.2g}" for name, p in ordered if p < 1 or len(channels) == 1)


def verdict(score: float | None, p_value: float | None, alarm: bool | None) -> str:
    """What was found of a row.

    >>> verdict(3.25, 0.001, True)
    'score 3.25, p 0.001, alarm'
    """
    parts = [] if score is None else [f"score {score:.4g}"]
    parts += [] if p_value is None else [f"p {p_value:.2g}"]
    return ", ".join([*parts, "alarm"] if alarm else parts)


def shown_scale(shown: Sequence[Scored]) -> float:
    """Bits of the strongest colour: what one unit in two hundred reaches, from 4 to 16."""
    bits = np.concatenate([np.zeros(1), *(one.surprisal[np.isfinite(one.surprisal)] for one in shown)])
    return float(np.clip(np.ceil(np.quantile(bits, 0.995)), 4, 16))


# How to read a report: what its figures mean, for whoever gets the page without the command.

CHANNELS = {
    "bits_per_unit": "mean surprisal of all units",
    "unexpected": "surprisal above what its place is uncertain by (entropy)",
    "segment": "the most unexpected stretch",
    "slor": "surprisal beyond what the frequency of the words explains",
    "surprisal": "surprisal of this unit",
    "unseen": "lines that training never had",
    "missing": "lines that nearly all training records have, and this one has not",
    "neighbour": "distance of the counts of lines to the nearest training record",
    "bigram": "how rarely training had this line after the one before it",
    "bigram_max": "the rarest pair of neighbouring lines",
    "bigram_mean": "mean rarity of pairs of neighbouring lines",
    "length": "far from the usual number of lines",
    "pll_mean": "mean surprisal of the lines",
    "pll_max": "largest surprisal of a line",
    "pll_top": "mean of the largest surprisals",
    "misses": "lines that are not among the most probable ones of their place",
    "rarity": "the rarest code, by frequency alone",
    "unknown": "codes that the vocabulary does not have",
    "mean": "mean surprisal of the codes",
    "max": "largest surprisal of a code",
    "worst_visit": "the most unusual visit",
    "excess": "surprisal beyond what the composition explains",
    "composition": "surprisal by composition alone",
    "line": "mean of the line's three largest z",
    "token": "surprisal against tokens of the same class, as z",
    "function": "90th percentile of its tokens' z",
    "peak": "the largest z of a token",
}
"""What each built-in channel measures; a channel of a plugin's level goes by its name alone."""


def reading(
    unit: str, rows: int, channels: Iterable[str], *, calibrated: bool, extrapolated: bool = False
) -> list[str]:
    """Sentences that explain a report.

    Args:
        unit: what the field counts.
        rows: that were judged.
        channels: whose p-values the report has.
        calibrated: whether rows have p-values.
        extrapolated: whether some of these lie below all that normal rows can show.
    """
    told = [
        "Higher scores are more unusual. "
        f"Surprisal is -log2 of the probability that the model gave the {unit}: "
        "1 bit is one in two, 10 bits are one in 1,000. Entropy is how uncertain the place is in any case.",
        "Places count from 0; their end is not included.",
    ]
    if not calibrated:
        return [
            *told,
            "These scores are not calibrated: they order rows, but do not say which are too unusual.",
        ]
    told.append(
        "The p-value is the share of normal rows, of similar length, that are at least as unusual. "
        f"If all {rows:,} rows were normal, about {0.01 * rows:,.1f} of them would have one of 0.01 or less: "
        "an alarm is a place to look at, not a proof."
    )
    if extrapolated:
        told.append(
            "An extrapolated p-value lies below what the calibration rows can show, and comes from a fitted "
            "tail: a ranking, not a guarantee."
        )
    known = [f"{name}: {CHANNELS[name]}" for name in channels if name in CHANNELS]
    if known:
        told.append("Channels have a p-value each and are fused into one. " + "; ".join(known) + ".")
    return told


# Summaries of streams whose range is not known before: bins double their width when they do not suffice.

MOST_BINS = 2000
_SHOWN, _FIRST = 60, 1000


class Counts:
    """How many values lie where: exact counts in at most `MOST_BINS` bins of one width."""

    def __init__(self) -> None:
        self._first: list[float] = []  # until there are enough to choose a width
        self._width = 0.0
        self._bins: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Count one value; NaN and infinities are left out."""
        if not math.isfinite(value):
            return
        if self._width:
            self._count(value)
        else:
            self._first.append(value)
            if len(self._first) >= _FIRST:
                self._settle()

    def shown(self) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
        """(B,) counts and (B + 1,) edges of about sixty bins, or None where nothing was counted."""
        if not self._width:
            self._settle()
        if not self._bins:
            return None
        low, high = min(self._bins), max(self._bins)
        together = -(-(high - low + 1) // _SHOWN)
        counts = np.zeros(-(-(high - low + 1) // together), dtype=np.int64)
        for number, count in self._bins.items():
            counts[(number - low) // together] += count
        edges = np.asarray((low + np.arange(len(counts) + 1) * together) * self._width, dtype=np.float64)
        return counts, edges

    def _settle(self) -> None:
        if self._first:
            spread = max(self._first) - min(self._first)
            self._width = max(spread / _SHOWN, abs(self._first[0]) * 1e-6, 1e-9)
        for value in self._first:
            self._count(value)
        self._first = []

    def _count(self, value: float) -> None:
        number = math.floor(value / self._width)
        self._bins[number] = self._bins.get(number, 0) + 1
        while len(self._bins) > MOST_BINS:
            self._width *= 2
            halved: dict[int, int] = {}
            for old, count in self._bins.items():
                halved[old // 2] = halved.get(old // 2, 0) + count
            self._bins = halved


@dataclass(frozen=True, slots=True)
class Point:
    """Something at a place: a stretch of a contig, a moment.

    start, end: where. value: higher is more unusual. alarm: whether one was raised.
    label: what is told of it.
    """

    start: float
    end: float
    value: float
    alarm: bool
    label: str = ""


class Highest:
    """The most unusual point of every stretch, alarms first: at most `MOST_BINS` of them.

    Args:
        width: of a stretch at the beginning, above 0.
    """

    def __init__(self, width: float = 1.0) -> None:
        self._width = width
        self._bins: dict[int, Point] = {}
        self.top = -math.inf
        self.thinned = False

    def add(self, point: Point) -> None:
        """Keep a point, if none in its stretch is more unusual; NaN is left out."""
        if math.isnan(point.value):
            return
        self.top = max(self.top, point.value)
        self._keep(self._bins, point)
        while len(self._bins) > MOST_BINS:
            self._width *= 2
            fewer: dict[int, Point] = {}
            for one in self._bins.values():
                self._keep(fewer, one)
            self._bins = fewer

    def points(self) -> list[Point]:
        """What was kept, in order of place."""
        return sorted(self._bins.values(), key=lambda one: (one.start, one.end))

    def _keep(self, bins: dict[int, Point], point: Point) -> None:
        number = math.floor(point.start / self._width)
        old = bins.get(number)
        self.thinned = self.thinned or old is not None
        if old is None or (point.alarm, point.value) > (old.alarm, old.value):
            bins[number] = point


# The report of a scoring: counts, scores, the most unusual rows and pictures of them, in bounded memory.

WORST = 50
"""Rows that the report names."""

PICTURED = 12
"""Records of them that are pictured, and contigs that are drawn."""

_CONTIGS = 200
_AROUND = 300  # characters shown on either side of a part of a long record
_LONG = 4000


class Judged(Protocol):
    """A row with what calibration says of it (`seqmlm.inference.detector.JudgedRow`)."""

    @property
    def row(self) -> Row: ...
    @property
    def scored(self) -> Scored: ...
    @property
    def p_value(self) -> float | None: ...
    @property
    def extrapolated(self) -> bool: ...
    @property
    def alarm(self) -> bool | None: ...
    @property
    def channels(self) -> Mapping[str, float]: ...


class ScoreReport:
    """Collects judged rows as they come; memory holds counts, bins and the `WORST` rows.

    Args:
        title, subtitle: of the page.
        pictures: of the level (`seqmlm.anomaly.levels.Level`).
        unit: what the field counts.
        surface: spelling of a letter of `Scored.top_ids`.
    """

    def __init__(
        self,
        title: str,
        subtitle: str = "",
        *,
        pictures: Sequence[str] = ("coloured",),
        unit: str = "unit",
        surface: Callable[[int], str] = str,
    ) -> None:
        self._title, self._subtitle, self._pictures = title, subtitle, tuple(pictures)
        self._unit, self._surface = unit, surface
        self._worst: list[tuple[float, float, int, Judged]] = []
        self._order = itertools.count()
        self.rows = self.alarms = 0
        self._judged = False
        self._all, self._alarmed = Counts(), math.inf
        self._contigs: dict[str, Highest] = {}
        self._times = Highest(width=1e-3)

    def add(self, judged: Judged) -> None:
        """Take in one row."""
        row = judged.row
        self.rows += 1
        self._judged = self._judged or judged.alarm is not None
        if judged.alarm:
            self.alarms += 1
            self._alarmed = min(self._alarmed, math.inf if row.score is None else row.score)
        if row.score is None:
            return
        self._all.add(row.score)
        unlikely = 0.0 if judged.p_value is None else -judged.p_value
        entry = (unlikely, row.score, -next(self._order), judged)
        if len(self._worst) < WORST:
            heapq.heappush(self._worst, entry)
        else:
            heapq.heappushpop(self._worst, entry)
        self._place(row, bool(judged.alarm))

    def page(self, facts: Mapping[str, Cell] | None = None) -> Page:
        """The page.

        Args:
            facts: further figures for its head: incidents, the asked rate, records left out.
        """
        page = Page(self._title, self._subtitle)
        head: dict[str, Cell] = {"rows": self.rows}
        if self._judged:
            head |= {"alarms": self.alarms}
        page.cards({**head, **(facts or {})})
        if not self.rows:
            page.section("", "There was nothing to score.")
        self._add_histogram(page)
        worst = [entry[-1] for entry in sorted(self._worst, key=lambda one: one[:3], reverse=True)]
        if worst:
            self._add_table(page, worst)
        if "timeline" in self._pictures:
            self._add_timeline(page)
        if "track" in self._pictures:
            self._add_tracks(page)
        self._add_records(page, worst)
        if worst:
            self._add_reading(page, worst)
        return page

    def write(self, path: Path, facts: Mapping[str, Cell] | None = None, *, private: bool = False) -> None:
        """Write the page as one HTML file.

        Raises:
            StateError: it cannot be written.
        """
        self.page(facts).write(path, private)

    def _place(self, row: Row, alarm: bool) -> None:
        """Keep the row's place in its contig, and in time."""
        assert row.score is not None
        contig = row.extra.get("contig")
        if contig is not None and "track" in self._pictures:
            start, end = row.extra["contig_start"], row.extra["contig_end"]
            self._contigs.setdefault(str(contig), Highest()).add(Point(start, end, row.score, alarm))
            if len(self._contigs) > _CONTIGS:
                done = [name for name in self._contigs if name != contig]
                del self._contigs[min(done, key=lambda name: self._contigs[name].top)]
        if row.time is not None and "timeline" in self._pictures:
            self._times.add(Point(row.time, row.time, row.score, alarm, row.id))

    def _add_histogram(self, page: Page) -> None:
        found = self._all.shown()
        if found is None:
            return
        threshold = self._alarmed if math.isfinite(self._alarmed) else None
        note = "" if threshold is None else "the line is the lowest score of an alarm"
        page.histogram("Scores", *found, threshold=threshold, note=note, x_label="score")

    def _add_table(self, page: Page, worst: Sequence[Judged]) -> None:
        columns = (
            "id",
            "where",
            "place",
            "units",
            "score",
            "p value",
            "extrapolated",
            "alarm",
            "channels",
            "what stands out",
        )
        rows = [self._cells(one) for one in worst]
        told = [place for place in range(len(columns)) if any(row[place] not in (None, "") for row in rows)]
        shown = [[row[place] for place in told] for row in rows]
        page.table("Most unusual", [columns[place] for place in told], shown)

    def _cells(self, judged: Judged) -> list[Cell]:
        row = judged.row
        return [
            row.id,
            f"{row.source}:{row.line}",
            f"{row.extra.get('contig_start', row.start):,}-{row.extra.get('contig_end', row.end):,}",
            len(row.units),
            row.score,
            judged.p_value,
            "yes" if judged.extrapolated else "",
            judged.alarm,
            firing(judged.channels),
            standing_out(judged.row, judged.scored, self._surface),
        ]

    def _add_reading(self, page: Page, worst: Sequence[Judged]) -> None:
        channels = dict.fromkeys(name for one in worst for name in one.channels)
        calibrated = any(one.p_value is not None for one in worst)
        extrapolated = any(one.extrapolated for one in worst)
        told = reading(self._unit, self.rows, channels, calibrated=calibrated, extrapolated=extrapolated)
        page.section("How to read this", "\n\n".join(told))

    def _add_timeline(self, page: Page) -> None:
        points = self._times.points()
        if not points:
            return
        page.timeline(
            "Over time",
            np.array([one.start for one in points]),
            np.array([one.value for one in points]),
            np.array([one.alarm for one in points]),
            [f"{one.label}: {one.value:.4g}" for one in points],
            y_label="score",
            note="the most unusual rows of each stretch" if self._times.thinned else "",
        )

    def _add_tracks(self, page: Page) -> None:
        names = sorted(self._contigs, key=lambda name: -self._contigs[name].top)[:PICTURED]
        for name in names:
            track = self._contigs[name]
            points = track.points()
            page.track(
                f"Along {name}",
                np.array([one.start for one in points], dtype=np.int64),
                np.array([one.end for one in points], dtype=np.int64),
                np.array([one.value for one in points]),
                np.array([one.alarm for one in points]),
                y_label="score",
                x_label=self._unit,
                note="the most unusual rows of each stretch" if track.thinned else "",
            )
        if len(self._contigs) > PICTURED:
            page.section("", f"The {PICTURED} contigs with the highest scores are drawn.")

    def _add_records(self, page: Page, worst: Sequence[Judged]) -> None:
        """The records of the worst rows, each once."""
        records: dict[int, list[Judged]] = {}
        for one in worst:
            records.setdefault(id(one.scored), []).append(one)
        pictured = list(records.values())[:PICTURED]
        scale = shown_scale([rows[0].scored for rows in pictured])
        for rows in pictured:
            scored = rows[0].scored
            heading = scored.record.id
            note = "; ".join(
                f"{one.row.id}: {verdict(one.row.score, one.p_value, one.alarm)}" for one in rows[:5]
            )
            tell = partial(told, scored, surface=self._surface)
            if "source" in self._pictures:
                first = scored.record.line - 1
                marked = {one.row.line - first: bool(one.alarm) for one in rows}
                add_source(page, heading, note, scored, marked, tell, scale=scale)
            if "history" in self._pictures:
                alarmed = {one.row.extra.get("visit", 0): bool(one.alarm) for one in rows}
                add_history(
                    page, heading, note, scored, [one.row for one in rows], alarmed, tell, scale=scale
                )
            if "coloured" in self._pictures:
                self._colour(page, heading, note, rows, scale)
            if "track" in self._pictures and "contig" not in rows[0].row.extra and len(scored):
                titles = [told(scored, unit, self._surface) for unit in range(len(scored))]
                page.heat("", scored.surprisal, titles, scale=scale, note=f"{self._unit} by {self._unit}")
                self._unit_track(page, rows)

    def _unit_track(self, page: Page, rows: Sequence[Judged]) -> None:
        """Surprisal along one record; parts that raised an alarm are shaded."""
        scored = rows[0].scored
        places = np.arange(len(scored))
        alarms = np.zeros(len(scored), dtype=np.bool_)
        for one in rows:
            if one.alarm and len(one.row.units) < len(scored):
                alarms[one.row.units] = True
        page.track("", places, places + 1, scored.surprisal, alarms, x_label=self._unit, y_label="bits")

    def _colour(self, page: Page, heading: str, note: str, rows: Sequence[Judged], scale: float) -> None:
        scored = rows[0].scored
        raw = scored.record.raw
        text = (
            raw if isinstance(raw, str) else str(raw).partition("\0")[0]
        )  # log lines have their times behind
        low, high = 0, len(text)
        if len(text) > _LONG:
            low = max(0, min(one.row.start for one in rows) - _AROUND)
            high = min(len(text), max(one.row.end for one in rows) + _AROUND)
            note = f"characters {low:,} to {high:,} of {len(text):,}; {note}"
        spans = scored.spans
        units = np.flatnonzero((spans[:, 0] >= low) & (spans[:, 1] <= high))
        units = units[np.argsort(spans[units, 0], kind="stable")]
        page.coloured(
            heading,
            text[low:high],
            [(start - low, end - low) for start, end in spans[units].tolist()],
            scored.surprisal[units],
            [told(scored, unit, self._surface) for unit in units.tolist()],
            scale=scale,
            note=note,
        )
