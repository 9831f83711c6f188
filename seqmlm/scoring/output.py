"""The output of a scoring: the fields of each row, and the figures of all rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from seqmlm.anomaly.findings import finding_message
from seqmlm.anomaly.levels import UNKNOWN, Level
from seqmlm.anomaly.values import Doubles, Row, ScoredRecord
from seqmlm.data.counts import Cell, Things
from seqmlm.data.problems import Problems
from seqmlm.errors import number_of, p_value_text, per_second, plural
from seqmlm.evaluation.incidents import Incidents
from seqmlm.inference.calibrations import stored_trained_on
from seqmlm.inference.detector import SMALL, JudgedRow
from seqmlm.inference.record_batches import Encoded
from seqmlm.reports import reasons
from seqmlm.scoring.plan import ScoringPlan
from seqmlm.scoring.shift import FEWEST_TOLD, detect_shift
from seqmlm.streams.sinks import Kind, Schema
from seqmlm.tasks.task import format_figure
from seqmlm.tokenizers.base import Tokenizer

TOP_UNITS = 5
"""Number of units in `top`, and of units in the mean `top_mean`."""


def line(
    judged: JudgedRow,
    tokenizer: Tokenizer,
    *,
    per_unit: bool = False,
    sensitive: bool = False,
    calibrated: bool | None = None,
    level: Level | None = None,
) -> dict[str, Any]:
    """The fields of a row. Fields that do not apply are left out, and fields without a value are None.

    If the record is a part of a longer sequence (a block of a contig), places are those in the whole
    sequence.

    Args:
        per_unit: include every unit with its surprisal, entropy and rank.
        sensitive: mark the row as sensitive.
        calibrated: whether rows have p-values; then a row without a score has the p-value None. Default:
            whether this row has a p-value.
        level: the level of the row. With it, an alarm has a reason.
    """
    row, scored = judged.row, judged.scored_record
    bits = scored.surprisal[row.units]
    part = row.place is not None and row.place.name != scored.record.id
    whole = row.start == 0 and len(row.units) == len(scored) and not part
    fields: dict[str, Any] = {"id": row.id, "source": row.source, "line": row.line}
    if whole and not sensitive and (described := scored.record.meta.get("description")):
        fields["description"] = described
    if not whole:
        start, end = row.outer_span(row.start, row.end)
        fields |= {"start": start, "end": end}
    score = row.score if row.score is not None and math.isfinite(row.score) else None
    fields |= {"units": len(bits), **summary(bits), "score": score, **row.extra}
    if sensitive:
        fields["sensitive"] = True
    if judged.unfamiliar:
        fields["unfamiliar"] = True
    calibrated = judged.p_value is not None if calibrated is None else calibrated
    if calibrated:
        # It is unknown whether a row without a score is normal.
        p_value = None if row.score is None else judged.p_value
        fields |= {"p_value": p_value, "extrapolated": judged.extrapolated}
    if judged.alarm is not None:
        fields["alarm"] = judged.alarm
    if judged.alarm and level is not None:
        fields["reason"] = reason(
            level.reasons.noun(judged.scored_record.record), level, judged, tokenizer.spelling.meaning
        )
    if calibrated:
        fields["channels"] = dict(judged.p_values)
    worst = row.units[np.argsort(-bits, kind="stable")[:TOP_UNITS]]
    for name, units in {"top": worst, **({"per_unit": row.units} if per_unit else {})}.items():
        fields[name] = [unit_fields(row, scored, unit, tokenizer) for unit in units.tolist()]
    return fields


def planned_line(judged: JudgedRow, plan: ScoringPlan) -> dict[str, Any]:
    """The fields of a row (see `line`) according to a plan."""
    return line(
        judged,
        plan.session.tokenizer,
        per_unit=plan.per_unit,
        sensitive=plan.session.card.sensitive,
        calibrated=plan.calibrated,
        level=plan.level,
    )


def reason(
    rule: str,
    level: Level,
    judged: JudgedRow,
    meaning: Callable[[str], str | None] = lambda text: None,
) -> str:
    """The reason for an alarm in a few sentences.

    Args:
        rule: the name of the kind of row in the text.
        meaning: see `finding_message`.
    """
    name = judged.fired
    text = finding_message(
        rule,
        judged.row,
        judged.scored_record,
        judged.p_value,
        _most_telling(level, judged),
        beyond=judged.beyond,
        unit=name not in level.statistics.of_rows,
        meaning=meaning,
    )
    strange = (
        name != UNKNOWN and UNKNOWN in level.statistics.shares and judged.p_values.get(UNKNOWN, 1.0) <= SMALL
    )
    return f"{text} {level.reasons.meaning(UNKNOWN, judged.row)}." if strange else text


def _most_telling(level: Level, judged: JudgedRow) -> str:
    """A sentence on the most telling statistic of an alarm.

    It is "" if there is only one statistic and its description would add nothing.
    """
    name, is_only = judged.fired, len(judged.p_values) == 1
    if name is None:
        is_joint = not is_only and judged.p_value is not None
        return "No statistic is unusual by itself, but all together are." if is_joint else ""
    meaning = level.reasons.meaning(name, judged.row, judged.usual)
    if is_only and meaning == level.statistics[name]:
        return ""
    endless = judged.row.statistics.get(name) == math.inf  # few rows cannot rank infinite values
    return f"Most telling: {meaning}{'' if endless else f' (p {p_value_text(judged.p_values[name])})'}."


def unusual_first(row: Mapping[str, Any]) -> tuple[float, float]:
    """Sort key for the fields of a row, most unusual first: by alarm, then p-value, then score."""
    p_value, score = row.get("p_value"), row.get("score")
    first = math.inf if p_value is None else p_value
    return -1.0 if row.get("alarm") and p_value is None else first, math.inf if score is None else -score


def most_unusual(level: Level, row: Mapping[str, Any]) -> str:
    """One or two sentences on a row without an alarm: its most unusual statistic and least expected unit.

    Args:
        level: the level of the row.
        row: the fields of the row, as returned by `line`.
    """
    sentences, p_values = [], row.get("channels") or {}
    name = min(p_values, key=p_values.__getitem__, default=None)
    if name is not None and name in level.statistics:
        p_text = f" (p {p_value_text(p_values[name])})" if len(p_values) > 1 else ""
        sentences.append(f"Most telling: {level.statistics[name]}{p_text}.")
    if row.get("top") and name not in level.statistics.of_rows:
        unit = row["top"][0]
        text = repr(unit["unit"].strip()) if unit["unit"].strip() else "white space"
        sentences.append(f"Least expected: {text} ({unit['surprisal']:.1f} bits).")
    return " ".join(sentences) or "No part of it is unusual by itself."


def summary(bits: Doubles) -> dict[str, float | None]:
    """Summary statistics of surprisals in bits, and `pll` in nats. Most are None for a row without units."""
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


def unit_fields(row: Row, scored: ScoredRecord, unit: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """The fields of one unit of a row: its text, its surprisal and the expected units."""
    spelling = tokenizer.spelling
    return reasons.unit_fields(scored, unit, spelling.unit_text, spelling.meaning, row)


# The columns of the rows

_COLUMNS: dict[str, Kind] = {
    **dict.fromkeys(("id", "source"), "text"),
    **dict.fromkeys(("line", "start", "end", "units"), "integer"),
    **dict.fromkeys(("pll", "bits_per_unit", "sum", "max", "top_mean", "perplexity", "score"), "number"),
}


def schema(plan: ScoringPlan) -> Schema:
    """The columns of all rows of a scoring, without the fields of `Row.extra`."""
    columns = dict(_COLUMNS)
    if plan.session.card.sensitive:
        columns["sensitive"] = "flag"
    if plan.calibrated:
        columns |= {"p_value": "number", "extrapolated": "flag"}
        if plan.alpha is not None:
            columns |= {"alarm": "flag", "reason": "text"}
        if plan.alpha is not None or not plan.level.unknown_is_evidence:
            columns["unfamiliar"] = "flag"
        columns["channels"] = "p_values"
    columns["top"] = "units"
    if plan.per_unit:
        columns["per_unit"] = "units"
    return Schema(columns=columns, statistics=plan.level.statistics.judging if plan.calibrated else ())


# Figures of all rows


class Familiar:
    """Counts records from the training data, records in unknown languages, and unknown units."""

    def __init__(self, plan: ScoringPlan) -> None:
        tokenizer = plan.session.tokenizer
        self._trained_on = stored_trained_on(Path(plan.session.model.path))
        self._identity = plan.session.domain.keys.identity
        self._language, self._languages = plan.session.domain.text.language, plan.session.model.card.languages
        # Other unknown units are scored: an unknown line of a log is a normal unit.
        ids = [token for token in tokenizer.units.facts.unfamiliar if tokenizer.space.is_special[token]]
        self._unknown = np.array(ids, dtype=np.int64)
        self._unfamiliar = f"{tokenizer.traits.unit} unknown to the model, not scored"

    def note(self, encoded: Sequence[Encoded], problems: Problems) -> None:
        """Count records from the training data or in another language, and unknown units."""
        for record, encoding in encoded:
            if self._trained_on is not None and self._identity(record) in self._trained_on:
                problems.note(TRAINED_ON, source=record.source, line=record.line)
            language = self._language(record.raw)
            if self._languages and language and language not in self._languages:
                note = f"record in {language}, a language without training data: its scores are unreliable"
                problems.note(note, source=record.source, line=record.line)
            if len(self._unknown):
                groups = encoding.groups[np.isin(encoding.ids, self._unknown)]
                unit_count = len(np.unique(groups[groups >= 0])) + np.count_nonzero(groups < 0)
                problems.note(self._unfamiliar, int(unit_count), source=record.source, line=record.line)


TRAINED_ON = "record from the training data: its scores can be too low"


class Tally:
    """Counts rows one by one: alarms, incidents and small p-values."""

    numbers: ClassVar[Sequence[str]] = (
        *("rows", "units", "alarms", "unscored", "unfamiliar"),
        *("with_p", "low_p", "lowest_p"),
    )
    """Names of the attributes that are numbers."""

    rows: int
    units: int
    alarms: int
    unscored: int
    unfamiliar: int
    with_p: int
    low_p: int
    lowest_p: int

    def __init__(self) -> None:
        for name in self.numbers:
            setattr(self, name, 0)
        self.first = ""  # the first row without a score
        self._incidents = Incidents()

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a row with the fields that `line` returns."""
        self.rows += 1
        self.units += row["units"]
        if (p_value := row.get("p_value")) is not None:
            self.with_p += 1
            self.low_p += p_value <= 0.5
            self.lowest_p += p_value <= 0.05
        self.unfamiliar += bool(row.get("unfamiliar"))
        if row["score"] is None:
            self.unscored += 1
            self.first = self.first or f"{row['source']}:{row['line']}"
        if row.get("alarm"):
            self.alarms += 1
            if row.get("place") is not None:
                name, start, end = row["place"]
                self._incidents.add(f"{row['source']}\0{name}", start, end)

    def shares(self, normal: int) -> dict[str, float]:
        """The shares `low_p` and `lowest_p` of p-values up to .5 and .05, and the number `normal_rows`.

        The result is empty if there are too few rows here or in the calibration.
        """
        if min(self.with_p, normal) < FEWEST_TOLD:
            return {}
        low, lowest = self.low_p / self.with_p, self.lowest_p / self.with_p
        return {"low_p": low, "lowest_p": lowest, "normal_rows": normal}

    def incidents(self) -> int:
        """The number of groups of alarms that overlap or touch."""
        return self._incidents.count

    def figures(self, plan: ScoringPlan) -> dict[str, Any]:
        """Counts of `rows`, `units`, `unscored` and `unfamiliar` rows, and the `shares`.

        If a rate was requested, there are also counts of `alarms` and `incidents`.
        """
        count = int if plan.level.counts_people else Things
        counts: dict[str, Any] = {"rows": count(self.rows), "units": Things(self.units)}
        if self.unscored:
            counts |= {"unscored": count(self.unscored), "first_unscored": self.first}
        if self.unfamiliar:
            counts["unfamiliar"] = count(self.unfamiliar)
        if plan.alpha is not None:
            counts |= {"alarms": count(self.alarms), "incidents": count(self.incidents())}
        return {**counts, **self.shares(0 if plan.stored is None else plan.stored.rows)}


