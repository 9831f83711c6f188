"""Vectors in context: hidden states of a model, pooled over records, units, windows or spans.

A record longer than the model is read in overlapping windows. Each unit is read in the window where it is
most central, as in scoring. If sequences have two strands, a vector is the mean of both. Only the units of a
window are in memory together, so that any record fits. The cost: a maximum is taken window by window.
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
    """A window, and the tokens whose states are read.

    Attributes:
        window: the encoding that the model sees.
        unit: (L,) number in the record of each token's unit, -1 outside.
        read_mask: (L,) True for tokens whose states are read.
    """

    window: Encoding
    unit: Longs
    read_mask: Bools


@dataclass(frozen=True, kw_only=True, eq=False)
class Item:
    """A part of a record whose vectors are computed together.

    Args:
        record: the record.
        segments: segments of each window: one, or two if there is another strand.
        bounds: (T, 2) for each vector, the first unit and the unit after the last.
        spans: (T, 2) the same in characters of the record's text. None for a whole record.
        fields: other columns of the row of each vector. Empty, or T mappings.
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
        """Number of tokens in all windows that the model reads for the item."""
        return sum(len(segment.window) for strands in self.segments for segment in strands)


def concatenate_items(first: Item, second: Item) -> Item:
    """Combine two records into one item, with the vectors of the first record, then of the second."""
    offset = 1 + max(int(segment.unit.max()) for strands in first.segments for segment in strands)
    moved = [
        [segment._replace(unit=np.where(segment.unit < 0, -1, segment.unit + offset)) for segment in strands]
        for strands in second.segments
    ]
    bounds = np.concatenate([first.bounds, second.bounds + offset])
    return replace(first, segments=[*first.segments, *moved], bounds=bounds)


class Layers(NamedTuple):
    """A selection of hidden layers, and how their states become one vector.

    Attributes:
        text: the selection as text.
        numbers: K numbers of layers, for `Conditionals.hidden_states`.
        how: "one" layer, the "mean" or "sum" of the layers, or "all" layers concatenated.
    """

    text: str
    numbers: tuple[int, ...]
    how: Literal["one", "mean", "sum", "all"]

    @staticmethod
    def check(text: str) -> None:
        """Refuse a text that does not select layers.

        Raises:
            UsageError: the text has the wrong form.
        """
        if re.fullmatch(r"all|last|-?\d+|(last|-[1-9]\d*):(mean|sum)", text, re.ASCII) is None:
            raise UsageError(
                f"layers are last, a number, -4:mean or -4:sum of the last four, or all, not {text!r}"
            )

    @classmethod
    def parse(cls, text: str, depth: int) -> Layers:
        """Parse a selection of layers, for a model with `depth` layers.

        Args:
            text: "last", "all" or a number. 0 is the embeddings, and negative numbers count from the last
                layer. "-4:mean" and "-4:sum" combine the last four layers.
            depth: number of layers.

        Raises:
            UsageError: the text has the wrong form, or the model does not have the layer.
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
        """Combine states (A, K, H) of the selected layers into vectors (A, W)."""
        reduced: Floats = states.reshape(len(states), -1)
        if self.how in ("mean", "sum"):
            reduced = states.mean(1) if self.how == "mean" else states.sum(1)
        return reduced


class Embedder:
    """Computes vectors of encoded records.

    Args:
        ask: the model.
        tokenizer: its tokenizer.
        max_length: number of tokens in a window.
        layers: selection of layers, for `Layers.parse`.
        of: the parts that get a vector each.
        pool: how states become a vector. Means ("mean") and maxima ("max") are over units, and a unit is the
            mean of its tokens. The choice "start" takes the start token of a record, or the first token of a
            part. The choice "tokens" is the mean over all tokens of a record, including special tokens, as in
            sentence-transformers.

    Raises:
        UsageError: the model does not have a layer, or "tokens" is used for parts.
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
            raise UsageError("pool=tokens is only for records; for parts use mean, start or max")

    def items(self, sequence: Encoded, spans: Sequence[Span] = ()) -> Iterator[Item]:
        """The items of a record.

        Records without units and spans without tokens (`unit_ranges`) have none.
        """
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
        """An item for each window, with one vector, or with a vector for each of its units."""
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
        """The windows of a record, each with the window of its other strand."""
        # This column keeps the unit numbers with the tokens.
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
        """The same units on the other strand, where they are in reverse order."""
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
        """Vectors (T, H) of each item, in order. Equal windows are computed once.

        Raises:
            TrainingError, NotFiniteError: as in `Conditionals.hidden_states`.
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
        """The units (N,) of each window, ascending, and their vectors (N, H): the mean of the strands."""
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
    """(L,) number of each token's unit, and -1 for special tokens.

    In scoring, an unknown token belongs to no unit. Here it is a unit, because it represents text.
    """
    inside = encoding.groups >= 0
    if encoding.spans is not None:
        inside = inside | (encoding.spans[:, 1] > encoding.spans[:, 0])
    changes = np.r_[True, encoding.groups[1:] != encoding.groups[:-1]] | (encoding.groups < 0)
    return np.where(inside, np.cumsum(inside & changes) - 1, -1)


def unit_spans(encoding: Encoding, units: Longs) -> Longs:
    """(U, 2) start and end of each unit in the text of its record. 0 if they are unknown."""
    inside = np.flatnonzero(units >= 0)
    spans = np.zeros((int(units.max(initial=-1)) + 1, 2), dtype=np.int64)
    if encoding.spans is not None:
        spans[:, 0] = np.iinfo(np.int64).max
        np.minimum.at(spans[:, 0], units[inside], encoding.spans[inside, 0])
        np.maximum.at(spans[:, 1], units[inside], encoding.spans[inside, 1])
    return spans


def unit_ranges(encoding: Encoding, spans: Sequence[Span]) -> Longs:
    """(S, 2) for each span, the first unit that overlaps it, and the unit after the last that overlaps it.

    For a span without a unit, both numbers are equal.
    """
    text = unit_spans(encoding, unit_numbers(encoding))
    letters = np.array([(span.start, span.end) for span in spans], dtype=np.int64).reshape(-1, 2)
    # Ends may decrease if a character consists of several units. The running maximum finds the first overlap.
    first = np.searchsorted(np.maximum.accumulate(text[:, 1]), letters[:, 0], side="right")
    return np.column_stack([first, np.maximum(first, np.searchsorted(text[:, 0], letters[:, 1]))])
