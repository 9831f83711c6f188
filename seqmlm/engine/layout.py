"""Queries become the distinct documents of a forward pass; every asked position learns where its answer is.

All of it is arithmetic on flat arrays: a masked copy costs a few microseconds, not an object and its calls.
In return, documents are slices of those arrays (`Documents`) instead of `packing.Document`s; a test holds
that both make the same batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from seqmlm.engine.cones import ConeBatch, Layers, Places, cone_batch, costs
from seqmlm.engine.packing import PackedBatch
from seqmlm.engine.query import Query, check_queries
from seqmlm.engine.types import Floats, Ids, Longs, TokenSpace, ranges, running_totals
from seqmlm.errors import UsageError

# Copies are computed as differences if they cost at most this share of whole ones.
_WORTH = 0.85


class Slices(NamedTuple):
    """Parts of a flat array, one of each of D documents: `flat[first[d] : first[d] + sizes[d]]`."""

    flat: NDArray[Any]
    first: Longs
    sizes: Longs

    def take(self, index: Longs | slice) -> Slices:
        """The slices of some documents, over the same flat array."""
        return Slices(self.flat, self.first[index], self.sizes[index])

    @property
    def places(self) -> Longs:
        """Where the entries of all documents stand in the flat array, document by document."""
        return ranges(self.first, self.sizes)

    @property
    def values(self) -> NDArray[Any]:
        """The entries of all documents, document by document."""
        return self.flat[self.places]


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """D masked copies of sequences, as slices of flat arrays.

    Args:
        ids: token ids.
        positions: flat position ids beside those of `ids`, or None where every document counts from 0.
        channels: further inputs beside them.
        asked: positions.
        group: (D,) index of the set of tokens its softmax is restricted to.
        extra: (D,) number of its (group, positions, channels); documents that differ in those have other
            ones.
        sequence: (D,) the query it is a copy of.
        original: the ids of that one's sequence.
        changed: positions where the copy differs from it, ascending.
    """

    ids: Slices
    positions: Ids | None
    channels: Mapping[str, Floats]
    asked: Slices
    group: Longs
    extra: Longs
    sequence: Longs
    original: Slices
    changed: Slices

    def __len__(self) -> int:
        return len(self.group)

    @property
    def length(self) -> Longs:
        """(D,) tokens."""
        return self.ids.sizes

    def take(self, index: Longs) -> Documents:
        """The documents of `index`, over the same flat arrays."""
        slices = {name: getattr(self, name).take(index) for name in ("ids", "asked", "original", "changed")}
        columns = {name: getattr(self, name)[index] for name in ("group", "extra", "sequence")}
        return replace(self, **slices, **columns)

    def batch(self, start: int, stop: int) -> PackedBatch:
        """Documents start..stop-1 laid end to end; what `packing.pack` makes of objects."""
        chosen = slice(start, stop)
        (_, first, length), asked_slices = self.ids.take(chosen), self.asked.take(chosen)
        bounds, token = running_totals(length), ranges(first, length)
        positions = ranges(np.zeros_like(length), length) if self.positions is None else self.positions[token]
        return PackedBatch(
            input_ids=torch.from_numpy(self.ids.flat[token].astype(np.int64))[None],
            position_ids=torch.from_numpy(positions.astype(np.int64))[None],
            cu_seq_lens=torch.from_numpy(bounds.astype(np.int32)),
            lengths=tuple(length.tolist()),
            asked=torch.from_numpy(asked_slices.values + np.repeat(bounds[:-1], asked_slices.sizes)),
            targets=None,
            weights=None,
            samples=torch.full((stop - start,), -1),
            channels={name: torch.from_numpy(c[token])[None] for name, c in self.channels.items()},
        )

    def cone_batch(self, start: int, stop: int, layers: Layers) -> ConeBatch:
        """Documents start..stop-1, ordered by sequence, as what differs from their sequences."""
        copies = self.take(np.arange(start, stop))
        is_first = np.diff(copies.sequence, prepend=-1) != 0
        first = copies.take(np.flatnonzero(is_first))
        sequences = replace(
            first.batch(0, len(first)),
            input_ids=torch.from_numpy(first.original.values.astype(np.int64))[None],
            asked=torch.empty(0, dtype=torch.int64),
        )
        changed_places, asked_places = copies._places(copies.changed), copies._places(copies.asked)
        return cone_batch(sequences, np.cumsum(is_first) - 1, changed_places, asked_places, layers)

    def _places(self, part: Slices) -> Places:
        copy = np.repeat(np.arange(len(self)), part.sizes)
        position = part.values.astype(np.int64)
        return Places(copy, position, self.ids.flat[self.ids.first[copy] + position].astype(np.int64))

    def difference_costs(self, layers: Layers) -> tuple[NDArray[np.bool_], Floats]:
        """(D,) which documents are cheaper as differences from their sequences, and the cost of each.

        In rows of all layers: a token of a document that is computed whole costs 1.
        """
        starts = running_totals(self.length)
        changed_rows, asked_rows = (
            np.repeat(starts[:-1], part.sizes) + part.values for part in (self.changed, self.asked)
        )
        return _difference_costs(changed_rows, np.unique(asked_rows), starts, self.sequence, layers)

    def distinct(self) -> tuple[Longs, Longs]:
        """The documents that are different questions.

        Returns:
            Indices of the distinct documents (U,), and for each document its place among them (D,).
        """
        digest = self._digest()
        _, first, place = np.unique(digest, return_index=True, return_inverse=True)
        same = np.flatnonzero(first[place] != np.arange(len(self)))
        different = same[~self._equal(same, first[place[same]])]
        if len(different):  # a collision of digests, about once in 2^64 pairs: computed on its own
            place[different] = len(first) + np.arange(len(different))
            first = np.concatenate([first, different])
        return first, place

    def _digest(self) -> NDArray[np.uint64]:
        """(D,) a multilinear hash of ids, asked positions and extras (Lemire and Kaser 2014), modulo 2^64."""
        width = int(max(self.length.max(), self.asked.sizes.max()))
        factors = np.random.Generator(np.random.Philox(0)).integers(0, 2**64, (2, width + 2), dtype=np.uint64)
        digest = np.zeros(len(self), dtype=np.uint64)
        digest += self.extra.astype(np.uint64) * factors[0, -1]
        digest += self.length.astype(np.uint64) * factors[0, -2]
        for part, factor in zip((self.ids, self.asked), factors, strict=True):
            terms = part.values.astype(np.uint64)
            terms *= factor[ranges(np.zeros_like(part.sizes), part.sizes)]
            digest += np.add.reduceat(terms, np.cumsum(part.sizes) - part.sizes)
        return digest

    def _equal(self, a: Longs, b: Longs) -> NDArray[np.bool_]:
        """Whether documents a[i] and b[i] are equal, token by token."""
        equal = self.extra[a] == self.extra[b]
        for part in (self.ids, self.asked):
            equal &= part.sizes[a] == part.sizes[b]
        for flat, first, count in (self.ids, self.asked):
            n = np.where(equal, count[a], 0)
            unlike = flat[ranges(first[a], n)] != flat[ranges(first[b], n)]
            equal &= np.bincount(np.repeat(np.arange(len(a)), n)[unlike], minlength=len(a)) == 0
        return np.asarray(equal, dtype=np.bool_)


def _difference_costs(
    changed_rows: Longs, asked_rows: Longs, starts: Longs, sequence: Longs, layers: Layers
) -> tuple[NDArray[np.bool_], Floats]:
    """`Documents.difference_costs` of D copies whose rows are numbered as in `cones`.

    Args:
        changed_rows, asked_rows: ascending and distinct.
        starts: (D + 1,) where each copy's rows begin.
        sequence: (D,) the one it is a copy of.
    """
    cone_costs, read_costs, full_costs = costs(changed_rows, asked_rows, starts, layers)
    _, first, sequence_index = np.unique(sequence, return_index=True, return_inverse=True)
    # The sequence itself is computed, too.
    sequence_costs = np.bincount(sequence_index, cone_costs) + full_costs[first]
    cheaper = (sequence_costs < _WORTH * np.bincount(sequence_index, read_costs))[sequence_index]
    # One at least: a pack of documents that cost nothing could not be made smaller when memory runs out.
    copy_costs = np.maximum(cone_costs / len(layers.windows), 1)
    return cheaper, np.where(cheaper, copy_costs, np.diff(starts)).astype(np.float32)


def exact_cost(length: int, layers: Layers | None) -> float:
    """The cost of asking every token of a sequence with itself masked, in one forward pass.

    Args:
        length: of the sequence, in tokens, at least 1.
        layers: of an encoder that can compute copies as differences from their sequences, or None.

    Returns:
        Tokens of documents computed whole, as `Layout.cost` counts them: `length` squared where the copies
        are computed whole.
    """
    if layers is None:
        return float(length) ** 2
    starts = length * np.arange(length + 1)
    rows = starts[:-1] + np.arange(length)
    narrow, cost = _difference_costs(rows, rows, starts, np.zeros_like(rows), layers)
    return float(cost.sum(dtype=np.float64)) + (length if narrow[0] else 0)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The distinct documents of a window of queries, and where each asked position finds its answer.

    A *row* is one asked position of a distinct document, numbered through the documents; a *slot* is one
    asked position of a query, numbered through the queries; a *pair* is a row with one target token. Several
    slots share a row where queries are equal, and a pair where their targets are too, unless what is drawn
    must be drawn for each.

    Args:
        documents: the D distinct documents: first those computed as differences from their sequences, by
            sequence; then the others. Longest first, both.
        narrow: number of the first.
        layers: of the encoder, where there are any.
        first_token, first_row: (D+1,) running totals of tokens and of asked rows.
        first_cost: (D+1,) running totals of what documents cost, in tokens of documents computed whole.
        allowed: the distinct sets of allowed tokens.
        row, pair: (S,) the row and the pair of each slot.
        pair_row, pair_column: (P,) the row, ascending, and the target's column in the logits (or in the
            allowed set) of each pair; column -1 where the target is outside.
        first_slot: (number of queries + 1,) running totals of slots.
        streams: (number of queries,) each query's stream.
        draw: (P, 2) stream and place in its query of each pair, where each slot has a pair of its own.
    """

    documents: Documents
    narrow: int
    layers: Layers | None
    first_token: Longs
    first_cost: NDArray[np.float64]
    first_row: Longs
    allowed: list[Ids | None]
    row: Longs
    pair: Longs
    pair_row: Longs
    pair_column: Longs
    first_slot: Longs
    streams: Longs
    draw: Longs | None

    def batch(self, start: int, stop: int) -> PackedBatch | ConeBatch:
        """Documents start..stop-1, all of one kind, ready for the model."""
        if self.layers is None or start >= self.narrow:
            return self.documents.batch(start, stop)
        return self.documents.cone_batch(start, stop, self.layers)

    def cost(self, start: int, stop: int) -> float:
        """The cost of a forward pass of documents start..stop-1, all of one kind.

        In tokens of documents computed whole; of differences, with the sequences that they differ from.
        """
        cost = float(self.first_cost[stop] - self.first_cost[start])
        if start >= self.narrow:
            return cost
        sequence = self.documents.sequence[start:stop]
        return cost + float(self.documents.length[start:stop][np.diff(sequence, prepend=-1) != 0].sum())


