"""What all estimators of dependence share: settings, what of a sequence is asked about, and queries.

A, the alphabet, is what may stand at a place: the ordinary tokens, or `StructureSettings.candidates`. Units
of several tokens are asked about token by token, and put together (`maps.aggregated`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from seqmlm.engine.query import Answer, Query
from seqmlm.engine.reductions import Reduction, Rows
from seqmlm.engine.types import Bools, Encoding, Ids
from seqmlm.engine.units import Units, unit_numbers
from seqmlm.errors import UsageError
from seqmlm.structure.maps import DependenceMap, Doubles, Longs, Over, aggregated, apc, symmetrized

if TYPE_CHECKING:
    from seqmlm.engine.conditionals import Conditionals

ESTIMATORS = ("auto", "exact", "fast", "topk", "gibbs")
"""Of `cmi`."""

SMALL_ALPHABET = 64
"""Symbols up to which all of them are tried at each place."""

MASKED = -1  # a place that holds [MASK], where a symbol is expected


@dataclass(frozen=True, kw_only=True)
class StructureSettings:
    """What decides a map.

    Args:
        method: one of `seqmlm.structure.estimators.KINDS`. estimator: of "cmi", one of `ESTIMATORS`.
        distance: units that a pair is apart at most; None for any.
        columns, rows: how tokens are put together to units.
        symmetric: the mean of both directions, or the larger.
        apc: whether the average product correction is made.
        steps: of the Gibbs sampler, of which the first fifth is left out.
        k: symbols of each place that "topk" tries.
        seed: of the sampler.
        exact_pairs: of "fast": so many pairs times N, the strongest, are computed exactly.
        candidates: token ids that may stand at a place; None for all ordinary ones.
        together: units that name the same thing (`Encoding.symbols`) are hidden, or changed, together, and
            the first of them stands for all: what one record of a code tells of another that comes again is
            told by the later records, too, so that records one at a time hardly depend on anything. "pmi" and
            "couplings" hide nothing.
        window: of "pmi": units apart that count as together.

    Raises:
        UsageError: a setting that makes no sense.
    """

    method: str = "cmi"
    estimator: str = "auto"
    distance: int | None = None
    columns: Over = "max"
    rows: Over = "mean"
    symmetric: Over = "mean"
    apc: bool = False
    steps: int = 2000
    k: int = 128
    seed: int = 0
    exact_pairs: float = 5.0
    candidates: tuple[int, ...] | None = None
    together: bool = False
    window: int = 10

    def __post_init__(self) -> None:
        if self.estimator not in ESTIMATORS:
            raise UsageError(f"estimator is one of {', '.join(ESTIMATORS)}; got {self.estimator!r}")
        if self.distance is not None and self.distance < 1:
            raise UsageError("pairs are at least 1 unit apart")
        if self.steps < 10 or self.k < 2 or self.window < 1 or self.exact_pairs < 0:
            raise UsageError(
                "at least 10 steps, 2 symbols, a window of 1 unit, and no negative share of pairs"
            )


@dataclass(frozen=True, eq=False)
class Places:
    """What of a sequence is asked about.

    Args:
        encoding: the sequence.
        at: (M,) positions of its ordinary tokens.
        unit: (M,) the unit of each, ascending.
        count: N units.
        pairs: (P, 2) pairs of places in 0..M-1, of different units, the smaller first.
        repeats: for a position, the others that hold what it holds, whatever that is.
    """

    encoding: Encoding
    at: Longs
    unit: Longs
    count: int
    pairs: Longs
    repeats: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def of_units(cls, encoding: Encoding, count: int, pairs: Longs) -> Self:
        """Units as they are, whatever their tokens."""
        return cls(encoding, np.arange(count), np.arange(count), count, pairs)


class Estimator(ABC):
    """Makes maps of sequences that fit into the model; one that asks once has `queries` and `read` alone.

    Args:
        settings: of the maps.
        conditionals: of the model.
        units: its rule.

    Attributes:
        name: of the method, as the maps have it. nats: whether its values are nats.
        whole: it asks about whole units alone, and may so be asked about those that share tokens.
        most: symbols that there may be, where all of them are tried; remedy: where there are more.

    Raises:
        UsageError: more symbols than that.
    """

    name: str
    nats: ClassVar[bool] = True
    whole: ClassVar[bool] = False
    most: ClassVar[int | None] = None
    remedy: ClassVar[str] = "use --method cmi or cpmi"

    def __init__(self, settings: StructureSettings, conditionals: Conditionals, units: Units) -> None:
        self.settings, self.units = settings, units
        self._conditionals = conditionals
        self._space = conditionals.space
        given = settings.candidates
        ids = self._space.ordinary if given is None else np.array(given, dtype=np.int32)
        self.alphabet: Ids = np.unique(ids).astype(np.int32)
        self._symbol = np.full(self._space.size, MASKED, dtype=np.int64)
        self._symbol[self.alphabet] = np.arange(len(self.alphabet))
        if self.most is not None and len(self.alphabet) > self.most:
            raise UsageError(
                f"{self.name} tries every symbol at every place, and there are {len(self.alphabet):,}: "
                f"{self.remedy}"
            )

    @abstractmethod
    def passes(self, units: int, tokens: int) -> int:
        """Copies that a sequence of so many units takes; more where they have several tokens."""

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        """A map for each sequence, in order; a UsageError for one for which the method is not possible."""
        every = [self.places(one) for one in encodings]
        answers = self.answers(chain.from_iterable([self.queries(one) for one in every]))
        return [self.read(one, answers) for one in every]

    def queries(self, places: Places) -> Iterable[Query]:
        """What is asked about a sequence."""
        return ()

    def read(self, places: Places, answers: Iterator[Answer]) -> DependenceMap:
        """The map of a sequence, by the next answers."""
        raise NotImplementedError

    def places(self, encoding: Encoding) -> Places:
        """What of a sequence is asked about."""
        numbers = unit_numbers(encoding)
        at = np.flatnonzero((numbers >= 0) & ~self._space.is_special[encoding.ids])
        at = at[np.argsort(numbers[at], kind="stable")]
        repeats: dict[int, list[int]] = {}
        if self.settings.together:
            own = first_named(encoding, self._space.is_special)[at]
            for position, first in zip(at.tolist(), own.tolist(), strict=True):
                if position != first:
                    repeats.setdefault(first, []).append(position)
            at = at[own == at]
        unit = numbers[at]
        return Places(encoding, at, unit, int(numbers.max(initial=-1)) + 1, self.near(unit), repeats)

    def near(self, units: Longs) -> Longs:
        """(P, 2) places of the pairs of some units, which ascend, that are different and near enough."""
        pairs = np.stack(np.triu_indices(len(units), 1), axis=1)
        apart = units[pairs[:, 1]] - units[pairs[:, 0]]
        return pairs[(apart > 0) & (apart <= (self.settings.distance or np.inf))]

    def representatives(self, encoding: Encoding) -> Longs:
        """(N,) for each unit the one that stands for it: itself, or the first that names the same."""
        found = np.arange(len(self.units.numbers(encoding)))
        if self.settings.together:
            numbers = unit_numbers(encoding)
            inside = numbers >= 0
            own = numbers[first_named(encoding, self._space.is_special)]
            np.minimum.at(found, numbers[inside], own[inside])
        return found

    def passes_of(self, encoding: Encoding) -> int:
        """Copies that a sequence takes."""
        return self.passes(len(self.places(encoding).at), len(encoding))

    def pairs(self, units: int) -> int:
        """Pairs of a sequence of units of one token."""
        near = min(units - 1, self.settings.distance or units)
        return max(0, units * near - near * (near + 1) // 2)

    def answers(self, queries: Iterable[Query], want: Sequence[Reduction] = (Rows(),)) -> Iterator[Answer]:
        """Ask the model."""
        return self._conditionals.ask(queries, want)

    def finished(
        self,
        places: Places,
        directed: Doubles,
        *,
        error: Doubles | None = None,
        passes: int,
        details: dict[str, float] | None = None,
    ) -> DependenceMap:
        """The map of units of directed values (M, M) of tokens, one direction in each triangle, and perhaps
        their errors; of units of several tokens there are none."""
        own = self.settings
        if len(np.unique(places.unit)) == len(places.unit):  # a token a unit; of some units there is none
            values = _spread(directed, places.unit, places.count)
            error = None if error is None else _spread(error, places.unit, places.count)
        else:
            error = None
            values = aggregated(directed, places.unit, places.count, columns=own.columns, rows=own.rows)
        if error is not None:
            error = np.sqrt(symmetrized(error**2)) / (np.sqrt(2) if own.symmetric == "mean" else 1.0)
        values = symmetrized(values, own.symmetric)
        return DependenceMap(
            values=apc(values) if own.apc else values,
            method=f"{self.name}, apc" if own.apc else self.name,
            nats=self.nats and not own.apc,
            error=error,
            passes=passes,
            details=details or {},
        )


def _spread(values: Doubles, at: Longs, count: int) -> Doubles:
    """(count, count) with the values of some units (M, M) at their places, NaN elsewhere."""
    made = np.full((count, count), np.nan)
    made[np.ix_(at, at)] = values
    return made


def first_named(encoding: Encoding, special: Bools) -> Longs:
    """(L,) for each token, that of the first unit of its name which stands for it.

    Tokens are counted within their unit; the last one of a shorter unit stands for further ones. A token that
    names nothing, is special (V,), or is of an encoding without symbols, stands for itself.
    """
    found = np.arange(len(encoding))
    if encoding.symbols is None:
        return found
    numbers, symbols = unit_numbers(encoding), encoding.symbols
    units, tokens, counts = dict[int, int](), dict[int, list[int]](), Counter[int]()
    for position in np.flatnonzero((numbers >= 0) & (symbols >= 0) & ~special[encoding.ids]).tolist():
        unit, symbol = int(numbers[position]), int(symbols[position])
        if units.setdefault(symbol, unit) == unit:
            tokens.setdefault(symbol, []).append(position)
        else:
            found[position] = tokens[symbol][min(counts[unit], len(tokens[symbol]) - 1)]
            counts[unit] += 1
    return found


def with_names(encoding: Encoding, names: Sequence[str]) -> Encoding:
    """A sequence whose units (N,) have these names as symbols."""
    _, number = np.unique(np.array(names, dtype=np.object_), return_inverse=True)
    return replace(encoding, symbols=np.append(number, -1)[unit_numbers(encoding)].astype(np.int32))


def copies(
    places: Places,
    masked: Sequence[tuple[int, int]],
    asked: Sequence[tuple[int, int]],
    put: Sequence[tuple[int, int, int]],
    allowed: Ids,
) -> Query:
    """A query of several copies; what holds for a position holds for those that repeat it.

    masked, asked: (copy, position), the asked ones in the order of copies. put: (copy, position, token id)
    that stands there. allowed: (A,) what the answers are about.
    """
    if repeats := places.repeats:
        masked = [(n, at) for n, own in masked for at in (own, *repeats.get(own, ()))]
        put = [(n, at, symbol) for n, own, symbol in put for at in (own, *repeats.get(own, ()))]
    hidden, read, new = (
        np.array(one, dtype=np.int32).reshape(len(one), width)
        for one, width in ((masked, 2), (asked, 2), (put, 3))
    )
    return Query(
        encoding=places.encoding,
        masked=hidden[:, 1],
        masked_in=hidden[:, 0],
        asked=read[:, 1],
        asked_in=read[:, 0],
        substituted=new[:, 1],
        substituted_in=new[:, 0],
        substitutes=new[:, 2],
        allowed=allowed,
    )


def both_ways(places: Places, values: Doubles, other: Doubles | None = None) -> Doubles:
    """(M, M) of the values of pairs (P,), in one direction, and the other where that differs."""
    made = np.full((len(places.at), len(places.at)), np.nan)
    made[places.pairs[:, 0], places.pairs[:, 1]] = values
    made[places.pairs[:, 1], places.pairs[:, 0]] = values if other is None else other
    return made


def neighbours(places: Places) -> list[Longs]:
    """For each place, those it makes a pair with, ascending."""
    near = np.zeros((len(places.at), len(places.at)), dtype=np.bool_)
    near[places.pairs[:, 0], places.pairs[:, 1]] = True
    return [np.flatnonzero(own) for own in near | near.T]


def one_by_one(places: Places, allowed: Ids) -> Query:
    """Each place asked while it alone is hidden."""
    each = [(n, position) for n, position in enumerate(places.at.tolist())]
    return copies(places, each, each, [], allowed)


def substitutions(places: Places, alphabet: Ids, *, itself: bool = False) -> Iterator[Query]:
    """For each place, what the model says of the others for each symbol there; nothing is hidden.

    A place without others asks about itself, so that every place has an answer; with `itself`, all do.
    """
    symbols = alphabet.tolist()
    for place, near in enumerate(neighbours(places)):
        own = np.union1d(near, [place]) if itself or not len(near) else near
        others = places.at[own].tolist()
        yield copies(
            places,
            [],
            [(n, position) for n in range(len(symbols)) for position in others],
            [(n, int(places.at[place]), symbol) for n, symbol in enumerate(symbols)],
            alphabet,
        )
