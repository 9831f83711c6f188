"""The values of scoring: a record unit by unit, and the rows that are judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.record import Record
from seqmlm.engine.scoring import SequenceScore
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import Units

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]

_BITS = 1 / math.log(2)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """One record as the model saw it: an entry a unit, in ascending order.

    Args:
        record: where it came from.
        encoding: the whole record, not windows of it.
        rule: how the field's units are hidden and read back.
        number: (U,) unit numbers in the record, as `Units.numbers` gives them.
        surprisal: (U,) bits, -log2 p of what stands there.
        entropy: (U,) bits, or None where it was not asked for; of a unit of several tokens the sum.
        rank: (U,) letters strictly more probable than the one that stands there, for the worst of a unit's
            tokens; or None.
        top_ids, top_log_probs: (U, k) the most probable letters of a unit's first token and their log
            probability in nats, descending, -1 and -inf beyond the last; or None.
        also: the same record in the further modes that a level asks for, by `str(Mode)`.
    """

    record: Record
    encoding: Encoding
    rule: Units
    number: Longs
    surprisal: Doubles
    entropy: Doubles | None = None
    rank: Longs | None = None
    top_ids: Longs | None = None
    top_log_probs: Doubles | None = None
    also: Mapping[str, Scored] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.number)

    @cached_property
    def _at(self) -> Longs:
        """(U,) where each unit stands among all units of the encoding, which may have unscored ones."""
        return np.searchsorted(self.rule.numbers(self.encoding), self.number)

    @cached_property
    def position(self) -> Longs:
        """(U,) a token of `encoding` that shows the unit, its first where it has several."""
        return self.rule.places(self.encoding)[self._at]

    @cached_property
    def spans(self) -> Longs:
        """(U, 2) half-open offsets of each unit in `str(record.raw)`."""
        return self.rule.spans(self.encoding)[self._at]

    @cached_property
    def raw(self) -> str:
        """The text that spans point into: of a record with a `text` (a log's lines) that, else its `str`."""
        text = getattr(self.record.raw, "text", None)
        return text if isinstance(text, str) else str(self.record.raw)

    @property
    def classes(self) -> NDArray[np.int16] | None:
        """(U,) class of each unit's first token, or None where the field has no classes."""
        return None if self.encoding.classes is None else self.encoding.classes[self.position]

    def text(self, unit: int) -> str:
        """What stands at the unit with this index."""
        start, end = self.spans[unit].tolist()
        return self.raw[start:end]


def scored(record: Record, encoding: Encoding, rule: Units, parts: list[SequenceScore]) -> Scored:
    """Put the windows of a record together, tokens to units.

    Args:
        parts: of all windows; together they price each unit once.
    """
    groups = np.concatenate([part.groups for part in parts])
    number, first, place = np.unique(groups, return_index=True, return_inverse=True)
    count = len(number)

    def summed(values: NDArray[Any]) -> Doubles:
        return np.bincount(place, weights=values * _BITS, minlength=count).astype(np.float64)

    def joined(name: str) -> NDArray[Any] | None:
        values = [getattr(part, name) for part in parts if len(part.groups)]
        return None if not values or values[0] is None else np.concatenate(values)

    nats, entropy, ranks = joined("log_probs"), joined("entropy"), joined("ranks")
    ids, log_probs = joined("top_ids"), joined("top_log_probs")
    worst = np.zeros(count, dtype=np.int64)
    if ranks is not None:
        np.maximum.at(worst, place, ranks)
    return Scored(
        record=record,
        encoding=encoding,
        rule=rule,
        number=number.astype(np.int64),
        surprisal=np.zeros(0) if nats is None else summed(-nats),
        entropy=None if entropy is None else summed(entropy),
        rank=None if ranks is None else worst,
        top_ids=None if ids is None else ids[first],
        top_log_probs=None if log_probs is None else log_probs[first].astype(np.float64),
    )


def refined(rough: Scored, better: Scored) -> Scored:
    """`rough` with the units that `better`, the same record asked anew in part, prices."""
    at = np.searchsorted(rough.number, better.number)

    def over(old: NDArray[Any] | None, new: NDArray[Any] | None) -> NDArray[Any] | None:
        if old is None or new is None:
            return old
        changed = old.copy()
        changed[at] = new
        return changed

    surprisal = over(rough.surprisal, better.surprisal)
    assert surprisal is not None
    return replace(
        rough,
        surprisal=surprisal,
        entropy=over(rough.entropy, better.entropy),
        rank=over(rough.rank, better.rank),
        top_ids=over(rough.top_ids, better.top_ids),
        top_log_probs=over(rough.top_log_probs, better.top_log_probs),
        also=better.also or rough.also,
    )


class Place(NamedTuple):
    """Where a row lies in something longer that records are parts of, such as a chromosome.

    name: of the longer sequence.
    start, end: half-open 0-based places in it.
    """

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """What is judged: a record, or a part of one.

    Args:
        id: the record's, with what names the part behind "#" where it is one.
        source, line: where it begins in the user's file; the line is 1-based.
        start, end: half-open offsets in `str(record.raw)`.
        units: (n,) indices into the record's `Scored`.
        length: units it is compared by; calibration is by length.
        statistics: channel to value, higher = more unusual, inf = beyond anything normal; NaN where a channel
            says nothing of this row.
        score: the level's main statistic; None where nothing could be scored.
        time: seconds since 1970-01-01 UTC of its first unit, or None.
        place: where it lies in what its record is a part of, or None.
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
    extra: Mapping[str, Any] = field(default_factory=dict)
