"""What a scoring writes: a line for each row that was judged, and a summary of all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from seqmlm.anomaly.findings import told
from seqmlm.anomaly.levels import UNKNOWN, Level
from seqmlm.anomaly.values import ALONE, COUNTED, Doubles, Row, Scored
from seqmlm.data.privacy import redact_small_counts, redacted_count
from seqmlm.data.record import Record
from seqmlm.domains.base import plural
from seqmlm.engine.reductions import Entropy, Rank, TopIds, TopLogProbs
from seqmlm.errors import number_of
from seqmlm.evaluation.incidents import Incidents
from seqmlm.inference.batches import characters
from seqmlm.inference.calibrations import stored_trained_on
from seqmlm.inference.detector import SMALL, JudgedRow
from seqmlm.inference.runner import Counts, Runner
from seqmlm.reports.reasons import counted
from seqmlm.streams.sinks import Kind, Schema
from seqmlm.tasks.score_config import ScoringRequest
from seqmlm.tasks.score_plan import ScoringPlan
from seqmlm.tasks.score_shift import FEWEST_TOLD, shifted
from seqmlm.tokenizers.base import Tokenizer

TOP_UNITS = 5
"""Units that `top` names, and those whose mean is `top_mean`."""


def line(
    judged: JudgedRow,
    tokenizer: Tokenizer,
    *,
    per_unit: bool = False,
    top: bool = True,
    sensitive: bool = False,
    calibrated: bool | None = None,
    level: Level | None = None,
) -> dict[str, Any]:
    """The fields of a row; those that do not apply are left out, those without a value are None.

    Of a record that is a part of something longer (a block of a contig), places are those in the whole.

    Args:
        judged: the row.
        tokenizer: names the expected alternatives.
        per_unit: every unit with its surprisal, entropy and rank.
        top: the most surprising units, with what was expected instead.
        sensitive: the row says that it is of sensitive data, for whoever reads it.
        calibrated: rows have p-values, and one without a score has None; default: if this one has.
        level: it was judged at; then an alarm says why it is one.
    """
    row, scored = judged.row, judged.scored
    bits = scored.surprisal[row.units]
    part = row.place is not None and row.place.name != scored.record.id
    whole = row.start == 0 and len(row.units) == len(scored) and not part
    fields: dict[str, Any] = {"id": row.id, "source": row.source, "line": row.line}
    if not whole:
        start, end = row.at(row.start, row.end)
        fields |= {"start": start, "end": end}
    fields |= {"units": len(bits), **summary(bits), "score": _finite(row.score), **row.extra}
    if sensitive:
        fields["sensitive"] = True
    if judged.unfamiliar:
        fields["unfamiliar"] = True
    calibrated = judged.p_value is not None if calibrated is None else calibrated
    if calibrated:
        # Of a row without a score it is not known whether it is normal.
        p_value = None if row.score is None else judged.p_value
        fields |= {"p_value": p_value, "extrapolated": judged.extrapolated}
    if judged.alarm is not None:
        fields["alarm"] = judged.alarm
    if judged.alarm and level is not None:
        fields["reason"] = reason(level.name, level, judged)
    if calibrated:
        fields["channels"] = dict(judged.p_values)
    if top:
        worst = row.units[np.argsort(-bits, kind="stable")[:TOP_UNITS]]
        fields["top"] = [unit_fields(row, scored, unit, tokenizer) for unit in worst.tolist()]
    if per_unit:
        fields["per_unit"] = [unit_fields(row, scored, unit, tokenizer) for unit in row.units.tolist()]
    return fields


def reason(rule: str, level: Level, judged: JudgedRow) -> str:
    """Why a row raised an alarm, in some sentences; `rule` is what it is called."""
    name = judged.fired
    fired = None if name is None else (level.meaning(name, judged.row), judged.p_values[name])
    text = told(rule, judged.row, judged.scored, judged.p_value, fired, beyond=judged.extrapolated)
    strange = name != UNKNOWN and UNKNOWN in level.shares and judged.p_values.get(UNKNOWN, 1.0) <= SMALL
    return f"{text} {level.meaning(UNKNOWN, judged.row)}." if strange else text


def lines(
    config: ScoringRequest,
    plan: ScoringPlan,
    counts: ScoreCounts,
    wanted: Callable[[JudgedRow], bool],
    further: Callable[[JudgedRow], Mapping[str, Any]] = lambda row: {},
) -> Callable[[Sequence[JudgedRow]], list[dict[str, Any]]]:
    """What makes the lines of rows, counts them, and leaves out those that are not asked for.

    Args:
        config, plan: what is asked for.
        counts: of all rows.
        wanted: shown every row; whether it may be written.
        further: fields that the line of a row has behind all others.
    """
    tokenizer = plan.session.tokenizer
    # Others are scored: an unknown line of a log is a unit like any other.
    trained_on, identity = stored_trained_on(Path(plan.session.model.path)), plan.session.domain.identity
    counts.is_known = None if trained_on is None else lambda record: identity(record) in trained_on
    counts.unfamiliar_ids = [one for one in tokenizer.unfamiliar if tokenizer.space.is_special[one]]

    write = partial(
        line,
        tokenizer=tokenizer,
        per_unit=config.per_unit,
        sensitive=plan.sensitive,
        calibrated=plan.calibrated,
        level=plan.level,
    )

    def made(judged: Sequence[JudgedRow]) -> list[dict[str, Any]]:
        before = None
        kept = []
        for row in judged:
            counts.add(row, first=row.scored is not before)
            if wanted(row) and (row.alarm or not config.alarms_only):
                kept.append(row)
            before = row.scored
        return [{**write(row), **further(row)} for row in kept]

    return made


def summary(bits: Doubles) -> dict[str, float | None]:
    """Reductions of surprisals in bits; `pll` is in nats. None where there is no unit."""
    if not len(bits):
        names = ("bits_per_unit", "perplexity", "max", "top_mean")
        return {"pll": 0.0, "sum": 0.0, **dict.fromkeys(names)}
    total = float(bits.sum())
    mean = total / len(bits)
    return {
        "pll": -total * math.log(2),
        "bits_per_unit": mean,
        "sum": total,
        "max": float(bits.max()),
        "top_mean": float(np.sort(bits)[-TOP_UNITS:].mean()),
        "perplexity": 2.0**mean if mean < 1000 else None,
    }


def unit_fields(row: Row, scored: Scored, unit: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """One unit of a row: its text, its meaning and place, its surprisal, and what was expected instead.

    What can only be a piece of a unit is not named, so that `expected` has fewer entries then, or none.
    """
    start, end = row.at(*scored.spans[unit].tolist())
    fields: dict[str, Any] = {
        "unit": scored.text(unit),
        "start": start,
        "end": end,
        "surprisal": float(scored.surprisal[unit]),
    }
    fields = _with_meaning(fields, tokenizer.meaning(fields["unit"]))
    values = {name: own[unit] for name, own in scored.values.items()}
    if COUNTED in values:
        fields["model_surprisal"] = float(values[ALONE])
        fields["counted"] = float(values[COUNTED])
        fields["reason"] = counted(scored, unit)
    if Entropy.name in values:
        fields["entropy"] = float(values[Entropy.name])
    if Rank.name in values:
        fields["rank"] = int(values[Rank.name])
    if TopIds.name in values:
        names = scored.rule.names
        symbols, log_probs = values[TopIds.name].tolist(), values[TopLogProbs.name].tolist()
        spelled = [tokenizer.alone(one) if names is None else names[one] for one in symbols if one >= 0]
        fields["expected"] = [
            _with_meaning({"unit": text, "p": math.exp(log_prob)}, tokenizer.meaning(text))
            for text, log_prob in zip(spelled, log_probs, strict=False)
            if text is not None
        ]
    return fields


def _with_meaning(fields: dict[str, Any], meaning: str | None) -> dict[str, Any]:
    return fields if meaning is None else {**fields, "description": meaning}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# The columns of the rows

_COLUMNS: dict[str, Kind] = {
    "id": "text",
    "source": "text",
    "line": "integer",
    "start": "integer",
    "end": "integer",
    "units": "integer",
    "pll": "number",
    "bits_per_unit": "number",
    "sum": "number",
    "max": "number",
    "top_mean": "number",
    "perplexity": "number",
    "score": "number",
}


def schema(plan: ScoringPlan) -> Schema:
    """The columns of a scoring's rows, the same for every row; fields of `Row.extra` are not among them."""
    columns = dict(_COLUMNS)
    if plan.sensitive:
        columns["sensitive"] = "flag"
    if plan.calibrated:
        columns["p_value"] = "number"
        columns["extrapolated"] = "flag"
        if plan.alpha is not None:
            columns["alarm"] = "flag"
            columns["reason"] = "text"
            columns["unfamiliar"] = "flag"
        columns["channels"] = "p_values"
    columns["top"] = "units"
    if plan.per_unit:
        columns["per_unit"] = "units"
    return Schema(columns=columns, statistics=plan.level.judges if plan.calibrated else ())


