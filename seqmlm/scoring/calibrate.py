"""Normal records to calibrations: what is usual for a model, at a level and in a mode, kept in its folder.

`seqmlm calibrate` takes normal data of the user, `seqmlm train` the records it set aside. Neither may hold
what the model was trained on: scores of memorized records are lower than those of new ones. The
same records give the same calibrations; a training spends a bounded share of its time on them, more of it
where rows would be few, and of more records those it can afford are taken, spread evenly. Where rows of a
record can be judged without the rest of it, some rows of each of many records are (`scoring/sampling.py`).
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
"""Rows that a training gives its cheapest mode, if the clock lets it: they guarantee rates of .01."""

_PORTIONS, _LEAST_PORTION = 16, 2_048.0  # of a limit; forward tokens
_LEARNT = 60_000  # forward tokens that what must be known of scores may take, however little the limit is
_BACKGROUND_SHARE = 0.3  # of the time that is left
_PROBED_TOKENS = 40_000  # whose frequencies say how long those of all take
_PROBED = 8  # records whose cost says whether a mode is within a limit

MOST_RECORDS = 20_000
"""Records that a calibration looks at; of more, so many spread evenly."""


Progress = Callable[[str, float, int], None]
"""Told the mode, how much of it is done (0 to 1), and how many rows there are."""


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig(CommandConfig):
    """The settings of a calibration with normal data.

    Args:
        paths: files or folders of normal data; - is standard input.
        level: what gets a score each, such as record, line or residue. Default: by domain.
        mode: calibrate only this mode (see `seqmlm score --help`). Default: all possible.
        fpr: false positive rate: report whether these data can guarantee it.
        records: use this many normal records, spread evenly.
        on_error: bad records, and records the model was trained on: raise (stop) or skip.
        tokens_per_batch: tokens of one forward pass; halved when memory runs out. Default: by device.
        expert: counts of the training data, mixed into the model's probabilities: auto (where that was better
            on validation records), counts (wherever the model has any) or none.
        seed: of the draw of records.
    """

    option_fields = ("level", "mode", "fpr", "records", *CommandConfig.option_fields)
    metavar: ClassVar[str] = "[NORMAL|-]..."

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
            raise UsageError(f"--fpr is a share between 0 and 1, such as 0.001 or 0.1%; got {self.fpr:g}")


@dataclass(frozen=True, kw_only=True)
class CalibrateResult:
    """The calibrations that were made, and the records they rest on.

    Args:
        model: as the user named it.
        level: judged at.
        records: normal records that were used; left_out: those the model was trained on.
        modes: for each mode rows, smallest_rate (of false alarms that is guaranteed), tail (whether smaller
            ones are extrapolated), judged_by, rows_per_day, precision and, where a rate was asked for, what
            it rests on.
        problems: by reason.
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
    """Replace a model's calibrations of one level by those from normal data.

    Raises:
        UsageError: no input, or a level or mode the model does not have.
        DataError: records the model was trained on, unreadable ones, or none with a score.
        StateError: no such model, or its folder cannot be written; then it has the calibrations it had.
    """
    if not config.paths:
        raise UsageError("nothing to calibrate with: name files or folders of normal data, or - for stdin")
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
    """Fit the calibrations of a level and put them in the place of those the model had; others stay.

    Raises:
        DataError: no record has a score, or there are too few of sensitive data.
        StateError: the folder cannot be written.
    """
    model = calibrator.session.model
    folder = Path(model.path)
    earlier = readable_calibrations(folder, calibrator.notify)  # says now what of a broken file will be lost
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
            f"this takes the place of one by more normal rows: the model was {calibration_summary(better)}"
        )
    return calibrations


def default_modes(session: Session) -> tuple[str, ...]:
    """The modes that a level is calibrated in where none is named: one pass and the field's own, the cheaper
    first."""
    cheap = (str(ONE_PASS),) if session.tokenizer.units.facts.one_pass else ()
    return tuple(dict.fromkeys((*cheap, str(session.mode))))


def few_held_out(records: int, name: str, *, counted: bool) -> str:
    """The warning before a training that holds out too few records for a rate of .01; "" for enough.

    Args:
        counted: the training records calibrate, too, the statistics that need no model.
    """
    needed = (2 if counted else 1) * LEAST_ROWS - 1  # of two p-values the smaller one counts twice
    if records >= needed:
        return ""
    smallest_rate = min(1.0, (needed + 1) / LEAST_ROWS / (records + 1))
    rate = f"rates of {rate_above(smallest_rate)} and above" if records else "no rate"
    held_out = number_of(released_count(records), "record")
    subject = "alarms by the model's surprisals" if counted else "alarms"
    supplement = ", while all training records judge what is counted" if counted else ""
    return (
        f"with {held_out} held out for calibration, {subject} are possible at {rate}{supplement}; "
        f"--fpr 0.01 needs {needed}: give more data, or after the training seqmlm calibrate {name} NORMAL "
        "with as many other records"
    )


