"""Records to judged rows: scores, statistics, calibrated p-values and alarms, batch by batch.

A cascade screens every record cheaply, then asks exactly for the units of those rows that the screening puts
near the threshold; rows it lets pass rank below all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from seqmlm.anomaly.faults import Given, Planted, plant, touched
from seqmlm.anomaly.levels import Background, Level
from seqmlm.anomaly.values import Bools, Doubles, Longs, Row, Scored, refined
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.reductions import Reduction, union
from seqmlm.engine.units import EXACT, Mode
from seqmlm.errors import DataError
from seqmlm.evaluation.conformal import (
    ALL,
    FEW,
    Calibration,
    Judgement,
    Screening,
    Stages,
    Statistics,
    teaching_part,
)
from seqmlm.evaluation.evidence import RATE, Evidence, choose
from seqmlm.inference.batches import Encoded, batches
from seqmlm.inference.rolling import Rolling
from seqmlm.inference.scorer import RecordScorer

ESCALATE = 0.05
"""Share of normal rows that a cascade asks exactly about."""

# Copies with planted faults: half as many as there are normal records, of few as many as these.
_MOST_FAULTY, _FEW_FAULTY = 400, 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What another version of the model says of a row.

    Args:
        alias, version: which alias names it, and its reference.
        p_value: None where it has no score of the row.
        alarm: whether it would alarm.
    """

    alias: str
    version: str
    p_value: float | None
    alarm: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedRow:
    """A row with what calibration says of it.

    Args:
        row: what was judged.
        scored: the record it belongs to.
        p_value: share of normal rows that are at least as unusual; None without calibration.
        extrapolated: whether `p_value` lies below all that normal rows can show, by the fit of a tail.
        alarm: whether `p_value` is at most the asked rate; None where none was asked.
        p_values: of each statistic alone.
        fired: the statistic with the smallest of these among those that judge, an infinite one before others;
            None where none is below 1.
        unfamiliar: nothing of it could be scored, and some of it is outside the model's vocabulary: it has no
            p-value, and is an alarm of its own kind where alarms are asked for.
        beside: what another version of the model says of it, where one was asked.
    """

    row: Row
    scored: Scored
    p_value: float | None = None
    extrapolated: bool = False
    alarm: bool | None = None
    p_values: Mapping[str, float] = field(default_factory=dict)
    fired: str | None = None
    unfamiliar: bool = False
    beside: Beside | None = None


