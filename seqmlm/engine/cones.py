"""Masked copies of a sequence, computed only at rows that differ from it and that affect a queried position.

An exact score needs as many copies of a sequence as it has units. Each copy differs from the sequence in one
unit. If layers attend only to nearby tokens, most rows of a copy are equal to the rows of the sequence:

* the *forward cone* F of a copy: F[0] are the positions with another token than the sequence. F[l] are the
  rows within the window of layer l around F[l - 1] (all rows after a layer that attends to all tokens). Rows
  outside F[l] are equal to the rows of the sequence, which are computed once for all its copies;
* the *backward cone* B: B[K] are the queried rows. B[l - 1] are the rows within the window of layer l around
  B[l]. No result depends on rows outside B[l].

Layer l computes R[l], the rows that are in both cones. Keys and values of the other rows come from the
sequence. If at most one layer attends to all tokens, the cost of a copy is the width of its cones. The cost
of exact scores then grows with the length of a sequence instead of its square. The results equal the results
of whole copies, except for rounding.

The rows of all copies are numbered together: position p of copy c is row `starts[c] + p`.
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
    """The layers of an encoder.

    Args:
        windows: for each layer, the number of tokens to each side that it attends to; None for all.
        width: heads x head size.
    """

    windows: tuple[int | None, ...]
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Disjoint ranges of rows, ascending: range i starts at `first[i]` and ends before `end[i]`."""

    first: Longs
    end: Longs

    @property
    def rows(self) -> Longs:
        """All rows in the ranges, ascending."""
        return ranges(self.first, self.end - self.first)


def widen(spans: Spans, window: int | None, starts: Longs) -> Spans:
    """All rows of the same copy within `window` rows of the given ones.

    Args:
        spans: the given rows.
        window: number of rows to each side; None for the whole copy.
        starts: (N + 1,) first row of each copy, and the total.
    """
    copy = np.searchsorted(starts, spans.first, side="right") - 1
    low, high = starts[copy], starts[copy + 1]
    if window is None:
        return _merge(low, high)
    return _merge(np.maximum(spans.first - window, low), np.minimum(spans.end + window, high))


def _merge(first: Longs, end: Longs) -> Spans:
    """Ranges with ascending starts and ends; ranges that overlap become one."""
    if not len(first):
        return Spans(first, end)
    is_first = np.concatenate([[True], first[1:] >= end[:-1]])
    is_last = np.concatenate([is_first[1:], [True]])
    return Spans(first[is_first], end[is_last])


def intersection(u: Spans, v: Spans) -> Spans:
    """The rows that are in both `u` and `v`."""
    places = np.concatenate([u.end, v.end, u.first, v.first])
    change = np.repeat([-1, 1], [len(u.end) + len(v.end), len(u.first) + len(v.first)])
    order = np.argsort(places, kind="stable")  # at the same place, ends come before starts
    inside = np.flatnonzero(np.cumsum(change[order]) == 2)
    return Spans(places[order][inside], places[order][inside + 1])


def cones(changed: Longs, asked_rows: Longs, starts: Longs, layers: Layers) -> list[Spans]:
    """The rows R[0] to R[K] of the copies that each layer must compute.

    R[0] are the changed tokens that affect a queried row.

    Args:
        changed: rows with another token than the sequence, ascending and distinct.
        asked_rows: queried rows, ascending and distinct.
        starts: (N + 1,) first row of each copy, and the total.
        layers: the K layers.
    """
    forward = [_merge(changed, changed + 1)]
    for window in layers.windows:
        forward.append(widen(forward[-1], window, starts))
    backward = _backward_cones(asked_rows, starts, layers)
    return [intersection(f, b) for f, b in zip(forward, backward, strict=True)]


def _backward_cones(asked_rows: Longs, starts: Longs, layers: Layers) -> list[Spans]:
    """B[0] to B[K]: the rows of each layer that the queried rows depend on."""
    spans = [_merge(asked_rows, asked_rows + 1)]
    for window in reversed(layers.windows):
        spans.append(widen(spans[-1], window, starts))
    return spans[::-1]


# Cost of the keys and values of a row, including moving them (measured), in units of one computed row.
_OF_KEYS = 0.5


