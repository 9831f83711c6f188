"""Count normal logs without a model: events, pairs of neighbours, count vectors and lengths.

Lines are arrays laid end to end, with a key for the content of each line, so that statistics need no loop
over records. One pass gathers all counts. If there are more events or count vectors than fit into memory, the
rarest are forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.values import Doubles, Longs
from seqmlm.engine.types import Encoding
from seqmlm.errors import DataError
from seqmlm.tokenizers.base import Tokenizer

_MIX = np.uint64(0x9E3779B97F4A7C15)
_STIR = np.uint64(0xD6E8FEB86659FD93)


# Lines as arrays


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """The N lines of R records, one record after the other.

    Args:
        keys: (N,) a key for each line, equal for lines that differ only in their values.
        offsets: (R + 1,) offsets at which the lines of the records begin and end.
    """

    keys: Longs
    offsets: Longs

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> Longs:
        """(R,) number of lines in each record."""
        return np.diff(self.offsets)

    @property
    def record(self) -> Longs:
        """(N,) the record of each line, ascending."""
        return np.repeat(np.arange(len(self)), self.counts)


def lines_of(encodings: Sequence[Encoding], tokenizer: Tokenizer) -> Lines:
    """The lines of windows or sessions that a tokenizer encoded.

    The unit of the tokenizer is either the line (one template per token), or a word with an end token after
    every line.
    """
    if not encodings:
        return Lines(np.zeros(0, np.int64), np.zeros(1, np.int64))
    ids = np.concatenate([encoding.ids for encoding in encodings])
    groups = np.concatenate([encoding.groups for encoding in encodings])
    edges = np.cumsum([0, *map(len, encodings)])
    if tokenizer.traits.unit == "line":
        inside = groups >= 0
        lines_before = np.concatenate([[0], np.cumsum(inside)])
        return Lines(ids[inside].astype(np.int64), lines_before[edges])
    ends = ids == tokenizer.space.end
    lines_before = np.concatenate([[0], np.cumsum(ends)])
    return Lines(_line_keys(ids, groups >= 0, lines_before[:-1], int(lines_before[-1])), lines_before[edges])


def line_at(encoding: Encoding, positions: Longs, tokenizer: Tokenizer) -> Longs:
    """(U,) the 0-based line of a whole record that contains each token.

    Args:
        positions: (U,) tokens that are neither gaps nor special tokens.
    """
    if tokenizer.traits.unit == "line":
        line: Longs = np.cumsum(encoding.groups >= 0) - 1
    else:
        ends = encoding.ids == tokenizer.space.end
        line = np.cumsum(ends) - ends
    return line[positions]


def _line_keys(ids: NDArray[np.int32], inside: NDArray[np.bool_], line: Longs, count: int) -> Longs:
    """(count,) a 63-bit hash of each line's tokens and their order.

    Args:
        ids: (T,) tokens.
        inside: (T,) whether a token is a word.
        line: (T,) the line of each token, ascending.
        count: number of lines.
    """
    tokens, at = ids[inside].astype(np.uint64), line[inside]
    first = np.searchsorted(at, at, side="left")
    place = (np.arange(len(at)) - first).astype(np.uint64)
    mixed = (tokens + np.uint64(1)) * _MIX ^ (place + np.uint64(1)) * _STIR
    mixed = (mixed ^ mixed >> np.uint64(29)) * _STIR
    mixed ^= mixed >> np.uint64(32)
    sums = np.zeros(count, dtype=np.uint64)
    np.add.at(sums, at, mixed)
    return (sums >> np.uint64(1)).astype(np.int64)


# Counts of the training records, and the distance of records from them

_USUAL = 0.9
_HARDLY = 0.01
_STEADIEST = 0.1  # least variance of a count, divided by its mean
_CELLS = 1 << 22  # most cells of the table of distances in memory at a time
_REMEMBERED = 1 << 14


@dataclass(frozen=True, kw_only=True, eq=False)
class LogCounts:
    """Counts of the training records.

    E events are known. The number E represents any other event, and E + 1 the beginning and end of a record.

    Args:
        keys: (E,) keys of the known lines, ascending.
        lines: (E,) training lines of each event.
        records: (E,) training records with each event.
        total: number of training records.
        pairs: (P,) first event * (E + 2) + second event of the observed neighbours, ascending.
        pair_lines: (P,) how often each pair was observed.
        indptr, indices, values: rows of the distinct count vectors (K, E), as in `scipy.sparse.csr_matrix`.
        shortest: number of lines that all but a hundredth of the records reach.
        unmatched_key: key of lines without a template, -1 if there is none.
    """

    keys: Longs
    lines: Longs
    records: Longs
    total: int
    pairs: Longs
    pair_lines: Longs
    indptr: Longs
    indices: Longs
    values: Longs
    shortest: int
    unmatched_key: int
    _vectors: Any = field(init=False, repr=False)
    _norms: Doubles = field(init=False, repr=False)
    _zeros: Doubles = field(init=False, repr=False)
    _nearest_cache: dict[bytes, tuple[float, int]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        from scipy import sparse  # takes a sixth of a second, and help should not wait for it

        shape = (len(self.indptr) - 1, self.size + 1)
        data = np.log1p(self.values.astype(np.float64))
        vectors = sparse.csr_array((data, self.indices, self.indptr), shape=shape)
        object.__setattr__(self, "_vectors", vectors)
        object.__setattr__(self, "_norms", np.asarray(vectors.multiply(vectors).sum(axis=1)).ravel())
        object.__setattr__(self, "_zeros", self._absence_bits())

    @property
    def size(self) -> int:
        """E, which is also the number for any unknown event."""
        return len(self.keys)

    def events(self, keys: Longs) -> Longs:
        """(N,) the event of each line; E for an unknown one."""
        place = np.searchsorted(self.keys, keys)
        inside = np.minimum(place, max(self.size - 1, 0))
        is_known = self.keys[inside] == keys if self.size else np.zeros(len(keys), dtype=np.bool_)
        return np.where(is_known, inside, self.size).astype(np.int64)

    def bigrams(self, lines: Lines, events: Longs) -> tuple[Doubles, Longs]:
        """Surprisal of each line after the one before it, and of each record's end after its last line.

        The smoothing follows Witten and Bell: the probability of a new follower grows with the number of
        different followers of an event.

        Returns:
            (N + R,) bits, each record's lines and then its end; (N + R,) the record of each.
        """
        edge = self.size + 1
        record = np.repeat(np.arange(len(lines)), lines.counts + 1)
        first, second = event_pairs(lines, events, edge)
        pair_counts, first_counts, follower_counts = self._pair_counts(first, second)
        ends = np.append(self.lines, [0, self.total])
        unigram = (ends[second] + 1) / (ends.sum() + self.size + 2)
        probability = np.where(
            first_counts > 0,
            (pair_counts + follower_counts * unigram) / np.maximum(first_counts + follower_counts, 1),
            unigram,
        )
        return -np.log2(probability), record

    def _pair_counts(self, first: Longs, second: Longs) -> tuple[Longs, Longs, Longs]:
        """Training counts of P pairs of events.

        Returns:
            (P,) count of the pair; (P,) count of all pairs that begin with its first event; (P,) number of
                different
            events after that event.
        """
        base = self.size + 2
        code = first * base + second
        place = np.searchsorted(self.pairs, code)
        inside = np.minimum(place, max(len(self.pairs) - 1, 0))
        pair_counts = (
            np.where(self.pairs[inside] == code, self.pair_lines[inside], 0) if len(self.pairs) else 0 * code
        )
        low, high = np.searchsorted(self.pairs, [first * base, (first + 1) * base])
        cumulative = np.concatenate([[0], np.cumsum(self.pair_lines)])
        return pair_counts, cumulative[high] - cumulative[low], high - low

    def usual(self) -> Longs:
        """Events that occur in at least nine of ten training records."""
        return np.flatnonzero(self.records >= _USUAL * self.total)

    def _absence_bits(self) -> Doubles:
        """(E,) bits of surprise if an event is absent from a record as long as the training records.

        The count of an event has a negative binomial distribution with the mean and variance of training. If
        the counts vary less than by chance, the distribution is binomial. This is the case for a probe that
        runs at fixed times.
        """
        rows = max(len(self.indptr) - 1, 1)  # only distinct vectors, so the variance may be too large
        mean, square = (
            np.bincount(self.indices, weights=self.values.astype(np.float64) ** power, minlength=self.size)
            / rows
            for power in (1, 2)
        )
        spread = np.maximum((square - mean**2) / np.maximum(mean, 1e-9), _STEADIEST)[: self.size]
        spread[np.abs(spread - 1.0) < 1e-6] = 1.0 + 1e-6  # the limit of both is a Poisson count
        return self.lines / max(self.total, 1) * np.log2(spread) / (spread - 1.0)

    def absence(self, lines: Lines, events: Longs) -> Doubles:
        """(R, W) bits of surprise if a common event is absent from a record; 0 if it is present.

        There are W common events (`usual`). If almost all training records have an event, the number of
        records without it says little. Its frequency in each record says more. If all records had about
        fifteen of its lines, a record without it is rarer than one in all of them.
        """
        usual = self.usual()
        lacking = self.total - self.records[usual]
        surprise = -np.log2((lacking + 1) / (self.total + 2))
        by_number = np.where(lacking <= _HARDLY * self.total, self._zeros[usual], 0.0)
        length = np.minimum(lines.counts * self.total / max(int(self.lines.sum()), 1), 1.0)
        is_present = np.zeros((len(lines), self.size + 1), dtype=np.bool_)
        is_present[lines.record, events] = True
        return np.where(is_present[:, usual], 0.0, np.maximum(surprise, length[:, None] * by_number))

    def surplus(self, lines: Lines, sets: Any) -> tuple[Doubles, Longs]:
        """The event that is most above its share of the training lines, in each of R records.

        Args:
            lines: the lines of the records.
            sets: their `multisets`.

        Returns:
            (R,) bits and (R,) the event with the most bits. The bits are the log-likelihood ratio of a
                Poisson count. It compares the number of the event's lines with the expected number for a
                record of this length. Only known events count. Bits are 0 if no event is above its expected
                number. A record without lines has 0 bits and the event E.
        """
        share = (np.append(self.lines, 0) + 0.5) / (self.lines.sum() + 0.5 * (self.size + 1))
        expected = share[sets.indices] * np.repeat(lines.counts, np.diff(sets.indptr))
        number = np.maximum(sets.data, expected)
        bits = number * np.log2(number / expected) - (number - expected) / np.log(2)
        bits[sets.indices == self.size] = 0.0
        largest, event = np.zeros(len(lines)), np.full(len(lines), self.size)
        for row, (a, b) in enumerate(pairwise(sets.indptr.tolist())):
            if a < b:
                at = a + int(np.argmax(bits[a:b]))
                largest[row], event[row] = bits[at], sets.indices[at]
        return largest, event

    def nearest(self, sets: Any) -> tuple[Doubles, Longs]:
        """(R,) distance to the most similar training vector, and (R,) its row.

        The distance is Euclidean between log1p counts, and exact. Squared distances are products of matrices.
        The distance of the nearest vector is then computed again, so that it does not depend on rounding.
        Equal multisets of events are looked up only once.

        Args:
            sets: `multisets` of R records.
        """
        names = [row_name(sets, row) for row in range(sets.shape[0])]
        fresh = {name: row for row, name in enumerate(names) if name not in self._nearest_cache}
        if len(self._nearest_cache) + len(fresh) > _REMEMBERED:
            self._nearest_cache.clear()
            fresh = {name: row for row, name in enumerate(names)}
        rows = np.fromiter(fresh.values(), dtype=np.int64, count=len(fresh))
        self._nearest_cache.update(zip(fresh, self._search_nearest(sets[rows]), strict=True))
        matches = [self._nearest_cache[name] for name in names]
        distances = np.array([distance for distance, _ in matches])
        return distances, np.array([row for _, row in matches], dtype=np.int64)

    def _search_nearest(self, sets: Any) -> list[tuple[float, int]]:
        """Distance and row of the nearest vector to each of (M, E + 1) `multisets`."""
        matches: list[tuple[float, int]] = []
        step = max(1, _CELLS // max(self._vectors.shape))
        for at in range(0, sets.shape[0], step):
            vectors = np.log1p(sets[at : at + step].toarray())
            rows = np.argmin(self._norms[:, None] - 2 * (self._vectors @ vectors.T), axis=0)
            differences = vectors - self._vectors[rows].toarray()
            distances = np.sqrt((differences * differences).sum(axis=1))
            matches += zip(distances.tolist(), rows.tolist(), strict=True)
        return matches

    def difference(self, counts: Mapping[int, int], row: int) -> dict[int, int]:
        """Surplus of lines (negative: deficit) of a record over training vector `row`, by event.

        Events with equal numbers are left out.
        """
        a, b = int(self.indptr[row]), int(self.indptr[row + 1])
        usual = dict(zip(self.indices[a:b].tolist(), self.values[a:b].tolist(), strict=True))
        either = sorted(counts.keys() | usual.keys())
        return {e: d for e in either if (d := counts.get(e, 0) - usual.get(e, 0))}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All counts as arrays that a model stores; `of` reads them."""
        fields = ("keys", "lines", "records", "pairs", "pair_lines", "indptr", "indices", "values")
        scalars = np.array([self.total, self.shortest, self.unmatched_key], dtype=np.int64)
        return {**{name: getattr(self, name) for name in fields}, "scalars": scalars}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> LogCounts:
        """Restore the counts from the result of `arrays`."""
        total, shortest, unmatched_key = arrays["scalars"].tolist()
        fields = {name: array for name, array in arrays.items() if name != "scalars"}
        return cls(**fields, total=total, shortest=shortest, unmatched_key=unmatched_key)


