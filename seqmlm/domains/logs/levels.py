"""Score how unusual sessions and lines of a log are, by the model's surprisals and by counts.

A fault changes few of a session's statistics, and no single statistic finds all kinds of faults, so they are
fused. `benchmarks/studies/level_statistics.py` selected the statistics. Three others find nothing new about
sessions: the number of lines, a surplus of one kind of line, and LogBERT's rule (Guo et al. 2021).

The statistic of missing lines also finds anomalies that were in the training data. It raises alarms if all
later sessions lack a line. Rare pairs are only pairs of neighbouring lines. A rare early end is already
covered by the missing lines. In windows of an access log (`benchmarks/logs_live.py`), scraping shows almost
only in one kind of line that is more frequent than usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, pairwise
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.judge import HARMONIC
from seqmlm.anomaly.levels import (
    SURPRISAL,
    Background,
    CountStatistics,
    Level,
    Sampling,
    part_row,
    record_row,
)
from seqmlm.anomaly.reasons import Reasons
from seqmlm.anomaly.statistic_names import Statistics
from seqmlm.anomaly.values import Bools, Doubles, Longs, Row, ScoredRecord
from seqmlm.data.record import Record
from seqmlm.domains.logs.counts import Lines, LogCounts, counts_of, line_at, lines_of, multisets
from seqmlm.domains.logs.readers import origins
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.domains.logs.templates import TemplateTokenizer
from seqmlm.engine.types import Encoding, Sequences
from seqmlm.errors import StateError, number_of
from seqmlm.parsing import magnitude
from seqmlm.tokenizers.base import Tokenizer

# Statistics

UNSEEN = "lines that do not occur in the training data"

COUNT_STATISTICS = {
    "unseen": UNSEEN,
    "missing": "lines that nearly all training records have, and this one has not",
    "neighbour": "distance of the counts of lines to the nearest training record",
    "bigram_max": "the rarest pair of neighbouring lines",
}
"""Statistics that need no model."""

MODEL_STATISTICS = {"pll_mean": "mean surprisal of the lines", "pll_max": "largest surprisal of a line"}
"""Statistics of the pseudo-log-likelihood."""

WINDOW_STATISTICS = {
    "surplus": "one kind of line more often than usual",
    "hurried": "more lines a second than usual",
    "paused": "a longer pause between two lines than usual",
}
"""Statistics of windows only.

