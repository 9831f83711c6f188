"""Queries to a masked language model, and its answers.

A query consists of arrays, not of token sequences. The masked copies of a sequence are made only when its
look-ahead is laid out. Equal copies are computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.types import Encoding, Ids, TokenSpace
from seqmlm.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Query:
    """A query for p(token at `asked` | the rest) with [MASK] at `masked`, for one sequence.

    A plain query is one masked copy of the sequence. With `masked_in` and `asked_in`, one object represents
    R variants. Entry m of `masked` is hidden only in variant `masked_in[m]`. Entry a of `asked` is predicted
    in variant `asked_in[a]`. An exact pseudo-log-likelihood thus needs one object for each sequence instead
    of one for each token.

    Args:
        encoding: the sequence, including special tokens.
        masked: (M,) positions with [MASK].
        asked: (A,) queried positions, whose distributions are computed; at least one. They need not be
            masked.
        masked_in: (M,) variant in 0..R-1 of each masked position, or None for one variant.
        asked_in: (A,) variant of each queried position, ascending, or None for one variant.
        substituted: (B,) positions that get another token before masking; or None.
        substitutes: (B,) ids of these tokens.
        substituted_in: (B,) variant of each substitute, or None if they apply to every variant.
        allowed: (K,) distinct token ids that the softmax is restricted to, or None for all ids.
        targets: (A,) token ids whose log-probability is computed; default: `encoding.ids` at `asked`.
        stream: number that selects the random numbers of draws (`seqmlm.engine.reductions.Sample`). Default:
            the number of the query among those answered together, so that equal queries draw independently.
        key: any value; it is returned with the answer. A rule of units stores here what it needs to read the
            answer.
    """

    encoding: Encoding
    masked: Ids
    asked: Ids
    masked_in: Ids | None = None
    asked_in: Ids | None = None
    substituted: Ids | None = None
    substitutes: Ids | None = None
    substituted_in: Ids | None = None
    allowed: Ids | None = None
    targets: Ids | None = None
    stream: int | None = None
    key: Any = None

    @property
    def variants(self) -> int:
        """R, the number of masked copies that this query represents."""
        return 1 if self.asked_in is None or not len(self.asked_in) else int(self.asked_in[-1]) + 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """The answer to a query, in the order of `Query.asked`.

    Args:
        key: the key of the query.
        values: name of a reduction (`seqmlm.engine.reductions`) -> its array, (A, ...).
        stream: the stream of the query, or its number if it has none.
    """

    key: Any
    values: Mapping[str, NDArray[Any]]
    stream: int = 0


def check_queries(queries: Sequence[Query], space: TokenSpace, capacity: int | None) -> None:
    """Refuse invalid queries.

    Otherwise numpy would read a wrong position, or the model would access memory that it may not access.

    Raises:
        UsageError: a position is outside its sequence, an array has the wrong length, a token is outside the
            vocabulary, or a sequence is longer than `capacity`.
    """
    lengths = np.array([len(q.encoding) for q in queries])
    for field, parts in (("masked", [q.masked for q in queries]), ("asked", [q.asked for q in queries])):
        counts = [len(p) for p in parts]
        positions = np.concatenate(parts)
        outside = (positions < 0) | (positions >= np.repeat(lengths, counts))
        if outside.any():
            bad = int(np.flatnonzero(outside)[0])
            query = queries[int(np.searchsorted(np.cumsum(counts), bad, side="right"))]
            raise UsageError(
                f"{field} position {positions[bad]} is outside a sequence of {len(query.encoding)} tokens"
                f"{_query_label(query)}; positions count from 0 and include the special tokens"
            )
    for query in queries:
        for name, reason in _problems(query, space):
            raise UsageError(f"{name}: {reason}{_query_label(query)}")
        explicit = query.encoding.positions
        needed = len(query.encoding) if explicit is None else int(explicit.max()) + 1
        if capacity is not None and needed > capacity:
            raise UsageError(
                f"a sequence needs {needed} positions and the model has {capacity}{_query_label(query)}; "
                "cut long sequences into windows first (seqmlm.engine.windows)"
            )


def _problems(query: Query, space: TokenSpace) -> Iterator[tuple[str, str]]:
    """(field, problem) for each problem of a query; nothing for a valid query."""
    asked_count, masked_count = len(query.asked), len(query.masked)
    if not len(query.encoding.ids):
        yield "encoding", "a sequence without tokens"
    if not asked_count:
        yield "asked", "a query needs at least one position"
    if (query.masked_in is None) is not (query.asked_in is None):
        yield "masked_in, asked_in", "set both or neither"
    if query.masked_in is not None and query.asked_in is not None:
        if len(query.asked_in) != asked_count or query.asked_in[0] < 0 or (np.diff(query.asked_in) < 0).any():
            yield "asked_in", "must be ascending from 0, with one entry for each position in 'asked'"
        if len(query.masked_in) != masked_count:
            yield "masked_in", f"{len(query.masked_in)} entries for {masked_count} masked positions"
        if masked_count and not 0 <= query.masked_in.min() <= query.masked_in.max() < query.variants:
            yield "masked_in", "refers to a variant without a position in 'asked'"
    yield from _substitution_problems(query, space)
    if query.targets is not None:
        if len(query.targets) != asked_count:
            yield "targets", f"{len(query.targets)} entries for {asked_count} positions in 'asked'"
        elif not 0 <= query.targets.min() <= query.targets.max() < space.size:
            yield "targets", f"an id outside the vocabulary of {space.size} tokens"
    if query.allowed is not None:
        distinct = np.unique(query.allowed)
        if not len(distinct) or len(distinct) != len(query.allowed):
            yield "allowed", "must contain at least one token, and each only once"
        elif distinct[0] < 0 or distinct[-1] >= space.size:
            yield "allowed", f"an id outside the vocabulary of {space.size} tokens"


def _substitution_problems(query: Query, space: TokenSpace) -> Iterator[tuple[str, str]]:
    if query.substituted is None or query.substitutes is None:
        if not (query.substituted is query.substitutes is query.substituted_in is None):
            yield "substituted, substitutes", "set both or neither"
        return
    places, tokens, variants = query.substituted, query.substitutes, query.substituted_in
    if len(places) != len(tokens) or (variants is not None and len(variants) != len(places)):
        yield "substituted, substitutes, substituted_in", "must have the same number of entries"
    elif len(places):
        if not 0 <= places.min() <= places.max() < len(query.encoding):
            yield "substituted", f"a position outside a sequence of {len(query.encoding)} tokens"
        if not 0 <= tokens.min() <= tokens.max() < space.size:
            yield "substitutes", f"an id outside the vocabulary of {space.size} tokens"
        if variants is not None and not 0 <= variants.min() <= variants.max() < query.variants:
            yield "substituted_in", "refers to a variant without a position in 'asked'"
        names = places if variants is None else places + len(query.encoding) * variants.astype(np.int64)
        if len(np.unique(names)) < len(names):
            yield "substituted", "a position occurs twice in one variant"


def _query_label(query: Query) -> str:
    return f" (query {query.key!r})" if isinstance(query.key, str | int) else ""