def event_pairs(lines: Lines, events: Longs, edge: int) -> tuple[Longs, Longs]:
    """(N + R,) events, and (N + R,) the event after each. `edge` is the beginning or end of a record."""
    second = np.full(len(events) + len(lines), edge, dtype=np.int64)
    last = lines.offsets[1:] + np.arange(len(lines))
    second[np.delete(np.arange(len(second)), last)] = events
    return np.concatenate([[edge], second[:-1]]), second


def multisets(lines: Lines, events: Longs, width: int) -> Any:
    """(R, width) how often each event is in each record, a `scipy.sparse.csr_array` with sorted columns."""
    from scipy import sparse

    code, number = np.unique(lines.record * width + events, return_counts=True)
    indptr = np.searchsorted(code, np.arange(len(lines) + 1) * width)
    return sparse.csr_array((number, code % width, indptr), shape=(len(lines), width))


def row_name(counts: Any, row: int) -> bytes:
    """A row of `multisets` as bytes; equal for equal multisets."""
    a, b = counts.indptr[row], counts.indptr[row + 1]
    columns, values = counts.indices[a:b], counts.data[a:b]
    return bytes(columns.astype(np.int64).tobytes() + values.astype(np.int64).tobytes())


# Counting

VECTORS = 20_000
"""Most distinct count vectors that are kept: the most frequent, and among equals the earliest."""

