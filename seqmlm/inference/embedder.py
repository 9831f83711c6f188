"""Vectors in context: hidden states of a model, pooled over records, units, windows or spans.

A record longer than the model is read in overlapping windows, each unit where it is most central, as in
scoring; where sequences have two strands, a vector is the mean of both. The trade-off: a window's units are
in memory together, never a record's, so that any record fits; a maximum is then taken window by window.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from seqmlm.data.record import Record
from seqmlm.data.spans import Span
from seqmlm.engine.types import Bools, Encoding, Floats, Longs
from seqmlm.engine.windows import central_windows
from seqmlm.errors import UsageError
from seqmlm.inference.record_batches import Encoded
from seqmlm.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    from seqmlm.engine.conditionals import Conditionals

Of = Literal["record", "unit", "window", "span"]
Pool = Literal["mean", "start", "max", "tokens"]


class Segment(NamedTuple):
    """A window, and what is read in it.

    window: what the model sees.
    unit: (L,) number in the record of each token's unit, -1 outside.
    read_mask: (L,) True where states are read.
    """

    window: Encoding
    unit: Longs
    read_mask: Bools


@dataclass(frozen=True, kw_only=True, eq=False)
class Item:
    """A part of a record whose vectors are computed together.

    Args:
        record: that it is of.
        segments: of each window one, or two where there is another strand.
        bounds: (T, 2) first unit of each vector, and the one behind its last.
        spans: (T, 2) the same in the record's text; None of a whole record.
        fields: what else rows say of each vector; none, or T.
    """

    record: Record
    segments: Sequence[Sequence[Segment]]
    bounds: Longs
    spans: Longs | None = None
    fields: Sequence[Mapping[str, Any]] = ()

    @property
    def source(self) -> str:
        return self.record.source

    @property
    def line(self) -> int:
        return self.record.line

    @property
    def tokens(self) -> int:
        """Tokens of all windows that the model reads for the item."""
        return sum(len(segment.window) for strands in self.segments for segment in strands)


def concatenate_items(first: Item, second: Item) -> Item:
    """Two records as one item, whose vectors are those of the first, then of the second."""
    offset = 1 + max(int(segment.unit.max()) for strands in first.segments for segment in strands)
    moved = [
        [segment._replace(unit=np.where(segment.unit < 0, -1, segment.unit + offset)) for segment in strands]
        for strands in second.segments
    ]
    bounds = np.concatenate([first.bounds, second.bounds + offset])
    return replace(first, segments=[*first.segments, *moved], bounds=bounds)


class Layers(NamedTuple):
    """Selection of hidden layers, and how their states become one vector.

    text: as it was asked for. numbers: K, as `Conditionals.hidden_states` takes them.
    how: one, their mean, their sum, or all, one behind the other.
    """

    text: str
    numbers: tuple[int, ...]
    how: Literal["one", "mean", "sum", "all"]

    @staticmethod
    def check(text: str) -> None:
        """Refuse a text that names layers of no model; UsageError."""
        if re.fullmatch(r"all|last|-?\d+|(last|-[1-9]\d*):(mean|sum)", text, re.ASCII) is None:
            raise UsageError(
                f"layers are last, a number, -4:mean or -4:sum of the last four, or all, not {text!r}"
            )

    @classmethod
    def parse(cls, text: str, depth: int) -> Layers:
        """Layers named by a text, for a model of `depth` layers.

        Args:
            text: last, a number (0 for the embeddings, negative from the last on), -4:mean or -4:sum of the
                last four, or all.

        Raises:
            UsageError: it is none of these, or not there.
        """
        cls.check(text)
        first, colon, how = text.partition(":")
        if text == "all":
            return cls("all", tuple(range(depth + 1)), "all")
        number = -1 if first == "last" else int(first)
        if not -depth - 1 <= number <= depth:
            raise UsageError(f"no layer {number} in a model of {depth} layers; 0 is the embeddings")
        if colon:
            return cls(text, tuple(range(number, 0)), "sum" if how == "sum" else "mean")
        return cls("last" if number == -1 else text, (number,), "one")

    def combined(self, states: Floats) -> Floats:
        """(A, W) of (A, K, H) states."""
        reduced: Floats = states.reshape(len(states), -1)
        if self.how in ("mean", "sum"):
            reduced = states.mean(1) if self.how == "mean" else states.sum(1)
        return reduced


class Embedder:
    """Embeds encoded records.

    Args:
        ask: the model.
        tokenizer: its own.
        max_length: tokens of a window.
        layers: whose states, as `Layers.parse` takes them.
        of: what has a vector.
        pool: "mean" or "max" over units, each of which is the mean of its tokens; "start" for the start token
            of a record or the first token of a part; "tokens" for the mean over all tokens of a record,
            special ones too, as sentence-transformers has it.

    Raises:
        UsageError: a layer that is not there, or tokens of parts.
    """

    def __init__(
        self,
        ask: Conditionals,
        tokenizer: Tokenizer,
        max_length: int,
        *,
        layers: str = "last",
        of: Of = "record",
        pool: Pool = "mean",
    ) -> None:
        self.ask, self.tokenizer, self.max_length = ask, tokenizer, max_length
        config: Any = ask.rows.model.config
        depth, width = int(config.num_hidden_layers), int(config.hidden_size)
        self.layers, self.of, self.pool = Layers.parse(layers, depth), of, pool
        self.width = width * (depth + 1 if self.layers.how == "all" else 1)
        space = tokenizer.space
        self._edges = [token for token in (space.start, space.end) if token is not None]
        self._by_token = of == "record" and pool in ("start", "tokens")
        if pool == "tokens" and of != "record":
            raise UsageError("pool=tokens is of records; of parts take mean, start or max")

    def items(self, sequence: Encoded, spans: Sequence[Span] = ()) -> Iterator[Item]:
        """Items of a record; none of a record without a unit, nor of spans without a token
        (`unit_ranges`)."""
        units = unit_numbers(sequence.encoding)
        if (units < 0).all():
            return
        if self.of == "record":
            numbers = np.arange(len(units)) if self._by_token else units
            count = 1 if self.pool == "start" else int(numbers.max()) + 1
            segments = [*self._segments(sequence.encoding, numbers)]
            yield Item(record=sequence.record, segments=segments, bounds=np.array([[0, count]]))
        elif self.of == "span":
            bounds = unit_ranges(sequence.encoding, spans)
            covered_spans = [number for number, (low, high) in enumerate(bounds.tolist()) if high > low]
            if covered_spans:
                yield self._of_spans(
                    sequence, units, bounds[covered_spans], [spans[number] for number in covered_spans]
                )
        else:
            yield from self._parts(sequence, units)

    def _of_spans(self, sequence: Encoded, units: Longs, bounds: Longs, spans: Sequence[Span]) -> Item:
        selected = np.zeros(len(units), dtype=np.bool_)
        for low, high in bounds.tolist():
            selected |= (units >= low) & (units < high)
        segments = [*self._segments(sequence.encoding, units, selected)]
        places = np.array([(span.start, span.end) for span in spans])
        fields = [span.fields for span in spans]
        return Item(record=sequence.record, segments=segments, bounds=bounds, spans=places, fields=fields)

    def _parts(self, sequence: Encoded, units: Longs) -> Iterator[Item]:
        """An item for each window, with a vector or one for each of its units."""
        text = unit_spans(sequence.encoding, units)
        for strands in self._segments(sequence.encoding, units):
            read_units = strands[0].unit[strands[0].read_mask & (strands[0].unit >= 0)]
            if not len(read_units):
                continue
            bounds = np.array([[read_units.min(), read_units.max() + 1]])
            if self.of == "unit":
                bounds = np.unique(read_units)[:, None] + np.array([0, 1])
            spans = np.column_stack([text[bounds[:, 0], 0], text[bounds[:, 1] - 1, 1]])
            yield Item(record=sequence.record, segments=[strands], bounds=bounds, spans=spans)

    def _segments(
        self, encoding: Encoding, units: Longs, selected: Bools | None = None
    ) -> Iterator[list[Segment]]:
        """The windows of a record, each with that of its other strand."""
        # A column that travels with the tokens.
        numbered = replace(encoding, symbols=units.astype(np.int32), weights=None)
        space = self.tokenizer.space
        if self.of == "window":
            cut = self.tokenizer.units.windows(numbered, self.max_length)
            parts = [(window_part, np.ones(len(window_part), dtype=np.bool_)) for window_part in cut]
        else:
            parts = central_windows(numbered, space, self.max_length, selected)
        for window, owned in parts:
            assert window.symbols is not None
            unit = np.asarray(window.symbols, dtype=np.int64)
            if self._by_token:
                read_mask = owned | np.isin(window.ids, self._edges)
            else:
                read_mask = owned & (unit >= 0)
                if self.pool == "start":
                    read_mask &= np.r_[True, unit[1:] != unit[:-1]]
            segment = Segment(replace(window, symbols=None), unit, read_mask)
            yield [segment, *self._other_strand(segment)]

    def _other_strand(self, segment: Segment) -> list[Segment]:
        """The same units of the other strand, which has them in the opposite order."""
        window, unit, read_mask = segment
        strands = self.tokenizer.units.facts.strands
        mirror_window = None if strands is None else strands.mirrored(window)
        if mirror_window is None:
            return []
        inner = np.flatnonzero(~np.isin(window.ids, self._edges))
        unit, read_mask = unit.copy(), read_mask.copy()
        unit[inner], read_mask[inner] = unit[inner[::-1]], read_mask[inner[::-1]]
        return [Segment(mirror_window, unit, read_mask)]

    def vectors(self, items: Sequence[Item]) -> Iterator[Floats]:
        """(T, H) vectors of each item, in order; equal windows are computed once.

        Raises:
            TrainingError, NotFiniteError: as `Conditionals.hidden_states`.
        """
        parts = [part for item in items for strands in item.segments for part in strands]
        states = self.ask.hidden_states(
            (part.window for part in parts),
            layers=self.layers.numbers,
            at=(np.flatnonzero(part.read_mask) for part in parts),
        )
        for item in items:
            yield self._pooled(item, states)

    def _pooled(self, item: Item, states: Iterator[Floats]) -> Floats:
        largest = self.pool == "max"
        pooled = np.full((len(item.bounds), self.width), -np.inf if largest else 0.0, dtype=np.float32)
        counts = np.zeros((len(item.bounds), 1), dtype=np.float32)
        for units, vectors in self._units(item, states):
            first, stop = (np.searchsorted(units, edges) for edges in item.bounds.T)
            for number in np.flatnonzero(stop > first).tolist():
                unit_vectors = vectors[first[number] : stop[number]]
                if largest:
                    np.maximum(pooled[number], unit_vectors.max(0), out=pooled[number])
                else:
                    pooled[number] += unit_vectors.sum(0)
                    counts[number] += len(unit_vectors)
        return pooled if largest else pooled / counts

    def _units(self, item: Item, states: Iterator[Floats]) -> Iterator[tuple[Longs, Floats]]:
        """(N,) units of each window, ascending, and their (N, H) vectors, the mean of its strands."""
        for strands in item.segments:
            strand_vectors = list[Floats]()
            for segment in strands:
                unit, token_vectors = segment.unit[segment.read_mask], self.layers.combined(next(states))
                order = np.argsort(unit, kind="stable")
                units, begins, counts = np.unique(unit[order], return_index=True, return_counts=True)
                sums: Floats = np.add.reduceat(token_vectors[order], begins, axis=0)
                strand_vectors.append(np.divide(sums, counts[:, None], dtype=np.float32))
            yield (
                units,
                strand_vectors[0]
                if len(strand_vectors) == 1
                else np.mean(strand_vectors, axis=0, dtype=np.float32),
            )


def unit_numbers(encoding: Encoding) -> Longs:
    """(L,) number of each token's unit; -1 of special tokens.

    An unknown token is of no unit for those who score, but stands for a text: here it is a unit.
    """
    inside = encoding.groups >= 0
    if encoding.spans is not None:
        inside = inside | (encoding.spans[:, 1] > encoding.spans[:, 0])
    changes = np.r_[True, encoding.groups[1:] != encoding.groups[:-1]] | (encoding.groups < 0)
    return np.where(inside, np.cumsum(inside & changes) - 1, -1)


def unit_spans(encoding: Encoding, units: Longs) -> Longs:
    """(U, 2) where each unit stands in the text of its record; 0 where nothing is known."""
    inside = np.flatnonzero(units >= 0)
    spans = np.zeros((int(units.max(initial=-1)) + 1, 2), dtype=np.int64)
    if encoding.spans is not None:
        spans[:, 0] = np.iinfo(np.int64).max
        np.minimum.at(spans[:, 0], units[inside], encoding.spans[inside, 0])
        np.maximum.at(spans[:, 1], units[inside], encoding.spans[inside, 1])
    return spans


def unit_ranges(encoding: Encoding, spans: Sequence[Span]) -> Longs:
    """(S, 2) first unit that each of some spans shares a letter with, and the one behind its last.

    One without a unit has the same number twice.
    """
    text = unit_spans(encoding, unit_numbers(encoding))
    letters = np.array([(span.start, span.end) for span in spans], dtype=np.int64).reshape(-1, 2)
    # Ends may go back where characters are several units: the largest so far finds the first that overlaps.
    first = np.searchsorted(np.maximum.accumulate(text[:, 1]), letters[:, 0], side="right")
    return np.column_stack([first, np.maximum(first, np.searchsorted(text[:, 0], letters[:, 1]))])
