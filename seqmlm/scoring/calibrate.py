"""Calibrate a model: turn normal records into the stored statistics of a level and a mode.

`seqmlm calibrate` uses normal data from the user, `seqmlm train` uses held-out records. Neither may contain
training data, because memorized records have lower scores than new ones. The same records always give the
same calibrations.

A training spends a limited share of its time on calibration, and more of it if there are few rows. If it
cannot use all records, it takes as many as it can afford, spread evenly. If rows can be scored without the
rest of their record, it takes some rows from each of many records (`scoring/sampling.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from seqmlm.anomaly.judge import Calibration, Normal, TwoPopulations
from seqmlm.anomaly.levels import Background, Level
from seqmlm.anomaly.values import Bools, Longs, ScoredRecord
from seqmlm.data.counts import SMALLEST, released, released_count
from seqmlm.data.fingerprints import combined, file_fingerprint
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.sources import split_source
from seqmlm.data.splits import evenly, hash64, nested
from seqmlm.engine.types import Encoding, InMemory, Sequences
from seqmlm.engine.units import ONE_PASS, Mode
from seqmlm.engine.windows import windows
from seqmlm.errors import DataError, UsageError, number_of
from seqmlm.evaluation.incidents import rows_per_day
from seqmlm.inference.calibrations import (
    CALIBRATION,
    USUAL_RATE,
    Stored,
    calibration_summary,
    rate_above,
    readable_calibrations,
    store,
    store_backgrounds,
    stored_background,
    stored_trained_on,
)
from seqmlm.inference.detector import Detector, JudgedRow, table
from seqmlm.inference.estimate import cost_of
from seqmlm.inference.expert import counts_identity
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.record_batches import Budget, Encoded, batches, encoded
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import ExpertUse, Session
from seqmlm.parsing import Share
from seqmlm.registry.store import Registry
from seqmlm.scoring.sampling import (
    ENOUGH_ROWS,
    CountedRows,
    Limit,
    Portion,
    RowSample,
    Subset,
    row_numbers,
    row_sample,
    unit_rows,
)
from seqmlm.tasks.deadline import Deadline, Phase, TimeAfterTraining
from seqmlm.tasks.register import register_calibrations
from seqmlm.tasks.settings import CommandConfig, check_field
from seqmlm.workspace import Workspace

if TYPE_CHECKING:
    pass

LEAST_ROWS = 100
"""Calibration rows of a training's cheapest mode, if time allows. They guarantee rates of .01."""

_PORTIONS, _LEAST_PORTION = 16, 2_048.0  # portions of a limit; minimum forward tokens of a portion
_LEARNT = 60_000  # forward tokens that the background may always use, even if the limit is small
_BACKGROUND_SHARE = 0.3  # share of the remaining time
_PROBED_TOKENS = 40_000  # tokens whose frequencies are computed to estimate the time for all
_PROBED = 8  # records whose cost tells whether a mode is within a limit

MOST_RECORDS = 20_000
"""Maximum number of records for a calibration. From more records, this many are taken evenly."""


Progress = Callable[[str, float, int], None]
"""Called with the mode, its completed share (0 to 1) and the number of rows."""


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig(CommandConfig):
    """Settings of `seqmlm calibrate`.

    Args:
        paths: files or folders of normal data; - is standard input.
        level: kind of part that gets one score each, such as record, line or residue. Default: depends on the
            domain.
        mode: calibrate only this mode (see `seqmlm score --help`). Default: one-pass and the domain's own
            mode.
        fpr: false positive rate: report whether these data can guarantee it.
        records: number of normal records to use, spread evenly.
        on_error: bad records, and records that the model was trained on: raise (stop) or skip.
        tokens_per_batch: tokens of one forward pass; halved when memory runs out. Default: depends on the
            device.
        expert: whether to mix n-gram counts into the model's probabilities: auto (if that was better on
            validation records), counts (if the model has counts) or none.
        seed: seed for the draw of records.
    """

    option_fields = ("level", "mode", "fpr", "records", *CommandConfig.option_fields)
    metavar: ClassVar[str] = "NORMAL|-"

    level: str | None = None
    mode: str | None = None
    fpr: Share | None = None
    on_error: Literal["raise", "skip"] = "raise"
    records: int = 2_000
    seed: int = 0
    tokens_per_batch: int | None = None
    expert: ExpertUse = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fpr is not None and not 0 < self.fpr < 1:
            raise UsageError(f"--fpr must be between 0 and 1, such as 0.001 or 0.1%; got {self.fpr:g}")