_FEW_UNKNOWN = 0.005  # a share of unknown units that is worth a line

# The summary: what was counted, for people in lines and for machines as an object


@dataclass(frozen=True, kw_only=True)
class ScoreSummary:
    """What a scoring did.

    Args:
        records, rows, units: scored, those before a `--resume` included.
        bad: records left out; with `records`, all that were read.
        problems: bad records and oddities, by reason.
        places: the first place of each reason, as "file:line", where it is known.
        seconds: of this process.
        rate: records a second of this process.
        unit: what the model's domain counts.
        level, mode, precision: of the rows.
        alarms, incidents: rows that alarmed, and groups of those that overlap; None where no rate was asked.
        unfamiliar: rows of which the model knows nothing, which are among the alarms.
        unknown: units outside the model's vocabulary, which no score counts.
        trained_on: records that the model was trained on.
        low_p: share of rows with p-values of at most .5, which is half of rows like those the model was
            calibrated with; None of fewer than `FEWEST_TOLD` rows, here or there.
        lowest_p: the same of p-values of at most .05.
        stopped: the signal that ended it early, or None.
        streamed: whether rows went to standard output.
        go_on: what the same command needs to go on with it; "" where that is not possible.
        quarantine: where bad records went, or None.
        notes: what happened on the way that a person should know.
    """

    records: int
    rows: int
    units: int
    bad: int
    problems: Mapping[str, Any]
    places: Mapping[str, str]
    seconds: float
    rate: float
    unit: str
    level: str
    mode: str
    precision: str
    alarms: int | str | None = None
    incidents: int | str | None = None
    unfamiliar: int | str = 0
    unknown: int | str = 0
    trained_on: int | str = 0
    low_p: float | None = None
    lowest_p: float | None = None
    stopped: int | None = None
    quarantine: str | None = None
    run: str | None = None
    streamed: bool = False
    go_on: str = ""

    notes: ClassVar[Mapping[str, Any]] = {}
    tables: ClassVar[Sequence[Any]] = ()

    @property
    def answer(self) -> str:
        """What the command line says."""
        return self.sentence()

    def to_dict(self) -> dict[str, Any]:
        """What machines read."""
        return {name: value for name, value in asdict(self).items() if name not in ("streamed", "go_on")}

    def warnings(self) -> list[str]:
        """What a person should know before believing the scores, a sentence each."""
        found = []
        if self.unfamiliar:
            found.append(f"unfamiliar rows, of which the model knows nothing: {self.unfamiliar}")
        if isinstance(self.unknown, int) and self.unknown > _FEW_UNKNOWN * (self.unknown + self.units):
            share = self.unknown / (self.unknown + self.units)
            found.append(f"{share:.0%} of the {plural(self.unit)} are unknown to the model, and not scored")
        if self.trained_on:
            found.append(
                f"the model was trained on {self.trained_on} of the records: scores of such are lower than "
                "those of new ones"
            )
        if (shift := shifted(self.low_p, self.lowest_p)) is not None:
            found.append(shift[1])
        return found

    def sentence(self) -> str:
        """For stderr: a line for each reason, and one for the whole."""
        first = {reason: f" (first: {place})" for reason, place in self.places.items()}
        reasons = "".join(
            f"{count} x {reason}{first.get(reason, '')}\n" for reason, count in self.problems.items()
        )
        warnings = "".join(f"{one}\n" for one in self.warnings())
        bad = f", {self.bad} bad {'record' if self.bad == 1 else 'records'} left out" if self.bad else ""
        if self.bad and self.quarantine is not None:
            bad += f" ({self.quarantine})"
        alarms = ""
        if self.alarms is not None:
            alarms = f", {number_of(self.alarms, 'alarm')} in {number_of(self.incidents, 'incident')}"
        stopped = ", stopped early" if self.stopped is not None else ""
        return (
            f"{reasons}{warnings}scored {number_of(self.records, 'record')}, "
            f"{self.units:,} {self.unit if self.units == 1 else plural(self.unit)} "
            f"in {self.seconds:.1f} s ({_rate(self.rate)} records/s){alarms}{bad}{stopped}"
        )


