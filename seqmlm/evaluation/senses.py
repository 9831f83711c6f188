"""What senses of words, as predicted in rows, are worth; and one sense for each word of a document."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from seqmlm.evaluation.intervals import exact_accuracy

UNKNOWN = "unknown"
"""Of a word that training lacks."""

Row = Mapping[str, Any]


def word_of(text: str) -> str:
    """What has senses: a span's text, in small letters."""
    return " ".join(text.split()).casefold()


def one_sense(rows: Iterable[Row]) -> Iterator[Row]:
    """Rows in which a word has one sense in a document, that of most (Gale, Church and Yarowsky 1992)."""
    listed, votes = list(rows), defaultdict[tuple[Any, str], Counter[str]](Counter)
    for row in listed:
        votes[row["document"], word_of(row["unit"])][row["sense"]] += 1
    for row in listed:
        # Of equally many the one that comes first.
        yield {**row, "sense": votes[row["document"], word_of(row["unit"])].most_common(1)[0][0]}


def sense_figures(rows: Iterable[Row]) -> dict[str, Any]:
    """How many senses are right, beside the most frequent one of each word; and how many are unknown."""
    spans = unknown = known = right = frequent = 0
    for row in rows:
        spans, unknown = spans + 1, unknown + (row["sense"] == UNKNOWN)
        if row.get("truth") is not None:
            known, right = known + 1, right + (row["sense"] == row["truth"])
            frequent += row["frequent"] == row["truth"]
    found: dict[str, Any] = {"spans": spans, "unknown": unknown}
    if known:
        found |= {**exact_accuracy(right, known), "most_frequent": frequent / known}
    return found