def costs(changed: Longs, asked_rows: Longs, starts: Longs, layers: Layers) -> tuple[Floats, Floats, Floats]:
    """Cost of each of N copies, computed in three ways.

    The unit is one row of one layer. A row that attends to k keys costs 1 + k / (4 x width), because of its
    additional products.

    Args:
        changed, asked_rows, starts, layers: as for `cones`.

    Returns:
        Three arrays (N,) float32: the cost of the rows in the cones, of all rows that affect a queried row,
        and of all rows.
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
        group: sizes and mask of the blocks.
        rows: (N x A,) index among the rows that the layer computes; 0 in unused slots of a block.
        keys: (N x M,) index among the T rows of the sequences, followed by the rows of the copies in the
            layer below.
    """

    group: Group
    rows: Tensor
    keys: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The computation of one layer for all copies.

    Args:
        below: (P,) for each row of the layer below, the token of the sequence at its place.
        rows: (R,) for each row of this layer, the token of the sequence at its place.
        shared: (S,) rows of the layer below that this layer also computes, ascending.
        place: (S,) index of these rows in this layer.
        blocks: the attention calls.
        outputs: (R,) query slot of each row, over all blocks.
    """

    below: Tensor
    rows: Tensor
    shared: Tensor
    place: Tensor
    blocks: tuple[Block, ...]
    outputs: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ConeBatch(Movable):
    """Sequences packed into one row of T tokens, and the differences of their masked copies.

    Args:
        sequences: the packed row; none of its positions is queried.
        tokens: (P,) ids that the copies have at the places of `steps[0].below`.
        steps: one step for each layer, first to last.
        asked: (Q,) index of each queried row among the T rows of the sequences, followed by the rows of the
            copies in the last layer.
        unchanged: whether a queried row of a copy is equal to the same row of its sequence.
    """

    sequences: PackedBatch
    tokens: Tensor
    steps: tuple[Step, ...]
    asked: Tensor
    unchanged: bool


class Places(NamedTuple):
    """Tokens of copies, ordered by copy: (P,) number of the copy, position in the copy, and token id."""

    copy: Longs
    position: Longs
    ids: Longs


def cone_batch(
    sequences: PackedBatch, sequence: Longs, changed_places: Places, asked_places: Places, layers: Layers
) -> ConeBatch:
    """The batch that computes N masked copies only where they differ from their sequences.

    Args:
        sequences: D sequences in one packed row.
        sequence: (N,) index of the sequence that each copy is made from, ascending.
        changed_places: tokens in which copies differ from their sequences, by ascending position within a
            copy.
        asked_places: queried tokens, at least one in each copy.
        layers: the layers of the encoder.
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


# Largest size of a block, in windows: longer ranges are split, so that few keys are attended to by no row.
_LONGEST = 4
_SHORTEST = 16


def _blocks(
    rows: Longs, spans: Spans, value_place: Longs, starts: Longs, window: int | None, width: int
) -> tuple[tuple[Block, ...], Longs]:
    """The attention calls for the rows of a layer, and the query slot of each row."""
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
    """One attention call, and the slots that contain rows."""
    place = first[:, None] + np.arange(count.max())
    is_row = place < (first + count)[:, None]
    keys = low[:, None] + np.arange((high - low).max())
    in_window = keys < high[:, None]
    place[~is_row] = 0
    keys[~in_window] = 0
    mask: NDArray[np.bool_] | None = None if in_window.all() else in_window[:, None, None, :]
    if window is not None:
        # Blocks of the same shape share a mask. Nearly all blocks have the same shape.
        alike = len(np.unique(rows[first] - low)) == len(np.unique(count)) == 1 and bool(in_window.all())
        mask_blocks = slice(0, 1) if alike else slice(None)
        is_near = np.abs(rows[place[mask_blocks]][:, :, None] - keys[mask_blocks][:, None, :]) <= window
        is_near &= in_window[mask_blocks][:, None, :]
        is_near[:, :, 0] |= ~is_row[mask_blocks]  # a slot without a row must attend to something
        mask = is_near[:, None]
    group = Group(
        len(first), place.shape[1], keys.shape[1], None if mask is None else torch.from_numpy(mask.copy())
    )
    index = torch.from_numpy(value_place[keys].ravel())
    return Block(group, torch.from_numpy(place.ravel()), index), np.flatnonzero(is_row.ravel())


def _group_blocks(rows: Longs, keys: Longs, width: int) -> list[Longs]:
    """Groups of blocks of similar size; a group grows while its padding is cheaper than another call."""
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