@dataclass(frozen=True, kw_only=True)
class CalibrateResult:
    """The new calibrations and the records that they are based on.

    Args:
        model: the name that the user gave.
        level: the level of the rows.
        records: number of normal records used.
        left_out: number of records from the training data, which are left out.
        modes: facts about each mode. These are rows, smallest_rate (the smallest guaranteed rate of false
            alarms), tail (whether smaller rates can be extrapolated), judged_by, rows_per_day and precision.
            If a rate was requested, they tell how it is supported.
        problems: counts of problems by reason.
    """

    model: str
    level: str
    records: Any
    left_out: Any
    modes: Mapping[str, Mapping[str, Any]]
    problems: Mapping[str, Any]


def calibrate_files(
    config: CalibrateConfig, notify: Callable[[str], None], progress: Progress | None = None
) -> CalibrateResult:
    """Replace a model's calibrations of one level, using normal data.

    Raises:
        UsageError: there is no input, or the model does not have the level or mode.
        DataError: records are from the training data or unreadable, or none has a score.
        StateError: the model does not exist, or its folder cannot be written. The old calibrations then stay.
    """
    if not config.paths:
        raise UsageError("nothing to calibrate with: give files or folders of normal data, or - for stdin")
    if config.records < 1:
        raise UsageError(f"--records must be at least 1, not {config.records}")
    check_field(config, config.level)
    session = Session.open(
        config.model,
        domain=config.domain,
        tokens_per_batch=config.tokens_per_batch,
        precision=config.precision,
        expert=config.expert,
        folder=True,
        replaced=CALIBRATION,
    )
    model = session.model
    level = model.domain.level(config.level)
    with session.data_rules(), Problems(config.on_error) as problems:
        problems.listener = notify
        normal, left_out = _normal(config, model, problems)
        calibrator = Calibrator(
            session=session, problems=problems, seed=config.seed, notify=notify, progress=progress
        )
        calibrations = _replaced(calibrator, level, config.mode, normal)
        if session.entry is not None:
            with Registry(Workspace.locate()) as registry:
                register_calibrations(registry, session.entry)
        return CalibrateResult(
            model=config.model,
            level=level.name,
            **released({"records": len(normal.records), "left_out": left_out}),
            modes={mode: entry.facts(config.fpr) for (_, mode), entry in calibrations.items()},
            problems=released(problems.counts),
        )


def _replaced(
    calibrator: Calibrator, level: Level, mode: str | None, normal: Records
) -> dict[tuple[str, str], Stored]:
    """Fit the calibrations of a level and replace the stored ones. Calibrations of other levels stay.

    Raises:
        DataError: no record has a score, or there are too few records of sensitive data.
        StateError: the folder cannot be written.
    """
    model = calibrator.session.model
    folder = Path(model.path)
    earlier = readable_calibrations(folder, calibrator.notify)  # reports what is lost if the file is broken
    background, learnt = stored_background(model, level), None
    if level.background is not None and background is None:
        background, normal = calibrator.background(level, normal, None)
        learnt = background
    modes = default_modes(calibrator.session) if mode is None else (mode,)
    calibrations = calibrator.calibrate(level, modes, normal, background)
    if not calibrations:
        raise DataError("too few normal records for sensitive data", remedy="give at least eleven")
    if learnt is not None:
        store_backgrounds(folder, {level.name: learnt})
    store(folder, calibrations)
    better = {
        key: earlier[key]
        for key, calibration in calibrations.items()
        if key in earlier and earlier[key].fitted.smallest_rate < calibration.fitted.smallest_rate
    }
    if better:
        calibrator.notify(
            f"this replaces a calibration with more normal rows: the model was {calibration_summary(better)}"
        )
    return calibrations