def tells_shares(plan: ScoringPlan) -> bool:
    """Whether the calibration has enough rows to compare shares of p-values."""
    return plan.stored is not None and plan.stored.rows >= FEWEST_TOLD


def warnings(figures: Mapping[str, Any]) -> list[str]:
    """Warnings about the scores, one sentence each."""
    sentences = []
    if unscored := figures.get("unscored"):
        sentences.append(f"{UNSCORED}: {unscored} (first: {figures['first_unscored']})")
    if unfamiliar := figures.get("unfamiliar"):
        sentences.append(f"{UNFAMILIAR}: {format_figure(unfamiliar)}")
    if "low_p" in figures:
        sizes = {"judged": judged_rows(figures), "normal": figures["normal_rows"]}
        shift = detect_shift(figures["low_p"], figures["lowest_p"], **sizes)
        sentences += [] if shift is None else [shift[1]]
    return sentences


def judged_rows(figures: Mapping[str, Any]) -> Any:
    """The number of rows that can raise an alarm: all rows without the unfamiliar ones.

    If one of the counts is withheld, it is the number of all rows.
    """
    rows, unfamiliar = figures["rows"], figures.get("unfamiliar", 0)
    return rows - unfamiliar if isinstance(rows, int) and isinstance(unfamiliar, int) else rows


