"""Rows of predicted units in the formats of others' tools: two-column CoNLL, and bedGraph."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from seqmlm.rows.file import Row

BEDGRAPH = (".bedgraph", ".bg")
"""Endings of a bedGraph."""

_THOUSAND = 1000  # steps of a probability to which neighbouring values are equal, and written as one
_DIVIDERS = {ord(character): repr(character)[1:-1] for character in "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"}


def conll(rows: Iterable[Row]) -> Iterator[str]:
    """A unit and its tag a line, and a blank line behind each record.

    Tabs and ends of lines in units, as code has them, are escaped as in Python. A unit without a
    prediction has `_`.

    >>> list(conll([{"id": "a", "source": "f", "line": 1, "unit": "New", "prediction": "B-LOC"}]))
    ['New\\tB-LOC\\n', '\\n']
    """
    for _, record_rows in groupby(rows, key=_record):
        yield from (
            f"{str(row['unit']).translate(_DIVIDERS)}\t{row['prediction'] or '_'}\n" for row in record_rows
        )
        yield "\n"


def bedgraph(
    rows: Iterable[Row], classes: Sequence[str], name: str, *, indexed: bool = False
) -> Iterator[str]:
    """The probability of some classes together along sequences, each in its order; 0-based, half open.

    Neighbours of equal values are one line. Of a place that comes again the first row counts, for the format
    has each place once: memory holds two bytes for each.

    Args:
        rows: with `p`, in any order.
        classes: whose probabilities are added.
        name: of the track.
        indexed: the first line is a comment, as a file with an index must have it.
    """
    yield f'{"#" * indexed}track type=bedGraph name="{name}"\n'
    tracks = defaultdict[str, "array[int]"](lambda: array("h"))  # -1 where nothing is known
    for row in rows:
        track = tracks[row.get("document", row["id"])]
        start, stop = row.get("document_start", row["start"]), row.get("document_end", row["end"])
        track.frombytes(b"\xff" * (track.itemsize * max(0, stop - len(track))))
        if max(track[start:stop], default=0) < 0:
            value = round(_THOUSAND * round(sum(row["p"][one] for one in classes), 3))
            track[start:stop] = array("h", [value]) * (stop - start)
    for sequence, track in tracks.items():
        values = np.asarray(track)
        edges = np.flatnonzero(np.diff(values, prepend=np.int16(-2))).tolist()
        for begin, end in pairwise([*edges, len(values)]):
            if values[begin] >= 0:
                yield f"{sequence}\t{begin}\t{end}\t{values[begin] / _THOUSAND}\n"


def _record(row: Row) -> tuple[Any, ...]:
    return row["id"], row["source"], row["line"]
