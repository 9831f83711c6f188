"""Levels of DNA: windows along a contig, bases, records; both strands, composition subtracted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.background import Background
from seqmlm.anomaly.composition import Composition, base_codes
from seqmlm.anomaly.levels import Level, part_row, record_row
from seqmlm.anomaly.values import Doubles, Longs, Row, Scored
from seqmlm.data.record import Record
from seqmlm.engine.types import Encoding, Sequences
from seqmlm.tokenizers.base import Tokenizer
from seqmlm.tokenizers.nucleotide import reverse_complement

WINDOW, STEP = 100, 50
"""Bases of a window, and from one window to the next."""

_BASES_COUNTED = 4_000_000


class GenomeBackground(Background):
    """The composition of the training split.

    Args:
        composition: a chain of bases.
    """

    def __init__(self, composition: Composition) -> None:
        self.composition = composition

    @classmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        """Count k-mers in sequences in a drawn order, until there are four million bases."""
        return cls(Composition.fit(_drawn(train, tokenizer, seed)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {f"order-{k}": table for k, table in enumerate(self.composition.tables)}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], tokenizer: Tokenizer) -> Self:
        return cls(Composition([arrays[f"order-{k}"] for k in range(len(arrays))]))


class Place(NamedTuple):
    """Where a stretch of a record lies: contig, and half-open 0-based bases of its forward strand."""

    contig: str
    start: int
    end: int


def place(record: Record, start: int, end: int) -> Place:
    """Where letters start to end of a record lie in their contig, as its reader says in `meta`."""
    first = int(record.meta.get("start", 0))
    if record.meta.get("strand") == "-":
        start, end = len(record.raw) - end, len(record.raw) - start
    return Place(str(record.meta.get("contig", record.id)), first + start, first + end)


@dataclass(frozen=True, slots=True, eq=False)
class _Values:
    """(U,) surprisal of each unit in bits, that by its own composition, and by the training's, or None."""

    bits: Doubles
    own: Doubles
    usual: Doubles | None

    def statistics(self, units: Longs | slice) -> dict[str, float]:
        if not len(self.bits[units]):
            return {"excess": float("nan")}
        found = {"excess": float((self.bits[units] - self.own[units]).mean())}
        if self.usual is not None:
            found["composition"] = float(self.usual[units].mean())
        return found


class DnaLevel(Level):
    """What the levels of DNA share.

    Channels:
        excess: bits per base of the model above those of the place's own composition
            (`Composition.own_bits`): the score.
        composition: bits per base of the training data's composition alone, a Markov chain: what k-mers say.
    """

    channels = ("excess", "composition")
    background: ClassVar[type[Background] | None] = GenomeBackground
    pictures = ("track",)
    placed = True

    def mirrored(self, record: Record) -> Record | None:
        return Record(
            id=record.id,
            raw=reverse_complement(str(record.raw)),
            source=record.source,
            line=record.line,
            document=record.document,
            meta=record.meta,
        )

    def values(self, scored: Scored, background: Background | None) -> _Values:
        """The three prices of every unit; a unit of several bases has their sum."""
        text, spans = str(scored.record.raw), scored.spans
        known = background.composition if isinstance(background, GenomeBackground) else None
        own = _per_unit((known or Composition.uniform()).own_bits(text), spans)
        usual = None if known is None else _per_unit(known.bits(text), spans)
        return _Values(scored.surprisal, own, usual)


class WindowLevel(DnaLevel):
    """Windows of `WINDOW` bases, `STEP` apart; the last ends with the record, a shorter record is one window.

    A window of which less than half is known (the rest is N) is left out, unless there is no other.
    """

    name = "window"

    def rows(self, scored: Scored, background: Background | None) -> Sequence[Row]:
        values = self.values(scored, background)
        spans, length = scored.spans, len(str(scored.record.raw))
        known = np.concatenate([[0], np.cumsum(base_codes(str(scored.record.raw)) < 4)])
        found = []
        for start, end in windows(length):
            first, last = np.searchsorted(spans[:, 0], [start, end]).tolist()
            if last > first and 2 * (known[end] - known[start]) >= end - start:
                units = np.arange(first, last)
                found.append(_part(scored, units, start, end, values.statistics(slice(first, last))))
        return found or [_whole(scored, values)]


class BaseLevel(DnaLevel):
    """Every base alone."""

    name = "base"

    def rows(self, scored: Scored, background: Background | None) -> Sequence[Row]:
        values = self.values(scored, background)
        return [
            _part(scored, np.array([unit]), start, end, values.statistics(slice(unit, unit + 1)))
            for unit, (start, end) in enumerate(scored.spans.tolist())
        ]


class RecordLevel(DnaLevel):
    """The record whole: a read, a contig."""

    name = "record"

    def rows(self, scored: Scored, background: Background | None) -> Sequence[Row]:
        return [_whole(scored, self.values(scored, background))]


def windows(length: int) -> Iterator[tuple[int, int]]:
    """Half-open windows over so many bases.

    >>> list(windows(170))
    [(0, 100), (50, 150), (70, 170)]
    """
    if length:
        last = max(0, length - WINDOW)
        for start in [*range(0, last, STEP), last]:
            yield start, min(start + WINDOW, length)


def _whole(scored: Scored, values: _Values) -> Row:
    row = record_row(scored, values.statistics(slice(None)))
    return replace(row, extra=_extra(scored.record, 0, len(str(scored.record.raw))))


def _part(scored: Scored, units: Longs, start: int, end: int, statistics: dict[str, float]) -> Row:
    extra = _extra(scored.record, start, end)
    row = part_row(scored, units, f"{start}-{end}", statistics)
    return replace(row, start=start, end=end, extra=extra)


def _extra(record: Record, start: int, end: int) -> dict[str, Any]:
    """Where it lies, and which share of it is soft-masked (a repeat, in lower case)."""
    letters = str(record.raw)[start:end]
    masked = sum(map(letters.count, "acgt")) / max(1, len(letters))
    contig, first, stop = place(record, start, end)
    return {"contig": contig, "contig_start": first, "contig_end": stop, "soft_masked": round(masked, 3)}


def _per_unit(bases: Doubles, spans: Longs) -> Doubles:
    total = np.concatenate([[0.0], np.cumsum(np.nan_to_num(bases))])
    return np.asarray(total[spans[:, 1]] - total[spans[:, 0]])


def _drawn(train: Sequences, tokenizer: Tokenizer, seed: int) -> Iterator[Longs]:
    left = _BASES_COUNTED
    for index in np.random.default_rng(seed).permutation(len(train)).tolist():
        codes = _codes(train[index], tokenizer)
        yield codes
        left -= len(codes)
        if left <= 0:
            return


def _codes(encoding: Encoding, tokenizer: Tokenizer) -> Longs:
    """The bases a sequence shows, 4 where one is unknown or some are missing between two tokens."""
    rule = tokenizer.units
    numbers = rule.numbers(encoding)
    if rule.letters == 4:
        spelled = np.array([code for unit in rule.spelled(encoding) for code in unit], dtype=np.int64)
        if not len(spelled):
            return spelled
        codes = np.full(int(numbers[-1] - numbers[0]) + 1, 4, dtype=np.int64)
        codes[numbers - numbers[0]] = spelled
        return codes
    texts = [tokenizer.surface(int(token)) for token in encoding.ids[encoding.groups >= 0]]
    return base_codes("".join(text if set(text.upper()) <= set("ACGT") else "N" for text in texts))