def _normal(config: CalibrateConfig, model: LoadedModel, problems: Problems) -> tuple[Records, int]:
    """At most `config.records` normal records, drawn evenly, and how many the model was trained on.

    Raises:
        DataError: some were, and they shall not be left out; or there is none.
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
        # Of patients neither how many are known nor how many are not may be told.
        trained_count = "some" if model.card.sensitive else f"{left_out}"
        count = "" if model.card.sensitive else f"{left_out + fresh} "
        raise DataError(
            f"the model was trained on {trained_count} of the {count}records, this one first: scores of "
            "memorized records are not those of normal data",
            source=first.source,
            line=first.line,
            remedy="give other normal data, or continue without these records (--on-error skip)",
        )
    if not reservoir:
        raise DataError("no normal record is left to calibrate with", source=sources[0], remedy="give others")
    reservoir.sort(key=lambda numbered: numbered[0])
    streamed = "-" in sources
    files = (
        [] if streamed else model.domain.files.inputs(sources, format=config.format, options=config.options)
    )
    source = combined(files=file_fingerprint(files) if files else f"stdin:{fresh}", left_out=left_out)
    return Records(records=[record for _, record in reservoir], of=fresh, source=source), left_out


def is_judgeable(row: JudgedRow) -> bool:
    """Whether a normal row can be compared with: it has a score, and the model knows what it holds."""
    return row.row.score is not None and not row.unfamiliar


# The calibrations of one model


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Normal records to calibrate with, none of which the model was trained on.

    Args:
        of: how many records they stand for, where they were drawn evenly from more.
        source: fingerprint of the data.
    """

    records: Sequence[Record]
    of: int
    source: str


@dataclass(kw_only=True, eq=False)
class JudgedRecords:
    """The rows of some normal records.

    Args:
        rows: of all of them.
        records: those that were taken.
        spent: forward tokens, by estimate.
        share_drawn: the share of the records' rows that these are.
    """

    rows: list[JudgedRow] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    spent: float = 0.0
    share_drawn: float = 1.0

    @property
    def judgeable_rows(self) -> list[JudgedRow]:
        """Rows that can be compared with."""
        return [row for row in self.rows if is_judgeable(row)]

    def add(self, portion: Portion, rows: Sequence[JudgedRow]) -> None:
        """Take the rows of further records."""
        self.rows += rows
        self.records += [record.record for record in portion.records]
        self.spent, self.share_drawn = portion.spent, portion.drawn_share


def _least_rows(level: Level) -> int:
    """Rows that guarantee `USUAL_RATE`; of two p-values the smaller one counts twice."""
    return math.ceil((2 if level.statistics.counted else 1) / USUAL_RATE) - 1


