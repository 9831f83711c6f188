"""Compute rows from records: scores, statistics, calibrated p-values and alarms, batch by batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from seqmlm.anomaly.judge import Calibration, Judgement
from seqmlm.anomaly.levels import Background, Level, judged_rows
from seqmlm.anomaly.values import Bools, Doubles, Longs, Row, ScoredRecord
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.reductions import Reduction, union
from seqmlm.engine.units import EXACT, Mode
from seqmlm.inference.record_batches import Encoded, batches
from seqmlm.inference.scorer import RecordScorer

SMALL = 0.05
"""p-value up to which a statistic is reported as unusual by itself."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedRow:
    """A row with its p-value and alarm.

    Args:
        row: the row.
        scored_record: the record it belongs to.
        p_value: share of normal rows that are at least as unusual. None without calibration.
        extrapolated: whether `p_value` comes from a fitted tail, below the range of the normal rows.
        alarm: whether `p_value` is at most the requested rate. None if no rate was requested.
        p_values: p-value of each single statistic.
        fired: the statistic with the smallest p-value, among the statistics of the calibration. Infinite
            statistics come first. Next are statistics that name what happened and are as rare as requested.
            None if no statistic is unusual by itself: neither below `SMALL` nor below the requested rate.
        usual: value of that statistic that one in a hundred normal rows exceeds. Only for alarms.
        beyond: number of normal rows, all less unusual, that the row was compared with. Only if
            `extrapolated`.
        unfamiliar: whether most of the row is unknown to the model (`Level.unfamiliar`). Rows without any
            score are unfamiliar too if some of their content is outside the vocabulary. Such a row has no
            p-value. It is an alarm only if its level treats unknown content as evidence and few enough normal
            rows are unfamiliar.
    """

    row: Row
    scored_record: ScoredRecord
    p_value: float | None = None
    extrapolated: bool = False
    alarm: bool | None = None
    p_values: Mapping[str, float] = field(default_factory=dict)
    fired: str | None = None
    usual: float | None = None
    beyond: int | None = None
    unfamiliar: bool = False