UNFAMILIAR = "unfamiliar rows (mostly units that the model does not know), without p-value"
UNSCORED = "rows without a score, because nothing or too little in them can be scored"


def sentence(
    plan: ScoringPlan, figures: Mapping[str, Any], records: Cell, seconds: float, rate: float | None
) -> str:
    """The last lines of a scoring: the scored records and rows, then warnings.

    rate: records per second. None if the speed says nothing, because the input is live.
    """
    unit = plan.session.tokenizer.traits.unit
    what = number_of(figures["rows"], "row")
    if figures["rows"] == records:
        what = f"{format_figure(figures['units'])} {unit if figures['units'] == 1 else plural(unit)}"
    alarms = ""
    if "alarms" in figures:
        alarms = f", {number_of(figures['alarms'], 'alarm')} in {number_of(figures['incidents'], 'incident')}"
    # Seconds and speed together would reveal a withheld count.
    fast = "" if isinstance(records, str) or rate is None else f" ({per_second(rate)} records/s)"
    scored = f"scored {number_of(records, 'record')}, {what} in {seconds:.1f} s{fast}"
    return "\n".join([scored + alarms, *warnings(figures)])


def extent(judged: JudgedRow) -> tuple[str, float, float]:
    """(name, start, end) of an alarm in its file, for grouping alarms that overlap.

    Places are in lines if the record consists of lines, else in letters. If the record is a part of a longer
    sequence, they are places in that sequence. Windows of a log have no name ("") and places along the file.
    """
    row, record = judged.row, judged.scored_record.record
    name = record.document or record.id
    lines = record.meta.get("lines")
    start, end = row.outer_span(row.start, row.end)
    if row.place is not None:
        name = row.place.name
    elif lines and record.id == f"{Path(record.source).name}:{record.line}":
        name, start = "", row.line  # plain text: a source may be more than its name
        end = 1 + (lines[-1] if row.id == record.id else row.line)
    elif lines and row.id == record.id:
        start, end = lines[0], lines[-1]
    return name, float(start), float(end)
