"""The report of a scoring: counts, scores, the most unusual rows and pictures of them, in bounded memory."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Protocol

import numpy as np

from seqmlm.anomaly.values import Row, Scored
from seqmlm.reports.bins import Counts, Highest, Point
from seqmlm.reports.histories import add_history
from seqmlm.reports.page import Cell, Page
from seqmlm.reports.reading import reading
from seqmlm.reports.source import add_source
from seqmlm.reports.wording import firing, shown_scale, standing_out, told, verdict

WORST = 50
"""Rows that the report names."""

PICTURED = 12
"""Records of them that are pictured, and contigs that are drawn."""

_CONTIGS = 200
_AROUND = 300  # characters shown on either side of a part of a long record
_LONG = 4000


class Judged(Protocol):
    """A row with what calibration says of it (`seqmlm.tasks.judging.JudgedRow`)."""

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
        surface: spelling of a letter.
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
        self._order = count()
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