@dataclass(kw_only=True, eq=False)
class Calibrator:
    """Calibrates one model; the same records give the same calibrations.

    Args:
        session: the model.
        problems: receives records that the model cannot read.
        seed: of all draws.
        budget: forward tokens to spend, less what a background has learnt from; None for as many as all
            records take.
        notify: told what could not be done.
        progress: told how far it is.
        clock: the time limit of a training, which may stop a calibration between two portions of records.
    """

    session: Session
    problems: Problems
    seed: int = 0
    budget: int | None = None
    notify: Callable[[str], None] = field(default=lambda text: None)
    progress: Progress | None = None
    clock: TimeAfterTraining | None = None
    _share: float = field(default=1.0, init=False)  # of the time that is left, for the next mode

    def background(
        self, level: Level, normal: Records, train: Sequences | None
    ) -> tuple[Background | None, Records]:
        """The background of a level, and the records left to calibrate with.

        Half of the records fit the background where it needs scores, or where there is no training split.
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
        """The training split, or as many sequences of it as the time suffices for, where fewer will do."""
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
        """A part of the calibration that stops between two portions of records."""
        return Phase(name, Deadline()) if self.clock is None else self.clock.phase(name, share)

    def _background_scores(
        self, level: Level, records: Sequence[Record], *, thinned: bool
    ) -> list[ScoredRecord]:
        """Scores of records that a background learns from: of some rows or units of each, where those are
        enough for it and all cost more than a quarter of the budget."""
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
        phase.settle("the records that say what scores are usual")
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
        """Calibrate a level in some modes, the cheapest first, with further rows that are counted.

        Nothing is made for a mode in which fewer than eleven sensitive records have rows.

        Raises:
            DataError: no record has a score.
            UsageError: a mode that this model cannot be asked in.
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
                    f"not calibrated in mode {mode}, which takes longer than the training's limit allows: "
                    "seqmlm calibrate on normal data does it"
                )
                continue
            calibration, spent = self._fit_mode(detector, normal, limit, sample, counted)
            tokens_left = None if tokens_left is None else max(0, tokens_left - int(spent))
            if calibration is None:
                needed = f"sensitive data need {SMALLEST}; give more normal data to 'seqmlm calibrate'"
                self.notify(f"too few records to calibrate {level.name} in mode {mode}: {needed}")
                continue
            calibrations[level.name, mode] = calibration
        return calibrations

    def _sample(
        self, detector: Detector, records: Sequence[Record], limit: Limit | None, *, units: bool = False
    ) -> RowSample | None:
        """The rows of each record that a limit is spent on; None for all rows.

        `units`: of a level whose rows need whole records, units are drawn in their place.
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
        """Whether the fewest records and rows that are worth a calibration cost far more than a limit."""
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
        # Else a record has rows that are known when it is scored.
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
        """The calibration of a level in a mode (None: too few people), and the forward tokens it took."""
        judged = self._judge(detector, normal, limit, sample)
        people = len({(row.row.source, row.scored_record.record.id) for row in judged.judgeable_rows})
        if self.session.card.sensitive and 0 < people < SMALLEST:  # they would tell of single ones
            return None, judged.spent
        # Elsewhere such rows raise no alarm, and how rare they are is not asked.
        evidence = detector.level.unknown_is_evidence
        unfamiliar = sum(row.unfamiliar for row in judged.rows) if evidence else 0
        if unfamiliar and self.session.card.sensitive:
            unfamiliar = max(unfamiliar, SMALLEST)  # as above
        fitted = self._fit(detector.level, judged.judgeable_rows, counted, unfamiliar)
        return Stored(fitted=fitted, **self._facts(judged, normal)), judged.spent

    def _fit(
        self, level: Level, judged: Sequence[JudgedRow], counted: CountedRows | None, unfamiliar: int
    ) -> Calibration:
        """The calibration by judged rows; statistics of counts are also calibrated by the counted rows."""
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
        """The rows of normal records, taken until there are enough."""
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
        phase.settle(f"the rows that calibrate {detector.mode}")
        return judged

    def _portions(
        self,
        detector: Detector,
        records: Sequence[Record],
        limit: Limit | None,
        sample: RowSample | None = None,
    ) -> Iterator[Portion]:
        """Records in parts of about a batch; in an order of which every beginning is spread evenly, where
        not all may be taken."""
        if limit is not None:
            records = [records[place] for place in nested(len(records))]
        cost = cost_of(self.session, detector.level, detector.mode)
        portion_tokens = Budget.of(self.session.model, detector.mode).batch
        if limit is not None:
            least_tokens = 1.0 if self.clock is None else _LEAST_PORTION  # smaller ones take the clock longer
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
        """(N,) hashes of what rows are of, as training divides data; of records, where all are of one."""
        keys = [self.session.domain.keys.split(row.scored_record.record) for row in judged]
        if len(set(keys)) == 1:
            keys = [f"{row.row.source}\0{row.scored_record.record.id}" for row in judged]
        return np.array([hash64(key) for key in keys], dtype=np.int64)

    def _scorer(self) -> RecordScorer:
        """A scorer that remembers nothing of the calibrations before: each is the same on its own."""
        self.session.forget()
        return RecordScorer(self.session)

    def _encoded(self, records: Sequence[Record], problems: Problems) -> list[Encoded]:
        return encoded(self.session.domain, self.session.tokenizer, records, problems)

    def _facts(self, judged: JudgedRecords, normal: Records) -> dict[str, Any]:
        record_count = len(
            {(record.source, record.id) for record in judged.records}
        )  # a record may have come in parts
        times = [row.row.time for row in judged.judgeable_rows if row.row.time is not None]
        if self.session.card.sensitive and len(times) < SMALLEST:
            times = []  # the first and the last of few are dates of single people
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
        """Windows of the records that the model can read."""
        space, longest = self.session.tokenizer.space, self.session.card.max_length
        all_windows: list[Encoding] = []
        for batch in batches(records):
            for record in self._encoded(batch, self.problems):
                all_windows += windows(record.encoding, space, longest)
        return InMemory(all_windows)
