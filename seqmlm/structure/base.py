"""All estimators of dependence share this: settings, the places of a sequence, and queries.

A, the alphabet, is what may stand at a place: the ordinary tokens, or `StructureSettings.candidates`. Units
of several tokens are asked about token by token, and put together (`maps.unit_values`).
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
from seqmlm.structure.maps import DependenceMap, Doubles, Longs, Over, apc, symmetric_values, unit_values

if TYPE_CHECKING:
    from seqmlm.engine.conditionals import Conditionals

ESTIMATORS = ("auto", "exact", "fast", "topk", "gibbs")
"""Names of the estimators of conditional mutual information (`cmi`)."""

SMALL_ALPHABET = 64
"""Symbols up to which all of them are tried at each place."""

MASKED = -1  # a place that holds [MASK], where a symbol is expected


@dataclass(frozen=True, kw_only=True)
class StructureSettings:
    """Settings of an estimator of dependence.

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
    """The positions of a sequence that an estimator compares, and the pairs of them.

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
        """Places that are whole units, one a unit, whatever their tokens."""
        return cls(encoding, np.arange(count), np.arange(count), count, pairs)


class Estimator(ABC):
    """Makes maps of sequences that fit into the model; one that asks once has `queries` and `read_map` alone.

    Args:
        settings: of the maps.
        conditionals: of the model.
        units: its rule.

    Attributes:
        name: of the method, as the maps have it. nats: whether its values are nats.
        whole_units: it asks about whole units alone, and may so be asked about those that share tokens.
        max_symbols: size of the largest alphabet, where all symbols are tried; remedy: what to do beyond.

    Raises:
        UsageError: more symbols than that.
    """

    name: str
    nats: ClassVar[bool] = True
    whole_units: ClassVar[bool] = False
    max_symbols: ClassVar[int | None] = None
    remedy: ClassVar[str] = "use --method cmi or cpmi"

    def __init__(self, settings: StructureSettings, conditionals: Conditionals, units: Units) -> None:
        self.settings, self.units = settings, units
        self._conditionals = conditionals
        self._space = conditionals.space
        candidates = settings.candidates
        ids = self._space.ordinary if candidates is None else np.array(candidates, dtype=np.int32)
        self.alphabet: Ids = np.unique(ids).astype(np.int32)
        self._symbol = np.full(self._space.size, MASKED, dtype=np.int64)
        self._symbol[self.alphabet] = np.arange(len(self.alphabet))
        if self.max_symbols is not None and len(self.alphabet) > self.max_symbols:
            raise UsageError(
                f"{self.name} tries every symbol at every place, and there are {len(self.alphabet):,}: "
                f"{self.remedy}"
            )

    @abstractmethod
    def passes(self, units: int, tokens: int) -> int:
        """Number of copies that a sequence of so many units takes; more where they have several tokens."""

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        """A map for each sequence, in order; a UsageError for one for which the method is not possible."""
        all_places = [self.places(encoding) for encoding in encodings]
        answers = self.answers(chain.from_iterable([self.queries(places) for places in all_places]))
        return [self.read_map(places, answers) for places in all_places]

    def queries(self, places: Places) -> Iterable[Query]:
        """The queries about a sequence."""
        return ()

    def read_map(self, places: Places, answers: Iterator[Answer]) -> DependenceMap:
        """The map of a sequence, by the next answers."""
        raise NotImplementedError

    def places(self, encoding: Encoding) -> Places:
        """The positions and pairs of a sequence that are asked about."""
        numbers = unit_numbers(encoding)
        at = np.flatnonzero((numbers >= 0) & ~self._space.is_special[encoding.ids])
        at = at[np.argsort(numbers[at], kind="stable")]
        repeats: dict[int, list[int]] = {}
        if self.settings.together:
            first_positions = first_namesakes(encoding, self._space.is_special)[at]
            for position, first in zip(at.tolist(), first_positions.tolist(), strict=True):
                if position != first:
                    repeats.setdefault(first, []).append(position)
            at = at[first_positions == at]
        unit = numbers[at]
        return Places(
            encoding, at, unit, int(numbers.max(initial=-1)) + 1, self.pairs_within_distance(unit), repeats
        )

    def pairs_within_distance(self, units: Longs) -> Longs:
        """(P, 2) indices into ascending units, of all pairs that are 1 to `distance` units apart."""
        pairs = np.stack(np.triu_indices(len(units), 1), axis=1)
        distances = units[pairs[:, 1]] - units[pairs[:, 0]]
        return pairs[(distances > 0) & (distances <= (self.settings.distance or np.inf))]

    def representatives(self, encoding: Encoding) -> Longs:
        """(N,) for each unit the one that stands for it: itself, or the first that names the same."""
        firsts = np.arange(len(self.units.numbers(encoding)))
        if self.settings.together:
            numbers = unit_numbers(encoding)
            inside = numbers >= 0
            first_units = numbers[first_namesakes(encoding, self._space.is_special)]
            np.minimum.at(firsts, numbers[inside], first_units[inside])
        return firsts

    def passes_of(self, encoding: Encoding) -> int:
        """Number of copies that this sequence takes."""
        return self.passes(len(self.places(encoding).at), len(encoding))

    def pairs(self, units: int) -> int:
        """Number of pairs in a sequence of units of one token."""
        reach = min(units - 1, self.settings.distance or units)
        return max(0, units * reach - reach * (reach + 1) // 2)

    def answers(self, queries: Iterable[Query], want: Sequence[Reduction] = (Rows(),)) -> Iterator[Answer]:
        """Ask the model, lazily and in order."""
        return self._conditionals.ask(queries, want)

    def unit_map(
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
        settings = self.settings
        if len(np.unique(places.unit)) == len(places.unit):  # a token a unit; of some units there is none
            values = _scatter(directed, places.unit, places.count)
            error = None if error is None else _scatter(error, places.unit, places.count)
        else:
            error = None
            values = unit_values(
                directed, places.unit, places.count, columns=settings.columns, rows=settings.rows
            )
        if error is not None:
            error = np.sqrt(symmetric_values(error**2)) / (
                np.sqrt(2) if settings.symmetric == "mean" else 1.0
            )
        values = symmetric_values(values, settings.symmetric)
        return DependenceMap(
            values=apc(values) if settings.apc else values,
            method=f"{self.name}, apc" if settings.apc else self.name,
            nats=self.nats and not settings.apc,
            error=error,
            passes=passes,
            details=details or {},
        )


def _scatter(values: Doubles, at: Longs, count: int) -> Doubles:
    """(count, count) the values (M, M) of some units at the rows and columns `at` (M,), NaN elsewhere."""
    matrix = np.full((count, count), np.nan)
    matrix[np.ix_(at, at)] = values
    return matrix


def first_namesakes(encoding: Encoding, special: Bools) -> Longs:
    """(L,) for each token, that of the first unit of its name which stands for it.

    Tokens are counted within their unit; the last one of a shorter unit stands for further ones. A token that
    names nothing, is special (V,), or is of an encoding without symbols, stands for itself.
    """
    firsts = np.arange(len(encoding))
    if encoding.symbols is None:
        return firsts
    numbers, symbols = unit_numbers(encoding), encoding.symbols
    units, tokens, counts = dict[int, int](), dict[int, list[int]](), Counter[int]()
    for position in np.flatnonzero((numbers >= 0) & (symbols >= 0) & ~special[encoding.ids]).tolist():
        unit, symbol = int(numbers[position]), int(symbols[position])
        if units.setdefault(symbol, unit) == unit:
            tokens.setdefault(symbol, []).append(position)
        else:
            firsts[position] = tokens[symbol][min(counts[unit], len(tokens[symbol]) - 1)]
            counts[unit] += 1
    return firsts


def with_names(encoding: Encoding, names: Sequence[str]) -> Encoding:
    """A sequence whose units (N,) have these names as symbols."""
    _, number = np.unique(np.array(names, dtype=np.object_), return_inverse=True)
    return replace(encoding, symbols=np.append(number, -1)[unit_numbers(encoding)].astype(np.int32))


def copy_query(
    places: Places,
    masked: Sequence[tuple[int, int]],
    targets: Sequence[tuple[int, int]],
    substituted: Sequence[tuple[int, int, int]],
    allowed: Ids,
) -> Query:
    """A query of several copies; what holds for a position holds for those that repeat it.

    Args:
        masked: (copy, position) of each [MASK].
        targets: (copy, position) of each answer, in the order of copies.
        substituted: (copy, position, token id) that stands there instead.
        allowed: (A,) token ids that the answers are about.
    """
    if repeats := places.repeats:
        masked = [(copy, at) for copy, position in masked for at in (position, *repeats.get(position, ()))]
        substituted = [
            (copy, at, symbol)
            for copy, position, symbol in substituted
            for at in (position, *repeats.get(position, ()))
        ]
    mask_rows, target_rows, substitute_rows = (
        np.array(rows, dtype=np.int32).reshape(len(rows), width)
        for rows, width in ((masked, 2), (targets, 2), (substituted, 3))
    )
    return Query(
        encoding=places.encoding,
        masked=mask_rows[:, 1],
        masked_in=mask_rows[:, 0],
        asked=target_rows[:, 1],
        asked_in=target_rows[:, 0],
        substituted=substitute_rows[:, 1],
        substituted_in=substitute_rows[:, 0],
        substitutes=substitute_rows[:, 2],
        allowed=allowed,
    )


def pair_matrix(places: Places, values: Doubles, backward: Doubles | None = None) -> Doubles:
    """(M, M) values of the pairs (P,), NaN elsewhere; `backward` are those of the other direction, if any."""
    matrix = np.full((len(places.at), len(places.at)), np.nan)
    matrix[places.pairs[:, 0], places.pairs[:, 1]] = values
    matrix[places.pairs[:, 1], places.pairs[:, 0]] = values if backward is None else backward
    return matrix


def partners_by_place(places: Places) -> list[Longs]:
    """For each place, the places that it makes a pair with, ascending."""
    paired = np.zeros((len(places.at), len(places.at)), dtype=np.bool_)
    paired[places.pairs[:, 0], places.pairs[:, 1]] = True
    return [np.flatnonzero(row) for row in paired | paired.T]


def single_mask_query(places: Places, allowed: Ids) -> Query:
    """A query with a copy for each place, in which that place is hidden and asked about."""
    targets = [(n, position) for n, position in enumerate(places.at.tolist())]
    return copy_query(places, targets, targets, [], allowed)


def substitution_queries(places: Places, alphabet: Ids, *, itself: bool = False) -> Iterator[Query]:
    """Queries, one a place, about its partners for each symbol that is put there; nothing is hidden.

    A place without others asks about itself, so that every place has an answer; with `itself`, all do.
    """
    symbols = alphabet.tolist()
    for place, partners in enumerate(partners_by_place(places)):
        target_places = np.union1d(partners, [place]) if itself or not len(partners) else partners
        positions = places.at[target_places].tolist()
        yield copy_query(
            places,
            [],
            [(n, position) for n in range(len(symbols)) for position in positions],
            [(n, int(places.at[place]), symbol) for n, symbol in enumerate(symbols)],
            alphabet,
        )
