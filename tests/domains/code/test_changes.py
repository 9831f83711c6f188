"""Changed lines: what is compared with what."""

from __future__ import annotations

import difflib

import numpy as np
import pytest

from seqmlm.anomaly.values import Row
from seqmlm.domains.code.changes import Change, changed_rows, paired_lines, parse_patch
from seqmlm.domains.code.lexers.source import SourceText


def change(before: str, after: str) -> Change:
    diff = "".join(
        difflib.unified_diff(before.splitlines(True), after.splitlines(True), "a/x.py", "b/x.py", n=0)
    )
    [patch] = parse_patch(diff.encode(), "d")
    return Change(patch=patch, old_text=SourceText(before, "python"), new_text=SourceText(after, "python"))


def lines(text: str, scores: dict[int, float]) -> list[Row]:
    """A row for every line, of score 0.5 where nothing is said."""
    return [
        Row(
            id=f"x#{n}",
            source="x.py",
            line=n,
            start=0,
            end=1,
            units=np.array([0]),
            length=1,
            statistics={"line": scores.get(n, 0.5)},
            score=scores.get(n, 0.5),
        )
        for n in range(1, text.count("\n") + 1)
    ]


def test_a_changed_line_is_compared_with_what_it_was_and_a_new_one_with_nothing():
    before = "import os\n\nx = 1\ntotal = price * count\nreturn total\n"
    after = "import os\nimport sys\n\nx = 1\ntotal = price / count\nlog(total)\nreturn total\n"
    found = changed_rows(change(before, after), lines(before, {4: 1.0}), lines(after, {5: 3.5, 2: -1.0}))
    told = [
        (index, row.line, row.score, row.extra["change"], row.extra["line_before"]) for index, row in found
    ]
    assert told == [(1, 2, -1.0, "new", None), (4, 5, 2.5, "modified", 4), (5, 6, 0.5, "new", None)]
    assert (found[1][1].extra["score_before"], found[1][1].extra["score_after"]) == (1.0, 3.5)
    assert found[0][1].extra["score_before"] is None


def test_lines_that_only_went_give_nothing():
    before, after = "a = 1\nb = 2\nc = 3\n", "a = 1\nc = 3\n"
    assert changed_rows(change(before, after), lines(before, {}), lines(after, {})) == []


@pytest.mark.parametrize(
    ("before", "after", "pairs"),
    [
        (["x = a + b"], ["x = a - b"], [(0, 0)]),
        (["x = a + b"], ["log('hello')", "x = a - b"], [(0, 1)]),
        (["x = a + b", "return x"], ["return x", "x = a - b"], [(1, 0)]),
        (["    deep(1)"], ["deep(1)"], [(0, 0)]),
        (["import os"], ["zzzzzzzzzzzz"], []),
        ([], ["x"], []),
        (["f(a, 1)", "f(b, 2)", "f(c, 3)"], ["f(a, 1, x)", "f(c, 3, x)"], [(0, 0), (2, 1)]),
    ],
)
def test_pairs(before, after, pairs):
    assert paired_lines(before, after) == pairs


def test_a_rewritten_file_is_paired_by_numbers():
    many = [f"line {n}" for n in range(200)]
    assert paired_lines(many, many[:150]) == [(n, n) for n in range(150)]
