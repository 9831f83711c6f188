"""Queries become the distinct documents of a forward pass; every asked position learns where its answer is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.packing import Document
from seqmlm.engine.query import Longs, Query, check
from seqmlm.engine.types import Ids, TokenSpace


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The distinct documents of a window of queries, and where each asked position finds its answer.

    A *row* is one asked position of a distinct document, numbered through the documents; a *slot* is one
    asked position of a query, numbered through the queries; a *pair* is a row with one target token. Several
    slots share a row where queries are equal, and a pair where their targets are too.

    Args:
        documents: the D distinct documents, longest first.
        first_token, first_row: (D+1,) running totals of tokens and of asked rows.
        group_of: (D,) index into `allowed` of each document.
        allowed: the distinct sets of allowed tokens.
        row, pair: (S,) the row and the pair of each slot.
        pair_row, pair_column: (P,) the row, ascending, and the target's column in the logits (or in the
            allowed set) of each pair; column -1 where the target is outside.
        first_slot: (number of queries + 1,) running totals of slots.
    """

    documents: list[Document]
    first_token: Longs
    first_row: Longs
    group_of: Longs
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
            `capacity`.
    """
    check(queries, space, capacity)
    builder = _Builder(space, rows_limit)
    for query in queries:
        builder.add(query)
    return builder.layout(queries)


class _Builder:
    """Collects the pieces of a window: a piece is one variant's asked rows (or a part of them)."""

    def __init__(self, space: TokenSpace, rows_limit: int) -> None:
        self.space, self.rows_limit = space, rows_limit
        self.known: dict[Any, int] = {}
        self.documents: list[Document] = []
        self.group_of: list[int] = []
        self.groups: dict[bytes | None, int] = {}
        self.allowed: list[Ids | None] = []
        self.piece_document: list[int] = []
        self.piece_rows: list[int] = []

    def add(self, query: Query) -> None:
        variants = query.variants
        rows, asked = self._masked_copies(query, variants), np.ascontiguousarray(query.asked, dtype=np.int32)
        group, encoding = self._group(query.allowed), query.encoding
        channels = [(name, _content(channel)) for name, channel in encoding.channels.items()]
        extras = (group, _content(encoding.positions), *channels)
        stride, ids_bytes, asked_bytes = 4 * rows.shape[1], rows.tobytes(), asked.tobytes()
        known, documents = self.known, self.documents
        for variant, first, last in self._pieces(query, variants):
            # Exact bytes, not a digest: equal keys are equal questions.
            ids = ids_bytes[variant * stride : (variant + 1) * stride]
            key = (ids, asked_bytes[4 * first : 4 * last], extras)
            index = known.setdefault(key, len(documents))
            if index == len(documents):
                documents.append(
                    Document(
                        ids=rows[variant],
                        asked=asked[first:last],
                        positions=encoding.positions,
                        channels=encoding.channels,
                    )
                )
                self.group_of.append(group)
            self.piece_document.append(index)
            self.piece_rows.append(last - first)

    def _masked_copies(self, query: Query, variants: int) -> Ids:
        """(R, L) the token ids of every variant."""
        rows = np.repeat(np.asarray(query.encoding.ids, dtype=np.int32)[None], variants, axis=0)
        for position, token in query.substitutions.items():
            rows[:, position] = token
        if query.masked_in is None:
            rows[:, query.masked] = self.space.mask
        else:
            rows[query.masked_in, query.masked] = self.space.mask
        return rows

    def _pieces(self, query: Query, variants: int) -> list[tuple[int, int, int]]:
        """(variant, first, last) slices of `asked`: one a variant, more where one asks too many rows."""
        if query.asked_in is None:
            bounds = [0, len(query.asked)]
        else:
            bounds = np.searchsorted(query.asked_in, np.arange(variants + 1)).tolist()
        pieces = [(v, a, b) for v, (a, b) in enumerate(pairwise(bounds)) if a < b]
        if max(b - a for _, a, b in pieces) > self.rows_limit:
            step = self.rows_limit
            pieces = [(v, i, min(i + step, b)) for v, a, b in pieces for i in range(a, b, step)]
        return pieces

    def _group(self, allowed: Ids | None) -> int:
        content = _content(allowed)
        group = self.groups.setdefault(content, len(self.allowed))
        if group == len(self.allowed):
            self.allowed.append(None if allowed is None else np.asarray(allowed))
        return group

    def layout(self, queries: Sequence[Query]) -> Layout:
        tokens = np.array([len(d.ids) for d in self.documents], dtype=np.int64)
        rows = np.array([len(d.asked) for d in self.documents], dtype=np.int64)
        order = np.argsort(-tokens, kind="stable")
        first_row = _running(rows[order])
        start_of = np.empty_like(order)
        start_of[order] = first_row[:-1]
        pieces = np.array(self.piece_document, dtype=np.int64)
        row = _ranges(start_of[pieces], np.array(self.piece_rows, dtype=np.int64))
        width = self.space.size + 1
        pairs, pair = np.unique(row * width + self._columns(queries) + 1, return_inverse=True)
        return Layout(
            documents=[self.documents[i] for i in order],
            first_token=_running(tokens[order]),
            first_row=first_row,
            group_of=np.array(self.group_of, dtype=np.int64)[order],
            allowed=self.allowed,
            row=row,
            pair=pair,
            pair_row=pairs // width,
            pair_column=pairs % width - 1,
            first_slot=_running(np.array([len(q.asked) for q in queries], dtype=np.int64)),
        )

    def _columns(self, queries: Sequence[Query]) -> Longs:
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


def _running(counts: Longs) -> Longs:
    running: Longs = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])
    return running


def _ranges(starts: Longs, counts: Longs) -> Longs:
    """Concatenated range(start, start + count)."""
    offsets = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    ranges: Longs = np.arange(len(offsets), dtype=np.int64) + offsets
    return ranges
