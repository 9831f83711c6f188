"""Masked copies of a sequence, computed only where they differ from it and where they are read.

An exact score asks as many copies of a sequence as it has units, and each copy differs from it in one of
them. With layers that look at nearby tokens, most rows of a copy are the sequence's own:

* the *forward cone* F of a copy: F[0] are the positions that hold another token, and F[l] the rows within
  layer l's window of F[l - 1] (all rows behind a layer that looks everywhere). Rows outside F[l] equal the
  sequence's, which are computed once for all its copies;
* the *backward cone* B: B[K] are the asked rows, and B[l - 1] the rows within layer l's window of B[l]. Rows
  outside B[l] are read by nobody.

Layer l computes the rows in both, R[l]; keys and values of the other rows come from the sequence. With at
most one layer that looks everywhere, a copy costs the width of its cones, and exact scores grow with the
length of a sequence instead of its square. The numbers are those of whole copies, to rounding.

A copy's rows are numbered through all copies: copy c, position p is row `starts[c] + p`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqmlm.engine.attention import Group, block_cost, call_cost
from seqmlm.engine.packing import Movable, PackedBatch
from seqmlm.engine.types import Floats, Longs, ranges, running_totals


class Layers(NamedTuple):
    """An encoder's layers.

    Args:
        windows: of each, tokens to each side that it looks at; None for all.
        width: heads x head size.
    """

    windows: tuple[int | None, ...]
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Disjoint ranges of rows, ascending: `first[i]` up to, without, `end[i]`."""

    first: Longs
    end: Longs

    @property
    def rows(self) -> Longs:
        """All rows, ascending."""
        return ranges(self.first, self.end - self.first)


def widen(spans: Spans, window: int | None, starts: Longs) -> Spans:
    """All rows of the same copy within `window` of some rows.

    Args:
        starts: (N + 1,) where each copy's rows begin.
    """
    copy = np.searchsorted(starts, spans.first, side="right") - 1
    low, high = starts[copy], starts[copy + 1]
    if window is None:
        return _merge(low, high)
    return _merge(np.maximum(spans.first - window, low), np.minimum(spans.end + window, high))


def _merge(first: Longs, end: Longs) -> Spans:
    """Ranges with ascending beginnings and ends; those that overlap become one."""
    if not len(first):
        return Spans(first, end)
    is_first = np.concatenate([[True], first[1:] >= end[:-1]])
    is_last = np.concatenate([is_first[1:], [True]])
    return Spans(first[is_first], end[is_last])


def intersection(u: Spans, v: Spans) -> Spans:
    """The rows that are in both."""
    places = np.concatenate([u.end, v.end, u.first, v.first])
    change = np.repeat([-1, 1], [len(u.end) + len(v.end), len(u.first) + len(v.first)])
    order = np.argsort(places, kind="stable")  # at the same place, what ends goes before what begins
    inside = np.flatnonzero(np.cumsum(change[order]) == 2)
    return Spans(places[order][inside], places[order][inside + 1])


def cones(changed: Longs, asked_rows: Longs, starts: Longs, layers: Layers) -> list[Spans]:
    """R[0] to R[K]: the rows of copies that each layer must compute; R[0] are changed tokens that are read.

    Args:
        changed, asked_rows: rows, ascending and distinct.
        starts: (N + 1,) where each copy's rows begin.
        layers: K of them.
    """
    forward = [_merge(changed, changed + 1)]
    for window in layers.windows:
        forward.append(widen(forward[-1], window, starts))
    backward = _backward_cones(asked_rows, starts, layers)
    return [intersection(f, b) for f, b in zip(forward, backward, strict=True)]


def _backward_cones(asked_rows: Longs, starts: Longs, layers: Layers) -> list[Spans]:
    """B[0] to B[K]: the rows that the asked ones depend on."""
    spans = [_merge(asked_rows, asked_rows + 1)]
    for window in reversed(layers.windows):
        spans.append(widen(spans[-1], window, starts))
    return spans[::-1]


# Cost of a row's keys and values, with what gathering them takes (measured), in computed rows.
_OF_KEYS = 0.5