The duration of sessions and how often they repeat a step change with load and hour. A log without times has
only the first statistic.
"""


class BatchComparison(NamedTuple):
    """R records compared with the counts of the training records. E is the number of known events.

    Attributes:
        events: (N,) the event of each line.
        sets: (R, E + 1) `multisets` of the records.
        follows: (N + R,) surprisal in bits of each line after the one before it, and of each record's end.
        absence: (R, W) bits of surprise for absent common events.
        neighbour: (R,) the most similar training vector.
        statistics: the `COUNT_STATISTICS`, each (R,); see below.

    The statistics are:

    * unseen: infinite if a line occurs in no training record, otherwise the number of lines without a
      template. Levels count `NAMED` more for each line with a value that does not occur in the training data.
      Some lines of fields combine known values in a new way, apart from sizes. Levels count them as lines
      without a template.
    * missing: bits of surprise for absent events that nearly all training records have.
    * neighbour: distance of the log1p counts of events to the nearest training record.
    * bigram_max: largest surprisal of a line after the one before it, in bits; 0 if there is none.
    """

    events: Longs
    sets: Any
    follows: Doubles
    absence: Doubles
    neighbour: Longs
    statistics: dict[str, Doubles]

    @classmethod
    def of(cls, lines: Lines, counts: LogCounts) -> Self:
        """Compare the lines of R records with the counts of the training records."""
        events = counts.events(lines.keys)
        sets = multisets(lines, events, counts.size + 1)
        bits, record = counts.bigrams(lines, events)
        inner = np.diff(record, prepend=-1, append=len(lines))[:-1] == 0  # not the beginning of a record
        inner &= np.diff(record, append=len(lines)) == 0  # and not its end
        pairs = np.bincount(record[inner], minlength=len(lines))
        absence, (distance, neighbour) = counts.absence(lines, events), counts.nearest(sets)
        statistics = {
            "unseen": unseen_counts(lines, events, counts),
            "missing": absence.sum(axis=1),
            "neighbour": distance,
            "bigram_max": np.nan_to_num(stretch_maxima(bits[inner], np.concatenate([[0], np.cumsum(pairs)]))),
        }
        return cls(events, sets, bits, absence, neighbour, statistics)


def unseen_counts(lines: Lines, events: Longs, counts: LogCounts) -> Doubles:
    """(R,) number of lines without a template, if training had such lines too.

    It is infinite for a record with a line that never occurred, whatever a mask would hide.
    """
    never = np.bincount(lines.record, weights=events == counts.size, minlength=len(lines))
    unmatched = np.bincount(lines.record, weights=lines.keys == counts.unmatched_key, minlength=len(lines))
    return np.where(never > 0, np.inf, unmatched)


def surprisal_statistics(bits: Doubles, offsets: Longs, units: Longs | None = None) -> dict[str, Doubles]:
    """The `MODEL_STATISTICS` of R records, each (R,); NaN for records without lines.

    Args:
        bits: (N,) surprisals of the lines.
        offsets: (R + 1,) offsets of the records.
        units: (R,) units over which the mean is taken; None means the lines.
    """
    number = np.diff(offsets)
    record = np.repeat(np.arange(len(number)), number)
    total = np.bincount(record, weights=bits, minlength=len(number))
    with np.errstate(invalid="ignore"):
        return {
            "pll_mean": total / (number if units is None else units),
            "pll_max": stretch_maxima(bits, offsets),
        }


def window_statistics(raw: LogLines, surplus: float) -> dict[str, float]:
    """The `WINDOW_STATISTICS` of a window. Statistics of time need at least two lines with times.

    * surplus: bits, for the kind of line that is most above its share of the training lines.
    * hurried: log2 of lines per second. The time is from the first line to the last, plus one second.
    * paused: log2 of the longest time between neighbouring lines in seconds, plus one second.

    Args:
        raw: the window. The time of a line is the latest time of the lines up to it. A clock that steps back,
            or lines from two clocks, therefore make no pause when the times go on.
        surplus: the bits from `LogCounts.surplus`.
    """
    if not raw.windowed:
        return {}
    times = raw.times
    if times is None or len(times) < 2:
        return {"surplus": surplus}
    pauses = np.diff(np.maximum.accumulate(times))
    return {
        "surplus": surplus,
        "hurried": float(np.log2(len(times) / (pauses.sum() + 1.0))),
        "paused": float(np.log2(pauses.max() + 1.0)),
    }


def floored_bits(bits: Doubles, events: Longs, counts: LogCounts) -> Doubles:
    """(N,) surprisal in bits.

    A line that never occurred costs at least a random line's surprisal plus one bit.

    A model may give any probability to an id that it never saw in training.
    """
    return np.where(events == counts.size, np.maximum(bits, np.log2(counts.size + 1) + 1), bits)


def stretch_maxima(values: Doubles, offsets: Longs) -> Doubles:
    """(R,) maximum of each stretch of values between offsets; NaN for an empty stretch."""
    maxima = np.full(len(offsets) - 1, np.nan)
    full = np.flatnonzero(np.diff(offsets))
    if len(full):
        maxima[full] = np.maximum.reduceat(values, offsets[full])
    return maxima


# Knowledge of normal logs

RECORDS = 200_000
"""Most training records that are counted, spread evenly over all of them."""

_REMEMBERED = 1 << 12
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordComparison:
    """One record of n lines compared with the counts of the training records.

    Args:
        statistics: the `COUNT_STATISTICS`.
        events: (n,) event of each line, as numbered by `LogCounts`.
        follows: (n + 1,) surprisal in bits of each line after the one before it, and of the end.
        missing: events that nearly all training records have and this one lacks, the least expected first,
            each with the share of training records that have it.
        unlike: events that are more frequent (negative: less frequent) than in the most similar training
            record.
        often: the kind of line that is most above its share, its number of lines, and its share of the
            training lines.
        surplus: bits of surprise about this number of lines.
    """

    statistics: Mapping[str, float]
    events: Longs
    follows: Doubles
    missing: tuple[tuple[str, float], ...]
    unlike: tuple[tuple[str, int], ...]
    often: tuple[str, int, float]
    surplus: float


class LogBackground(Background):
    """Counts of the training records, with a cache of comparisons for equal records.

    Args:
        counts: the counts.
        tokenizer: the tokenizer, which names the events.
    """

    def __init__(self, counts: LogCounts, tokenizer: Tokenizer) -> None:
        self.counts, self.tokenizer = counts, tokenizer
        self._cache: dict[bytes, RecordComparison] = {}

    @classmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        """Count the training split, or `RECORDS` of it. Nothing is drawn, so `seed` has no effect.

        Raises:
            DataError: no record has a line.
        """
        number = min(RECORDS, len(train))
        chosen = np.linspace(0, len(train) - 1, number).astype(np.int64).tolist() if number else []
        return cls(counts_of((train[index] for index in chosen), tokenizer), tokenizer)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return self.counts.arrays()

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], tokenizer: Tokenizer) -> Self:
        return cls(LogCounts.of(arrays), tokenizer)

    def prepare(self, encodings: Sequence[Encoding]) -> None:
        by_key = {encoding.ids.tobytes(): encoding for encoding in encodings}
        fresh = {key: encoding for key, encoding in by_key.items() if key not in self._cache}
        if len(self._cache) + len(fresh) > _REMEMBERED:
            self._cache.clear()
            fresh = by_key
        if fresh:
            self._cache.update(zip(fresh, self._compare(list(fresh.values())), strict=True))

    def comparison(self, encoding: Encoding) -> RecordComparison:
        """The comparison of a window or session with the training records."""
        key = encoding.ids.tobytes()
        if key not in self._cache:
            self.prepare([encoding])
        return self._cache[key]

    def _compare(self, encodings: Sequence[Encoding]) -> Iterator[RecordComparison]:
        """The comparison of each record with the training records, all at once."""
        lines, counts = lines_of(encodings, self.tokenizer), self.counts
        batch = BatchComparison.of(lines, counts)
        usual, total = counts.usual(), counts.lines.sum()
        surplus, often = (array.tolist() for array in counts.surplus(lines, batch.sets))
        indptr, events, numbers = (
            array.tolist() for array in (batch.sets.indptr, batch.sets.indices, batch.sets.data)
        )
        for row, (first, end) in enumerate(pairwise(lines.offsets.tolist())):
            absence, part = batch.absence[row], slice(indptr[row], indptr[row + 1])
            lacking = np.argsort(-absence, kind="stable")[: min(_NAMED, np.count_nonzero(absence))]
            event_lines = dict(zip(events[part], numbers[part], strict=True))
            unlike = counts.difference(event_lines, int(batch.neighbour[row]))
            furthest = sorted(unlike.items(), key=lambda pair: -abs(pair[1]))[:_NAMED]
            event = often[row]
            share = counts.lines[event] / total if event < counts.size else 0.0
            yield RecordComparison(
                statistics={name: float(value[row]) for name, value in batch.statistics.items()},
                events=batch.events[first:end],
                follows=batch.follows[first + row : end + row + 1],
                missing=tuple(
                    (self.event_name(usual_event), counts.records[usual_event] / counts.total)
                    for usual_event in usual[lacking].tolist()
                ),
                unlike=tuple((self.event_name(unlike_event), excess) for unlike_event, excess in furthest),
                often=(self.event_name(event), event_lines.get(event, 0), float(share)),
                surplus=surplus[row],
            )

    def event_name(self, event: int) -> str:
        """The template or event id. In a log without templates, a line has a number as its name."""
        if event >= self.counts.size:
            return _NEVER
        key = int(self.counts.keys[event])
        of_lines = self.tokenizer.traits.unit == "line"
        return self.tokenizer.spelling.surface(key) if of_lines else f"line {key:016x}"


# Rows

ODD = 5
"""Most lines that a row names."""

NAMED = 1e6
"""Number of lines without a template that equals one line with a new value."""

_EXAMINED = 64  # most lines of a row that are searched for new values

_NEVER = "a line never seen"

_SURPRISING = 3.0  # least bits of a reported surplus; many normal windows have less


class PausedLogs(Sampling):
    """Sample windows for calibration, including windows that end early, as when a log pauses."""

    def parts(self, record: Record, random: np.random.Generator) -> Sequence[Record]:
        """The record itself, and for a random half of the windows also parts of it.

        A session or a whole window of a file stays as it is. A random half of the windows is also cut into
        two or more parts, as when a followed log pauses. The lengths of the parts are uniform on a log scale.
        """
        raw = record.raw
        if not raw.windowed or len(raw.lines) < 2 or random.random() < 0.5:
            return (record,)
        cuts = [0]
        while cuts[-1] < len(raw.lines):
            cuts.append(cuts[-1] + int(len(raw.lines) ** random.random()))
        return [record, *(_part_record(record, slice(*pair)) for pair in pairwise(cuts))]


class _LinesLevel(Level):
    """A level for records of lines, which may be cut anywhere in live input.

    Args:
        name: the value for `--level`.
    """

    background = LogBackground
    sampling = PausedLogs()
    unknown_is_evidence = True

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def counts_people(self) -> bool:
        """False, because a row is a session or a window of lines."""
        return False

    @property
    def reasons(self) -> Reasons:
        return LineReasons(self.name, self.statistics)


class LineReasons(Reasons):
    """Describe alarms about lines of a log."""

    def alarm_facts(
        self, row: Row, scored: ScoredRecord, background: Background | None, fired: str | None
    ) -> dict[str, Any]:
        """Facts of an alarm, as in `Reasons.alarm_facts`.

        The facts describe lines or values that do not occur in the training data, if there are any. Otherwise
        they describe the statistic that fired, with the template of the line that contributes most. They also
        have the number of lines with new values, or else of new lines.
        """
        reference = _reference(background, self.level)
        comparison, raw = reference.comparison(scored.encoding), scored.record.raw
        of_unit = line_at(scored.encoding, scored.position, reference.tokenizer)
        is_record = row.id == scored.record.id
        lines = np.arange(len(comparison.events)) if is_record else np.unique(of_unit[row.units])
        new_lines = lines[_is_new(comparison, reference)[lines]]
        facts: dict[str, Any] = {"lines": len(lines)}
        if raw.times:
            facts["times"] = raw.times[lines[0]], raw.times[lines[-1]]
        if "lines" in scored.record.meta:
            facts["last_line"] = scored.record.meta["lines"][lines[-1]]
        names = _unseen_values(raw, new_lines, reference)
        unseen_values = list(dict.fromkeys(chain.from_iterable(names)))
        named = new_lines[np.array(list(map(bool, names)), dtype=np.bool_)]
        likely = next(places for places in (named, new_lines, lines) if len(places))
        bits = _line_bits(scored, comparison, reference)
        at = int(likely[bits[likely].argmax()])
        template = _template(raw, at, reference.tokenizer)
        if unseen_values or (comparison.events[new_lines] == reference.counts.size).any():
            phrase = f"{_quote(template)} was never seen" if template else "a line was never seen"
            if unseen_values:
                facts |= {"new_lines": len(named), "never_seen": unseen_values}
            else:
                kinds = dict.fromkeys(
                    _template(raw, line, reference.tokenizer) for line in new_lines.tolist()
                )
                facts |= {"new_lines": len(new_lines), "new_kinds": [_quote(kind) for kind in kinds if kind]}
        else:
            phrase, about = self._deviation(row, scored.record, comparison, template, fired)
            if about != template:  # not the template of the least expected line; perhaps without a line
                events = [
                    event
                    for event in np.unique(comparison.events[lines]).tolist()
                    if reference.event_name(event) == about
                ]
                at = int(lines[comparison.events[lines] == events[0]][0]) if events else -1
                template = about
            if fired == "paused":
                facts["scale"] = magnitude(2 ** row.statistics[fired] - 1)
        units = np.flatnonzero(of_unit == at)
        facts |= {"what": phrase, **({"template": template} if template else {})}
        return {**facts, "unit": int(units[scored.surprisal[units].argmax()])} if len(units) else facts

    def _deviation(
        self, row: Row, record: Record, comparison: RecordComparison, template: str, fired: str | None
    ) -> tuple[str, str]:
        """Describe the deviation of a row without new lines, by the statistic that fired.

        Returns:
            The phrase, and the template of the lines that it describes.
        """
        often = row.extra.get("surplus")
        if template and often is not None and fired == "surplus":
            return f"more {_quote(often['unit'])} than usual", often["unit"]
        if template and fired == "missing" and comparison.missing:
            return f"{_quote(comparison.missing[0][0])} is missing", comparison.missing[0][0]
        if template and fired == "neighbour" and comparison.unlike:
            unit, excess = comparison.unlike[0]
            return f"{'more' if excess > 0 else 'fewer'} {_quote(unit)} than usual", unit
        if fired is not None and (fired in WINDOW_STATISTICS or not template):
            return self.statistics[fired], template
        return (
            f"{_quote(template)} is unexpected" if template else f"an unusual {self.noun(record)}"
        ), template


def _part_record(record: Record, part: slice) -> Record:
    """A part of a window's lines as a record."""
    raw, columns = record.raw, ("lines", "labels", "origins")
    times = None if raw.times is None else raw.times[part]
    meta = {
        name: value[part] if name in columns and value is not None else value
        for name, value in record.meta.items()
    }
    return replace(record, raw=replace(raw, lines=raw.lines[part], times=times), meta=meta)


