"""The report of a scoring: counts, scores, the most unusual rows, pictures of them, and how to read it all.

A report takes rows as they come and keeps counts and the `WORST` rows, so a scoring of any length fits
in memory; the price is that only these rows can be looked up in it. What is drawn of them is up to the
field's pictures (`seqmlm.reports.pictures`).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from seqmlm.anomaly.findings import small
from seqmlm.anomaly.values import SEEN, Row, Scored
from seqmlm.reports.page import Cell, Page
from seqmlm.reports.pictures import Picture, Shown
from seqmlm.reports.reasons import counted

WORST = 50
"""Rows that the report names."""

PICTURED = 12
"""Records of them that are pictured."""

_BINS = 60  # of the histogram, of scores to four digits
_UNLIKELY = math.log(0.005)  # alternatives below half a percent are not named
_LONGEST = 80
_MOST = 5  # alternatives that are named of a unit that is pointed at
_IN_TABLE = 3
_SMALLEST = 4  # p-values that a table names
_SEEN = str.maketrans({"\n": "↵", "\r": "", " ": "␣", "\t": "⇥"})


def _nothing(text: str) -> None:
    """No unit is more than its text."""


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
    def p_values(self) -> Mapping[str, float]: ...
    @property
    def unfamiliar(self) -> bool: ...


class ScoreReport:
    """Collects judged rows as they come; memory holds counts and the `WORST` rows.

    Args:
        pictures: how rows and records are shown, in this order; new ones.
        statistics: what rows were judged by, and what each means.
        unit: what the field counts.
        surface: spelling of a letter of `Scored.top_ids`; None for one that is not to be named.
        meaning: what a unit spelled so stands for, or None.
        first: number of the first place, 0 or 1; from 1 on, the last place of a stretch is told.
    """

    def __init__(
        self,
        *,
        pictures: Sequence[Picture] = (),
        statistics: Mapping[str, str] | None = None,
        unit: str = "unit",
        surface: Callable[[int], str | None] = str,
        meaning: Callable[[str], str | None] = _nothing,
        first: int = 0,
    ) -> None:
        self._first = first
        self._pictures = tuple(pictures)
        self._statistics = statistics or {}
        self._unit, self._surface, self._meaning = unit, surface, meaning
        self._worst: list[tuple[float, float, int, Judged]] = []
        self._order = itertools.count()
        self.rows = self.alarms = self.unfamiliar = 0
        self._strange: list[Judged] = []
        self._judged = False
        self._all, self._alarmed = Counter[float](), math.inf

    def add(self, judged: Judged) -> None:
        """Take in one row."""
        row = judged.row
        self.rows += 1
        self._judged = self._judged or judged.alarm is not None
        if judged.alarm:
            self.alarms += 1
            self._alarmed = min(self._alarmed, math.inf if row.score is None else row.score)
        if judged.unfamiliar:
            self.unfamiliar += 1
            self._strange += [judged] if len(self._strange) < WORST else []
        if row.score is None:
            return
        if math.isfinite(row.score):
            self._all[float(f"{row.score:.4g}")] += 1
        unlikely = 0.0 if judged.p_value is None else -judged.p_value
        entry = (unlikely, row.score, -next(self._order), judged)
        if len(self._worst) < WORST:
            heapq.heappush(self._worst, entry)
        else:
            heapq.heappushpop(self._worst, entry)
        for picture in self._pictures:
            picture.add(row, bool(judged.alarm))

    def draw(self, page: Page, facts: Mapping[str, Cell] | None = None) -> None:
        """Draw all of it on a page.

        Args:
            facts: further figures for its head: incidents, the asked rate.
        """
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
        if self._strange:
            page.table(
                f"Unfamiliar rows, of which the model knows nothing: {self.unfamiliar:,}",
                ["id", "where"],
                [[one.row.id, f"{one.row.source}:{one.row.line}"] for one in self._strange],
            )
        for picture in self._pictures:
            picture.draw(page, self._unit)
        self._draw_records(page, worst)
        if worst:
            self._add_reading(page, worst)

    def _add_histogram(self, page: Page) -> None:
        if not self._all:
            return
        scores, counts = zip(*self._all.items(), strict=True)
        heights, edges = np.histogram(scores, bins=_BINS, weights=counts)
        threshold = self._alarmed if math.isfinite(self._alarmed) else None
        note = "" if threshold is None else "the line is the lowest score of an alarm"
        page.histogram("Scores", heights, edges, threshold=threshold, note=note, x_label="score")

    def _add_table(self, page: Page, worst: Sequence[Judged]) -> None:
        rows = [self._cells(one) for one in worst]
        told = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
        page.table("Most unusual", told, [[row[name] for name in told] for row in rows])

    def _cells(self, judged: Judged) -> dict[str, Cell]:
        row = judged.row
        start, end = (row.start, row.end) if row.place is None else (row.place.start, row.place.end)
        return {
            "id": row.id,
            "where": f"{row.source}:{row.line}",
            "place": f"{start + self._first:,}-{end:,}",
            "overlaps": ", ".join(row.overlaps),
            "units": len(row.units),
            "score": row.score,
            "p value": judged.p_value,
            "extrapolated": "yes" if judged.extrapolated else "",
            "alarm": judged.alarm,
            "statistics": firing(judged.p_values),
            "what stands out": standing_out(judged.row, judged.scored, self._surface, self._meaning),
        }

    def _add_reading(self, page: Page, worst: Sequence[Judged]) -> None:
        found = dict.fromkeys(name for one in worst for name in one.p_values)
        statistics = {name: self._statistics.get(name, "") for name in found}
        calibrated = any(one.p_value is not None for one in worst)
        extrapolated = any(one.extrapolated for one in worst)
        told = reading(
            self._unit,
            self.rows,
            statistics,
            calibrated=calibrated,
            extrapolated=extrapolated,
            first=self._first,
        )
        page.section("How to read this", "\n\n".join(told))

    def _draw_records(self, page: Page, worst: Sequence[Judged]) -> None:
        """The records of the worst rows, each once."""
        records: dict[int, list[Judged]] = {}
        for one in worst:
            records.setdefault(id(one.scored), []).append(one)
        pictured = list(records.values())[:PICTURED]
        scale = shown_scale([rows[0].scored for rows in pictured])
        for rows in pictured:
            scored = rows[0].scored
            note = "; ".join(
                f"{one.row.id}: {verdict(one.row.score, one.p_value, one.alarm)}" for one in rows[:5]
            )
            shown = Shown(
                scored=scored,
                rows=rows,
                heading=scored.record.id,
                note=note,
                unit=self._unit,
                tell=partial(told, scored, surface=self._surface, meaning=self._meaning),
                scale=scale,
            )
            for picture in self._pictures:
                picture.draw_record(page, shown)


# What a report says in words


def told(
    scored: Scored,
    unit: int,
    surface: Callable[[int], str | None],
    meaning: Callable[[str], str | None] = _nothing,
    *,
    most: int = _MOST,
) -> str:
    """A unit: its text, its surprisal, what was counted where it stands, and what was expected.

    Args:
        scored: the record.
        unit: index into it.
        surface: spelling of a symbol (an id of `top_ids`); None for one that is not to be named.
        meaning: what a unit spelled so stands for, or None; it is shown in brackets.
        most: alternatives that are named.
    """
    own = scored.text(unit)
    text = f"{visible(own)[:_LONGEST]}{_bracketed(meaning(own))}: {scored.surprisal[unit]:.1f} bits"
    values = {name: own[unit] for name, own in scored.values.items()}
    if "entropy" in values:
        text += f", entropy {values['entropy']:.1f}"
    if SEEN in values:
        text += f", {visible(counted(scored, unit))}"
    if "top_ids" not in values:
        return text
    pairs = zip(values["top_ids"].tolist(), values["top_log_probs"].tolist(), strict=True)
    named = [(surface(token), 100 * math.exp(p)) for token, p in pairs if token >= 0 and p > _UNLIKELY]
    likely = [(text, share) for text, share in named if text is not None][:most]
    shares = ", ".join(f"{visible(text)}{_bracketed(meaning(text))} {share:.0f} %" for text, share in likely)
    return f"{text}\nexpected: {shares}" if shares else text


def _bracketed(meaning: str | None) -> str:
    return "" if meaning is None else f" ({visible(meaning)[:_LONGEST]})"


def standing_out(
    row: Row,
    scored: Scored,
    surface: Callable[[int], str | None],
    meaning: Callable[[str], str | None] = _nothing,
) -> str:
    """The most surprising unit of a row, in one line; empty for a row without units."""
    if not len(row.units):
        return ""
    worst = int(row.units[scored.surprisal[row.units].argmax()])
    return told(scored, worst, surface, meaning, most=_IN_TABLE).replace("\n", "; ")


def visible(text: str) -> str:
    """A text without the white space around it; white space alone by signs for it.

    >>> visible(" a "), visible("\\n    ")
    ('a', '↵␣␣␣␣')
    """
    return text.strip() or text.translate(_SEEN)


def firing(p_values: Mapping[str, float]) -> str:
    """The smallest p-values among statistics, in one line; those that say nothing are left out.

    >>> firing({"lift": 1.0, "bits_per_unit": 0.012, "slor": 0.5})
    'bits_per_unit 0.012, slor 0.5'
    """
    ordered = sorted(p_values.items(), key=lambda one: one[1])[:_SMALLEST]
    return ", ".join(f"{name} {small(p)}" for name, p in ordered if p < 1 or len(p_values) == 1)


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


def reading(
    unit: str,
    rows: int,
    statistics: Mapping[str, str],
    *,
    calibrated: bool,
    extrapolated: bool = False,
    first: int = 0,
) -> list[str]:
    """Sentences that explain a report.

    Args:
        unit: what the field counts.
        rows: that were judged.
        statistics: whose p-values the report has, and what each means; without a meaning it goes unexplained.
        calibrated: whether rows have p-values.
        extrapolated: whether some of these lie below all that normal rows can show.
        first: number of the first place, 0 or 1.
    """
    told = [
        "Higher scores are more unusual. "
        f"Surprisal is -log2 of the probability that the model gave the {unit}: "
        "1 bit is one in two, 10 bits are one in 1,000. Entropy is how uncertain the place is in any case.",
        f"Places count from {first}; their end is {'' if first else 'not '}included.",
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
    known = [f"{name}: {meaning}" for name, meaning in statistics.items() if meaning]
    if known:
        told.append("Statistics have a p-value each and are fused into one. " + "; ".join(known) + ".")
    return told
