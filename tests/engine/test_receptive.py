"""Rows left out are those that no asked row can see, by a walk over the layers token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seqmlm.engine.attention import RowLayout
from seqmlm.engine.fused import stages


def owed(length: int, asked: set[int], windows: list[int | None]) -> list[set[int]]:
    """What each layer owes of one document, last layer first, found by asking every token."""
    found = [asked]
    for window in windows[:0:-1]:
        seen = {j for i in found[-1] for j in range(length) if window is None or abs(i - j) <= window}
        found.append(seen)
    return found[::-1]


@pytest.mark.parametrize("windows", [[None, 4, 4, None, 4, 4], [4, 4, 4], [None, None], [None, 4]], ids=str)
def test_rows_given_are_the_rows_owed(windows: list[int | None]) -> None:
    lengths, asked = (50, 7, 40), [12, 13, 52, 57 + 39]
    starts = [0, 50, 57]
    layout = RowLayout(torch.tensor([0, 50, 57, 97], dtype=torch.int32), lengths)
    tokens = np.arange(97)
    narrowed = 0
    for number, stage in enumerate(stages(layout, torch.tensor(asked), windows)):
        assert sum(stage.layout.lengths) == len(tokens)
        expected: set[int] = set()
        for start, length in zip(starts, lengths, strict=True):
            mine = {a - start for a in asked if start <= a < start + length}
            expected |= {start + i for i in owed(length, mine, windows)[number]}
        if stage.rows is not None:
            narrowed += len(stage.rows) < len(tokens)
            tokens = tokens[stage.rows.numpy()]
        assert expected <= set(tokens.tolist())
        assert stage.rows is None or set(tokens.tolist()) == expected
    assert tokens.tolist() == asked
    assert narrowed == len(windows) - 1 - max((i for i, w in enumerate(windows) if w is None), default=0) + 1


def test_short_documents_keep_their_rows() -> None:
    layout = RowLayout(torch.tensor([0, 5, 9], dtype=torch.int32), (5, 4))
    steps = stages(layout, torch.tensor([2, 6]), [None, 64, 64])
    assert [stage.rows is None for stage in steps] == [True, True, False]
    assert all(stage.layout is layout for stage in steps)