def lay_out(
    queries: Sequence[Query],
    space: TokenSpace,
    *,
    rows_limit: int,
    capacity: int | None,
    first_number: int = 0,
    is_random: bool = False,
    layers: Layers | None = None,
) -> Layout:
    """Lay a window of queries out as distinct documents, longest first.

    Args:
        rows_limit: asked rows a document may have; one with more is repeated with a part of them each.
        capacity: longest sequence the model has positions for, or None.
        first_number: of the queries, the stream of those that name none.
        is_random: whether each slot needs a pair of its own, for random numbers of its own.
        layers: of an encoder that can compute copies as differences from their sequences, or None.

    Raises:
        UsageError: a position outside its sequence, a token outside the vocabulary, a sequence beyond
            `capacity`, channels that differ between queries.
    """
    check_queries(queries, space, capacity)
    sets = _Sets()
    documents = _documents(queries, space, rows_limit, sets)
    first, place = documents.distinct()
    distinct = documents.take(first)
    cost = distinct.length.astype(np.float32)
    narrow = np.zeros(len(distinct), dtype=bool)
    if layers is not None and not documents.channels:
        narrow, cost = distinct.difference_costs(layers)
    order = np.lexsort([np.where(narrow, distinct.sequence, 0), -distinct.length, ~narrow])
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    distinct, cost = distinct.take(order), cost[order]
    first_row = running_totals(distinct.asked.sizes)
    row = ranges(first_row[rank[place]], documents.asked.sizes)
    first_slot = running_totals(np.array([len(q.asked) for q in queries], dtype=np.int64))
    numbers = enumerate(queries, first_number)
    streams = np.array([n if q.stream is None else q.stream for n, q in numbers], dtype=np.int64)
    pair, pair_row, pair_column, slot = _pairs(row, _columns(queries), space.size + 1, is_random)
    draw = None
    if is_random:
        query_index = np.searchsorted(first_slot, slot, side="right") - 1
        draw = np.stack([streams[query_index], slot - first_slot[query_index]], axis=1)
    return Layout(
        documents=distinct,
        narrow=int(narrow.sum()),
        layers=layers,
        first_cost=np.concatenate([[0.0], np.cumsum(cost, dtype=np.float64)]),
        first_token=running_totals(distinct.length),
        first_row=first_row,
        allowed=sets.allowed,
        row=row,
        pair=pair,
        pair_row=pair_row,
        pair_column=pair_column,
        first_slot=first_slot,
        streams=streams,
        draw=draw,
    )


