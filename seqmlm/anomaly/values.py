"""The values of scoring: a record unit by unit (`ScoredRecord`), and the rows that are judged (`Row`).

Both point back to the file, line and characters they came from. Surprisals are in bits, of a unit of
several tokens the sum.
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
"""Names of `ScoredRecord.values` where counts are mixed in: (U,) bits by the model alone, (U,) the share of p
that comes from counts, and (U, 3) how many neighbours the longest context seen in training has, how often the
unit stood in it, and how often anything did."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredRecord:
    """One record with the bits of its units by a model: an entry a unit, in ascending order.

    Args:
        record: where it came from.
        encoding: the whole record, not windows of it.
        rule: how the field's units are hidden and read back.
        number: (U,) unit numbers in the record, as `Units.numbers` gives them.
        surprisal: (U,) bits, -log2 p of the unit that stands there.
        values: of further reductions (`seqmlm.engine.reductions`), by name: (U, ...), of a unit of several
            tokens the one that `Reduction.over_unit` names; sums are in bits.
        conceal: gives a text of equal length without letters that may not be shown; None where all may.
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
        """(U,) index of each unit among all units of the encoding, which may have unscored ones."""
        return np.searchsorted(self.rule.numbers(self.encoding), self.number)

    @cached_property
    def position(self) -> Longs:
        """(U,) a token of `encoding` that shows the unit, its first where it has several."""
        return self.rule.places(self.encoding)[self.places]

    @cached_property
    def every_size(self) -> Longs:
        """(N,) symbols of all units of the encoding, scored or not."""
        return np.diff(self.rule.symbols_of(self.encoding)[0])

    @cached_property
    def every_span(self) -> Longs:
        """(N, 2) half-open offsets in `str(record.raw)` of all units of the encoding, unscored ones too."""
        return self.rule.spans(self.encoding)

    @cached_property
    def spans(self) -> Longs:
        """(U, 2) half-open offsets of each unit in `str(record.raw)`."""
        return self.every_span[self.places]

    @cached_property
    def raw(self) -> str:
        """The text that spans point into, as it may be shown: of a record with a `text` (a log's lines) that,
        else its `str`."""
        own_text = getattr(self.record.raw, "text", None)
        text = own_text if isinstance(own_text, str) else str(self.record.raw)
        return text if self.conceal is None else self.conceal(text)

    @property
    def classes(self) -> NDArray[np.int16] | None:
        """(U,) class of each unit's first token, or None where the field has no classes."""
        return None if self.encoding.classes is None else self.encoding.classes[self.position]

    def unknown(self, ids: Collection[int]) -> Longs:
        """(K, 2) half-open spans in `raw` of units that have tokens of these ids: outside the vocabulary."""
        tokens = np.flatnonzero(np.isin(self.encoding.ids, np.array(list(ids), dtype=np.int64)))
        # A field may leave what it does not know outside of all units: each token is then one.
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
    """Merge the windows of a record, tokens to units, each of which one window scores; `want` are reductions
    that they hold beside log-probabilities."""
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
    """The place of a row in something longer that records are parts of, such as a chromosome: its name, and
    half-open 0-based places in it."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """A record, or a part of one, with the statistics that are judged.

    Args:
        id: of the record; a part has its own name behind "#".
        source, line: where it begins in the user's file; the line is 1-based.
        start, end: half-open offsets in `str(record.raw)`.
        units: (n,) indices into the record's `ScoredRecord`.
        length: units it is compared by; calibration is by length.
        statistics: name to value, higher = more unusual, inf = beyond anything normal; NaN where one
            says nothing of this row.
        score: the level's main statistic; None where nothing could be scored.
        time: seconds since 1970-01-01 UTC of its first unit, or None.
        place: in the longer sequence that its record is a part of, or None.
        backwards: the record is read against the direction of `place` (the other strand).
        peak: the most telling unit, an index as in `units`; None: the most surprising one.
        unfamiliar: most of it is unknown to the model, which cannot judge it (`Level.unfamiliar`).
        extra: further fields of its JSON line.
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
        """The span of characters start to end of the record in the longer sequence that has it as a part; the
        same span without `place`.

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