class SessionLevel(_LinesLevel):
    """A session or window as one row, scored by surprisals and by counts.

    A session may be in several records (`max_session`, `session_gap`, rotated files) with the same id. Each
    is scored by itself, so events in another record of the session are missing here.

    The statistics overlap, and a fault changes few of them, so they are fused by the harmonic mean. Sessions
    of all lengths are compared with each other (rows have length 1). With bins, too few sessions would have a
    similar length to show how rare a value is. Windows of lines end early if a followed log pauses, so they
    are compared with windows of the same length.

    Rows have these other JSON fields, if they apply:

    * time, last_time: times of the first and last line, ISO 8601.
    * severity, host, service, hosts, services: the origin of the lines (`origins`).
    * odd_lines: the lines of the file with the highest surprisal, in descending order.
    * unseen_lines: lines of the file that are in no training record, or fit no template.
    * never_seen: new values in the first 64 such lines, at places with known words and values only:
      ["status=502"].
    * missing: [{unit, share}] lines that nearly all training records have and this one lacks.
    * unlike: [{unit, more}] lines of which it has more (negative: fewer) than the most similar training
      record.
    * surplus: {unit, lines, of, share} the kind of line that is most above its share of the training lines.
      `lines` is its number, and `of` is the number of all lines.
    """

    statistics: ClassVar[Statistics] = Statistics(
        {**MODEL_STATISTICS, **COUNT_STATISTICS, **WINDOW_STATISTICS},
        counted=(*COUNT_STATISTICS, *WINDOW_STATISTICS),
        of_rows=("missing", "neighbour", *WINDOW_STATISTICS),
        fusion=HARMONIC,
    )
    aliases = ("window",)
    row_per_record: ClassVar[bool] = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.counting = SessionCounts(name)

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        reference = _reference(background, self.name)
        comparison = reference.comparison(scored.encoding)
        count = len(comparison.events)
        bits = _line_bits(scored, comparison, reference)
        unseen_values = _unseen_values(
            scored.record.raw, np.flatnonzero(_is_new(comparison, reference)), reference
        )
        ends = np.array([0, count])
        statistics = {
            name: float(value[0])
            for name, value in surprisal_statistics(bits, ends, np.array([len(scored)])).items()
        }
        statistics |= {**comparison.statistics, **window_statistics(scored.record.raw, comparison.surplus)}
        if (
            math.isinf(statistics["unseen"])
            and not _is_endless(scored.record.raw, comparison.events, reference).any()
        ):
            statistics["unseen"] = float(_is_new(comparison, reference).sum())
        statistics["unseen"] += NAMED * sum(map(bool, unseen_values))
        extra = {
            **_origin_facts(scored, range(count)),
            **_explanation(scored, comparison, reference, bits, unseen_values),
        }
        row, length = record_row(scored, statistics), _row_length(scored.record, count)
        return [replace(row, length=length, time=_line_time(scored, 0), extra=extra)]

    @property
    def reasons(self) -> Reasons:
        return SessionReasons(self.name, self.statistics)