def _pairs(row: Longs, column: Longs, width: int, own_pairs: bool) -> tuple[Longs, Longs, Longs, Longs]:
    """The distinct (row, column) of S slots, or all of them as `own_pairs`.

    Returns:
        The pair of each slot (S,); row, column and, of own pairs, slot of each pair (P,), by ascending row.
    """
    if own_pairs:
        slot = np.argsort(row, kind="stable")
        pair = np.empty_like(slot)
        pair[slot] = np.arange(len(slot))
        return pair, row[slot], column[slot], slot
    pairs, pair = np.unique(row * width + column + 1, return_inverse=True)
    return pair, pairs // width, pairs % width - 1, pairs[:0]


class _Sets:
    """Numbers the distinct sets of allowed tokens, and the distinct (allowed, positions, channels)."""

    def __init__(self) -> None:
        self.allowed: list[Ids | None] = []
        self._groups: dict[bytes | None, int] = {}
        self._extras: dict[Any, int] = {}

    def add(self, query: Query) -> tuple[int, int]:
        """(group, extra) of a query."""
        encoding, content = query.encoding, _array_bytes(query.allowed)
        group = self._groups.setdefault(content, len(self.allowed))
        if group == len(self.allowed):
            self.allowed.append(query.allowed)
        channels = tuple([(name, _array_bytes(channel)) for name, channel in encoding.channels.items()])
        key = (group, _array_bytes(encoding.positions), channels)
        return group, self._extras.setdefault(key, len(self._extras))