UNSCORED = "row without a score, for nothing in it, or too little, can be scored"


class ScoreCounts(Counts):
    """Counts rows as they are judged: units, those without a score, alarms, and incidents.

    Attributes:
        unfamiliar_ids: of tokens that stand for what the vocabulary does not have.
        is_known: whether the model was trained on a record; None where that is not known.
        characters: of the records counted by this process, as `inference.batches.characters` counts them.

    Args:
        total: characters of all records, by estimate; None where that is not known.
    """

    unfamiliar_ids: Sequence[int] = ()
    is_known: Callable[[Record], bool] | None = None

    characters: int
    units: int
    alarms: int
    unscored: int
    unfamiliar: int
    unknown: int
    trained_on: int
    with_p: int
    low_p: int
    lowest_p: int
    numbers: ClassVar[Sequence[str]] = [
        "units",
        "alarms",
        "unscored",
        "unfamiliar",
        "unknown",
        "trained_on",
        "with_p",
        "low_p",
        "lowest_p",
    ]
    """Attributes that are kept as numbers."""

    def __init__(self, total: float | None = None) -> None:
        self._total = total
        self.restore({})

    @property
    def share(self) -> float | None:
        return None if self._total is None else min(1.0, self.characters / max(self._total, 1.0))

    def restore(self, counts: Mapping[str, Any]) -> None:
        super().restore(counts)
        self.characters = 0
        for name in self.numbers:
            setattr(self, name, int(counts.get(name, 0)))
        self.first = str(counts.get("first_unscored", ""))
        self._incidents = Incidents(int(counts.get("incidents_over", 0)), counts.get("incidents_open", ()))

    def add(self, judged: JudgedRow, *, first: bool) -> None:
        """Count a row; `first` where it is the first of its record, whose units are counted then."""
        self.rows += 1
        if first:
            self.units += len(judged.scored)
            self.characters += characters(judged.scored.record)
            self.unknown += len(judged.scored.unknown(self.unfamiliar_ids))
            self.trained_on += self.is_known is not None and self.is_known(judged.scored.record)
        if judged.p_value is not None:
            self.with_p += 1
            self.low_p += judged.p_value <= 0.5
            self.lowest_p += judged.p_value <= 0.05
        self.unfamiliar += judged.unfamiliar
        if judged.row.score is None:
            self.unscored += 1
            self.first = self.first or f"{judged.row.source}:{judged.row.line}"
        if judged.alarm:
            self.alarms += 1
            self.group(judged)

    def group(self, judged: JudgedRow) -> None:
        """Put an alarm to the incident that it overlaps or touches."""
        self._incidents.add(*_extent(judged))

    def snapshot(self) -> dict[str, Any]:
        return {
            **super().snapshot(),
            **{name: getattr(self, name) for name in self.numbers},
            "first_unscored": self.first,
            "incidents_over": self._incidents.over,
            "incidents_open": self._incidents.spans,
        }

    def shares(self, plan: ScoringPlan | None = None) -> dict[str, float]:
        """`low_p` and `lowest_p` of the summary; nothing of too few rows, here or in the calibration."""
        if self.with_p < FEWEST_TOLD or not (plan is None or tells_shares(plan)):
            return {}
        return {"low_p": self.low_p / self.with_p, "lowest_p": self.lowest_p / self.with_p}

    def incidents(self) -> int:
        """Groups of alarms that overlap or touch, those still open included."""
        return self._incidents.count


