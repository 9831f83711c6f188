"""Labels of subjects at times, as MEDS has them: `subject_id`, `prediction_time`, perhaps `boolean_value`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seqmlm.data.clock import Clock
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import FLAGS, FieldRow, read_rows, required
from seqmlm.errors import DataError

Labels = dict[str, list[tuple[float, bool | None]]]
"""Subject to times, seconds since 1970-01-01 UTC, and labels; None where that is not known."""

Moments = Mapping[str, Mapping[float, FieldRow]]
"""Subject to times, in seconds, and the row about each with its line."""

SUBJECT, TIME, VALUE = "subject_id", "prediction_time", "boolean_value"


def read_labels(path: Path) -> Labels:
    """Read a table; a DataError names a column that is missing, a time or a label that cannot be read."""
    clock, labels = Clock(), Labels()
    for line, row in read_rows(str(path)):
        subject, time = required(row, SUBJECT, str(path), line), moment(row, str(path), line, clock)
        value = row.get(VALUE)
        text = "" if value is None else str(value).lower()
        if text and text not in FLAGS:
            remedy = "write true or false"
            raise DataError("no truth value", source=str(path), line=line, field=VALUE, remedy=remedy)
        labels.setdefault(str(subject), []).append((time, FLAGS.get(text)))
    if not labels:
        raise DataError("no labels", source=str(path), remedy=f"give {SUBJECT} and {TIME}")
    return labels


def read_moments(rows: Iterable[FieldRow], source: str, problems: Problems) -> Moments:
    """Times of subjects in a table; `problems` receives those that cannot be read, or are there twice."""
    clock, moments = Clock(), dict[str, dict[float, FieldRow]]()
    for line, row in rows:
        try:
            by_time = moments.setdefault(str(required(row, SUBJECT, source, line)), {})
            time = moment(row, source, line, clock)
            if time in by_time:
                remedy = "keep one label for each time"
                raise DataError("a subject at a time that was there", source=source, line=line, remedy=remedy)
        except DataError as error:
            problems.bad(error, str(row))
        else:
            by_time[time] = line, row
    return moments


def moment(row: Mapping[str, Any], source: str, line: int, clock: Clock) -> float:
    """The prediction time of a row, seconds since 1970-01-01 UTC, to the microsecond; else a DataError."""
    text = required(row, TIME, source, line)
    dated = isinstance(text, datetime) and text == text  # pandas has a time that is none
    time = text.replace(tzinfo=text.tzinfo or UTC).timestamp() if dated else clock[str(text)]
    if time != time:
        raise DataError("no time", source=source, line=line, field=TIME, remedy="ISO 8601")
    return round(time, 6)


def time_of(record: Record) -> dict[str, str]:
    """The column of the time of a record that `at_moments` gave; nothing for other records."""
    return {TIME: record.meta[TIME]} if TIME in record.meta else {}


def at_moments(
    records: Iterable[Record],
    moments: Moments,
    source: str,
    until: Callable[[Any, float], Any],
    problems: Problems,
) -> Iterator[tuple[Record, FieldRow]]:
    """Records as they were known at their times, and the row about each, in whose place they then stand.

    Args:
        records: those without a time are counted, and left out.
        moments: of the records by id; those of no record are counted.
        source: the file of `moments`.
        until: what was known of a raw sequence at a time (`Times.history_at`), None where that was nothing.
        problems: receives times before the first event, too.

    Raises: DataError: none of the subjects is that of a record.
    """
    subjects_met = set[str]()
    for record in records:
        if record.id not in moments:
            problems.note("a record without a label, left out", source=record.source, line=record.line)
        subjects_met.add(record.id)
        for time, (line, row) in moments.get(record.id, {}).items():
            raw = until(record.raw, time)
            if raw is None:
                remedy = "ask when something is known of the subject, or leave the row out"
                reason = "a time before the first event of its subject"
                problems.bad(DataError(reason, source=source, line=line, field=TIME, remedy=remedy))
                continue
            meta = {**record.meta, TIME: datetime.fromtimestamp(time, UTC).isoformat()}
            yield replace(record, raw=raw, source=source, line=line, meta=meta), (line, row)
    if moments and subjects_met and not moments.keys() & subjects_met:
        raise DataError("none of its subjects is in the data", source=source, remedy="compare their ids")
    for name in moments.keys() - subjects_met:
        for line, _ in moments[name].values():
            problems.note("a label of no record", source=source, line=line)