def _documents(queries: Sequence[Query], space: TokenSpace, rows_limit: int, sets: _Sets) -> Documents:
    """Every masked copy in which something is asked, equal ones included, in the order of the queries."""
    names = queries[0].encoding.channels.keys()
    if any(query.encoding.channels.keys() != names for query in queries):
        raise UsageError("queries that are asked together must have the same channels")
    lengths = np.array([len(query.encoding.ids) for query in queries], dtype=np.int64)
    copies = np.array([query.variants for query in queries], dtype=np.int64)
    first_copy, base = running_totals(copies), running_totals(lengths)
    query_of_copy = np.repeat(np.arange(len(queries)), copies)
    # Where every token of every copy stands in the sequences laid end to end.
    origin = ranges(base[query_of_copy], lengths[query_of_copy])
    first_id = running_totals(lengths[query_of_copy])
    ids = np.concatenate([query.encoding.ids for query in queries])
    sequences, ids = ids, ids[origin]
    _substitute(ids, queries, first_copy, first_id)
    masked_copy = _copy_numbers([q.masked for q in queries], [q.masked_in for q in queries], first_copy)
    ids[first_id[masked_copy] + np.concatenate([q.masked for q in queries])] = space.mask
    asked_copy = _copy_numbers([q.asked for q in queries], [q.asked_in for q in queries], first_copy)
    copy, count = _pieces(np.bincount(asked_copy, minlength=len(query_of_copy)), rows_limit)
    positions = None
    if any(query.encoding.positions is not None for query in queries):
        explicit = [q.encoding.positions for q in queries]
        parts = [np.arange(n) if p is None else p for p, n in zip(explicit, lengths.tolist(), strict=True)]
        positions = np.concatenate(parts)[origin]
    different = np.flatnonzero(ids != sequences[origin])
    copy_of_change = np.searchsorted(first_id, different, side="right") - 1
    changes = np.bincount(copy_of_change, minlength=len(query_of_copy))
    first_change = np.cumsum(changes) - changes
    numbers = np.array([sets.add(query) for query in queries], dtype=np.int64)[query_of_copy[copy]]
    return Documents(
        ids=Slices(ids, first_id[copy], lengths[query_of_copy[copy]]),
        positions=positions,
        channels={
            name: np.concatenate([q.encoding.channels[name] for q in queries])[origin] for name in names
        },
        asked=Slices(np.concatenate([query.asked for query in queries]), np.cumsum(count) - count, count),
        group=numbers[:, 0],
        extra=numbers[:, 1],
        sequence=query_of_copy[copy],
        original=Slices(sequences, base[query_of_copy[copy]], lengths[query_of_copy[copy]]),
        changed=Slices(different - first_id[copy_of_change], first_change[copy], changes[copy]),
    )