def costs(changed: Longs, asked_rows: Longs, starts: Longs, layers: Layers) -> tuple[Floats, Floats, Floats]:
    """(N,) cost of each copy by its cones, by all rows that are read, and by all rows.

    In rows of one layer; a row that looks at k keys costs 1 + k / (4 x width): so many more products.
    """
    all_rows = [Spans(starts[:-1], starts[1:])] * (len(layers.windows) + 1)
    read_rows = _backward_cones(asked_rows, starts, layers)
    cone_rows = cones(changed, asked_rows, starts, layers)
    cone_costs, read_costs, full_costs = (
        _cost(rows, starts, layers) for rows in (cone_rows, read_rows, all_rows)
    )
    return cone_costs, read_costs, full_costs


def _cost(rows: list[Spans], starts: Longs, layers: Layers) -> Floats:
    lengths = np.diff(starts)
    counts = []
    for spans in rows:
        copy = np.searchsorted(starts, spans.first, side="right") - 1
        counts.append(np.bincount(copy, spans.end - spans.first, len(lengths)))
    total = np.zeros(len(lengths))
    for (below, here), window in zip(pairwise(counts), layers.windows, strict=True):
        keys = lengths if window is None else np.minimum(2 * window + 1, lengths)
        total += here * (1 + keys / (4 * layers.width)) + below * _OF_KEYS
    return total.astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Attention of N blocks of A rows over M keys each, in one call.

    Args:
        group: its sizes and mask.
        rows: (N x A,) among the rows that the layer computes; 0 where a block has fewer.
        keys: (N x M,) among the sequences' T rows and, behind them, the copies' rows of the layer below.
    """

    group: Group
    rows: Tensor
    keys: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One layer of all copies.

    Args:
        below: (P,) the sequence's token at the place of each row of the layer below.
        rows: (R,) the sequence's token at the place of each row of this layer.
        shared: (S,) which rows of the layer below are also computed here, ascending.
        place: (S,) where they stand in this layer.
        blocks: attention.
        outputs: (R,) the query slot of each row, over all blocks.
    """

    below: Tensor
    rows: Tensor
    shared: Tensor
    place: Tensor
    blocks: tuple[Block, ...]
    outputs: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ConeBatch(Movable):
    """Sequences, packed into one row of T tokens, and what differs in their masked copies.

    Args:
        sequences: the packed row; nothing of it is asked.
        tokens: (P,) ids that the copies hold at the places of `steps[0].below`.
        steps: of the layers, first to last.
        asked: (Q,) each asked row among the sequences' T and, behind them, the copies' rows of the last
            layer.
        unchanged: whether anything is asked where a copy is like its sequence.
    """

    sequences: PackedBatch
    tokens: Tensor
    steps: tuple[Step, ...]
    asked: Tensor
    unchanged: bool


class Places(NamedTuple):
    """Tokens of copies, ordered by copy: (P,) copy, position in it, and id that stands there."""

    copy: Longs
    position: Longs
    ids: Longs


def cone_batch(
    sequences: PackedBatch, sequence: Longs, changed_places: Places, asked_places: Places, layers: Layers
) -> ConeBatch:
    """The batch that computes N masked copies where they differ from their sequences.

    Args:
        sequences: D of them in one packed row.
        sequence: (N,) the one that each copy is made of, ascending.
        changed_places: where copies differ from it, by ascending position within a copy.
        asked_places: at least one in each copy.
    """
    bounds = running_totals(np.asarray(sequences.lengths, dtype=np.int64))
    total = bounds[-1]
    lengths = np.diff(bounds)[sequence]
    starts = running_totals(lengths)
    base = ranges(bounds[sequence], lengths)
    changed_rows, asked_rows = (
        starts[places.copy] + places.position for places in (changed_places, asked_places)
    )
    spans = cones(changed_rows, np.unique(asked_rows), starts, layers)
    rows = [span.rows for span in spans]
    value_place = base.copy()
    steps = []
    for (below, here), row_spans, window in zip(pairwise(rows), spans[1:], layers.windows, strict=True):
        value_place[below] = total + np.arange(len(below))
        blocks, outputs = _blocks(here, row_spans, value_place, starts, window, layers.width)
        value_rows = value_place[here]
        steps.append(
            Step(
                below=_index_tensor(base[below]),
                rows=_index_tensor(base[here]),
                shared=_index_tensor(value_rows[value_rows >= total] - total),
                place=_index_tensor(np.flatnonzero(value_rows >= total)),
                blocks=blocks,
                outputs=_index_tensor(outputs),
            )
        )
        value_place[below] = base[below]
    value_place[rows[-1]] = total + np.arange(len(rows[-1]))
    asked_values = value_place[asked_rows]
    return ConeBatch(
        sequences=sequences,
        tokens=_index_tensor(changed_places.ids[np.searchsorted(changed_rows, rows[0])]),
        steps=tuple(steps),
        asked=_index_tensor(asked_values),
        unchanged=bool((asked_values < total).any()),
    )


