"""Counts the training records of logs, in one pass and bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from seqmlm.anomaly.logs_counts import LogCounts, multisets, row_name
from seqmlm.anomaly.logs_lines import Doubles, Lines, Longs, lines_of
from seqmlm.engine.types import Encoding
from seqmlm.errors import DataError
from seqmlm.tokenizers.base import Tokenizer

VECTORS = 20_000
"""Most distinct count vectors kept: those of most records, of equals the earlier."""

EVENTS = 1 << 16
"""Most events told apart, those of most lines; only logs without templates have more."""

_TOGETHER = 4096
_FOLLOWED = 0.99


class LogCounting:
    """What `LogCounts` is made of, while it is gathered.

    Events are numbered as they appear; of pairs and vectors twice as many as are kept are followed, and the
    rarest forgotten beyond that.

    Args:
        least: sessions a count vector must be that of, and a pair of events seen in lines, to be kept: what
            fewer have says something of them.
    """

    def __init__(self, least: int = 1) -> None:
        self._least = least
        self._numbers: dict[int, int] = {}
        self._lines: list[int] = []
        self._records: list[int] = []
        self._pairs: dict[tuple[int, int], int] = {}
        self._vectors: dict[bytes, int] = {}
        self._lengths: dict[int, int] = {}
        self._total = 0

    def add(self, lines: Lines) -> None:
        """Count some records; those without lines are passed over."""
        full = lines.counts > 0
        lines = Lines(lines.keys, np.concatenate([[0], np.cumsum(lines.counts[full])]))
        if not len(lines):
            return
        events = self._numbered(lines.keys)
        counts = multisets(lines, events, len(self._numbers))
        for event, number in zip(*map(np.ndarray.tolist, _tally(events)), strict=True):
            self._lines[event] += number
        for event, number in zip(*map(np.ndarray.tolist, _tally(counts.indices)), strict=True):
            self._records[event] += number
        for row in range(len(lines)):
            name = row_name(counts, row)
            self._vectors[name] = self._vectors.get(name, 0) + 1
        for length, number in zip(*map(np.ndarray.tolist, _tally(lines.counts)), strict=True):
            self._lengths[length] = self._lengths.get(length, 0) + number
        self._add_pairs(lines, events)
        self._total += len(lines)
        _forget(self._vectors, 2 * VECTORS)
        _forget(self._pairs, 8 * EVENTS)

    def _numbered(self, keys: Longs) -> Longs:
        """(N,) the number of each line's event; new ones get the next."""
        distinct, inverse = np.unique(keys, return_inverse=True)
        for key in distinct.tolist():
            if key not in self._numbers:
                self._numbers[key] = len(self._numbers)
                self._lines.append(0)
                self._records.append(0)
        return np.array([self._numbers[key] for key in distinct.tolist()], dtype=np.int64)[inverse]

    def _add_pairs(self, lines: Lines, events: Longs) -> None:
        """Count what follows what; -1 stands for the ends of a record."""
        second = np.full(len(events) + len(lines), -1, dtype=np.int64)
        last = lines.offsets[1:] + np.arange(len(lines))
        second[np.delete(np.arange(len(second)), last)] = events
        first = np.concatenate([[-1], second[:-1]])
        pairs, number = np.unique(np.stack([first, second]), axis=1, return_counts=True)
        for a, b, times in zip(*pairs.tolist(), number.tolist(), strict=True):
            self._pairs[a, b] = self._pairs.get((a, b), 0) + times

    def counts(self, new: int = -1) -> LogCounts:
        """What was gathered.

        Args:
            new: key of lines without a template.

        Raises:
            DataError: no record had a line.
        """
        if not self._total:
            raise DataError(
                "there are no log lines to count",
                remedy="train on logs with lines in them",
            )
        keys = np.fromiter(self._numbers, dtype=np.int64, count=len(self._numbers))
        lines, records = np.array(self._lines), np.array(self._records)
        kept = np.sort(np.argsort(-lines, kind="stable")[:EVENTS])
        kept = kept[records[kept] >= self._least]
        order = kept[np.argsort(keys[kept])]
        size = len(order)
        renamed = np.full(len(keys) + 1, size)
        renamed[order] = np.arange(size)
        renamed[-1] = size + 1  # where -1, an end, points to
        pairs, pair_lines = self._renamed_pairs(renamed, size)
        indptr, indices, values = self._renamed_vectors(renamed, size)
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
            lengths=self._length_quantiles(),
            candidates=_candidates(pairs // (size + 2), pair_lines),
            new=new,
        )

    def _renamed_pairs(self, renamed: Longs, size: int) -> tuple[Longs, Longs]:
        names = np.array(list(self._pairs), dtype=np.int64).reshape(-1, 2)
        times = np.fromiter(self._pairs.values(), dtype=np.int64, count=len(names))
        names, times = renamed[names[times >= self._least]], times[times >= self._least]
        inside = (names != size).all(axis=1)
        codes = names[inside, 0] * (size + 2) + names[inside, 1]
        order = np.argsort(codes)
        return codes[order], times[inside][order]

    def _renamed_vectors(self, renamed: Longs, size: int) -> tuple[Longs, Longs, Longs]:
        """Rows of the vectors kept, most frequent first, without events that are not known."""
        found = [(name, times) for name, times in self._vectors.items() if times >= self._least]
        found = sorted(found, key=lambda one: -one[1])[:VECTORS]
        indptr, columns, values = [0], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for name, _ in found:
            column, value = np.frombuffer(name, dtype=np.int64).reshape(2, -1)
            column = renamed[column]
            order = np.argsort(column)[: np.count_nonzero(column < size)]
            columns.append(column[order])
            values.append(value[order])
            indptr.append(indptr[-1] + len(order))
        if not found:  # distances are then those to a record without lines
            indptr.append(0)
        return np.array(indptr), np.concatenate(columns), np.concatenate(values)

    def _length_quantiles(self) -> Doubles:
        length = np.array(sorted(self._lengths))
        upto = np.cumsum([self._lengths[one] for one in length.tolist()])
        place = np.searchsorted(upto, np.array([0.01, 0.5, 0.99]) * upto[-1])
        quantiles: Doubles = length[np.minimum(place, len(length) - 1)].astype(np.float64)
        return quantiles


