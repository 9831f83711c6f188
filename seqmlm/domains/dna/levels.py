"""The levels of DNA: how unusual windows, bases and records are, on both strands.

A GC-rich stretch is not unusual in itself. The score is therefore the excess: the surprisal of the model
minus the surprisal from the base composition around each base. A second statistic is the surprisal from
k-mer frequencies. It comes from an interpolated Markov chain, which is the same for both strands.

Each record is scored on both strands, and the scores are averaged. This doubles the cost. It is needed
because a model trained on random strands gives slightly different scores on each strand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.levels import (
    UNKNOWN,
    WHOLE_RECORDS,
    Background,
    Level,
    Sampling,
    SecondReading,
    Track,
    part_row,
    record_row,
)
from seqmlm.anomaly.statistic_names import Statistics
from seqmlm.anomaly.values import Bools, Doubles, Longs, Place, Row, ScoredRecord
from seqmlm.data.record import Record
from seqmlm.domains.dna.genes import overlapping_names
from seqmlm.domains.dna.nucleotides import CONTEXT, GENES, OWN, own_range
from seqmlm.domains.dna.tokenizer import letter_codes, reverse_complement
from seqmlm.domains.dna.track import GenomeTrack
from seqmlm.engine.types import Encoding, Sequences
from seqmlm.engine.units import unit_symbols
from seqmlm.tokenizers.base import Tokenizer

# Composition

ORDER = 5
"""Bases of the longest context of the Markov chain. The resulting 6-mers distinguish codons, and 4^6 counts
need little data."""

REACH = 50
"""Bases on each side of a base from which its local composition is computed."""

_OWN_STRENGTH = 16.0  # pseudo-counts of the training composition in the local composition

_UNKNOWN = 4
_STRENGTH = 4.0  # pseudo-counts that a shorter context gives to a longer one


def base_codes(text: str) -> Longs:
    """(L,) codes of the letters: 0..3 for A C G T in upper or lower case, 4 for all other letters.

    >>> base_codes("ACgtN").tolist()
    [0, 1, 2, 3, 4]
    """
    return np.minimum(letter_codes(text), _UNKNOWN).astype(np.int64)


class Composition(Background):
    """An interpolated Markov chain: p(base | the k bases before it) for k = 0..order.

    The probabilities for each k are smoothed with those for k - 1. Every sequence is counted on both strands,
    and each base is scored from both sides. A sequence and its reverse complement therefore have the same
    surprisal. A context is shortened so that it ends before an unknown base or the edge of the sequence.

    Args:
        tables: for each k, a table (4^k, 4) of natural log-probabilities of the next base.
    """

    is_sampled: ClassVar[bool] = True

    def __init__(self, tables: list[Doubles]) -> None:
        self.tables = tables

    @classmethod
    def uniform(cls) -> Composition:
        """The composition in which all four bases have the same probability, if no data are known."""
        return cls([np.log(np.full((1, 4), 0.25))])

    @classmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        """Count k-mers in training sequences, in random order, until four million bases are counted."""
        return cls.from_codes(_sampled_codes(train, tokenizer, seed))

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {f"order-{k}": table for k, table in enumerate(self.tables)}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], tokenizer: Tokenizer) -> Self:
        return cls([arrays[f"order-{k}"] for k in range(len(arrays))])

    @classmethod
    def from_codes(cls, sequences: Iterable[Longs], order: int = ORDER) -> Self:
        """Fit a chain of order 0 to 8 to sequences of codes from `base_codes`."""
        counts = [np.zeros(4 ** (k + 1)) for k in range(order + 1)]
        for codes in sequences:
            for strand in (codes, _other_strand(codes)):
                for k, words, is_known in _context_words(strand, order):
                    counts[k] += np.bincount(words[is_known], minlength=4 ** (k + 1))
        tables: list[Doubles] = []
        below = np.full((1, 4), 0.25)
        for k, flat in enumerate(counts):
            table = flat.reshape(4**k, 4)
            prior = np.tile(below, (4 if k else 1, 1))  # the context without its farthest base
            shares = (table + _STRENGTH * prior) / (table.sum(axis=1, keepdims=True) + _STRENGTH)
            tables.append(np.log(shares))
            below = shares
        return cls(tables)

    def bits(self, text: str) -> Doubles:
        """(L,) surprisal of each base in bits, as a mean of both directions; NaN for unknown bases."""
        codes = base_codes(text)
        forward, backward = self._direction_bits(codes), self._direction_bits(_other_strand(codes))[::-1]
        return np.asarray((forward + backward) / 2)

    def own_bits(self, text: str) -> Doubles:
        """(L,) surprisal of each base in bits from the local composition; NaN for unknown bases.

        The local composition is the frequencies of the bases within `REACH` of a base, without the base
        itself. The training frequencies are added as pseudo-counts.

        The excess of a model is its surprisal minus this value. It is near zero or negative in a stretch that
        the model predicts well, GC-rich or not. It is positive where the model expects another composition
        or other patterns.
        """
        codes = base_codes(text)
        length = len(codes)
        one_hot = (codes[:, None] == np.arange(_UNKNOWN)).astype(np.float64)
        total = np.concatenate([np.zeros((1, _UNKNOWN)), np.cumsum(one_hot, axis=0)])
        places = np.arange(length)
        around = (
            total[np.minimum(places + REACH + 1, length)] - total[np.maximum(places - REACH, 0)] - one_hot
        )
        prior = _OWN_STRENGTH * np.exp(self.tables[0][0])
        shares = (around + prior) / (around.sum(axis=1, keepdims=True) + _OWN_STRENGTH)
        bits = np.full(length, np.nan)
        is_known = codes < _UNKNOWN
        bits[is_known] = -np.log2(shares[is_known, codes[is_known]])
        return bits

    def _direction_bits(self, codes: Longs) -> Doubles:
        """(L,) surprisal in bits of each base given the bases before it; NaN for unknown bases."""
        bits = np.full(len(codes), np.nan)
        for k, words, is_known in _context_words(codes, len(self.tables) - 1):
            bits[is_known] = -self.tables[k].ravel()[words[is_known]] / np.log(2)
        return bits


def _other_strand(codes: Longs) -> Longs:
    """(L,) codes of the reverse complement."""
    backwards = codes[::-1]
    return np.where(backwards < _UNKNOWN, 3 - backwards, _UNKNOWN)


def _context_words(codes: Longs, order: int) -> Iterable[tuple[int, Longs, NDArray[np.bool_]]]:
    """For each k = 0..order: k, and for each base the (k + 1)-mer that ends there.

    Yields:
        k; (L,) the index of the (k + 1)-mer; (L,) whether it is complete and has no unknown bases.
    """
    wide = np.pad(codes, (order, 0), constant_values=_UNKNOWN)
    words, is_known = np.zeros(len(codes), dtype=np.int64), np.ones(len(codes), dtype=np.bool_)
    for k in range(order + 1):
        letters = wide[order - k : len(wide) - k]
        words = words + np.minimum(letters, _UNKNOWN - 1) * 4**k
        is_known = is_known & (letters < _UNKNOWN)
        yield k, words, is_known


# Both strands


class BothStrands(SecondReading):
    """Score the reverse complement too, and average over both strands all values that bases can share.

    Position i of the raw text is position length - 1 - i on the other strand.
    """

    def record(self, record: Record) -> Record:
        return replace(record, raw=reverse_complement(str(record.raw)))

    def combine(self, first: ScoredRecord, second: ScoredRecord) -> ScoredRecord:
        """Average the surprisals, and other values of `second` such as entropies, over both strands.

        Values that `second` does not have are taken from `first`. If the other strand divides the bases of a
        unit differently, the unit gets the sum of the values of its bases. If the other strand does not score
        all its bases, the unit keeps the values of `first`. The result has only the record's own units: the
        context of a block is seen by the model but not scored.
        """
        begin, stop = own_range(first.record)
        own_units = (first.spans[:, 0] >= begin) & (first.spans[:, 0] < stop)
        own_values = {name: values[own_units] for name, values in first.values.items()}
        first = replace(
            first, number=first.number[own_units], surprisal=first.surprisal[own_units], values=own_values
        )
        length = len(str(first.record.raw))

        def averaged(first_values: Doubles, second_values: Doubles) -> Doubles:
            """(U,) means over both strands, or the first value of a unit without a second value."""
            sums = _unit_sums(_spread_on_bases(second, second_values, length)[::-1], first)
            return np.where(np.isnan(sums), first_values, (first_values + sums) / 2)

        values = {
            name: averaged(first.values[name], second_values)
            for name, second_values in second.values.items()
            if name in first.values and second_values.ndim == 1
        }
        surprisal = averaged(first.surprisal, second.surprisal)
        return replace(first, surprisal=surprisal, values={**first.values, **values})


def _spread_on_bases(scored: ScoredRecord, values: Doubles, length: int) -> Doubles:
    """(length,) the value of each unit, divided equally among its bases; NaN for bases without a unit."""
    base_values = np.full(length, np.nan)
    starts, ends = scored.spans.T
    sizes = ends - starts
    for offset in range(int(sizes.max(initial=0))):
        inside = sizes > offset
        base_values[starts[inside] + offset] = values[inside] / sizes[inside]
    return base_values


def _unit_sums(bases: Doubles, scored: ScoredRecord) -> Doubles:
    """(U,) the sum of the values of the bases of each unit; NaN if any of them has no value."""
    holes = _per_unit(np.isnan(bases).astype(np.float64), scored.spans)
    return np.where(holes == 0, _per_unit(bases, scored.spans), np.nan)


# Rows

WINDOW, STEP = 100, 50
"""Bases per window, and bases from the start of a window to the start of the next window."""

UnitStatistics = Callable[[slice], dict[str, float]]
"""A function that gives the statistics of a slice of units."""

STRETCH = 10 * WINDOW
"""Bases of a genome that are calibrated together. They are few, so that windows come from many positions at
little extra cost."""

_BASES_COUNTED = 4_000_000


def place(record: Record, start: int, end: int) -> Place:
    """The position in the contig of the bases from start to end of a record. The reader of the record has
    stored the position of the record in `meta`."""
    first = int(record.meta.get("start", 0))
    if record.meta.get("strand") == "-":
        start, end = len(record.raw) - end, len(record.raw) - start
    return Place(str(record.meta.get("contig", record.id)), first + start, first + end)


class StretchSampling(Sampling):
    """Calibrate on stretches of a record, in the same form in which blocks of a genome are scored."""

    def parts(self, record: Record, random: np.random.Generator) -> Sequence[Record]:
        return stretches(record)


class DnaLevel(Level):
    """Base class of the levels of DNA.

    Statistics:
        excess: surprisal of the model minus surprisal from the local composition (`Composition.own_bits`), in
            bits per base. This is the score.
        bits: surprisal of the model, in bits per base. It is also high in a stretch of another composition,
            which can have another origin.
        composition: surprisal from the k-mer frequencies of the training data (a Markov chain), in bits per
            base.
    """

    statistics: ClassVar[Statistics] = Statistics(
        {
            "excess": "surprisal beyond what the composition explains",
            "bits": "surprisal of the bases",
            "composition": "surprisal from k-mer frequencies",
        }
    )
    background: ClassVar[type[Background] | None] = Composition
    second = BothStrands()
    sampling: Sampling = StretchSampling()

    def track(self, path: Path, *, name: str) -> Track:
        return GenomeTrack(path, name=name)

    def unit_statistics(self, scored: ScoredRecord, background: Background | None) -> UnitStatistics:
        """A function that gives the statistics of a slice of a record's units.

        Each statistic is a mean over the units. The value of a unit of several bases is the sum over them.
        """
        text, spans = str(scored.record.raw), scored.spans
        composition = background if isinstance(background, Composition) else None
        own_bits = _per_unit((composition or Composition.uniform()).own_bits(text), spans)
        chain_bits = None if composition is None else _per_unit(composition.bits(text), spans)

        def statistics(units: slice) -> dict[str, float]:
            """The statistics of the units in a slice."""
            if not len(scored.surprisal[units]):
                return {"excess": float("nan")}
            bits = float(scored.surprisal[units].mean())
            chain = {} if chain_bits is None else {"composition": float(chain_bits[units].mean())}
            return {"excess": bits - float(own_bits[units].mean()), "bits": bits, **chain}

        return statistics


class StretchLevel(DnaLevel):
    """Base class of levels whose rows are stretches of bases.

    The share of unknown bases is an additional statistic, because the other statistics do not depend on it.
    """

    statistics: ClassVar[Statistics] = Statistics(
        {**DnaLevel.statistics, UNKNOWN: "unknown bases (N)"},
        shares={UNKNOWN: "{} of its bases are unknown (N)"},
    )

    def unknown(self, scored: ScoredRecord, background: Background | None) -> tuple[Longs, Bools]:
        codes = base_codes(str(scored.record.raw))
        return np.arange(len(codes)), codes == _UNKNOWN


class WindowLevel(StretchLevel):
    """One row per window of `WINDOW` bases. Windows begin `STEP` bases apart.

    The last window ends at the end of the record. A record shorter than `WINDOW` is one window. Windows in
    which more than half of the bases are N are left out. If no window remains, the record is one row.
    """

    name = "window"

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        statistics_of = self.unit_statistics(scored, background)
        spans, (begin, stop) = scored.spans, own_range(scored.record)
        known_before = np.concatenate([[0], np.cumsum(base_codes(str(scored.record.raw)) < 4)])
        window_rows = []
        for start, end in (
            (begin + offset, begin + offset_end) for offset, offset_end in windows(stop - begin)
        ):
            first, last = np.searchsorted(spans[:, 0], [start, end]).tolist()
            if last > first and 2 * (known_before[end] - known_before[start]) >= end - start:
                units = np.arange(first, last)
                window_rows.append(_stretch_row(scored, units, start, end, statistics_of(slice(first, last))))
        return window_rows or [_whole_row(scored, statistics_of)]


class BaseLevel(DnaLevel):
    """One row per unit: a single base, or the bases of one token."""

    name = "base"

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        statistics_of = self.unit_statistics(scored, background)
        return [
            _stretch_row(scored, np.array([unit]), start, end, statistics_of(slice(unit, unit + 1)))
            for unit, (start, end) in enumerate(scored.spans.tolist())
        ]

    def unfamiliar(
        self, scored: ScoredRecord, background: Background | None, rows: Sequence[Row]
    ) -> Sequence[bool]:
        """False for every row: even in a record that is mostly N, a scored base can have known neighbours."""
        return [False] * len(rows)


class RecordLevel(StretchLevel):
    """One row per record, such as a read or a contig."""

    name = "record"
    sampling = WHOLE_RECORDS

    @property
    def counts_people(self) -> bool:
        """True, because a row is a whole record."""
        return True

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        return [_whole_row(scored, self.unit_statistics(scored, background))]


def stretches(record: Record) -> list[Record]:
    """Divide a record into stretches of `STRETCH` bases or slightly more.

    Each stretch has the bases next to it as context, like the blocks of a genome that are scored.
    """
    begin, stop = own_range(record)
    ends = np.linspace(begin, stop, max(1, (stop - begin) // STRETCH) + 1).astype(np.int64).tolist()
    records = []
    for first, last in pairwise(ends):
        context_begin, context_end = max(0, first - CONTEXT), last + CONTEXT
        meta = {**record.meta, OWN: (first - context_begin, last - context_begin)}
        records.append(replace(record, raw=str(record.raw)[context_begin:context_end], meta=meta))
    return records


def windows(length: int) -> Iterator[tuple[int, int]]:
    """Start and end (half open) of each window over `length` bases.

    >>> list(windows(170))
    [(0, 100), (50, 150), (70, 170)]
    """
    if length:
        last = max(0, length - WINDOW)
        for start in [*range(0, last, STEP), last]:
            yield start, min(start + WINDOW, length)


def _whole_row(scored: ScoredRecord, statistics_of: UnitStatistics) -> Row:
    """The row of a whole record."""
    begin, stop = own_range(scored.record)
    row = replace(record_row(scored, statistics_of(slice(None))), start=begin, end=stop)
    return _with_place(row, scored.record, begin, stop)


def _stretch_row(
    scored: ScoredRecord, units: Longs, start: int, end: int, statistics: dict[str, float]
) -> Row:
    """The row for the given units of a record, which are its bases from start to end."""
    at = place(scored.record, start, end)
    row = part_row(scored, units, f"{at.start}-{at.end}", statistics)
    return _with_place(replace(row, start=start, end=end), scored.record, start, end)


def _with_place(row: Row, record: Record, start: int, end: int) -> Row:
    """The row with its position, its genes and its share of soft-masked bases (lower case: repeats)."""
    bases = str(record.raw)[start:end]
    masked = sum(map(bases.count, "acgt")) / max(1, len(bases))
    contig, first, stop = at = place(record, start, end)
    extra: dict[str, Any] = {"contig": contig, "contig_start": first, "contig_end": stop}
    extra["soft_masked"] = round(masked, 3)
    if GENES in record.meta:
        extra["genes"] = overlapping_names(record.meta[GENES], first, stop)
    if "strand" in record.meta:
        extra["strand"] = record.meta["strand"]
    backwards = record.meta.get("strand") == "-"
    return replace(row, place=at, backwards=backwards, extra=extra)


def _per_unit(bases: Doubles, spans: Longs) -> Doubles:
    """(U,) the sum of the values of the bases (L,) in the span of each unit; NaN counts as 0."""
    total = np.concatenate([[0.0], np.cumsum(np.nan_to_num(bases))])
    return np.asarray(total[spans[:, 1]] - total[spans[:, 0]])


def _sampled_codes(train: Sequences, tokenizer: Tokenizer, seed: int) -> Iterator[Longs]:
    """The codes of training sequences in random order, until they have four million bases together."""
    remaining = _BASES_COUNTED
    for index in np.random.default_rng(seed).permutation(len(train)).tolist():
        codes = _codes(train[index], tokenizer)
        yield codes
        remaining -= len(codes)
        if remaining <= 0:
            return


def _codes(encoding: Encoding, tokenizer: Tokenizer) -> Longs:
    """The codes of the bases of a sequence; 4 for unknown bases and for gaps between tokens."""
    rule = tokenizer.units
    numbers = rule.numbers(encoding)
    if rule.symbols == 4:
        spelled = np.array([code for unit in unit_symbols(rule, encoding) for code in unit], dtype=np.int64)
        if not len(spelled):
            return spelled
        codes = np.full(int(numbers[-1] - numbers[0]) + 1, 4, dtype=np.int64)
        codes[numbers - numbers[0]] = spelled
        return codes
    texts = [tokenizer.spelling.surface(int(token)) for token in encoding.ids[encoding.groups >= 0]]
    return base_codes("".join(text if set(text.upper()) <= set("ACGT") else "N" for text in texts))
