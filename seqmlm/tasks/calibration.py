"""Normal records to calibrations: what is usual for a model at each level and in each mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from seqmlm.anomaly.levels import Background, Level
from seqmlm.anomaly.values import Bools, Doubles, Longs, Row, Scored
from seqmlm.data.privacy import SMALLEST
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.correction import Correction
from seqmlm.engine.device import Precision
from seqmlm.engine.one_pass import Fit
from seqmlm.engine.types import Encoding, Sequences
from seqmlm.engine.units import EXACT, ONE_PASS, Mode
from seqmlm.engine.windows import windows
from seqmlm.errors import DataError, UsageError
from seqmlm.evaluation.conformal import Calibration, CascadeCalibration, Judgement, Screening, Statistics
from seqmlm.evaluation.incidents import rows_per_day
from seqmlm.inference.batches import InMemory, batches
from seqmlm.inference.calibrations import CASCADE, Stored
from seqmlm.inference.detector import Detector, JudgedRow, table
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.one_pass import correction_for, fitted, keep, nearer
from seqmlm.inference.scorer import RecordScorer

ESCALATE = 0.05
"""Share of normal rows that a cascade asks exactly about."""

MOST_RECORDS = 20_000
"""Records that a calibration looks at; of more, so many spread evenly."""

# Of the tokens a calibration may spend; the rest goes to one pass.
_EXACT_SHARE, _CASCADE_SHARE = 0.5, 0.4
_FEWEST_EXACT = 200
_TEACH, _MOST_TEACH = 10, 800  # a correction is fitted to every tenth record, at most so many
_FLOOR = 150_000  # forward tokens that a mode may take however short the training was


@dataclass(frozen=True, kw_only=True, eq=False)
class Normal:
    """Normal records to calibrate with.

    Args:
        records: none of which the model was trained on.
        of: how many records they stand for, where they were drawn evenly from more.
        source: fingerprint of the data.
    """

    records: Sequence[Record]
    of: int
    source: str


@dataclass(kw_only=True, eq=False)
class Calibrator:
    """Calibrates one model; the same records give the same calibrations.

    Args:
        model: asked; in a folder of its own, where a fitted one-pass correction may be kept.
        problems: receives records that the model cannot read.
        seed: of all draws.
        budget: forward tokens to spend; None for as many as all records take.
        tokens_per_batch: of a forward pass. precision: of its matrix products, "fp32" or "bf16".
        say: told what could not be done.
    """

    model: LoadedModel
    problems: Problems
    seed: int = 0
    budget: int | None = None
    tokens_per_batch: int | None = None
    precision: Precision = "fp32"
    say: Callable[[str], None] = field(default=lambda text: None)
    _fit: Fit | None = field(default=None, init=False)

    def background(
        self, level: Level, normal: Normal, train: Sequences | None
    ) -> tuple[Background | None, Normal]:
        """What a level must know, and the records left to calibrate with.

        Args:
            level: asked for its background.
            normal: half of these teach it, where it must see scores or there is no training data.
            train: the training split.
        """
        if level.background is None:
            return None, normal
        half = Normal(records=normal.records[::2], of=normal.of, source=normal.source)
        rest = Normal(records=normal.records[1::2], of=normal.of, source=normal.source)
        fitted = level.background.fit(
            self._encodings(half.records) if train is None else train, self.model.tokenizer, seed=self.seed
        )
        if train is not None and not fitted.needs_scores:
            return fitted, normal
        if fitted.needs_scores:
            judge = Detector(self._scorer(None), level)
            few = self._affordable(half.records, _EXACT_SHARE / 2, self._exact_cost)
            found = [one for batch in batches(few) for one in self._scored(judge, batch)]
            fitted = fitted.learn(found)
        return fitted, rest

    def calibrate(
        self, level: Level, modes: Sequence[str], normal: Normal, background: Background | None
    ) -> dict[tuple[str, str], Stored]:
        """Calibrate a level in some modes ("cascade" is one).

        Returns:
            By level and mode; nothing for a mode in which fewer than eleven sensitive records have rows.

        Raises:
            DataError: no record has a score.
            UsageError: a mode that this model cannot be asked in.
        """
        found: dict[tuple[str, str], Stored] = {}
        for mode in modes:
            one = self._cascade if mode == CASCADE else self._single
            made = one(level, mode, normal, background)
            if made is None:
                needed = f"sensitive data need {SMALLEST}"
                self.say(f"too few records to calibrate {level.name} in mode {mode}: {needed}")
                continue
            found[level.name, mode] = made
        return found

    def default_modes(self, normal: Normal) -> tuple[tuple[str, ...], Normal]:
        """Exact, and one pass with its cascade where the model allows it.

        Fits the correction that these need; `keep_correction` keeps it.

        Returns:
            The modes, and the records left to calibrate with: those that the correction was fitted to are
            nearer to exact than others will be. Of fewer than twenty none can be spared.
        """
        teach = normal.records[::_TEACH][:_MOST_TEACH]
        try:
            self._fit = fitted(self.model, self._encodings(teach), seed=self.seed, **self._asking())
            self._correction()
        except (UsageError, DataError) as error:
            self._fit = None
            self.say(f"calibrated in the exact mode alone: {error}")
            return (str(EXACT),), normal
        if self._fit is not None and len(normal.records) >= 2 * _TEACH:
            chosen = {id(record) for record in teach}
            rest = [record for record in normal.records if id(record) not in chosen]
            normal = replace(normal, records=rest)
        return (str(EXACT), str(ONE_PASS), CASCADE), normal

    def keep_correction(self) -> None:
        """Keep with the model what `default_modes` fitted, beside the calibrations that rest on it."""
        if self._fit is not None:
            keep(self.model, self._fit)

    def _correction(self) -> Correction:
        return correction_for(self.model) if self._fit is None else nearer(self.model, self._fit)

    def _single(
        self, level: Level, name: str, normal: Normal, background: Background | None
    ) -> Stored | None:
        mode = Mode.parse(name)
        correction = self._correction() if mode == ONE_PASS else None
        share = _EXACT_SHARE
        cost: Callable[[int], float] = self._exact_cost
        if mode == ONE_PASS:
            share, cost = 1 - _EXACT_SHARE - _CASCADE_SHARE, float
        records = self._affordable(normal.records, share, cost)
        judge = Detector(self._scorer(correction), level, mode=mode, background=background)
        judged = [one for one in judge.judged(records, self.problems) if one.row.score is not None]
        if self._too_few(judged):
            return None
        rows = [one.row for one in judged]
        statistics, lengths = table(rows, level.statistics)
        calibration = Calibration.fit(statistics, lengths, seed=self.seed, fusion=level.fusion)
        return Stored(calibration=calibration, **self._facts(rows, len(records), normal))

    def _cascade(
        self, level: Level, name: str, normal: Normal, background: Background | None
    ) -> Stored | None:
        scorer = self._scorer(self._correction())
        records = self._affordable(normal.records, _CASCADE_SHARE, lambda n: self._exact_cost(n) * ESCALATE)
        stage = _Stage()
        judge = Detector(scorer, level, mode=ONE_PASS, background=background, cascade=stage)
        seen = np.array(
            [one.row.score is not None for one in judge.judged(records, self.problems)], dtype=np.bool_
        )
        screen, _, lengths = stage.shown(seen)
        screening = Screening.fit(screen, lengths, escalate=ESCALATE, seed=self.seed, fusion=level.fusion)
        stage = _Stage(screening)
        judge = Detector(scorer, level, mode=ONE_PASS, background=background, cascade=stage)
        judged = [one for one in judge.judged(records, self.problems) if one.row.score is not None]
        if self._too_few(judged):
            return None
        rows = [one.row for one in judged]
        screen, exact, lengths = stage.shown(seen)
        cascade = CascadeCalibration.fit(screening, screen, exact, lengths, seed=self.seed)
        return Stored(cascade=cascade, screen=ONE_PASS, **self._facts(rows, len(records), normal))

    def _too_few(self, judged: Sequence[JudgedRow]) -> bool:
        """Whether sensitive rows are of so few records that what is kept would tell of single ones."""
        found = {(one.row.source, one.scored.record.id) for one in judged}
        return self.model.card.sensitive and 0 < len(found) < SMALLEST

    def _scorer(self, correction: Correction | None) -> RecordScorer:
        return RecordScorer(self.model, correction=correction, **self._asking())

    def _asking(self) -> dict[str, Any]:
        return {"tokens_per_batch": self.tokens_per_batch, "precision": self.precision}

    def _scored(self, judge: Detector, batch: Sequence[Record]) -> list[Scored]:
        return judge.scored(judge.scorer.encoded(batch, self.problems))

    def _facts(self, rows: Sequence[Row], taken: int, normal: Normal) -> dict[str, Any]:
        times = [row.time for row in rows if row.time is not None]
        if self.model.card.sensitive and len(times) < SMALLEST:
            times = []  # the first and the last of few are dates of single people
        rate = rows_per_day(len(times), min(times), max(times)) if times else None
        daily = None if rate is None else rate * normal.of / taken
        return {"rows_per_day": daily, "source": normal.source, "precision": self.precision}

    def _encodings(self, records: Sequence[Record]) -> InMemory:
        """Windows of the records that the model can read."""
        space, longest = self.model.tokenizer.space, self.model.card.max_length
        scorer = self._scorer(None)
        found: list[Encoding] = []
        for batch in batches(records):
            for one in scorer.encoded(batch, self.problems):
                found += windows(one.encoding, space, longest)
        return InMemory(found)

    def _exact_cost(self, length: int) -> float:
        return float(length * min(length, self.model.card.max_length))

    def _affordable(
        self, records: Sequence[Record], share: float, cost: Callable[[int], float]
    ) -> Sequence[Record]:
        """As many records as a share of the budget pays for, spread evenly; some however small it is."""
        if self.budget is None or not records:
            return records
        sample = [records[i] for i in _evenly(len(records), 256)]
        lengths = [len(one.encoding) for one in self._scorer(None).encoded(sample, Problems("skip"))]
        each = max(1.0, float(np.mean([cost(length) for length in lengths or [1]])))
        count = int(share * self.budget / each)
        floor = min(_FEWEST_EXACT, int(_FLOOR / each))
        return [records[i] for i in _evenly(len(records), max(count, floor, 1))]


class _Stage:
    """Stands where a judge expects a cascade, and keeps what it is shown.

    Args:
        screening: says which rows are asked about exactly; without one none is.
    """

    def __init__(self, screening: Screening | None = None) -> None:
        self._screening = screening
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
        """Screening and exact statistics (N,) by channel, and lengths (N,), of the chosen of all rows (M,).

        Raises:
            DataError: there is none.
        """
        if not chosen.any():
            raise DataError("there is nothing to calibrate with: no record has a score")
        lengths = np.concatenate(self._lengths)[chosen]
        return _end_to_end(self._screen, chosen), _end_to_end(self._exact, chosen), lengths


def _end_to_end(parts: Sequence[Mapping[str, Doubles]], chosen: Bools) -> dict[str, Doubles]:
    return {name: np.concatenate([part[name] for part in parts])[chosen] for name in parts[0]}


def _evenly(total: int, count: int) -> list[int]:
    """Indices of `count` of `total` things, spread evenly; all where there are no more."""
    return [int(i) for i in np.linspace(0, total - 1, count)] if count < total else list(range(total))
