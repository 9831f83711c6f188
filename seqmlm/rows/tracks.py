"""Rows of predicted units in the formats of other tools: two-column CoNLL and bedGraph."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from seqmlm.rows.file import Row

BEDGRAPH = (".bedgraph", ".bg")
"""File endings of bedGraph."""

_THOUSAND = 1000  # probabilities are rounded to 1 / 1,000, and equal neighbours are merged
_DIVIDERS = {ord(character): repr(character)[1:-1] for character in "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"}


def conll(rows: Iterable[Row]) -> Iterator[str]:
    """The lines of a CoNLL file: one unit and its tag per line, and a blank line after each record.

    Tabs and line ends in units, as in code, are escaped as in Python. A unit without a prediction
    has the tag `_`.

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
    """The lines of a bedGraph file with the total probability of some classes.

    Positions are 0-based and half open.
    Neighbours with equal values are one line. The format has each position once. If a position occurs again,
    its first row is used. This needs two bytes of memory for each position.

    Args:
        rows: rows with `p`, in any order.
        classes: the classes whose probabilities are added.
        name: the name of the track.
        indexed: whether the first line is a comment. A file with an index needs this.
    """
    yield f'{"#" * indexed}track type=bedGraph name="{name}"\n'
    tracks = defaultdict[str, "array[int]"](lambda: array("h"))  # -1 where there is no row
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