class Detector:
    """Judges records with one model, at one level.

    Args:
        scorer: scores units.
        level: what of a record is judged.
        mode: how units are hidden; of a cascade, its first stage.
        background: what the level knows of normal data.
        calibration: of this level and mode; without one and without a cascade, rows have no p-values.
        cascade: of this level, where a first stage screens; then `mode` is that stage's.
        alpha: share of normal rows that may raise an alarm.
        want: what is read of every unit, beside what the level reads.
        rolling: takes the place of calibration or cascade, and is given the statistics of all rows.
    """

    def __init__(
        self,
        scorer: RecordScorer,
        level: Level,
        *,
        mode: Mode = EXACT,
        background: Background | None = None,
        calibration: Calibration | None = None,
        cascade: Stages | None = None,
        alpha: float | None = None,
        want: Collection[Reduction] = (),
        rolling: Rolling | None = None,
    ) -> None:
        self.scorer, self.level, self.mode = scorer, level, mode
        self.background, self.calibration, self.cascade, self.alpha = background, calibration, cascade, alpha
        self._want, self._rolling = union(level.want, want), rolling

    def judged(self, records: Iterable[Record], problems: Problems) -> Iterator[JudgedRow]:
        """Judge a stream of records, in order and in bounded memory."""
        for batch in batches(records):
            yield from self.batch(batch, problems)

    def batch(self, records: Sequence[Record], problems: Problems) -> list[JudgedRow]:
        """Judge some records together."""
        return self.encoded(self.scorer.encoded(records, problems))

    def encoded(self, encoded: Sequence[Encoded]) -> list[JudgedRow]:
        """Judge some records together that are tokenized already."""
        found = self.scored(encoded, further=self.cascade is None)
        rows = self.rows(found)
        if self._rolling is None:
            return self._rows_judged(encoded, found, rows)
        judged: list[JudgedRow] = []
        for part in self._rolling.parts([[row.score is not None for row in own] for own in rows]):
            fitted = self._rolling.fitted
            if isinstance(fitted, Calibration):
                self.calibration = fitted
            else:
                self.cascade = fitted
            judged += self._rows_judged(encoded[part], found[part], rows[part])
        return judged

    def _rows_judged(
        self, encoded: Sequence[Encoded], found: list[Scored], rows: list[list[Row]]
    ) -> list[JudgedRow]:
        """Judge the rows of some records that are scored."""
        if self.cascade is not None:
            return self._cascade(encoded, found, rows, self.cascade)
        owners = [one for one, own in zip(found, rows, strict=True) for _ in own]
        flat = [row for own in rows for row in own]
        if self.calibration is None:
            return [
                JudgedRow(row=row, scored=one, unfamiliar=self._unfamiliar(row, one))
                for row, one in zip(flat, owners, strict=True)
            ]
        statistics, lengths = table(flat, self.level.statistics)
        judgement = self.calibration.judge(statistics, lengths)
        if self._rolling is not None:
            self._rolling.take(statistics, lengths)
        return self._with_p_values(flat, owners, judgement)

    def scored(self, batch: Sequence[Encoded], *, further: bool = True) -> list[Scored]:
        """Score a batch in the detector's mode and, where `further`, those its level asks for beside."""
        return self._asked(batch, self.mode, further=further)

    def rows(self, found: Sequence[Scored]) -> list[list[Row]]:
        """The rows of each record."""
        return [list(self.level.judged(one, self.background)) for one in found]

    def evidence(
        self, judged: Sequence[JudgedRow], statistics: Mapping[str, Doubles], lengths: Longs, *, seed: int
    ) -> Evidence | None:
        """Which statistics find faults planted in normal records; None where rows are too few to tell.

        Rows that the fused statistic will be ranked among take no part in it (`teaching_part`).

        Args:
            judged: normal rows with a score.
            statistics: name -> (N,) of these.
            lengths: (N,) their units.
            seed: of the calibration.
        """
        if not self.level.chooses(statistics) or len(lengths) < FEW:
            return None
        teaches = teaching_part(len(lengths), seed)
        count = Counter(id(one.scored) for one in judged)
        teachers = {id(judged[at].scored): judged[at].scored for at in np.flatnonzero(teaches).tolist()}
        given = [Given(one.record, one.spans, one.classes, count[number]) for number, one in teachers.items()]
        faults = self.scorer.session.domain.faults
        planted = list(plant(faults, given, copies(len(count)), seed=seed))
        return choose(
            self.level.choice,
            {name: values[teaches] for name, values in statistics.items()},
            lengths[teaches],
            {kind: table(rows, statistics) for kind, rows in self.faulty(planted).items()},
            always=tuple(name for name in self.level.always if name in statistics),
            seed=seed,
        )

    def faulty(self, planted: Sequence[tuple[str, Planted]]) -> dict[str, list[Row]]:
        """Kind of fault -> the rows that have one, of copies of records, in the detector's mode."""
        found: dict[str, list[Row]] = {kind: [] for kind, _ in planted}
        problems = Problems("skip")
        for batch in batches(one.record for _, one in planted):
            encoded = self.scorer.encoded(batch, problems)
            scored = self.scored(encoded, further=self.cascade is None)
            here = {id(one.record): (kind, one.spans) for kind, one in planted}
            for one, rows in zip(scored, self.rows(scored), strict=True):
                kind, spans = here[id(one.record)]
                found[kind] += touched(rows, spans)
        return found

    def refine(
        self, batch: Sequence[Encoded], found: Sequence[Scored], units: Sequence[Longs]
    ) -> list[Scored]:
        """Ask exactly about some units of each record, and for its further modes.

        Args:
            batch, found: the records and how they were screened.
            units: of each record, indices of the units to ask about, at least one.
        """
        wanted = []
        for one, chosen in zip(found, units, strict=True):
            groups = one.encoding.groups[one.position[chosen]]
            wanted.append(np.isin(one.encoding.groups, groups) & (one.encoding.groups >= 0))
        better = self._asked(batch, EXACT, further=True, wanted=wanted)
        return [refined(old, new) for old, new in zip(found, better, strict=True)]

    def _asked(
        self, batch: Sequence[Encoded], mode: Mode, *, further: bool, wanted: Sequence[Bools] | None = None
    ) -> list[Scored]:
        level = self.level
        found = self.scorer.scored(batch, mode, want=self._want, wanted=wanted, view=level.view)
        found = self._both_ways(batch, found, mode, wanted)
        for other in level.also if further else ():
            again = self.scorer.scored(batch, other, want=level.also_want, view=level.view)
            found = [
                replace(one, also={**one.also, str(other): more})
                for one, more in zip(found, again, strict=True)
            ]
        return found

    def _both_ways(
        self, batch: Sequence[Encoded], found: list[Scored], mode: Mode, wanted: Sequence[Bools] | None
    ) -> list[Scored]:
        """The scores combined with those of the level's second reading, where it has one."""
        second = self.level.second
        if second is None:
            return found
        again = self.scorer.encoded([second.record(one.record) for one in batch], Problems())
        rule = self.scorer.session.tokenizer.units
        asked: list[Bools] | None = None
        if wanted is not None:
            asked = [
                second.wanted(first.encoding, own, other.encoding, rule, other.record)
                for first, own, other in zip(batch, wanted, again, strict=True)
            ]
        summed = [one for one in self._want if one.over_unit == "sum"]  # others cannot be divided
        scored = self.scorer.scored(again, mode, want=summed, wanted=asked)
        return [second.combined(first, other) for first, other in zip(found, scored, strict=True)]

    def _cascade(
        self,
        batch: Sequence[Encoded],
        found: list[Scored],
        rows: list[list[Row]],
        calibration: Stages,
    ) -> list[JudgedRow]:
        flat = [row for own in rows for row in own]
        record = np.repeat(np.arange(len(found)), [len(own) for own in rows])
        screened, lengths = table(flat, self.level.screen)
        near = calibration.near(screened, lengths)
        again = np.unique(record[near])
        if len(again):
            units = [
                np.unique(np.concatenate([flat[i].units for i in np.flatnonzero(near & (record == r))]))
                for r in again.tolist()
            ]
            chosen = [r for r, own in zip(again.tolist(), units, strict=True) if len(own)]
            better = self.refine(
                [batch[r] for r in chosen], [found[r] for r in chosen], [own for own in units if len(own)]
            )
            for r, one in zip(chosen, better, strict=True):
                found[r] = one
            flat = self._remade(found, rows, flat, near, record)
        exact, _ = table(flat, self.level.statistics)
        judgement = calibration.judge(screened, lengths, near, exact)
        if self._rolling is not None:
            self._rolling.take(screened, lengths, near, exact)
        return self._with_p_values(flat, [found[r] for r in record.tolist()], judgement)

    def _remade(
        self, found: list[Scored], rows: list[list[Row]], flat: list[Row], near: Bools, record: Longs
    ) -> list[Row]:
        """The rows, those that were asked about anew made again."""
        first = np.cumsum([0, *(len(own) for own in rows)])
        made = list(flat)
        for r in np.unique(record[near]).tolist():
            again = list(self.level.judged(found[r], self.background))
            for place in np.flatnonzero(near & (record == r)).tolist():
                made[place] = again[place - int(first[r])]
        return made

    def _with_p_values(
        self, rows: Sequence[Row], owners: Sequence[Scored], judgement: Judgement
    ) -> list[JudgedRow]:
        names = list(judgement.p_values)
        columns = np.array([judgement.p_values[name] for name in names]).reshape(len(names), len(rows))
        alpha, chosen = self.alpha, self.cascade or self.calibration
        assert chosen is not None
        judging = [names.index(name) for name in chosen.choice.used or names if name in names]

        def judged(row: Row, one: Scored, p: float, beyond: bool, own: list[float]) -> JudgedRow:
            if row.score is None:
                unfamiliar = self._unfamiliar(row, one)
                alarm = None if alpha is None else unfamiliar
                return JudgedRow(row=row, scored=one, alarm=alarm, unfamiliar=unfamiliar)
            # What few rows cannot rank above their largest value, an infinite statistic, says most.
            endless = [
                row.statistics.get(name) == np.inf and own[at] <= RATE for at, name in enumerate(names)
            ]
            return JudgedRow(
                row=row,
                scored=one,
                p_value=p,
                extrapolated=beyond,
                alarm=None if alpha is None else p <= alpha,
                p_values=dict(zip(names, own, strict=True)),
                fired=names[least]
                if judging and own[least := min(judging, key=lambda at: (not endless[at], own[at]))] < 1
                else None,
            )

        return [
            judged(row, one, p, beyond, own)
            for row, one, p, beyond, own in zip(
                rows,
                owners,
                judgement.p_value.tolist(),
                judgement.extrapolated.tolist(),
                columns.T.tolist(),
                strict=True,
            )
        ]

    def _unfamiliar(self, row: Row, scored: Scored) -> bool:
        if row.score is not None:
            return False
        starts = scored.unknown(self.scorer.session.tokenizer.unfamiliar)[:, 0]
        return bool(((starts >= row.start) & (starts < max(row.end, row.start + 1))).any())


