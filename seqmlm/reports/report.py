"""The report of a scoring: counts, scores, the most unusual rows, pictures of them, and an explanation.

Everything except the pictures of single records is made from the finished rows. A resumed run therefore has
the same report as an uninterrupted one.

A row does not contain its record. Pictures of single records therefore show only records that this process
scored, and only the most unusual ones are kept. Memory contains counts and the `WORST` rows, for any number
of rows. The field selects the pictures (`seqmlm.reports.pictures`).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from markupsafe import Markup

from seqmlm.anomaly.values import ScoredRecord
from seqmlm.errors import plural, span_text
from seqmlm.reports.page import Cell, Page
from seqmlm.reports.pictures import ENTROPY, MarkedRow, Picture, PicturedRecord
from seqmlm.reports.reasons import Meaning, unit_fields
from seqmlm.reports.scales import colour_scale, surprisal_scale

WORST = 50
"""Number of rows in the table of the report."""

PICTURED = 12
"""Number of their records that have pictures."""

_BINS = 60  # bins of the histograms of scores (to four digits) and of p-values
_PER_TEN, _LEAST = 10, 1e-12  # bins for a factor of ten, and smallest p-value of that histogram
_NAMED = 5  # rows in the note of a pictured record
_UNLIKELY = 0.005  # alternatives below half a percent are left out
_LONGEST = 80
_MOST = 5  # maximum alternatives in a tooltip
_IN_TABLE = 3
_CALMER = {"modified": "no more unusual than before; ", "new": "no more surprising than normal; "}
_SEEN = str.maketrans({"\n": "↵", "\r": "", " ": "␣", "\t": "⇥"})


def _nothing(text: str) -> None:
    """The meaning function of fields without descriptions: no unit has a meaning."""


class CalibratedRow(MarkedRow, Protocol):
    """A row with its calibrated p-value and alarm (`seqmlm.inference.detector.JudgedRow`)."""

    @property
    def scored_record(self) -> ScoredRecord: ...
    @property
    def p_value(self) -> float | None: ...
    @property
    def unfamiliar(self) -> bool: ...


class _Worst:
    """Keeps the `WORST` of any number of rows: the smallest p-values, then the highest scores."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, float, int, Any]] = []
        self._order = itertools.count()

    def add(self, row: Any, score: float | None, p_value: float | None) -> None:
        """Add a row. Rows without a score, such as unfamiliar ones, are left out."""
        if score is None:
            return
        entry = (0.0 if p_value is None else -p_value, score, -next(self._order), row)
        if len(self._heap) < WORST:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def descending(self) -> list[Any]:
        """The rows, most unusual first."""
        return [entry[-1] for entry in sorted(self._heap, key=lambda ranked: ranked[:3], reverse=True)]


