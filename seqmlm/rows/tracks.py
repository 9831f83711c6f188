"""Rows of predicted units in the formats of others' tools: two-column CoNLL, and bedGraph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from seqmlm.rows.file import Row

DIGITS = 3
"""To which neighbouring values are equal, and written as one."""


_DIVIDERS = {ord(one): repr(one)[1:-1] for one in "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"}


def conll(rows: Iterable[Row]) -> Iterator[str]:
    """A unit and its tag a line, and a blank line behind each record.

    Tabs and ends of lines in units, as code has them, are escaped as in Python.

    >>> list(conll([{"id": "a", "source": "f", "line": 1, "unit": "New", "prediction": "B-LOC"}]))
    ['New\\tB-LOC\\n', '\\n']
    """
    for _, own in groupby(rows, key=_record):
        yield from (f"{str(row['unit']).translate(_DIVIDERS)}\t{row['prediction']}\n" for row in own)
        yield "\n"


def bedgraph(rows: Iterable[Row], classes: Sequence[str], name: str) -> Iterator[str]:
    """The probability of some classes together along sequences; 0-based, half open.

    Neighbours of equal values are one line. Of a place that comes again the first row counts, for the format
    has each place once: memory holds a byte for each.

    Args:
        rows: with `p`, in the order of records.
        classes: whose probabilities are added.
        name: of the track.
    """
    yield f'track type=bedGraph name="{name}"\n'
    covered = defaultdict[str, bytearray](bytearray)
    sequence, begin, end, value = "", 0, 0, -1.0
    for _, own in groupby(rows, key=_record):
        for at, start, stop, row in sorted(map(_place, own), key=lambda one: one[1]):
            probability = round(sum(row["p"][one] for one in classes), DIGITS)
            known = covered[at]
            if any(known[start:stop]):
                continue
            known.extend(bytes(max(0, stop - len(known))))
            known[start:stop] = b"\1" * (stop - start)
            if (at, start, probability) != (sequence, end, value):
                if end > begin:
                    yield f"{sequence}\t{begin}\t{end}\t{value}\n"
                sequence, begin, value = at, start, probability
            end = stop
    if end > begin:
        yield f"{sequence}\t{begin}\t{end}\t{value}\n"


def _record(row: Row) -> tuple[Any, ...]:
    return row["id"], row["source"], row["line"]


def _place(row: Row) -> tuple[str, int, int, Row]:
    """Where a unit is in the sequence that its record is a part of."""
    at = row.get("document", row["id"])
    return at, row.get("document_start", row["start"]), row.get("document_end", row["end"]), row
