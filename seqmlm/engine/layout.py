"""Queries become the distinct documents of a forward pass; every asked position learns where its answer is.

All of it is arithmetic on flat arrays: a masked copy costs a few microseconds, not an object and its calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.documents import Documents, ranges, running
from seqmlm.engine.query import Longs, Query, check
from seqmlm.engine.types import Ids, TokenSpace
from seqmlm.errors import UsageError


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The distinct documents of a window of queries, and where each asked position finds its answer.

    A *row* is one asked position of a distinct document, numbered through the documents; a *slot* is one
    asked position of a query, numbered through the queries; a *pair* is a row with one target token. Several
    slots share a row where queries are equal, and a pair where their targets are too.

    Args:
        documents: the D distinct documents, longest first.
        first_token, first_row: (D+1,) running totals of tokens and of asked rows.
        allowed: the distinct sets of allowed tokens.
        row, pair: (S,) the row and the pair of each slot.
        pair_row, pair_column: (P,) the row, ascending, and the target's column in the logits (or in the
            allowed set) of each pair; column -1 where the target is outside.
        first_slot: (number of queries + 1,) running totals of slots.
    """

    documents: Documents
    first_token: Longs
    first_row: Longs
    allowed: list[Ids | None]
    row: Longs
    pair: Longs
    pair_row: Longs
    pair_column: Longs
    first_slot: Longs


def lay_out(queries: Sequence[Query], space: TokenSpace, *, rows_limit: int, capacity: int | None) -> Layout:
    """Lay a window of queries out as distinct documents, longest first.

    Args:
        rows_limit: asked rows a document may have; one with more is repeated with a part of them each.
        capacity: longest sequence the model has positions for, or None.

    Raises:
        UsageError: a position outside its sequence, a token outside the vocabulary, a sequence beyond
            `capacity`, channels that differ between queries.
    """
    check(queries, space, capacity)
    sets = _Sets()
    documents = _documents(queries, space, rows_limit, sets)
    first, place = documents.distinct()
    order = np.argsort(-documents.length[first], kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    kept = documents.take(first[order])
    first_row = running(kept.count)
    row = ranges(first_row[rank[place]], documents.count)
    width = space.size + 1
    pairs, pair = np.unique(row * width + _columns(queries) + 1, return_inverse=True)
    return Layout(
        documents=kept,
        first_token=running(kept.length),
        first_row=first_row,
        allowed=sets.allowed,
        row=row,
        pair=pair,
        pair_row=pairs // width,
        pair_column=pairs % width - 1,
        first_slot=running(np.array([len(q.asked) for q in queries], dtype=np.int64)),
    )


class _Sets:
    """Numbers the distinct sets of allowed tokens, and the distinct (allowed, positions, channels)."""

    def __init__(self) -> None:
        self.allowed: list[Ids | None] = []
        self._groups: dict[bytes | None, int] = {}
        self._extras: dict[Any, int] = {}

    def add(self, query: Query) -> tuple[int, int]:
        """(group, extra) of a query."""
        encoding, content = query.encoding, _content(query.allowed)
        group = self._groups.setdefault(content, len(self.allowed))
        if group == len(self.allowed):
            self.allowed.append(query.allowed)
        channels = tuple([(name, _content(channel)) for name, channel in encoding.channels.items()])
        key = (group, _content(encoding.positions), channels)
        return group, self._extras.setdefault(key, len(self._extras))


def _documents(queries: Sequence[Query], space: TokenSpace, rows_limit: int, sets: _Sets) -> Documents:
    """Every masked copy in which something is asked, equal ones included, in the order of the queries."""
    names = queries[0].encoding.channels.keys()
    if any(query.encoding.channels.keys() != names for query in queries):
        raise UsageError("queries that are asked together must have the same channels")
    lengths = np.array([len(query.encoding.ids) for query in queries], dtype=np.int64)
    copies = np.array([query.variants for query in queries], dtype=np.int64)
    first_copy, base = running(copies), running(lengths)
    of = np.repeat(np.arange(len(queries)), copies)
    # Where every token of every copy stands in the sequences laid end to end.
    origin = ranges(base[of], lengths[of])
    first_id = running(lengths[of])
    ids = np.concatenate([query.encoding.ids for query in queries])
    for query, start in zip(queries, base.tolist(), strict=False):
        for position, token in query.substitutions.items():
            ids[start + position] = token
    ids = ids[origin]
    masked_copy = _in_copy([q.masked for q in queries], [q.masked_in for q in queries], first_copy)
    ids[first_id[masked_copy] + np.concatenate([q.masked for q in queries])] = space.mask
    asked_copy = _in_copy([q.asked for q in queries], [q.asked_in for q in queries], first_copy)
    copy, count = _pieces(np.bincount(asked_copy, minlength=len(of)), rows_limit)
    positions = None
    if any(query.encoding.positions is not None for query in queries):
        own = [q.encoding.positions for q in queries]
        parts = [np.arange(n) if p is None else p for p, n in zip(own, lengths.tolist(), strict=True)]
        positions = np.concatenate(parts)[origin]
    numbers = np.array([sets.add(query) for query in queries], dtype=np.int64)[of[copy]]
    return Documents(
        ids=ids,
        positions=positions,
        channels={
            name: np.concatenate([q.encoding.channels[name] for q in queries])[origin] for name in names
        },
        asked=np.concatenate([query.asked for query in queries]),
        first_id=first_id[copy],
        length=lengths[of[copy]],
        first_asked=np.cumsum(count) - count,
        count=count,
        group=numbers[:, 0],
        extra=numbers[:, 1],
    )


def _in_copy(positions: list[Ids], variants: list[Ids | None], first_copy: Longs) -> Longs:
    """The copy, numbered through all queries, of each of the queries' positions."""
    counts = [len(part) for part in positions]
    none = np.zeros(max(counts), dtype=np.int32)
    inside = [none[:n] if part is None else part for part, n in zip(variants, counts, strict=True)]
    copy: Longs = np.repeat(first_copy[:-1], counts) + np.concatenate(inside)
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


def _content(array: NDArray[Any] | None) -> bytes | None:
    return None if array is None else array.tobytes()