class SessionCounts(CountStatistics):
    """The statistics of sessions that need no model.

    Args:
        level: the name of the level.
    """

    def __init__(self, level: str) -> None:
        self.level = level

    def known_values(self, record: Record, tokenizer: Tokenizer) -> frozenset[str]:
        """The values in the record's lines that `TemplateTokenizer.known_values` returns."""
        return frozenset(chain.from_iterable(_known_values(record.raw, tokenizer)))

    def columns(
        self,
        encoded: Sequence[tuple[Record, Encoding]],
        background: Background,
        never: frozenset[str] = frozenset(),
    ) -> tuple[dict[str, Doubles], Longs]:
        reference = _reference(background, self.level)
        lines = lines_of([encoding for _, encoding in encoded], reference.tokenizer)
        batch = BatchComparison.of(lines, reference.counts)
        is_new = (batch.events == reference.counts.size) | (lines.keys == reference.counts.unmatched_key)
        for row, (first, end) in enumerate(pairwise(lines.offsets.tolist())):
            record = encoded[row][0]
            unseen_values = _unseen_values(record.raw, np.flatnonzero(is_new[first:end]), reference)
            assumed_new = (
                [never & set(values) for values in _known_values(record.raw, reference.tokenizer)]
                if never
                else []
            )
            if math.isinf(batch.statistics["unseen"][row]):
                endless = _is_endless(record.raw, batch.events[first:end], reference, never).any()
                batch.statistics["unseen"][row] = math.inf if endless else is_new[first:end].sum()
            batch.statistics["unseen"][row] += NAMED * sum(map(bool, (*unseen_values, *assumed_new)))
        surplus = reference.counts.surplus(lines, batch.sets)[0].tolist()
        windows = [
            window_statistics(record.raw, bits) for (record, _), bits in zip(encoded, surplus, strict=True)
        ]
        window_columns = {
            name: np.array([window.get(name, np.nan) for window in windows]) for name in WINDOW_STATISTICS
        }
        sizes = zip(encoded, lines.counts.tolist(), strict=True)
        lengths = np.array([_row_length(record, size) for (record, _), size in sizes], dtype=np.int64)
        return {**batch.statistics, **window_columns}, lengths