def _substitute(ids: Ids, queries: Sequence[Query], first_copy: Longs, first_id: Longs) -> None:
    """Put the queries' substitutes into the flat ids of all copies."""
    for number, query in enumerate(queries):
        if query.substituted is not None and query.substitutes is not None:
            copies = np.arange(first_copy[number], first_copy[number + 1])[:, None]
            if query.substituted_in is not None:
                copies = first_copy[number] + query.substituted_in
            ids[first_id[copies] + query.substituted] = query.substitutes


def _copy_numbers(positions: list[Ids], variants: list[Ids | None], first_copy: Longs) -> Longs:
    """The copy, numbered through all queries, of each of the queries' positions."""
    counts = [len(part) for part in positions]
    zeros = np.zeros(max(counts), dtype=np.int32)
    own_variants = [zeros[:n] if part is None else part for part, n in zip(variants, counts, strict=True)]
    copy: Longs = np.repeat(first_copy[:-1], counts) + np.concatenate(own_variants)
    return copy


def _pieces(count: Longs, rows_limit: int) -> tuple[Longs, Longs]:
    """A piece is the asked rows of one copy, or a part of them where they are too many.

    Args:
        count: (C,) asked positions of each copy.

    Returns:
        The copy of each piece, and how many of the asked positions it takes, in their order.
    """
    copy = np.flatnonzero(count)
    count = count[copy]
    if (count > rows_limit).any():
        parts = -(-count // rows_limit)
        last = count - (parts - 1) * rows_limit
        copy, count = np.repeat(copy, parts), np.full(parts.sum(), rows_limit)
        count[np.cumsum(parts) - 1] = last
    return copy, count


def _columns(queries: Sequence[Query]) -> Longs:
    """(S,) where in the (restricted) logits each slot's target stands, -1 where it does not."""
    columns = []
    for query in queries:
        targets = query.encoding.ids[query.asked] if query.targets is None else query.targets
        if query.allowed is not None:
            order = np.argsort(query.allowed)
            place = np.searchsorted(query.allowed, targets, sorter=order).clip(max=len(order) - 1)
            targets = np.where(query.allowed[order[place]] == targets, order[place], -1)
        columns.append(targets)
    return np.concatenate(columns).astype(np.int64)


def _array_bytes(array: NDArray[Any] | None) -> bytes | None:
    return None if array is None else array.tobytes()