def tells_shares(plan: ScoringPlan) -> bool:
    """Whether the calibration has rows enough for shares of p-values to say something."""
    return plan.stored is not None and plan.stored.rows >= FEWEST_TOLD


def summarized(
    runner: Runner[Any, Any], counts: ScoreCounts, plan: ScoringPlan, *, level: str, run: str | None = None
) -> ScoreSummary:
    """What was done; of sensitive data without small counts.

    Args:
        runner, counts: of the run, which has ended.
        plan: what was asked.
        level: what the rows are.
        run: name of the tracked run, if there is one.
    """
    problems, shares = runner.problems, counts.shares(plan)
    unscored, first = ({UNSCORED: counts.unscored}, {UNSCORED: counts.first}) if counts.unscored else ({}, {})

    def count(number: int) -> int | str | None:
        if plan.alpha is None:
            return None
        return redacted_count(number) if plan.sensitive else number

    return ScoreSummary(
        records=counts.asked,
        rows=counts.rows,
        units=counts.units,
        bad=problems.bad_count,
        problems=redact_small_counts({**problems.counts, **unscored}, plan.sensitive),
        places={**problems.places, **first},
        seconds=runner.seconds,
        rate=runner.rate,
        unit=plan.session.tokenizer.unit,
        level=level,
        mode=str(plan.mode),
        precision=plan.session.precision,
        alarms=count(counts.alarms),
        incidents=count(counts.incidents()),
        unfamiliar=redacted_count(counts.unfamiliar) if plan.sensitive else counts.unfamiliar,
        unknown=redacted_count(counts.unknown) if plan.sensitive else counts.unknown,
        trained_on=redacted_count(counts.trained_on) if plan.sensitive else counts.trained_on,
        low_p=shares.get("low_p"),
        lowest_p=shares.get("lowest_p"),
        stopped=runner.stopped,
        quarantine=str(problems.quarantine) if problems.quarantined and problems.bad_count else None,
        run=run,
    )


def _extent(judged: JudgedRow) -> tuple[str, float, float]:
    """Where an alarm lies: by lines where the record is made of lines, else by characters, of the whole that
    the record is a part of, if it is. Lines of a file that have no other name than their place in it, such as
    windows of a log, lie along the file."""
    row, record = judged.row, judged.scored.record
    place = f"{record.source}\0{record.document or record.id}"
    lines = record.meta.get("lines")
    start, end = row.at(row.start, row.end)
    if row.place is not None:
        place = f"{record.source}\0{row.place.name}"
    elif lines and record.id == f"{Path(record.source).name}:{record.line}":
        place, start = f"{record.source}", row.line  # plain text: a source may be more than its name
        end = 1 + (lines[-1] if row.id == record.id else row.line)
    elif lines and row.id == record.id:
        start, end = lines[0], lines[-1]
    return place, float(start), float(end)


def _rate(rate: float) -> str:
    """Records a second; of slow ones, as with long records, more than "0"."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