class SessionReasons(LineReasons):
    """Describe alarms about sessions and windows of lines."""

    def noun(self, record: Record) -> str:
        return "window" if record.raw.windowed else self.level

    def naming_statistics(self, row: Row) -> Collection[str]:
        return ("unseen", "paused", *(name for name in ("missing", "surplus") if name in row.extra))

    def pause_statistics(self, seconds: float) -> dict[str, float]:
        return {"paused": float(np.log2(seconds + 1.0))}

    def meaning(self, name: str, row: Row, usual: float | None = None) -> str:
        value, extra = row.statistics.get(name, math.nan), row.extra
        if name == "paused":
            limit = _usual_limit(usual, lambda log2: _format_duration(2**log2 - 1))
            return f"no line for {_format_duration(2**value - 1)}{limit}"
        if name == "hurried":
            return f"{2**value:.3g} lines per second{_usual_limit(usual, lambda log2: f'{2**log2:.3g}')}"
        if name == "surplus" and "surplus" in extra:
            often = extra["surplus"]
            here = f"{_quote(often['unit'])}, {often['lines']} of {often['of']} lines"
            return f"{super().meaning(name, row)}: {here}, {100 * often['share']:.3g} % in training"
        if name == "missing" and "missing" in extra:
            first = extra["missing"][0]
            return f"{_quote(first['unit'])} is missing; {first['share']:.0%} of normal records have it"
        if name == "neighbour" and "unlike" in extra:
            first = extra["unlike"][0]
            if first["unit"] == _NEVER:
                return (
                    f"{number_of(first['more'], 'line')} never seen{_first_place(extra.get('unseen_lines'))}"
                )
            kind = f"{abs(first['more'])} {'more' if first['more'] > 0 else 'fewer'}"
            return f"{kind} {_quote(first['unit'])} than the most similar normal record"
        if name == "unseen" and "never_seen" in extra:
            return f"never seen: {', '.join(extra['never_seen'])}"
        if name == "unseen":
            return f"{super().meaning(name, row)}{_first_place(extra.get('unseen_lines'))}"
        return super().meaning(name, row)