class Detector:
    """Scores records with one model at one level, and raises alarms.

    Args:
        scorer: scores units.
        level: the part of a record that gets a row.
        mode: how units are masked.
        background: the level's statistics of normal data.
        calibration: the calibration of this level and mode. Without it, rows have no p-values.
        alpha: share of normal rows that may raise an alarm.
        want: values to read for every unit, in addition to the values that the level needs.
    """

    def __init__(
        self,
        scorer: RecordScorer,
        level: Level,
        *,
        mode: Mode = EXACT,
        background: Background | None = None,
        calibration: Calibration | None = None,
        alpha: float | None = None,
        want: Collection[Reduction] = (),
    ) -> None:
        self.scorer, self.level, self.mode = scorer, level, mode
        self.background, self.calibration, self.alpha = background, calibration, alpha
        self._want = union(level.want, want)

    def judged_rows(self, records: Iterable[Record], problems: Problems) -> Iterator[JudgedRow]:
        """Process a stream of records, in order and in bounded memory."""
        for batch in batches(records):
            yield from self.batch(batch, problems)

    def batch(self, records: Sequence[Record], problems: Problems) -> list[JudgedRow]:
        """Process some records together."""
        return self.encoded(self.scorer.encoded(records, problems))

    def encoded(self, encoded: Sequence[Encoded]) -> list[JudgedRow]:
        """Process some records together that are already tokenized."""
        return [row for record_rows in self.each(encoded) for row in record_rows]

    def each(
        self, encoded: Sequence[Encoded], selected: Sequence[Bools] | None = None
    ) -> list[list[JudgedRow]]:
        """Process encoded records, and return the rows of each record.

        Args:
            encoded: the records.
            selected: (L,) True for each record at the tokens whose units are scored. None scores all.
        """
        scores = self.unit_scores(encoded, selected)
        rows = self.rows(scores)
        judged = iter(self.judge(scores, rows))
        return [[*islice(judged, len(record_rows))] for record_rows in rows]

    def judge(self, scores: Sequence[ScoredRecord], rows: Sequence[list[Row]]) -> list[JudgedRow]:
        """Compute p-values and alarms for the rows of scored records."""
        pairs = [(row, score) for score, record_rows in zip(scores, rows, strict=True) for row in record_rows]
        judgement = self.judgement([row for row, _ in pairs])
        if judgement is None:
            return [
                JudgedRow(row=row, scored_record=score, unfamiliar=self._unfamiliar(row, score))
                for row, score in pairs
            ]
        p_values = zip(judgement.p_value.tolist(), judgement.extrapolated.tolist(), strict=True)
        shape = len(judgement.p_values), len(pairs)
        columns = np.array(list(judgement.p_values.values())).reshape(shape).T.tolist()
        return [
            self._with_p_values(*pair, *p_value, dict(zip(judgement.p_values, column, strict=True)))
            for pair, p_value, column in zip(pairs, p_values, columns, strict=True)
        ]

    def judgement(self, rows: Sequence[Row]) -> Judgement | None:
        """p-values of rows from the calibration. None without a calibration."""
        if self.calibration is None:
            return None
        return self.calibration.judge(*table(rows, self.level.statistics.judging))

    def unit_scores(
        self, batch: Sequence[Encoded], selected: Sequence[Bools] | None = None
    ) -> list[ScoredRecord]:
        """Score a batch, or the selected units of it.

        If the level has a second reading, both readings are scored.
        """
        view = self.level.view
        scores = self.scorer.unit_scores(batch, self.mode, want=self._want, view=view, selected=selected)
        return self._both_ways(batch, scores)

    def rows(self, scores: Sequence[ScoredRecord]) -> list[list[Row]]:
        """The rows of each record."""
        if self.background is not None:
            self.background.prepare([score.encoding for score in scores])
        return [list(judged_rows(self.level, score, self.background)) for score in scores]

    def _both_ways(self, batch: Sequence[Encoded], scores: list[ScoredRecord]) -> list[ScoredRecord]:
        """Combine the scores with the scores of the level's second reading, if there is a second reading."""
        second = self.level.second
        if second is None or self.scorer.session.tokenizer.units.facts.strands is None:
            return scores
        second_records = self.scorer.encoded(
            [second.record(sequence.record) for sequence in batch], Problems()
        )
        summed = [
            reduction for reduction in self._want if reduction.over_unit == "sum"
        ]  # other values cannot be divided
        scored = self.scorer.unit_scores(second_records, self.mode, want=summed)
        return [
            second.combine(first, second_score) for first, second_score in zip(scores, scored, strict=True)
        ]

    def _with_p_values(
        self, row: Row, score: ScoredRecord, p: float, beyond: bool, p_values: dict[str, float]
    ) -> JudgedRow:
        normal, alpha = self.calibration, self.alpha
        unfamiliar = self._unfamiliar(row, score)
        if row.score is None or unfamiliar:
            rare = normal is not None and alpha is not None and normal.unfamiliar_rate <= alpha
            alarm = None if alpha is None else unfamiliar and self.level.unknown_is_evidence and rare
            return JudgedRow(row=row, scored_record=score, alarm=alarm, unfamiliar=unfamiliar)
        # An infinite statistic says most: few normal rows cannot rank values above their largest value.
        endless = {
            name for name in p_values if row.statistics.get(name) == np.inf and p_values[name] <= SMALL
        }
        names = {
            name
            for name in self.level.reasons.naming_statistics(row)
            if p_values.get(name, 1.0) <= min(SMALL, alpha or 0.0)
        }
        smallest = min(p_values, key=lambda name: (name not in endless, name not in names, p_values[name]))
        fired = smallest if p_values[smallest] <= max(SMALL, p, alpha or 0.0) else None
        alarm = None if alpha is None else p <= alpha
        return JudgedRow(
            row=row,
            scored_record=score,
            p_value=p,
            extrapolated=beyond,
            alarm=alarm,
            p_values=p_values,
            fired=fired,
            beyond=normal.compared(row.length) if normal and beyond else None,
            usual=normal.usual(fired, row.length) if normal and alarm and fired else None,
        )

    def _unfamiliar(self, row: Row, scored: ScoredRecord) -> bool:
        """Whether a row is unfamiliar.

        Either the row is marked so, or it has no score and some of it is outside the model's vocabulary.
        """
        if row.unfamiliar or row.score is not None:
            return row.unfamiliar
        starts = scored.unknown(self.scorer.session.tokenizer.units.facts.unfamiliar)[:, 0]
        return bool(((starts >= row.start) & (starts < max(row.end, row.start + 1))).any())


def table(rows: Sequence[Row], names: Iterable[str]) -> tuple[dict[str, Doubles], Longs]:
    """The statistics of rows by name, each an array (M,), and their lengths (M,). Missing values are NaN."""
    nothing = float("nan")
    columns = {
        name: np.array([row.statistics.get(name, nothing) for row in rows], np.float64) for name in names
    }
    return columns, np.array([row.length for row in rows], dtype=np.int64)