EVENTS = 1 << 16
"""Most distinct events: those with most lines. Only logs without templates have more."""

_TOGETHER = 4096


class LogCounting:
    """Gather the counts of training records for `LogCounts`.

    Events are numbered as they appear. Up to twice as many vectors and pairs as are kept are tracked; beyond
    that, the rarest are forgotten. A vector of fewer than `min_sessions` sessions, or a pair in fewer lines,
    is not kept, because it could identify these sessions.
    """

    def __init__(self, min_sessions: int = 1) -> None:
        self._min_sessions = min_sessions
        self._numbers: dict[int, int] = {}
        self._lines, self._records, self._lengths = Counter[int](), Counter[int](), Counter[int]()
        self._pairs = Counter[tuple[int, int]]()
        self._vectors = Counter[bytes]()
        self._total = 0

    def add(self, lines: Lines) -> None:
        """Count some records. Records without lines are ignored."""
        full = lines.counts > 0
        lines = Lines(lines.keys, np.concatenate([[0], np.cumsum(lines.counts[full])]))
        if not len(lines):
            return
        events = self._event_numbers(lines.keys)
        counts = multisets(lines, events, len(self._numbers))
        self._lines.update(events.tolist())
        self._records.update(counts.indices.tolist())
        self._lengths.update(lines.counts.tolist())
        self._vectors.update(row_name(counts, row) for row in range(len(lines)))
        first, second = event_pairs(lines, events, -1)
        self._pairs.update(zip(first.tolist(), second.tolist(), strict=True))
        self._total += len(lines)
        _forget(self._vectors, 2 * VECTORS)
        _forget(self._pairs, 8 * EVENTS)

    def _event_numbers(self, keys: Longs) -> Longs:
        """(N,) the number of each line's event; new events get the next numbers."""
        distinct, inverse = np.unique(keys, return_inverse=True)
        numbers = [self._numbers.setdefault(key, len(self._numbers)) for key in distinct.tolist()]
        return np.array(numbers, dtype=np.int64)[inverse]

    def counts(self, unmatched_key: int = -1) -> LogCounts:
        """The counts of all records so far.

        Args:
            unmatched_key: key of lines without a template.

        Raises:
            DataError: no record had a line.
        """
        if not self._total:
            remedy = "train on logs that have lines"
            raise DataError("there are no log lines to count", remedy=remedy)
        keys = np.fromiter(self._numbers, dtype=np.int64, count=len(self._numbers))
        lines, records = (
            np.array([tally[n] for n in range(len(keys))]) for tally in (self._lines, self._records)
        )
        frequent = np.argsort(-lines, kind="stable")[:EVENTS]
        frequent = frequent[records[frequent] >= self._min_sessions]
        order = frequent[np.argsort(keys[frequent])]
        size = len(order)
        new_numbers = np.full(len(keys) + 1, size)
        new_numbers[order] = np.arange(size)
        new_numbers[-1] = size + 1  # for -1, which is an end
        pairs, pair_lines = self._frequent_pairs(new_numbers, size)
        indptr, indices, values = self._frequent_vectors(new_numbers, size)
        return LogCounts(
            keys=keys[order],
            lines=lines[order],
            records=records[order],
            total=self._total,
            pairs=pairs,
            pair_lines=pair_lines,
            indptr=indptr,
            indices=indices,
            values=values,
            shortest=self._shortest(),
            unmatched_key=unmatched_key,
        )

    def _frequent_pairs(self, new_numbers: Longs, size: int) -> tuple[Longs, Longs]:
        """(P,) codes of the pairs whose events are known, ascending, and (P,) how often each was observed."""
        names = np.array(list(self._pairs), dtype=np.int64).reshape(-1, 2)
        times = np.fromiter(self._pairs.values(), dtype=np.int64, count=len(names))
        names, times = new_numbers[names[times >= self._min_sessions]], times[times >= self._min_sessions]
        inside = (names != size).all(axis=1)
        codes = names[inside, 0] * (size + 2) + names[inside, 1]
        order = np.argsort(codes)
        return codes[order], times[inside][order]

    def _frequent_vectors(self, new_numbers: Longs, size: int) -> tuple[Longs, Longs, Longs]:
        """`indptr`, `indices` and `values` of the most frequent vectors, with known events only."""
        vectors = [vector for vector in self._vectors.most_common(VECTORS) if vector[1] >= self._min_sessions]
        indptr, columns, values = [0], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for name, _ in vectors:
            column, value = np.frombuffer(name, dtype=np.int64).reshape(2, -1)
            column = new_numbers[column]
            order = np.argsort(column)[: np.count_nonzero(column < size)]
            columns.append(column[order])
            values.append(value[order])
            indptr.append(indptr[-1] + len(order))
        if not vectors:  # distances are then measured from a record without lines
            indptr.append(0)
        return np.array(indptr), np.concatenate(columns), np.concatenate(values)

    def _shortest(self) -> int:
        """Number of lines that all but a hundredth of the records reach."""
        sizes = sorted(self._lengths)
        cumulative = np.cumsum([self._lengths[size] for size in sizes])
        return sizes[int(np.searchsorted(cumulative, cumulative[-1] / 100))]


def counts_of(encodings: Iterable[Encoding], tokenizer: Tokenizer) -> LogCounts:
    """Count normal records, which are read once.

    If the tokenizer keeps only what occurs in enough sessions (`min_sessions`), the counts do too.

    Raises:
        DataError: no record has a line.
    """
    options = tokenizer.options
    counting = LogCounting(int(options.get("min_sessions", 1)))
    stream = iter(encodings)
    while batch := list(islice(stream, _TOGETHER)):
        counting.add(lines_of(batch, tokenizer))
    unfamiliar = tokenizer.units.facts.unfamiliar if tokenizer.traits.unit == "line" else ()
    unmatched_key = unfamiliar[0] if unfamiliar else -1
    return counting.counts(int(unmatched_key))


def _forget(tallies: Counter[Any], limit: int) -> None:
    """If there are more than `limit` tallies, keep the `limit` // 2 largest, and the earlier among equals."""
    if len(tallies) > limit:
        commonest = dict(tallies.most_common(limit // 2))
        tallies.clear()
        tallies.update(commonest)