class ScoreReport:
    """Draws finished rows, and the most unusual records that were passed to `see`.

    Args:
        pictures: new pictures for rows and records, in this order.
        statistics: the statistics of the rows, with their meanings.
        unit: name of the field's unit.
        surface: gives the spelling of an id in "top_ids" of a `ScoredRecord`, or None to leave it out.
        meaning: gives the meaning of a unit by its spelling, or None.
        ids_from: number of a record's first unit in the ids of rows, 0 or 1.
    """

    def __init__(
        self,
        *,
        pictures: Sequence[Picture] = (),
        statistics: Mapping[str, str] = MappingProxyType({}),
        unit: str = "unit",
        surface: Callable[[int], str | None] = str,
        meaning: Meaning = _nothing,
        ids_from: int = 0,
    ) -> None:
        self._pictures, self._statistics, self._ids_from = tuple(pictures), statistics, ids_from
        self._unit, self._surface, self._meaning = unit, surface, meaning
        self._shown, self._seen = _Worst(), 0

    def see(self, judged: CalibratedRow) -> None:
        """Keep a row with its record as long as it is among the most unusual ones."""
        self._seen += 1
        self._shown.add(judged, None if judged.unfamiliar else judged.row.score, judged.p_value)

    def draw(
        self,
        page: Page,
        rows: Iterable[Mapping[str, Any]],
        facts: Mapping[str, Cell] | None = None,
        alpha: float | None = None,
    ) -> None:
        """Draw the report on a page.

        Args:
            page: the page.
            rows: all finished rows, as they are written.
            facts: more figures for the head of the page.
            alpha: the largest p-value that raises an alarm, or None.
        """
        summary = _RowSummary(self._pictures)
        for row in rows:
            summary.add(row)
        alarms = {"alarms": summary.alarms} if summary.judged else {}
        page.head({"rows": summary.rows, **alarms, **(facts or {})})
        if not summary.rows:
            page.section("", "There was nothing to score.")
        summary.add_histogram(page, alpha)
        if worst := summary.worst.descending():
            self._add_table(page, worst, summary.rows)
        if summary.strange:
            page.table(
                f"Unfamiliar rows (mostly units that the model does not know): {summary.unfamiliar:,}",
                ["id", "where"],
                [[row["id"], f"{row['source']}:{row['line']}"] for row in summary.strange],
            )
        for picture in self._pictures:
            picture.draw(page, self._unit)
        self._draw_records(page, summary.rows)
        if worst:
            self._add_reading(page, worst, summary.rows)

    def _add_table(self, page: Page, worst: Sequence[Mapping[str, Any]], all_rows: int) -> None:
        """Add the table of the most unusual rows."""
        lists = dict.fromkeys(name for row in worst for name, value in row.items() if _are_names(value))
        rows = [self._cells(row) | {name: ", ".join(row.get(name, ())) for name in lists} for row in worst]
        columns = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
        extent = f": {len(worst)} of {all_rows:,} rows" if all_rows > len(worst) else ""
        heads = [name.replace("_", " ") for name in columns]
        page.table(f"Most unusual{extent}", heads, [[row[name] for name in columns] for row in rows])

    def _cells(self, row: Mapping[str, Any]) -> dict[str, Cell]:
        """The cells of a row in the table of most unusual rows, by the name of their column."""
        where = f"{row['source']}:{row['line']}"
        calmer = _CALMER.get(row.get("change", ""), "") if (row["score"] or 0) <= 0 else ""
        when = row.get("date") or row.get("time")
        # Places in characters are shown only if there is neither a time nor a column.
        counted = "start" in row and when is None and "column" not in row
        place = span_text(row["start"], row["end"]) if counted else ""
        return {
            "id": " ".join([row["id"], *filter(None, [row.get("description")])]),
            "p value": row.get("p_value"),
            "alarm": row.get("alarm"),
            "why": row.get("reason") or f"{calmer}{top_unit_text(row)}",
            "when": when and Markup("<time>{}</time>").format(when[:19].replace("T", " ")),
            "score rise" if "change" in row else "score": row["score"],
            "place": "" if row["id"].endswith(f"#{place.replace(',', '')}") and self._ids_from else place,
            plural(self._unit): row["units"],
            "extrapolated": "yes" if row.get("extrapolated") else "",
            "where": "" if where.endswith(row["id"]) else where,
        }

    def _add_reading(self, page: Page, worst: Sequence[Mapping[str, Any]], rows: int) -> None:
        """Add the sentences that explain the report."""
        sentences = reading_sentences(
            self._unit,
            rows,
            {name: self._statistics.get(name, "") for row in worst for name in row.get("channels", ())},
            calibrated=any(row.get("p_value") is not None for row in worst),
            extrapolated=any(row.get("extrapolated") for row in worst),
            zero_based="" if self._ids_from else self._zero_based_id(worst),
        )
        page.section("How to read this", "\n\n".join(sentences))

    def _zero_based_id(self, worst: Sequence[Mapping[str, Any]]) -> str:
        """The first id that contains a place in its record, or ""."""
        return next((row["id"] for row in worst if self._cells(row)["place"] and "#" in row["id"]), "")

    def _draw_records(self, page: Page, rows: int) -> None:
        """Draw the records of the most unusual rows, each once."""
        records: dict[int, list[CalibratedRow]] = {}
        for judged in self._shown.descending():
            records.setdefault(id(judged.scored_record), []).append(judged)
        worst = list(records.values())[:PICTURED]
        if self._pictures and self._seen < rows:
            page.section("", f"Pictures show the most unusual of the last {self._seen:,} rows: {RESUMED}.")
        scored_records = [judged_rows[0].scored_record for judged_rows in worst]
        scale, excess = record_scale(scored_records), excess_scale(scored_records)
        for scored, judged_rows in zip(scored_records, worst, strict=True):
            name = scored.record.id
            notes = [
                f"{'' if judged.row.id == name else f'{judged.row.id}: '}"
                f"{verdict_text(judged.row.score, judged.p_value, judged.alarm)}"
                for judged in judged_rows[:_NAMED]
            ]
            pictured = PicturedRecord(
                scored=scored,
                rows=judged_rows,
                heading=name,
                note="; ".join(notes),
                unit=self._unit,
                tip=partial(unit_tip, scored, surface=self._surface, meaning=self._meaning),
                scale=scale,
                excess_scale=excess,
            )
            for picture in self._pictures:
                picture.draw_record(page, pictured)


