"""Changed lines of code: how much more unusual each became, s(after) - s(before).

A line that was changed is compared with the one it came from; a new one with an average line, whose z is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher

import numpy as np

from seqmlm.anomaly.values import Row
from seqmlm.data.readers.changes import Change

_LIKE = 0.4  # share of common characters from which one line is a version of another
_MOST_PAIRS = 10_000  # of lines compared within one hunk


def changed_rows(change: Change, before: Sequence[Row], after: Sequence[Row]) -> list[tuple[int, Row]]:
    """The rows of changed lines, scored by their change.

    Args:
        change: of one file.
        before, after: rows of the level `line` of both versions; none of one that there is not.

    Returns:
        (index in `after`, row) in order; `extra` tells both scores, the line it came from, and whether it is
        "new" or "modified".
    """
    old = {row.line: row for row in before}
    origin = _origins(change)
    found = []
    for index, row in enumerate(after):
        if row.line not in origin or row.score is None:
            continue
        source = origin[row.line]
        was = old[source].score if source is not None and source in old else None
        delta = row.score - (was or 0.0)
        extra = {
            **row.extra,
            "change": "new" if source is None else "modified",
            "score_after": row.score,
            "score_before": was,
            "line_before": source,
        }
        found.append((index, replace(row, score=delta, extra=extra)))
    return found


def _origins(change: Change) -> dict[int, int | None]:
    """1-based number of each line that came, to that of the line it was before; None for a new one."""
    if change.after is None:
        return {}
    new = change.after.split("\n")
    old = change.before.split("\n") if change.before is not None else []
    origins: dict[int, int | None] = {}
    for hunk in change.hunks:
        gone, came = hunk.changed()
        origins |= dict.fromkeys(came)
        if old:
            texts = [old[number - 1] for number in gone], [new[number - 1] for number in came]
            origins |= {came[b]: gone[a] for a, b in paired(*texts)}
    return origins


def paired(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Which line became which: the pairs, in order on both sides, that are most alike together.

    Beyond `_MOST_PAIRS` comparisons (a rewritten file) lines are paired by their number.
    """
    rows, columns = len(before), len(after)
    if rows * columns > _MOST_PAIRS:
        return [(i, i) for i in range(min(rows, columns))]
    likeness = np.zeros((rows, columns))
    for j, text in enumerate(after):
        matcher = SequenceMatcher(None, b=text.strip(), autojunk=False)
        for i, other in enumerate(before):
            matcher.set_seq1(other.strip())
            if matcher.quick_ratio() >= _LIKE:
                likeness[i, j] = matcher.ratio()
    likeness[likeness < _LIKE] = 0.0
    best = np.zeros((rows + 1, columns + 1))
    for i in range(rows):
        for j in range(columns):
            best[i + 1, j + 1] = max(best[i, j + 1], best[i + 1, j], best[i, j] + likeness[i, j])
    pairs = []
    i, j = rows, columns
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]
