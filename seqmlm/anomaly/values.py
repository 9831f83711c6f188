"""The results of scoring: the units of a record (`ScoredRecord`), and rows with statistics (`Row`).

Both refer to the file, line and characters that they come from. Surprisals are in bits. The surprisal of a
unit with several tokens is their sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.record import Record
from seqmlm.engine.reductions import Reduction
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import Units

if TYPE_CHECKING:
    from seqmlm.engine.scoring import SequenceScore

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]

_BITS = 1 / math.log(2)

ALONE, COUNTED, SEEN = "model", "counted", "seen"
"""Names of `ScoredRecord.values` if counts are mixed in.

* `ALONE`: (U,) bits from the model without counts.
* `COUNTED`: (U,) the fraction of p that comes from counts.
* `SEEN`: (U, 3) facts about the longest context that is in the training data. They are its number of
  neighbours, how often the unit occurred in it, and how often any unit did.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredRecord:
    """One record with the surprisal of its units: one entry per scored unit, in ascending order.

    Args:
        record: the record.
        encoding: the encoding of the whole record, not of windows.
        rule: the rule for masking units and reading their predictions.
        number: (U,) unit numbers in the record, as from `Units.numbers`.
        surprisal: (U,) -log2 p of each unit, in bits.
        values: the results of other reductions (`seqmlm.engine.reductions`), name -> (U, ...). For a unit
            with several tokens, `Reduction.over_unit` says how they are combined. Sums are in bits.
        conceal: replaces letters that may not be shown, without changing the length. None if all may be
            shown.
    """

    record: Record
    encoding: Encoding
    rule: Units
    number: Longs
    surprisal: Doubles
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    conceal: Callable[[str], str] | None = None

    def __len__(self) -> int:
        return len(self.number)

    @cached_property
    def places(self) -> Longs:
        """(U,) index of each unit among all units of the encoding, including units without a score."""
        return np.searchsorted(self.rule.numbers(self.encoding), self.number)

    @cached_property
    def position(self) -> Longs:
        """(U,) index of the first token of `encoding` that shows the unit."""
        return self.rule.places(self.encoding)[self.places]

    @cached_property
    def every_size(self) -> Longs:
        """(N,) number of symbols of all units of the encoding, scored or not."""
        return np.diff(self.rule.symbols_of(self.encoding)[0])

    @cached_property
    def every_span(self) -> Longs:
        """(N, 2) half-open offsets in `str(record.raw)` of all units of the encoding, scored or not."""
        return self.rule.spans(self.encoding)

    @cached_property
    def spans(self) -> Longs:
        """(U, 2) half-open offsets of each unit in `str(record.raw)`."""
        return self.every_span[self.places]

    @cached_property
    def raw(self) -> str:
        """The text that spans refer to, in the form that may be shown.

        It is the attribute `text` of the raw record if there is one (lines of a log), otherwise its `str`.
        """
        own_text = getattr(self.record.raw, "text", None)
        text = own_text if isinstance(own_text, str) else str(self.record.raw)
        return text if self.conceal is None else self.conceal(text)

    @property
    def classes(self) -> NDArray[np.int16] | None:
        """(U,) the class of each unit's first token, or None if the field has no classes."""
        return None if self.encoding.classes is None else self.encoding.classes[self.position]

    def unknown(self, ids: Collection[int]) -> Longs:
        """(K, 2) half-open spans in `raw` of the units with tokens of these ids.

        Args:
            ids: ids of tokens for text outside of the vocabulary.
        """
        tokens = np.flatnonzero(np.isin(self.encoding.ids, np.array(list(ids), dtype=np.int64)))
        # A field may leave unknown text outside of all units. Each such token then counts as a unit.
        groups = self.encoding.groups[tokens].astype(np.int64)
        _, first = np.unique(np.where(groups < 0, -1 - tokens, groups), return_index=True)
        tokens = np.sort(tokens[first])
        if self.encoding.spans is None:
            return np.zeros((len(tokens), 2), dtype=np.int64)
        return self.encoding.spans[tokens].astype(np.int64)

    def text(self, unit: int) -> str:
        """The text of the unit with this index."""
        start, end = self.spans[unit].tolist()
        return self.raw[start:end]