RESUMED = "the run was resumed, and the records of earlier rows are not stored"


class _RowSummary:
    """The counts, scores and most unusual rows of all rows, collected row by row."""

    def __init__(self, pictures: Sequence[Picture]) -> None:
        self._pictures = pictures
        self.rows = self.alarms = self.unfamiliar = 0
        self.judged = False
        self.worst, self.strange = _Worst(), list[Mapping[str, Any]]()
        self._scores, self._tails = Counter[float](), np.zeros(_BINS, dtype=np.int64)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one row."""
        score, alarm = row["score"], row.get("alarm")
        self.rows += 1
        self.judged = self.judged or alarm is not None
        self.alarms += bool(alarm)
        if row.get("unfamiliar"):
            self.unfamiliar += 1
            self.strange += [row] if len(self.strange) < WORST else []
        self.worst.add(row, None if row.get("unfamiliar") else score, row.get("p_value"))
        if (p_value := row.get("p_value")) is not None:
            self._tails[min(int(-math.log10(max(p_value, _LEAST)) * _PER_TEN), _BINS - 1)] += 1
        if score is not None:
            self._scores[float(f"{score:.4g}")] += 1
            for picture in self._pictures:
                picture.add(row)

    def add_histogram(self, page: Page, alpha: float | None) -> None:
        """Draw p-values compared with p-values of normal rows, or scores if there are no p-values."""
        if self._tails.any():
            page.tails("How unusual the rows are", self._tails, _PER_TEN, alpha)
        elif self._scores:
            scores, counts = zip(*self._scores.items(), strict=True)
            heights, edges = np.histogram(scores, bins=_BINS, weights=counts)
            page.histogram("Scores", heights, edges, x_label="score, bits: higher is more unusual")


# Words of a report


def unit_tip(
    scored: ScoredRecord,
    unit: int,
    surface: Callable[[int], str | None],
    meaning: Meaning = _nothing,
) -> str:
    """The tooltip of a unit: its text, surprisal and counts, and the expected units."""
    return _unit_text(unit_fields(scored, unit, surface, meaning), _MOST)


def top_unit_text(row: Mapping[str, Any]) -> str:
    """The most surprising unit of a row in one line, "" for a row without units."""
    units = row.get("top") or [None]
    return "" if units[0] is None else _unit_text(units[0], _IN_TABLE).replace("\n", "; ")


def _unit_text(fields: Mapping[str, Any], max_alternatives: int) -> str:
    """The text of a unit's fields: its text, bits and counts. A second line has the expected units."""
    text = f"{visible_text(fields['unit'])[:_LONGEST]}{_meaning_text(fields)}: {fields['surprisal']:.1f} bits"
    if "entropy" in fields:
        text += f", entropy {fields['entropy']:.1f}"
    if "reason" in fields:
        text += f", {visible_text(fields['reason'])}"
    likely = [alternative for alternative in fields.get("expected", ()) if alternative["p"] > _UNLIKELY]
    shares = [
        f"{visible_text(alternative['unit'])}{_meaning_text(alternative)} {100 * alternative['p']:.0f} %"
        for alternative in likely[:max_alternatives]
    ]
    return f"{text}\nexpected: {', '.join(shares)}" if shares else text


