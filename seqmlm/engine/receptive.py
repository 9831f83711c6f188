"""Which rows each layer must compute for the asked ones: a layer with a window reads no further than it.

Going back from the asked rows, the layer before one with a window of w tokens owes only the rows within w of
those wanted; before a layer that looks everywhere, every row is owed. Long documents asked at few tokens lose
most rows of their last layers that way, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqmlm.engine.grouping import Layout

Longs = NDArray[np.int64]

# Rows are left out where at most this share of them is owed: gathering the rest must pay.
_WORTH = 0.9


@dataclass(frozen=True, eq=False)
class Stage:
    """What one layer reads and gives.

    Args:
        layout: of the rows it reads.
        rows: (R,) which of them it gives, ascending but for the last layer; None for all.
    """

    layout: Layout
    rows: Tensor | None


def stages(layout: Layout, asked: Tensor, windows: Sequence[int | None]) -> list[Stage]:
    """The layers' rows, first to last.

    Args:
        layout: of the whole row.
        asked: (Q,) tokens wanted of the last layer.
        windows: of each layer, tokens to each side, None for all.
    """
    sizes = np.asarray(layout.lengths, dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    wanted = asked.numpy()
    document = np.searchsorted(starts, wanted, side="right") - 1
    spans = _spans(wanted - starts[document], document, sizes, windows)
    found: list[Stage] = []
    low, high = np.zeros_like(sizes), sizes
    for span in spans:
        rows = None
        after = layout
        if span is not None and (span[1] - span[0]).sum() <= _WORTH * (high - low).sum():
            kept = span[1] - span[0]
            first = np.cumsum(high - low) - (high - low) + span[0] - low
            rows = torch.from_numpy(np.repeat(first - (np.cumsum(kept) - kept), kept) + np.arange(kept.sum()))
            offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int32)
            after = Layout(torch.from_numpy(offsets), tuple(kept.tolist()))
            low, high = span
        found.append(Stage(layout, rows))
        layout = after
    first = np.cumsum(high - low) - high
    found.append(Stage(layout, torch.from_numpy(wanted - starts[document] + first[document])))
    return found


def _spans(
    offsets: Longs, document: Longs, sizes: Longs, windows: Sequence[int | None]
) -> list[tuple[Longs, Longs] | None]:
    """First row and end (D,) of what each layer but the last owes of each document; None for all of it."""
    low, high = sizes.copy(), np.zeros_like(sizes)
    np.minimum.at(low, document, offsets)
    np.maximum.at(high, document, offsets + 1)
    nothing = high == 0
    low[nothing], high[nothing] = 0, 1  # a document has one row at least
    spans: list[tuple[Longs, Longs] | None] = []
    everything = False
    for window in reversed(windows[1:]):
        everything |= window is None
        if not everything:
            low, high = np.maximum(low - (window or 0), 0), np.minimum(high + (window or 0), sizes)
        spans.append(None if everything else (low, high))
    return spans[::-1]