def merge_windows(
    record: Record,
    encoding: Encoding,
    rule: Units,
    parts: list[SequenceScore],
    want: Collection[Reduction] = (),
) -> ScoredRecord:
    """Merge the windows of a record, and combine the scores of tokens into scores of units.

    Args:
        record, encoding, rule: as in `ScoredRecord`.
        parts: the scores of each window. Each unit is scored in one window.
        want: reductions that the windows have in addition to log-probabilities.
    """
    groups = np.concatenate([part.groups for part in parts])
    number, first, place = np.unique(groups, return_index=True, return_inverse=True)
    filled = [part for part in parts if len(part.groups)]

    def sum_units(values: NDArray[Any], over: str) -> NDArray[Any]:
        if over == "sum":
            return np.bincount(place, weights=values * _BITS, minlength=len(number)).astype(np.float64)
        reduced = values[first]
        if over == "max":
            np.maximum.at(reduced, place, values)
        return reduced.astype(np.float64) if reduced.dtype == np.float32 else reduced

    def merge_values(reduction: Reduction) -> NDArray[Any]:
        return sum_units(
            np.concatenate([part.values[reduction.name] for part in filled]), reduction.over_unit
        )

    return ScoredRecord(
        record=record,
        encoding=encoding,
        rule=rule,
        number=number.astype(np.int64),
        surprisal=sum_units(-np.concatenate([part.log_probs for part in parts]), "sum"),
        values={reduction.name: merge_values(reduction) for reduction in want} if filled else {},
    )


class Place(NamedTuple):
    """The place of a row in a longer sequence that contains its record, such as a chromosome.

    `name` is the name of the longer sequence. `start` and `end` are half-open 0-based positions in it.
    """

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """A record, or a part of one, with its statistics.

    Args:
        id: the id of the record; a part has its own name after "#".
        source, line: the file of the user, and the line where the row begins, counted from 1.
        start, end: half-open offsets in `str(record.raw)`.
        units: (n,) indices into the record's `ScoredRecord`.
        length: number of units. Rows are compared with normal rows of similar length.
        statistics: name -> value; higher is more unusual, and inf is beyond all normal values. NaN means that
            the statistic does not apply to this row.
        score: the main statistic of the level; None if nothing could be scored.
        time: time of its first unit, in seconds since 1970-01-01 UTC, or None.
        place: its place in the longer sequence that contains its record, or None.
        backwards: whether the record is read against the direction of `place` (the other strand).
        peak: the unit that explains the row best, as an index like those in `units`. None means the unit with
            the highest surprisal.
        unfamiliar: whether most of it is unknown to the model, so that its scores are not valid
            (`Level.unfamiliar`).
        extra: other fields of its JSON line.
    """

    id: str
    source: str
    line: int
    start: int
    end: int
    units: Longs
    length: int
    statistics: Mapping[str, float]
    score: float | None
    time: float | None = None
    place: Place | None = None
    backwards: bool = False
    peak: int | None = None
    unfamiliar: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def outer_span(self, start: int, end: int) -> tuple[int, int]:
        """The span in the longer sequence of the record's characters `start` to `end`.

        Without a `place`, the span is unchanged.

        >>> from dataclasses import replace
        >>> row = Row(id="r#2-5", source="f", line=1, start=2, end=5, units=np.arange(3), length=3,
        ...           statistics={}, score=None, place=Place("chr1", 102, 105))
        >>> row.outer_span(0, 2), replace(row, backwards=True).outer_span(0, 2)
        ((100, 102), (105, 107))
        """
        if self.place is None:
            return start, end
        if self.backwards:
            reverse = self.place.end + self.start
            return reverse - end, reverse - start
        shift = self.place.start - self.start
        return start + shift, end + shift