def _meaning_text(fields: Mapping[str, Any]) -> str:
    """The meaning of a unit in brackets, "" without a meaning."""
    meaning = fields.get("description")
    return "" if meaning is None else f" ({visible_text(meaning)[:_LONGEST]})"


def visible_text(text: str) -> str:
    """A text without surrounding white space. Text that is only white space becomes visible signs.

    >>> visible_text(" a "), visible_text("\\n    ")
    ('a', '↵␣␣␣␣')
    """
    return text.strip() or text.translate(_SEEN)


def _are_names(value: Any) -> bool:
    """Whether a field of a row is a list of texts, such as the genes at its place."""
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)


def verdict_text(score: float | None, p_value: float | None, alarm: bool | None) -> str:
    """Score, p-value and alarm of a row, in words.

    >>> verdict_text(3.25, 0.001, True)
    'score 3.25, p 0.001, alarm'
    """
    parts = [] if score is None else [f"score {score:.4g}"]
    parts += [] if p_value is None else [f"p {p_value:.2g}"]
    return ", ".join([*parts, "alarm"] if alarm else parts)


def record_scale(records: Sequence[ScoredRecord]) -> float:
    """The bits of the strongest colour: 4, 8, 12 or 16, reached by about one unit in two hundred."""
    return surprisal_scale(np.concatenate([np.zeros(1), *(scored.surprisal for scored in records)]))


def excess_scale(records: Sequence[ScoredRecord]) -> float:
    """The bits above or below the entropy of the strongest colour, reached by one unit in fifty.

    At least 1.
    """
    excess = [scored.surprisal - scored.values[ENTROPY] for scored in records if ENTROPY in scored.values]
    return max(1.0, colour_scale(np.concatenate([np.zeros(1), *excess])))


def reading_sentences(
    unit: str,
    rows: int,
    statistics: Mapping[str, str],
    *,
    calibrated: bool,
    extrapolated: bool = False,
    zero_based: str = "",
) -> list[str]:
    """Sentences that explain a report.

    Args:
        unit: name of the field's unit.
        rows: number of rows.
        statistics: the statistics with p-values in the report, with their meanings. A statistic with an empty
            meaning is not explained.
        calibrated: whether rows have p-values.
        extrapolated: whether some p-values are smaller than the normal rows can show.
        zero_based: an id in the report with numbers from 0, or "".
    """
    ids = f" Ids such as {zero_based} count from 0, like the rows in files, and exclude the end."
    sentences = [
        "Higher scores are more unusual. "
        f"Surprisal is -log2 of the probability that the model gave the {unit}: "
        "1 bit is one in two, 10 bits are one in 1,000. Entropy is how uncertain the model is at the place.",
        f"Places count from 1 and include the end.{ids if zero_based else ''}",
    ]
    if not calibrated:
        why = "These scores are not calibrated. They rank rows, but do not tell which rows are too unusual."
        return [*sentences, why]
    sentences.append(
        "The p-value is the share of normal rows of similar length that are at least as unusual. "
        f"If all {rows:,} rows were normal, about {0.01 * rows:,.1f} of them would have a p-value of 0.01 or "
        "less. An alarm is a place to look at, not a proof."
    )
    if extrapolated:
        sentences.append(
            "An extrapolated p-value is below what the calibration rows can show. It comes from a fitted "
            "tail: a ranking, not a guarantee."
        )
    explained = [f"{name} ({meaning})" for name, meaning in statistics.items() if meaning]
    if explained:
        many = "Each of these statistics has a p-value, and all are combined into one"
        sentences.append(
            f"{many if len(explained) > 1 else 'The p-value is that of'}: {'; '.join(explained)}."
        )
    return sentences