def _index_tensor(values: Longs) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))


# Rows of a block with a window: more are cut, so that keys which no row looks at are few.
_LONGEST = 4
_SHORTEST = 16


def _blocks(
    rows: Longs, spans: Spans, value_place: Longs, starts: Longs, window: int | None, width: int
) -> tuple[tuple[Block, ...], Longs]:
    """Attention of a layer's rows, and the slot of each."""
    if window is None:
        copy = np.searchsorted(starts, rows, side="right") - 1
        first = np.flatnonzero(np.diff(copy, prepend=-1))
        count = np.diff(first, append=len(rows))
        low, high = starts[copy[first]], starts[copy[first] + 1]
    else:
        sizes = spans.end - spans.first
        longest = _LONGEST * max(window, _SHORTEST)
        parts = -(-sizes // longest)
        count = np.repeat(-(-sizes // parts), parts)
        begin = np.repeat(spans.first, parts) + ranges(np.zeros_like(parts), parts) * count
        count = np.minimum(count, np.repeat(spans.end, parts) - begin)
        first = np.cumsum(count) - count
        copy = np.searchsorted(starts, begin, side="right") - 1
        low = np.maximum(begin - window, starts[copy])
        high = np.minimum(begin + count + window, starts[copy + 1])
    blocks, slots, done = [], np.empty(len(rows), dtype=np.int64), 0
    for members in _group_blocks(count, high - low, width):
        block, filled = _block(
            rows, first[members], count[members], low[members], high[members], value_place, window
        )
        slots[block.rows.numpy()[filled]] = done + filled
        done += len(block.rows)
        blocks.append(block)
    return tuple(blocks), slots


def _block(
    rows: Longs, first: Longs, count: Longs, low: Longs, high: Longs, value_place: Longs, window: int | None
) -> tuple[Block, Longs]:
    """One call, and which of its slots are rows."""
    place = first[:, None] + np.arange(count.max())
    is_row = place < (first + count)[:, None]
    keys = low[:, None] + np.arange((high - low).max())
    in_window = keys < high[:, None]
    place[~is_row] = 0
    keys[~in_window] = 0
    mask: NDArray[np.bool_] | None = None if in_window.all() else in_window[:, None, None, :]
    if window is not None:
        # Blocks of the same shape share a mask, as nearly all do.
        alike = len(np.unique(rows[first] - low)) == len(np.unique(count)) == 1 and bool(in_window.all())
        mask_blocks = slice(0, 1) if alike else slice(None)
        is_near = np.abs(rows[place[mask_blocks]][:, :, None] - keys[mask_blocks][:, None, :]) <= window
        is_near &= in_window[mask_blocks][:, None, :]
        is_near[:, :, 0] |= ~is_row[mask_blocks]  # a slot without a row must look at something
        mask = is_near[:, None]
    group = Group(
        len(first), place.shape[1], keys.shape[1], None if mask is None else torch.from_numpy(mask.copy())
    )
    index = torch.from_numpy(value_place[keys].ravel())
    return Block(group, torch.from_numpy(place.ravel()), index), np.flatnonzero(is_row.ravel())


def _group_blocks(rows: Longs, keys: Longs, width: int) -> list[Longs]:
    """Blocks of similar sizes in groups that grow while their padding is cheaper than another call."""
    if not len(rows):
        return []
    sizes, kind, block_counts = np.unique(keys << 32 | rows, return_inverse=True, return_counts=True)
    groups = np.empty(len(sizes), dtype=np.int64)
    number, tallest, widest, waste = -1, 0, 0, 0
    for index in range(len(sizes) - 1, -1, -1):
        size, count = int(sizes[index] & 0xFFFFFFFF), int(block_counts[index])
        length = int(sizes[index] >> 32)
        extra = count * (block_cost(max(tallest, size), widest) - block_cost(size, length))
        if number < 0 or size > tallest or waste + extra > call_cost(width):
            number, tallest, widest, waste, extra = number + 1, size, length, 0, 0
        groups[index] = number
        waste += extra
    group_of_block = groups[kind]
    return [np.flatnonzero(group_of_block == index) for index in range(number + 1)]
