"""Accuracy of predicted word senses, and the rule of one sense per word in a document."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from seqmlm.evaluation.intervals import exact_accuracy

UNKNOWN = "unknown"
"""The sense of a word that is not in the training data."""

Row = Mapping[str, Any]


def word_key(text: str) -> str:
    """The key of a word: its text in lower case with single spaces."""
    return " ".join(text.split()).casefold()


def one_sense(rows: Iterable[Row]) -> Iterator[Row]:
    """Give each word in a document its most frequent sense (Gale, Church and Yarowsky 1992)."""
    all_rows, votes = list(rows), defaultdict[tuple[Any, str], Counter[str]](Counter)
    for row in all_rows:
        votes[row["document"], word_key(row["unit"])][row["sense"]] += 1
    for row in all_rows:
        # With equal counts, this is the sense that occurs first.
        yield {**row, "sense": votes[row["document"], word_key(row["unit"])].most_common(1)[0][0]}


def sense_figures(rows: Iterable[Row]) -> dict[str, Any]:
    """The accuracies of senses and of each word's most frequent sense, and the number of unknown senses."""
    spans = unknown = labelled = right = frequent = 0
    for row in rows:
        spans, unknown = spans + 1, unknown + (row["sense"] == UNKNOWN)
        if row.get("truth") is not None:
            labelled, right = labelled + 1, right + (row["sense"] == row["truth"])
            frequent += row["frequent"] == row["truth"]
    figures: dict[str, Any] = {"spans": spans, "unknown": unknown}
    if labelled:
        figures |= {**exact_accuracy(right, labelled), "most_frequent": frequent / labelled}
    return figures