def _first_place(lines: Sequence[int] | None) -> str:
    """A note with the first of some lines in the file; "" if there are none."""
    return f" (first in line {lines[0]:,} of the file)" if lines else ""


def _usual_limit(usual: float | None, text: Callable[[float], str]) -> str:
    """A note with the largest normal value of a statistic; "" if it is unknown."""
    return "" if usual is None or not math.isfinite(usual) else f", normally at most {text(usual)}"


def _format_duration(seconds: float) -> str:
    """A duration in the largest unit of which it has two or more."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


class LineLevel(_LinesLevel):
    """Each line as one row, scored by its surprisal, by its neighbours, and by whether it is new."""

    statistics: ClassVar[Statistics] = Statistics(
        {
            **SURPRISAL,
            "unseen": UNSEEN,
            "bigram": "how rarely training had this line after the one before it",
        },
        fusion=HARMONIC,
    )

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        reference = _reference(background, self.name)
        comparison = reference.comparison(scored.encoding)
        line = line_at(scored.encoding, scored.position, reference.tokenizer)
        bits = _line_bits(scored, comparison, reference)
        size = np.bincount(line, minlength=len(bits))
        is_new = _is_new(comparison, reference)
        places = np.flatnonzero(is_new)
        unseen_values = _unseen_values(scored.record.raw, places, reference)
        never = {at for at, values in zip(places.tolist(), unseen_values, strict=True) if values}
        endless = _is_endless(scored.record.raw, comparison.events, reference)
        numbers = scored.record.meta.get("lines")
        # With templates, the surprisal of a line depends on the number of lines around it. With words, it
        # depends more on the line itself.
        windowed = scored.record.raw.windowed and reference.tokenizer.traits.unit == "line"
        follows = comparison.follows.copy()
        if scored.record.raw.windowed:  # the log itself does not begin or end there
            follows[[0, -1]] = 0.0
        rows = []
        for at in np.unique(line).tolist():
            units = np.flatnonzero(line == at)
            statistics = {
                "surprisal": float(bits[at] / size[at]),
                "unseen": math.inf if endless[at] else is_new[at] + NAMED * (at in never),
                "bigram": float(follows[at : at + 2].max()),
            }
            row = part_row(scored, units, str(at), statistics, length=len(bits) if windowed else None)
            place = row.line if numbers is None else numbers[at]
            extra = {**row.extra, **_origin_facts(scored, range(at, at + 1))}
            rows.append(replace(row, line=place, time=_line_time(scored, at), extra=extra))
        return rows


def _row_length(record: Record, lines: int) -> int:
    """The length by which a row of `lines` lines is compared with others; always 1 for sessions."""
    return lines if record.raw.windowed else 1


def _reference(background: Background | None, level: str) -> LogBackground:
    """The counts of normal logs with which a level compares.

    Raises:
        StateError: the model has no such counts.
    """
    if not isinstance(background, LogBackground):
        raise StateError(
            f"level {level} needs counts of normal logs, and this model has none; create them with "
            "'seqmlm calibrate'"
        )
    return background


def _line_bits(scored: ScoredRecord, comparison: RecordComparison, reference: LogBackground) -> Doubles:
    """(n,) surprisal of each line, summed over its units.

    For new lines, `floored_bits` sets a lower limit.
    """
    line = line_at(scored.encoding, scored.position, reference.tokenizer)
    bits = np.bincount(line, weights=scored.surprisal, minlength=len(comparison.events))
    return floored_bits(bits.astype(np.float64), comparison.events, reference.counts)


def _is_new(comparison: RecordComparison, reference: LogBackground) -> Bools:
    """(n,) True for lines that never occurred and for lines that fit no template."""
    counts = reference.counts
    keys = np.append(counts.keys, -1)[comparison.events]
    is_unmatched = (keys == counts.unmatched_key) & (counts.unmatched_key >= 0)
    is_new: Bools = (comparison.events == counts.size) | is_unmatched
    return is_new


def _explanation(
    scored: ScoredRecord,
    comparison: RecordComparison,
    reference: LogBackground,
    bits: Doubles,
    unseen_values: Sequence[list[str]],
) -> dict[str, Any]:
    """The fields of a row's JSON line that explain its scores.

    Args:
        unseen_values: a list of new values for each new line.
    """
    numbers = scored.record.meta.get("lines") or range(len(bits))
    odd = np.argsort(-bits, kind="stable")[:ODD].tolist()
    facts: dict[str, Any] = {"odd_lines": [numbers[at] for at in odd]}
    if comparison.statistics["unseen"]:
        places = np.flatnonzero(_is_new(comparison, reference))
        facts["unseen_lines"] = [numbers[at] for at in places[:ODD].tolist()]
        if any(unseen_values[:_EXAMINED]):
            facts["never_seen"] = list(dict.fromkeys(chain.from_iterable(unseen_values[:_EXAMINED])))
    if comparison.surplus >= _SURPRISING:
        unit, number, share = comparison.often
        facts["surplus"] = {"unit": unit, "lines": number, "of": len(bits), "share": share}
    if scored.record.raw.windowed and len(bits) < reference.counts.shortest:
        return facts  # shorter than nearly all training windows, so most of their events are absent
    if comparison.missing:
        facts["missing"] = [{"unit": unit, "share": share} for unit, share in comparison.missing]
    if comparison.unlike:
        facts["unlike"] = [{"unit": unit, "more": excess} for unit, excess in comparison.unlike]
    return facts


def _unseen_values(raw: LogLines, places: Longs, reference: LogBackground) -> list[list[str]]:
    """The values that do not occur in the training data, one list for each line without a template.

    Args:
        places: the places of these lines.
    """
    if not isinstance(reference.tokenizer, TemplateTokenizer) or raw.keys:
        return [[] for _ in places]
    return [reference.tokenizer.unseen_values(raw.lines[at]) for at in places.tolist()]


def _is_endless(
    raw: LogLines, events: Longs, reference: LogBackground, values: frozenset[str] = frozenset()
) -> Bools:
    """(n,) True for lines that never occurred.

    Lines of fields are excluded if training had all their fields, except sizes, and only the combination is
    new.

    Args:
        values: values that count as new.
    """
    endless: Bools = events == reference.counts.size
    if isinstance(reference.tokenizer, TemplateTokenizer) and not raw.keys:
        for at in np.flatnonzero(endless).tolist():
            endless[at] = not reference.tokenizer.is_recombination(raw.lines[at], values)
    return endless


def _known_values(raw: LogLines, tokenizer: Tokenizer) -> Iterator[Sequence[str]]:
    """The values that `TemplateTokenizer.known_values` returns, one list for each line."""
    if isinstance(tokenizer, TemplateTokenizer) and not raw.keys:
        yield from map(tokenizer.known_values, raw.lines)


def _template(raw: LogLines, at: int, tokenizer: Tokenizer) -> str:
    """The template of a line, or the template that it would have; "" if lines have none."""
    if raw.keys:
        return raw.lines[at]
    return tokenizer.template(raw.lines[at]) if isinstance(tokenizer, TemplateTokenizer) else ""


_SHOWN = 100  # most characters of a template in a sentence


def _quote(template: str) -> str:
    """A template in quotation marks, shortened if it is long."""
    return repr(template if len(template) <= _SHOWN else f"{template[: _SHOWN - 3]}...")


def _origin_facts(scored: ScoredRecord, lines: range) -> dict[str, Any]:
    """Time and origin of some lines of a record, as fields of a row, if the reader kept them."""
    record = scored.record
    if "origins" not in record.meta:
        return {}
    part, raw, line_origins = slice(lines.start, lines.stop), record.raw, record.meta["origins"]
    facts: dict[str, Any] = {}
    for name, at in (("time", lines[0]), ("last_time", lines[-1])):
        with suppress(ValueError, OverflowError, OSError):  # a year beyond all calendars
            if (seconds := _line_time(scored, at)) is not None and (name == "time" or len(lines) > 1):
                facts[name] = datetime.fromtimestamp(seconds, UTC).isoformat()
    return {
        **facts,
        **origins.origin_facts(raw.lines[part], None if line_origins is None else line_origins[part]),
    }


def _line_time(scored: ScoredRecord, line: int) -> float | None:
    """Time of a line in seconds since 1970-01-01 UTC; None if times are unknown."""
    times = getattr(scored.record.raw, "times", None)
    return float(times[line]) if times else None
