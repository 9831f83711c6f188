"""Logs as CSV or TSV: a line a row, or a session a row."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from seqmlm.data.problems import Problems
from seqmlm.data.readers.fields import missing
from seqmlm.data.readers.logs.events import Events
from seqmlm.data.readers.logs.fields import LABEL, SESSION, Fields, Found
from seqmlm.data.readers.logs.source import BATCH, Lines
from seqmlm.data.timestamps import Clock
from seqmlm.errors import DataError

Row = tuple[int, list[str]]


def delimiter_of(header: str, wanted: Fields) -> str | None:
    """What separates the columns of a table's first line; None where it is no table of ours."""
    for delimiter in ("\t", ",", ";"):
        names = [name.strip('"') for name in header.split(delimiter)]
        if len(names) > 1 and (wanted.among(names).missing(wanted, names) is None or _beside(names)):
            return delimiter
    return None


def _beside(names: list[str]) -> bool:
    """Whether a table is one that lies beside logs (labels of sessions, templates) and holds no lines."""
    return {name.lower() for name in names} <= {*SESSION, *LABEL, "eventid", "eventtemplate", "occurrences"}


class Table:
    """The rows of a table, a list of them at a time, with the line each begins on.

    Args:
        batches: its lines.
        delimiter: between columns; with a tab, quotation marks are ordinary characters.
        wanted: the columns asked for.
        max_bytes: of the longest field.
        source, problems: receives what cannot be read.

    After `open` the columns are in `names` and `found`.
    """

    def __init__(
        self,
        batches: Iterator[Lines],
        delimiter: str,
        wanted: Fields,
        max_bytes: int,
        source: str,
        problems: Problems,
    ) -> None:
        self._feed = _Feed(batches)
        # Without quotation marks a row is a line, and need not pass through the csv module.
        self._rows = None if delimiter == "\t" else csv.reader(self._feed, delimiter=delimiter)
        self._wanted, self._limit = wanted, max_bytes
        self._source, self._problems = source, problems
        self.names: list[str] = []
        self.found: Found = wanted.among([])

    def open(self) -> bool:
        """Read the names of the columns; False where a wanted one is missing, which `problems` then has."""
        empty: Row = (1, [])
        first = next((pair for pair in self._each() if pair is not None), empty)
        self.names = first[1]
        self.found = self._wanted.among(self.names)
        absent = self.found.missing(self._wanted, self.names)
        if absent is None:
            return True
        name, option = absent
        self._problems.bad(missing(name, self.names, self._source, first[0], option, self._problems))
        return False

    def batches(self) -> Iterator[list[Row]]:
        """The rows that have all columns; the others go to `problems`; no rows are a pause (`Lines`)."""
        width = len(self.names)
        for rows in self._batched():
            if not rows:
                yield []
                continue
            for line, row in (pair for pair in rows if len(pair[1]) < width):
                error = DataError(
                    "a row with too few fields",
                    source=self._source,
                    line=line,
                    remedy=f"the table has {width} columns; quote fields that hold the delimiter",
                )
                self._problems.bad(error, self._feed.delimited(row))
            if whole := [pair for pair in rows if len(pair[1]) >= width]:
                yield whole

    def _batched(self) -> Iterator[list[Row]]:
        held: list[Row] = []
        for pair in self._each():
            if pair is not None:
                held.append(pair)
            if held and (pair is None or len(held) >= BATCH):
                yield held
                held = []
            if pair is None:
                yield []
        if held:
            yield held

    def events(self, clock: Clock) -> Iterator[Events]:
        """The rows as events."""
        at = {name: i for i, name in enumerate(self.names)}
        assert self.found.message is not None
        message = at[self.found.message]
        session = None if self.found.session is None else at[self.found.session]
        label = None if self.found.label is None else at[self.found.label]
        times = [at[name] for name in self.found.times]
        for rows in self.batches():
            if not rows:
                yield Events(numbers=[], messages=[])
                continue
            numbers, values = zip(*rows, strict=True)
            columns = list(zip(*(row[: len(self.names)] for row in values), strict=True))
            messages = list(columns[message])
            yield Events(
                numbers=list(numbers),
                messages=messages,
                times=[clock[" ".join(parts)] for parts in zip(*(columns[i] for i in times), strict=True)]
                if times
                else None,
                sessions=None if session is None else [_ids(value) for value in columns[session]],
                labels=None if label is None else list(columns[label]),
                whole=messages,
            )

    def _each(self) -> Iterator[Row | None]:
        """(line it begins on, fields) of every row that is not blank; None at a pause."""
        if self._rows is None:
            for number, text in self._feed.numbered:
                if text or not number:
                    yield (number, text.split("\t")) if number else None
            return
        while True:
            csv.field_size_limit(self._limit)  # of the module as a whole, so set anew before each row
            self._feed.start = 0
            try:
                fields = next(self._rows)
            except StopIteration:
                return
            except csv.Error:
                error = DataError(
                    "a field without end",
                    source=self._source,
                    line=self._feed.start,
                    remedy="close the quotation mark, or raise the limit with --option max_bytes=N",
                )
                self._problems.bad(error, None)
                continue
            if not self._feed.start:
                yield None
            elif fields and fields != [""]:
                yield self._feed.start, fields


def _ids(value: str) -> tuple[str, ...]:
    return (value,) if value else ()


class _Feed:
    """Hands lines to the csv module and remembers where the row under way began.

    A pause is a line of number 0; to the csv module it is an empty line, unless a row is under way.
    """

    def __init__(self, batches: Iterator[Lines]) -> None:
        pause = Lines([0], [""])
        self.numbered = (pair for one in batches for pair in zip(*(one if one.texts else pause), strict=True))
        self.start = 0  # 0 between rows

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        number, text = next(self.numbered)
        while not number and self.start:
            number, text = next(self.numbered)
        self.start = self.start or number
        return text + "\n"

    @staticmethod
    def delimited(row: list[str]) -> str:
        """A refused row, for the dead-letter file."""
        return "\t".join(row)