def default_modes(session: Session) -> tuple[str, ...]:
    """The modes to calibrate by default: one-pass (if the tokenizer supports it) and the field's own mode."""
    cheap = (str(ONE_PASS),) if session.tokenizer.units.facts.one_pass else ()
    return tuple(dict.fromkeys((*cheap, str(session.mode))))


def few_held_out(records: int, name: str, *, counted: bool) -> str:
    """The warning before a training that holds out too few records for a rate of .01, "" for enough records.

    Args:
        records: number of held-out records.
        name: name of the model.
        counted: whether training records also calibrate the statistics that need no model.
    """
    needed = (2 if counted else 1) * LEAST_ROWS - 1  # the smaller of two p-values is doubled
    if records >= needed:
        return ""
    smallest_rate = min(1.0, (needed + 1) / LEAST_ROWS / (records + 1))
    held_out = number_of(released_count(records), "record")
    held_out = f"Only {held_out} {'is' if held_out.startswith('1 ') else 'are'} held out"
    held_out = held_out if records else "No records are held out"
    subject = "model-based alarms" if counted else "alarms"
    rate = f"work at --fpr {rate_above(smallest_rate)} or higher (0.01 needs {needed})"
    supplement = " Rules based on counts use all training records." if counted else ""
    return (
        f"{held_out}, so {subject} {rate if records else f'do not work (--fpr 0.01 needs {needed})'}."
        f"{supplement} Give more data, or calibrate after the training: seqmlm calibrate {name} NORMAL"
    )


def _normal(config: CalibrateConfig, model: LoadedModel, problems: Problems) -> tuple[Records, int]:
    """Draw at most `config.records` normal records, and count the records from the training data.

    Raises:
        DataError: there are records from the training data and `on_error` is "raise", or no record is left.
    """
    sources = [split_source(path)[1] for path in config.paths]
    trained_on = stored_trained_on(Path(model.path))
    reservoir: list[tuple[int, Record]] = []
    rng = np.random.default_rng(config.seed)
    first: Record | None = None
    left_out = fresh = 0
    options = {**model.reading(config.format), **config.options}
    for record in model.domain.read(sources, problems, format=config.format, **options):
        if trained_on is not None and model.domain.keys.identity(record) in trained_on:
            first = first or record
            left_out += 1
            continue
        # Algorithm R (Vitter 1985): every record is drawn with the same probability.
        place = fresh if fresh < config.records else int(rng.integers(fresh + 1))
        if place < len(reservoir):
            reservoir[place] = (fresh, record)
        elif place < config.records:
            reservoir.append((fresh, record))
        fresh += 1
    if first is not None and config.on_error == "raise":
        # For patients, neither the number of known nor of unknown records may be shown.
        trained_count = "some" if model.card.sensitive else f"{left_out}"
        count = "" if model.card.sensitive else f"{left_out + fresh} "
        raise DataError(
            f"the model was trained on {trained_count} of the {count}records; this is the first of them. "
            "Memorized records score lower than new normal data",
            source=first.source,
            line=first.line,
            remedy="give other normal data, or skip these records (--on-error skip)",
        )
    if not reservoir:
        remedy = "give normal data that the model was not trained on"
        raise DataError("no normal record is left for calibration", source=sources[0], remedy=remedy)
    reservoir.sort(key=lambda numbered: numbered[0])
    streamed = "-" in sources
    files = (
        [] if streamed else model.domain.files.inputs(sources, format=config.format, options=config.options)
    )
    source = combined(files=file_fingerprint(files) if files else f"stdin:{fresh}", left_out=left_out)
    return Records(records=[record for _, record in reservoir], of=fresh, source=source), left_out


