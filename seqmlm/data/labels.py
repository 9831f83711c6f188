"""Labels of subjects at times, as in MEDS: `subject_id`, `prediction_time`, and perhaps `boolean_value`."""

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
"""Subject -> times (seconds since 1970-01-01 UTC) and labels. None if a label is not known."""

Moments = Mapping[str, Mapping[float, FieldRow]]
"""Subject -> time in seconds -> the row for this time, with its line."""

SUBJECT, TIME, VALUE = "subject_id", "prediction_time", "boolean_value"


def read_labels(path: Path) -> Labels:
    """Read a table of labels.

    Raises:
        DataError: a column is missing, or a time or label cannot be read.
    """
    clock, labels = Clock(), Labels()
    for line, row in read_rows(str(path)):
        subject, time = required(row, SUBJECT, str(path), line), moment(row, str(path), line, clock)
        value = row.get(VALUE)
        text = "" if value is None else str(value).lower()
        if text and text not in FLAGS:
            remedy = "write true or false"
            raise DataError("neither true nor false", source=str(path), line=line, field=VALUE, remedy=remedy)
        labels.setdefault(str(subject), []).append((time, FLAGS.get(text)))
    if not labels:
        raise DataError("no labels", source=str(path), remedy=f"give {SUBJECT} and {TIME}")
    return labels


def read_moments(rows: Iterable[FieldRow], source: str, problems: Problems) -> Moments:
    """The times of subjects in a table. Times that cannot be read or are repeated go to `problems`."""
    clock, moments = Clock(), dict[str, dict[float, FieldRow]]()
    for line, row in rows:
        try:
            by_time = moments.setdefault(str(required(row, SUBJECT, source, line)), {})
            time = moment(row, source, line, clock)
            if time in by_time:
                remedy = "keep one label for each time"
                raise DataError(
                    "a second label for the same subject and time", source=source, line=line, remedy=remedy
                )
        except DataError as error:
            problems.bad(error, str(row))
        else:
            by_time[time] = line, row
    return moments


def moment(row: Mapping[str, Any], source: str, line: int, clock: Clock) -> float:
    """The prediction time of a row, in seconds since 1970-01-01 UTC, rounded to microseconds.

    Raises:
        DataError: the row has no valid time.
    """
    text = required(row, TIME, source, line)
    dated = isinstance(text, datetime) and text == text  # pandas has a missing time
    time = text.replace(tzinfo=text.tzinfo or UTC).timestamp() if dated else clock[str(text)]
    if time != time:
        raise DataError(
            "not a time",
            source=source,
            line=line,
            field=TIME,
            remedy="write ISO 8601, such as 2024-12-31T08:00",
        )
    return round(time, 6)


def time_of(record: Record) -> dict[str, str]:
    """The time column of a record from `at_moments`. Empty for other records."""
    return {TIME: record.meta[TIME]} if TIME in record.meta else {}


def at_moments(
    records: Iterable[Record],
    moments: Moments,
    source: str,
    until: Callable[[Any, float], Any],
    problems: Problems,
) -> Iterator[tuple[Record, FieldRow]]:
    """Records as known at their times, each with its row in the table of labels.

    A record then has the source and line of its row.

    Args:
        records: records. Those without a time are counted and left out.
        moments: times by the id of the record. Times without a record are counted.
        source: the file of `moments`.
        until: returns a raw sequence as known at a time (`Times.history_at`). None if nothing was known.
        problems: also receives times before the first event.

    Raises:
        DataError: none of the subjects is a record.
    """
    subjects_met = set[str]()
    for record in records:
        if record.id not in moments:
            problems.note("a record without a label, left out", source=record.source, line=record.line)
        subjects_met.add(record.id)
        for time, (line, row) in moments.get(record.id, {}).items():
            raw = until(record.raw, time)
            if raw is None:
                remedy = "use a time when something is known about the subject, or leave the row out"
                reason = "a time before the first event of its subject"
                problems.bad(DataError(reason, source=source, line=line, field=TIME, remedy=remedy))
                continue
            meta = {**record.meta, TIME: datetime.fromtimestamp(time, UTC).isoformat()}
            yield replace(record, raw=raw, source=source, line=line, meta=meta), (line, row)
    if moments and subjects_met and not moments.keys() & subjects_met:
        raise DataError("none of its subjects is in the data", source=source, remedy="compare the ids")
    for name in moments.keys() - subjects_met:
        for line, _ in moments[name].values():
            problems.note("a label whose id matches no record, ignored", source=source, line=line)
