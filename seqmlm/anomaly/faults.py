"""Faults planted in normal records: the evidence by which statistics are chosen where nobody has labels.

A field names its own kinds of faults (`Domain.faults`). A level's statistics then compete on rows with a
fault beside normal rows (`seqmlm.evaluation.evidence`). Planted faults are no real anomalies: they tell which
statistics to trust, not how many real anomalies will be found.

Faults of texts are edits of units, of any field whose records are text; others rebuild their raw form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.values import Longs, Row
from seqmlm.data.record import Record

Random = np.random.Generator
_TRIES = 10


class Given(NamedTuple):
    """A normal record.

    record: itself.
    spans: (N, 2) half-open offsets of its units in `str(record.raw)`.
    kinds: (N,) class of each unit, or None where the field has no classes.
    rows: how many rows its level makes of it.
    """

    record: Record
    spans: Longs
    kinds: NDArray[np.int16] | None
    rows: int


class Planted(NamedTuple):
    """A copy of a record with a fault, or several far from each other.

    record: the copy.
    spans: (S, 2) half-open offsets in it of what is wrong, as `Encoding.spans` count.
    """

    record: Record
    spans: Longs


Fault = Callable[[Given, Given, Random], Planted | None]
"""Plants one kind of fault: (a record, another one to take units from, draws) -> the copy, or None where it
cannot be planted."""

Edit = tuple[int, int, str]
Draw = Callable[[Given, Given, Random], list[Edit]]

_ROWS_PER_FAULT = 10


def edits(draw: Draw, spell: Callable[[Any, str], Any] = lambda raw, text: text) -> Fault:
    """The fault of a text that replaces stretches of it; in one of many rows about every tenth gets one.

    Args:
        draw: gives half-open stretches of the text and what stands there instead; [] for a failed draw.
        spell: makes a raw value from the old one and the new text.
    """

    def fault(given: Given, other: Given, random: Random) -> Planted | None:
        taken: list[Edit] = []
        for _ in range(max(1, given.rows // _ROWS_PER_FAULT)):
            found = draw(given, other, random)
            if not any(a < end and start < b for a, b, _ in found for start, end, _ in taken):
                taken += found
        text, parts, spans, at = str(given.record.raw), list[str](), list[tuple[int, int]](), 0
        length = 0
        for start, end, new in sorted(taken):
            length += start - at
            parts += [text[at:start], new]
            spans.append((length, length + len(new)))
            length, at = length + len(new), end
        if not spans:
            return None
        changed = spell(given.record.raw, "".join([*parts, text[at:]]))
        return Planted(replace(given.record, raw=changed), np.array(spans, dtype=np.int64))

    return fault


def substituted(units: int = 1, *, own: bool = False, among: Collection[int] | None = None) -> Draw:
    """So many units are others of their kind, drawn as they occur in the other record.

    Args:
        units: that are changed.
        own: they are drawn from the same record.
        among: kinds of units that are changed; None for all.
    """

    def draw(given: Given, other: Given, random: Random) -> list[Edit]:
        found: dict[int, Edit] = {}
        source, places = given if own else other, _places(given, among)
        for _ in range(_TRIES * units):
            if len(found) == units or not len(places) or not len(source.spans):
                break
            place = int(random.choice(places))
            alike = np.arange(len(source.spans))
            if given.kinds is not None and source.kinds is not None:
                alike = np.flatnonzero(source.kinds == given.kinds[place])
            old = _text(given, place)
            new = _text(source, int(random.choice(alike))) if len(alike) else old
            if new != old and new.strip():
                found[place] = (*given.spans[place].tolist(), new)
        return list(found.values())

    return draw


def swapped(among: Collection[int] | None = None) -> Draw:
    """Two different units of one kind (of these kinds), at most four apart, change places."""

    def draw(given: Given, other: Given, random: Random) -> list[Edit]:
        places = _places(given, among)
        for _ in range(_TRIES if len(places) else 0):
            first = int(random.choice(places))
            for second in range(first + 1, min(first + 5, len(given.spans))):
                if given.kinds is None or given.kinds[first] == given.kinds[second]:
                    one, two = _text(given, first), _text(given, second)
                    if one != two and one.strip() and two.strip():
                        return [(*given.spans[first].tolist(), two), (*given.spans[second].tolist(), one)]
                    break
        return []

    return draw


def _places(given: Given, among: Collection[int] | None) -> Longs:
    if among is None or given.kinds is None:
        return np.arange(len(given.spans))
    return np.flatnonzero(np.isin(given.kinds, list(among)))


def shuffled(units: int) -> Draw:
    """So many neighbouring units, at most half of all, stand in another order."""

    def draw(given: Given, other: Given, random: Random) -> list[Edit]:
        start, end = _stretch(given, units, random)
        old = [_text(given, place) for place in range(start, end)]
        new = [old[i] for i in random.permutation(len(old)).tolist()]
        return [] if new == old else _rewritten(given, start, end, new)

    return draw


def recoded(units: int, table: Mapping[str, str], *, share: float = 1.0) -> Draw:
    """A share of so many neighbouring units, at most half of all, is spelled in other letters."""
    letters = str.maketrans(dict(table))

    def draw(given: Given, other: Given, random: Random) -> list[Edit]:
        start, end = _stretch(given, units, random)
        old = [_text(given, place) for place in range(start, end)]
        drawn = (random.random(len(old)) < share).tolist()
        new = [one.translate(letters) if chosen else one for one, chosen in zip(old, drawn, strict=True)]
        return [] if new == old else _rewritten(given, start, end, new)

    return draw


def _stretch(given: Given, units: int, random: Random) -> tuple[int, int]:
    size = min(units, len(given.spans) // 2)
    start = int(random.integers(len(given.spans) - size + 1))
    return start, start + size


def _rewritten(given: Given, start: int, end: int, new: Sequence[str]) -> list[Edit]:
    """One edit: the stretch with other units; what stands between units stays."""
    if end - start < 2:
        return []
    text, spans = str(given.record.raw), given.spans[start:end].tolist()
    between = [text[a[1] : b[0]] for a, b in pairwise(spans)]
    joined = "".join(unit + gap for unit, gap in zip(new, [*between, ""], strict=True))
    return [(spans[0][0], spans[-1][1], joined)]


def _text(given: Given, place: int) -> str:
    start, end = given.spans[place].tolist()
    return str(given.record.raw)[start:end]


FAULTS: Mapping[str, Fault] = {
    "substituted": edits(substituted()),
    "swapped": edits(swapped()),
    "shuffled": edits(shuffled(8)),
}
"""Faults of any text: a unit of another record, two units in the wrong order, a stretch in disorder."""


def plant(
    faults: Mapping[str, Fault], normal: Sequence[Given], copies: int, *, seed: int
) -> Iterator[tuple[str, Planted]]:
    """So many copies with faults, fewer where they cannot be planted: kind by kind in turn, record by record.

    Args:
        faults: by kind.
        normal: records, at least two; each may be used several times.
        copies: of all kinds together.
        seed: of all draws.
    """
    random = np.random.default_rng(seed)
    kinds = list(faults)
    for number in range(copies if len(normal) > 1 else 0):
        given = normal[number // len(kinds) % len(normal)]
        other = normal[int(random.integers(len(normal)))]
        kind = kinds[number % len(kinds)]
        found = faults[kind](given, other, random)
        if found is not None:
            yield kind, found


def touched(rows: Sequence[Row], spans: Longs) -> list[Row]:
    """The rows that a fault is in: those that share at least half of the shorter one with a stretch of it."""
    return [row for row in rows if row.score is not None and _shares(row, spans)]


def _shares(row: Row, spans: Longs) -> bool:
    shared = np.minimum(spans[:, 1], row.end) - np.maximum(spans[:, 0], row.start)
    shorter = np.minimum(spans[:, 1] - spans[:, 0], row.end - row.start)
    return bool(((shared > 0) & (2 * shared >= shorter)).any())