def is_judgeable(row: JudgedRow) -> bool:
    """Whether a normal row can be used for calibration: it has a score and is not unfamiliar."""
    return row.row.score is not None and not row.unfamiliar


# The calibrations of one model


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Normal records for calibration, without training data.

    Args:
        records: the records.
        of: number of records that they were drawn from.
        source: fingerprint of the data.
    """

    records: Sequence[Record]
    of: int
    source: str


@dataclass(kw_only=True, eq=False)
class JudgedRecords:
    """The rows of some normal records.

    Args:
        rows: the rows of all records.
        records: the records.
        spent: estimated forward tokens.
        share_drawn: the share of the records' rows that were drawn.
    """

    rows: list[JudgedRow] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    spent: float = 0.0
    share_drawn: float = 1.0

    @property
    def judgeable_rows(self) -> list[JudgedRow]:
        """The rows that can be used for calibration."""
        return [row for row in self.rows if is_judgeable(row)]

    def add(self, portion: Portion, rows: Sequence[JudgedRow]) -> None:
        """Add the rows of more records."""
        self.rows += rows
        self.records += [record.record for record in portion.records]
        self.spent, self.share_drawn = portion.spent, portion.drawn_share


def _least_rows(level: Level) -> int:
    """Number of rows that guarantee `USUAL_RATE`. With two p-values the smaller one is doubled."""
    return math.ceil((2 if level.statistics.counted else 1) / USUAL_RATE) - 1


@dataclass(kw_only=True, eq=False)
class Calibrator:
    """Calibrates one model. The same records give the same calibrations.

    Args:
        session: the model.
        problems: receives records that the model cannot read.
        seed: seed of all draws.
        budget: forward tokens to spend, without those for the background. None uses all records.
        notify: called with messages about what could not be done.
        progress: called with the progress.
        clock: the time limit of a training. It can stop a calibration between two portions of records.
    """

    session: Session
    problems: Problems
    seed: int = 0
    budget: int | None = None
    notify: Callable[[str], None] = field(default=lambda text: None)
    progress: Progress | None = None
    clock: TimeAfterTraining | None = None
    _share: float = field(default=1.0, init=False)  # share of the remaining time for the next mode

    def background(
        self, level: Level, normal: Records, train: Sequences | None
    ) -> tuple[Background | None, Records]:
        """The background of a level, and the records left for calibration.

        Half of the records fit the background if it needs scores, or if there is no training split.
        """
        if level.background is None:
            return None, normal
        half, other_half = normal.records[::2], replace(normal, records=normal.records[1::2])
        sequences = self._encodings(half) if train is None else self._affordable(level.background, train)
        fitted = level.background.fit(sequences, self.session.tokenizer, seed=self.seed)
        if self.session.card.sensitive:
            fitted = fitted.discreet()
        if fitted.needs_scores:
            fitted = fitted.learn(self._background_scores(level, half, thinned=fitted.learns_units))
        needs_own_records = train is None or (fitted.needs_scores and fitted.judges)
        return fitted, other_half if needs_own_records else normal

    def _affordable(self, kind: type[Background], train: Sequences) -> Sequences:
        """The training split, or as many of its sequences as time allows, if a sample is enough."""
        if self.clock is None or not kind.is_sampled or not len(train):
            return train
        probe_size = int(_PROBED_TOKENS / max(1.0, float(np.mean(train.lengths)))) + 1

        def spread(number: int) -> Sequences:
            return Subset(train, np.array(evenly(len(train), number), dtype=np.int64))

        number = self.clock.affordable(
            "the frequencies of the training data",
            lambda number: kind.fit(spread(number), self.session.tokenizer, seed=self.seed),
            count=len(train),
            probe=probe_size,
            share=_BACKGROUND_SHARE,
        )
        return train if number >= len(train) else spread(number)

    def _phase(self, name: str, share: float) -> Phase:
        """A part of the calibration that can stop between two portions of records."""
        return Phase(name, Deadline()) if self.clock is None else self.clock.phase(name, share)

    def _background_scores(
        self, level: Level, records: Sequence[Record], *, thinned: bool
    ) -> list[ScoredRecord]:
        """Scores of records that the background learns from.

        With `thinned`, only some rows or units of each record are scored if all would cost more than a
        quarter of the budget.
        """
        detector = Detector(self._scorer(), level, mode=self.session.mode)
        limit = None if self.budget is None else Limit(max(self.budget / 4, _LEARNT), records=SMALLEST)
        sample = self._sample(detector, records, limit, units=True) if thinned else None
        scores, spent = list[ScoredRecord](), 0.0
        phase = self._phase("calibration background", _BACKGROUND_SHARE)
        for portion in self._portions(detector, records, limit, sample):
            scores += detector.unit_scores(portion.records, portion.drawn_tokens)
            spent = portion.spent
            if phase.ends_after(portion.share(len(scores))) or portion.enough(len(scores)):
                break
        phase.settle("the normal scores for the background")
        if self.budget is not None:
            self.budget = max(self.budget // 2, self.budget - int(spent))
        return scores

    def calibrate(
        self,
        level: Level,
        modes: Sequence[str],
        normal: Records,
        background: Background | None,
        counted: CountedRows | None = None,
    ) -> dict[tuple[str, str], Stored]:
        """Calibrate a level in some modes, cheapest first.

        A mode gets no calibration if the data are sensitive and fewer than eleven records have rows.

        Args:
            counted: more rows, with only the statistics that come from counts.

        Raises:
            DataError: no record has a score.
            UsageError: the model does not support a mode.
        """
        calibrations: dict[tuple[str, str], Stored] = {}
        random = np.random.default_rng(self.seed)
        parts = [part for record in normal.records for part in level.sampling.parts(record, random)]
        normal, tokens_left = replace(normal, records=parts), self.budget
        for number, mode in enumerate(modes):
            detector = Detector(self._scorer(), level, mode=Mode.parse(mode), background=background)
            limit, sample, self._share = None, None, 1 / (len(modes) - number)
            if tokens_left is not None:
                rows = _least_rows(level) if number else LEAST_ROWS
                limit = Limit(tokens_left / (len(modes) - number), rows, SMALLEST)
                sample = self._sample(detector, parts, limit)
            late = number > 0 and self.clock is not None and self.clock.is_over(f"calibration {mode}")
            if late or (limit is not None and number and self._exceeds(limit, detector, parts, sample)):
                self.notify(
                    f"not calibrated in mode {mode}, which would exceed the time limit: run seqmlm calibrate "
                    "with normal data"
                )
                continue
            calibration, spent = self._fit_mode(detector, normal, limit, sample, counted)
            tokens_left = None if tokens_left is None else max(0, tokens_left - int(spent))
            if calibration is None:
                needed = f"sensitive data need {SMALLEST}; give more normal data to 'seqmlm calibrate'"
                self.notify(f"too few records to calibrate level {level.name} in mode {mode}: {needed}")
                continue
            calibrations[level.name, mode] = calibration
        return calibrations

    def _sample(
        self, detector: Detector, records: Sequence[Record], limit: Limit | None, *, units: bool = False
    ) -> RowSample | None:
        """The sample of rows to score within a limit, or None for all rows.

        units: draw units instead of rows if the rows of the level need whole records.
        """
        probed = [] if limit is None else self._probe_records(records)
        if limit is None or not probed:
            return None
        level, rule = detector.level, detector.level.view.units(self.session.tokenizer)
        numbers = row_numbers(level, rule)
        if units and numbers(probed[0]) is None:
            numbers = unit_rows(rule)
        return row_sample(
            numbers,
            probed,
            len(records),
            cost_of(self.session, level, detector.mode),
            limit,
            rule=rule,
            neighbours=detector.mode.asks_windows,
            rows=math.inf if units else ENOUGH_ROWS,
            seed=self.seed,
        )

    def _probe_records(self, records: Sequence[Record]) -> list[Encoded]:
        """Some of the records, spread evenly, tokenized."""
        chosen = [records[place] for place in nested(len(records))[:_PROBED]]
        return self._encoded(chosen, Problems("skip"))

    def _exceeds(
        self, limit: Limit, detector: Detector, records: Sequence[Record], sample: RowSample | None
    ) -> bool:
        """Whether the minimum number of records and rows costs more than twice the limit."""
        probed, level = self._probe_records(records), detector.level
        cost = cost_of(self.session, level, detector.mode)
        samples = [None if sample is None else sample.of(record) for record in probed]
        tokens = [
            cost(record.encoding, None if rows_drawn is None else rows_drawn.drawn_tokens)
            for record, rows_drawn in zip(probed, samples, strict=True)
        ]
        rows = (
            np.mean([1 if rows_drawn is None else rows_drawn.rows for rows_drawn in samples])
            if samples
            else 1.0
        )
        least_records = float(limit.records)
        # Otherwise the number of rows in a record is known only after scoring.
        if level.row_per_record or sample is not None:
            least_records = max(least_records, limit.rows / max(float(rows), 1.0))
        return bool(tokens) and float(np.mean(tokens)) * min(least_records, len(records)) > 2 * limit.tokens

    def _fit_mode(
        self,
        detector: Detector,
        normal: Records,
        limit: Limit | None,
        sample: RowSample | None,
        counted: CountedRows | None,
    ) -> tuple[Stored | None, float]:
        """The calibration of a level in a mode (None for too few people), and the forward tokens used."""
        judged = self._judge(detector, normal, limit, sample)
        people = len({(row.row.source, row.scored_record.record.id) for row in judged.judgeable_rows})
        if self.session.card.sensitive and 0 < people < SMALLEST:  # it would reveal single people
            return None, judged.spent
        # In other fields unfamiliar rows raise no alarm, so their rate is not needed.
        evidence = detector.level.unknown_is_evidence
        unfamiliar = sum(row.unfamiliar for row in judged.rows) if evidence else 0
        if unfamiliar and self.session.card.sensitive:
            unfamiliar = max(unfamiliar, SMALLEST)  # as above
        fitted = self._fit(detector.level, judged.judgeable_rows, counted, unfamiliar)
        return Stored(fitted=fitted, **self._facts(judged, normal)), judged.spent

    def _fit(
        self, level: Level, judged: Sequence[JudgedRow], counted: CountedRows | None, unfamiliar: int
    ) -> Calibration:
        """The calibration from judged rows. The counted rows also calibrate the statistics from counts."""
        statistics, lengths = table([judged_row.row for judged_row in judged], level.statistics.judging)
        owners = self._owners(judged)
        fit = partial(Normal.fit, seed=self.seed, fusion=level.statistics.fusion)
        of_model = {
            name: statistic for name, statistic in statistics.items() if name not in level.statistics.counted
        }
        normal = replace(fit(of_model, lengths, records=owners), unfamiliar=unfamiliar)
        if not level.statistics.counted:
            return normal
        of_counts = {name: statistics[name] for name in level.statistics.counted}
        if counted is not None:
            of_counts = {
                n: np.concatenate([statistic, counted.statistics[n]]) for n, statistic in of_counts.items()
            }
            lengths = np.concatenate([lengths, counted.lengths])
            owners = np.concatenate([owners, counted.records])
        return TwoPopulations(normal, fit(of_counts, lengths, records=owners))

    def _judge(
        self, detector: Detector, normal: Records, limit: Limit | None, sample: RowSample | None
    ) -> JudgedRecords:
        """The rows of normal records, up to a sufficient number."""
        judged, scored = JudgedRecords(), 0
        phase = self._phase(f"calibration {detector.mode}", self._share)
        for portion in self._portions(detector, normal.records, limit, sample):
            rows = [
                row
                for record_rows in detector.each(portion.records, portion.drawn_tokens)
                for row in record_rows
            ]
            scored += sum(map(is_judgeable, rows))
            judged.add(portion, rows)
            if self.progress is not None:
                self.progress(str(detector.mode), portion.share(scored), scored)
            phase.min_units += int(portion.owes(scored, _least_rows(detector.level)))
            if phase.ends_after(portion.share(scored)) or portion.enough(scored):
                break
        phase.settle(f"the calibration rows for {detector.mode}")
        return judged

    def _portions(
        self,
        detector: Detector,
        records: Sequence[Record],
        limit: Limit | None,
        sample: RowSample | None = None,
    ) -> Iterator[Portion]:
        """Yield records in parts of about one batch.

        If not all records may be used, they are ordered so that the first N are spread evenly, for every N.
        """
        if limit is not None:
            records = [records[place] for place in nested(len(records))]
        cost = cost_of(self.session, detector.level, detector.mode)
        portion_tokens = Budget.of(self.session.model, detector.mode).batch
        if limit is not None:
            least_tokens = 1.0 if self.clock is None else _LEAST_PORTION  # smaller portions are slower
            portion_tokens = min(portion_tokens, max(limit.tokens / _PORTIONS, least_tokens))
        done, tokens, rows, all_rows = 0, 0.0, 0, 0
        part, drawn_tokens = list[Encoded](), list[Bools]()

        def portion() -> Portion:
            share = rows / all_rows if all_rows else 1.0
            chosen = None if sample is None else drawn_tokens
            return Portion(part, chosen, done, len(records), share, tokens, limit)

        for batch in batches(records):
            for record in self._encoded(batch, self.problems):
                part.append(record)
                drawn_rows = None if sample is None else sample.of(record)
                if drawn_rows is not None:
                    drawn_tokens.append(drawn_rows.drawn_tokens)
                    rows, all_rows = rows + drawn_rows.rows, all_rows + drawn_rows.of
                done, earlier_tokens = done + 1, tokens
                tokens += cost(record.encoding, None if drawn_rows is None else drawn_rows.drawn_tokens)
                if tokens // portion_tokens > earlier_tokens // portion_tokens:
                    yield portion()
                    part, drawn_tokens = [], []
        if part:
            yield portion()

    def _owners(self, judged: Sequence[JudgedRow]) -> Longs:
        """(N,) hashes of the groups that rows belong to, as in the data split: patients, files or sessions.

        If all rows belong to one group, the hashes identify records.
        """
        keys = [self.session.domain.keys.split(row.scored_record.record) for row in judged]
        if len(set(keys)) == 1:
            keys = [f"{row.row.source}\0{row.scored_record.record.id}" for row in judged]
        return np.array([hash64(key) for key in keys], dtype=np.int64)

    def _scorer(self) -> RecordScorer:
        """A scorer with an empty cache, so that each calibration is independent of earlier ones."""
        self.session.forget()
        return RecordScorer(self.session)

    def _encoded(self, records: Sequence[Record], problems: Problems) -> list[Encoded]:
        return encoded(self.session.domain, self.session.tokenizer, records, problems)

    def _facts(self, judged: JudgedRecords, normal: Records) -> dict[str, Any]:
        record_count = len(
            {(record.source, record.id) for record in judged.records}
        )  # a record may have been read in parts
        times = [row.row.time for row in judged.judgeable_rows if row.row.time is not None]
        if self.session.card.sensitive and len(times) < SMALLEST:
            times = []  # with few rows, the first and last times would be dates of single people
        rate = rows_per_day(len(times), min(times), max(times)) if times else None
        daily = None if rate is None else rate * normal.of / (record_count * judged.share_drawn)
        return {
            "rows_per_day": daily,
            "source": normal.source,
            "precision": self.session.precision,
            "records": record_count,
            "counts": counts_identity(self.session),
        }

    def _encodings(self, records: Sequence[Record]) -> InMemory:
        """The windows of all records that the model can read."""
        space, longest = self.session.tokenizer.space, self.session.card.max_length
        all_windows: list[Encoding] = []
        for batch in batches(records):
            for record in self._encoded(batch, self.problems):
                all_windows += windows(record.encoding, space, longest)
        return InMemory(all_windows)