def counts_of(encodings: Iterable[Encoding], tokenizer: Tokenizer) -> LogCounts:
    """Count training records.

    Args:
        encodings: of normal records, read once.
        tokenizer: theirs. Where its vocabulary keeps what at least so many sessions have (`min_sessions`, of
            sensitive logs), so do the counts.

    Raises:
        DataError: no record has a line.
    """
    options = tokenizer.options
    counting = LogCounting(int(options.get("min_sessions", 1)))
    for some in _batches(encodings):
        counting.add(lines_of(some, tokenizer))
    new = tokenizer.unfamiliar[0] if tokenizer.unit == "line" and tokenizer.unfamiliar else -1
    return counting.counts(int(new))


def _batches(encodings: Iterable[Encoding]) -> Iterator[list[Encoding]]:
    stream = iter(encodings)
    while some := list(islice(stream, _TOGETHER)):
        yield some


def _tally(values: Longs) -> tuple[Longs, Longs]:
    found, number = np.unique(values, return_counts=True)
    return found, number


def _candidates(first: Longs, lines: Longs) -> int:
    """So many of an event's followers, the commonest first, that 99 % of all lines are among them."""
    order = np.lexsort((-lines, first))
    ranks = np.arange(len(order)) - np.searchsorted(first[order], first[order], side="left")
    by_rank = np.cumsum(np.bincount(ranks, weights=lines[order])) if len(order) else np.zeros(1)
    return int(np.searchsorted(by_rank, _FOLLOWED * by_rank[-1])) + 1


def _forget(tallies: dict[bytes, int] | dict[tuple[int, int], int], most: int) -> None:
    """Keep the commoner half of more than `most`; of equals the earlier."""
    if len(tallies) > most:
        kept = sorted(tallies.items(), key=lambda one: -one[1])[: most // 2]  # type: ignore[arg-type]
        tallies.clear()
        tallies.update(kept)  # type: ignore[arg-type]
