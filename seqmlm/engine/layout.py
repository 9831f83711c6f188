"""Queries as the distinct documents of forward passes, and where each queried position finds its answer.

Everything is arithmetic on flat arrays. A masked copy costs a few microseconds, because no object is created
for it. In return, documents are slices of these arrays (`Documents`) instead of `packing.Document` objects.
A test checks that both make the same batches.
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

# Copies are computed as differences if they cost at most this fraction of whole copies.
_WORTH = 0.85


class Slices(NamedTuple):
    """Parts of a flat array, one for each of D documents: `flat[first[d] : first[d] + sizes[d]]`."""

    flat: NDArray[Any]
    first: Longs
    sizes: Longs

    def take(self, index: Longs | slice) -> Slices:
        """The slices of selected documents, over the same flat array."""
        return Slices(self.flat, self.first[index], self.sizes[index])

    @property
    def places(self) -> Longs:
        """Indices of the entries of all documents in the flat array, document by document."""
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
        positions: flat position ids, parallel to the flat array of `ids`; None if every document counts from
            0.
        channels: flat additional inputs, parallel to the flat array of `ids`.
        asked: queried positions.
        group: (D,) index of the set of tokens that the softmax is restricted to.
        extra: (D,) number of the combination (group, positions, channels). Documents with different
            combinations have different numbers.
        sequence: (D,) index of the query that the document is a copy of.
        original: token ids of the sequence of that query.
        changed: positions where the copy differs from the sequence, ascending.
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
        """(D,) number of tokens."""
        return self.ids.sizes

    def take(self, index: Longs) -> Documents:
        """The documents with the given indices, over the same flat arrays."""
        slices = {name: getattr(self, name).take(index) for name in ("ids", "asked", "original", "changed")}
        columns = {name: getattr(self, name)[index] for name in ("group", "extra", "sequence")}
        return replace(self, **slices, **columns)

    def batch(self, start: int, stop: int) -> PackedBatch:
        """Documents start..stop-1 in one packed batch, as `packing.pack` makes it from objects."""
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
        """Documents start..stop-1, ordered by sequence, as differences from their sequences."""
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
        """(D,) True if a document is cheaper as a difference from its sequence; (D,) the cost of each one.

        The unit is one token of a document that is computed whole, in all layers.
        """
        starts = running_totals(self.length)
        changed_rows, asked_rows = (
            np.repeat(starts[:-1], part.sizes) + part.values for part in (self.changed, self.asked)
        )
        return _difference_costs(changed_rows, np.unique(asked_rows), starts, self.sequence, layers)

    def distinct(self) -> tuple[Longs, Longs]:
        """The documents that are different from each other.

        Returns:
            (U,) indices of the distinct documents, and (D,) for each document its index among them.
        """
        digest = self._digest()
        _, first, place = np.unique(digest, return_index=True, return_inverse=True)
        same = np.flatnonzero(first[place] != np.arange(len(self)))
        different = same[~self._equal(same, first[place[same]])]
        if len(different):  # equal digests of different documents, about once in 2^64 pairs
            place[different] = len(first) + np.arange(len(different))
            first = np.concatenate([first, different])
        return first, place

    def _digest(self) -> NDArray[np.uint64]:
        """(D,) a hash of ids, queried positions and extras.

        It is a multilinear hash modulo 2^64 (Lemire and Kaser 2014).
        """
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
        """(N,) whether documents a[i] and b[i] are equal, token by token."""
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
    """`Documents.difference_costs` for D copies whose rows are numbered as in `cones`.

    Args:
        changed_rows, asked_rows: ascending and distinct.
        starts: (D + 1,) first row of each copy, and the total.
        sequence: (D,) index of the sequence of each copy.
        layers: the layers of the encoder.
    """
    cone_costs, read_costs, full_costs = costs(changed_rows, asked_rows, starts, layers)
    _, first, sequence_index = np.unique(sequence, return_index=True, return_inverse=True)
    # The sequence itself is also computed.
    sequence_costs = np.bincount(sequence_index, cone_costs) + full_costs[first]
    cheaper = (sequence_costs < _WORTH * np.bincount(sequence_index, read_costs))[sequence_index]
    # At least 1: a pack of documents without cost could not be made smaller when memory runs out.
    copy_costs = np.maximum(cone_costs / len(layers.windows), 1)
    return cheaper, np.where(cheaper, copy_costs, np.diff(starts)).astype(np.float32)


def exact_cost(length: int, layers: Layers | None) -> float:
    """The cost of an exact score: one forward pass with a query for every token, each with itself masked.

    Args:
        length: number of tokens of the sequence, at least 1.
        layers: layers of an encoder that can compute copies as differences from their sequences, or None.

    Returns:
        The number of tokens in documents that are computed whole, as in `Layout.cost`. It is the square of
        `length` if the copies are computed whole.
    """
    if layers is None:
        return float(length) ** 2
    starts = length * np.arange(length + 1)
    rows = starts[:-1] + np.arange(length)
    narrow, cost = _difference_costs(rows, rows, starts, np.zeros_like(rows), layers)
    return float(cost.sum(dtype=np.float64)) + (length if narrow[0] else 0)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The distinct documents of a look-ahead of queries, and where each queried position finds its answer.

    A *row* is one queried position of a distinct document; rows are numbered over all documents. A *slot* is
    one queried position of a query; slots are numbered over all queries. A *pair* is a row with one target
    token. Slots of equal queries share a row, and also a pair if their targets are equal. For random
    reductions, each slot has its own pair.

    Args:
        documents: the D distinct documents. The first are computed as differences and ordered by sequence.
            The others follow. Both parts start with the longest documents.
        narrow: number of documents computed as differences.
        layers: layers of the encoder, or None.
        first_token: (D + 1,) cumulative number of tokens.
        first_cost: (D + 1,) cumulative cost of the documents, in tokens of documents that are computed
            whole.
        first_row: (D + 1,) cumulative number of queried rows.
        allowed: the distinct sets of allowed tokens.
        row, pair: (S,) row and pair of each slot.
        pair_row: (P,) row of each pair, ascending.
        pair_column: (P,) column of the target of each pair in the logits (or in the allowed set); -1 if the
            target is not there.
        first_slot: (number of queries + 1,) cumulative number of slots.
        streams: (number of queries,) stream of each query.
        draw: (P, 2) stream of each pair and its place in its query, if each slot has its own pair; else
            None.
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
        """Documents start..stop-1, all of one kind, as a batch for the model."""
        if self.layers is None or start >= self.narrow:
            return self.documents.batch(start, stop)
        return self.documents.cone_batch(start, stop, self.layers)

    def cost(self, start: int, stop: int) -> float:
        """The cost of a forward pass over documents start..stop-1, all of one kind.

        The unit is one token of a document that is computed whole. For differences, the cost includes their
        sequences.
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
    """Lay out a look-ahead of queries as distinct documents, longest first.

    Args:
        queries: the queries.
        space: the vocabulary.
        rows_limit: largest number of queried rows in a document. A document with more is repeated, each time
            with a part of its rows.
        capacity: length of the longest sequence that the positions of the model allow, or None.
        first_number: number of the first query, used to number the streams of queries that name none.
        is_random: whether each slot needs its own pair, and thus its own random numbers.
        layers: layers of an encoder that can compute copies as differences from their sequences, or None.

    Raises:
        UsageError: a position is outside its sequence, a token is outside the vocabulary, a sequence is
            longer than `capacity`, or channels differ between queries.
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
    """The distinct (row, column) pairs of S slots, or all of them if `own_pairs` is True.

    Returns:
        The pair of each slot (S,). The row and the column of each pair (P,), by ascending row. The slot of
        each pair (P,) if `own_pairs` is True, else an empty array.
    """
    if own_pairs:
        slot = np.argsort(row, kind="stable")
        pair = np.empty_like(slot)
        pair[slot] = np.arange(len(slot))
        return pair, row[slot], column[slot], slot
    pairs, pair = np.unique(row * width + column + 1, return_inverse=True)
    return pair, pairs // width, pairs % width - 1, pairs[:0]


class _Sets:
    """Numbers for the distinct sets of allowed tokens and the distinct (allowed, positions, channels)."""

    def __init__(self) -> None:
        self.allowed: list[Ids | None] = []
        self._groups: dict[bytes | None, int] = {}
        self._extras: dict[Any, int] = {}

    def add(self, query: Query) -> tuple[int, int]:
        """The numbers (group, extra) of a query."""
        encoding, content = query.encoding, _array_bytes(query.allowed)
        group = self._groups.setdefault(content, len(self.allowed))
        if group == len(self.allowed):
            self.allowed.append(query.allowed)
        channels = tuple([(name, _array_bytes(channel)) for name, channel in encoding.channels.items()])
        key = (group, _array_bytes(encoding.positions), channels)
        return group, self._extras.setdefault(key, len(self._extras))


def _documents(queries: Sequence[Query], space: TokenSpace, rows_limit: int, sets: _Sets) -> Documents:
    """All masked copies in which a position is queried, in the order of the queries.

    Equal copies are included.
    """
    names = queries[0].encoding.channels.keys()
    if any(query.encoding.channels.keys() != names for query in queries):
        raise UsageError("queries that are answered together must have the same channels")
    lengths = np.array([len(query.encoding.ids) for query in queries], dtype=np.int64)
    copies = np.array([query.variants for query in queries], dtype=np.int64)
    first_copy, base = running_totals(copies), running_totals(lengths)
    query_of_copy = np.repeat(np.arange(len(queries)), copies)
    # For every token of every copy, its index in the concatenated sequences.
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
    """Write the substitutes of the queries into the flat ids of all copies."""
    for number, query in enumerate(queries):
        if query.substituted is not None and query.substitutes is not None:
            copies = np.arange(first_copy[number], first_copy[number + 1])[:, None]
            if query.substituted_in is not None:
                copies = first_copy[number] + query.substituted_in
            ids[first_id[copies] + query.substituted] = query.substitutes


def _copy_numbers(positions: list[Ids], variants: list[Ids | None], first_copy: Longs) -> Longs:
    """The number of the copy of each position, counted over all queries."""
    counts = [len(part) for part in positions]
    zeros = np.zeros(max(counts), dtype=np.int32)
    own_variants = [zeros[:n] if part is None else part for part, n in zip(variants, counts, strict=True)]
    copy: Longs = np.repeat(first_copy[:-1], counts) + np.concatenate(own_variants)
    return copy


def _pieces(count: Longs, rows_limit: int) -> tuple[Longs, Longs]:
    """The queried rows of each copy, split into pieces of at most `rows_limit` rows.

    Args:
        count: (C,) number of queried positions of each copy.
        rows_limit: largest number of rows in a piece.

    Returns:
        The copy of each piece, and its number of queried positions, in their order.
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
    """(S,) column of the target of each slot in the (restricted) logits, -1 if it is not there."""
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