def table(rows: Sequence[Row], names: Iterable[str]) -> tuple[dict[str, Doubles], Longs]:
    """Statistics of rows by name (M,), NaN where a row does not have one, and their lengths (M,)."""
    nothing = float("nan")
    statistics = {
        name: np.array([row.statistics.get(name, nothing) for row in rows], dtype=np.float64)
        for name in names
    }
    return statistics, np.array([row.length for row in rows], dtype=np.int64)


def copies(records: int) -> int:
    """Copies with planted faults, of all kinds together, that so many normal records are judged beside."""
    return min(_MOST_FAULTY, max(records // 2, min(records, _FEW_FAULTY), 1))


class Recorder:
    """Stands where a detector expects a cascade, and keeps what it is shown, to calibrate with.

    Args:
        screening: says which rows are asked about exactly; without one none is.
    """

    def __init__(self, screening: Screening | None = None) -> None:
        self._screening, self.choice = screening, ALL
        self._screen: list[Mapping[str, Doubles]] = []
        self._exact: list[Mapping[str, Doubles]] = []
        self._lengths: list[Longs] = []

    def near(self, screen: Statistics, lengths: Longs) -> Bools:
        """As `CascadeCalibration.near`."""
        if self._screening is None:
            return np.zeros(len(lengths), dtype=np.bool_)
        return self._screening.judge(screen, lengths)[1]

    def judge(self, screen: Statistics, lengths: Longs, near: Bools, exact: Statistics) -> Judgement:
        """Keep the statistics; the judgement is that nothing is unusual."""
        self._screen.append(screen)
        self._exact.append(exact)
        self._lengths.append(lengths)
        return Judgement(np.ones(len(lengths)), {}, np.zeros(len(lengths), dtype=np.bool_))

    def shown(self, chosen: Bools) -> tuple[dict[str, Doubles], dict[str, Doubles], Longs]:
        """Screening and exact statistics (N,) by name, and lengths (N,), of the chosen of all rows (M,).

        Raises:
            DataError: there is none.
        """
        if not chosen.any():
            raise DataError("there is nothing to calibrate with: no record has a score")
        lengths = np.concatenate(self._lengths)[chosen]
        return _end_to_end(self._screen, chosen), _end_to_end(self._exact, chosen), lengths


def _end_to_end(parts: Sequence[Mapping[str, Doubles]], chosen: Bools) -> dict[str, Doubles]:
    return {name: np.concatenate([part[name] for part in parts])[chosen] for name in parts[0]}
