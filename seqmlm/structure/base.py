"""The parts that all estimators of dependence share: settings, the places of a sequence, and queries.

The alphabet, of A symbols, is the set of tokens that are possible at a place: the ordinary tokens, or
`StructureSettings.candidates`. Units of several tokens are queried token by token, and the results are
combined (`maps.unit_values`).
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
"""Largest number of symbols for which all are tried at each place."""

MASKED = -1  # in place of a symbol, for a place that is masked


@dataclass(frozen=True, kw_only=True)
class StructureSettings:
    """Settings of an estimator of dependence.

    Args:
        method: one of `seqmlm.structure.estimators.KINDS`.
        estimator: estimator for the method "cmi", one of `ESTIMATORS`.
        distance: largest distance between the units of a pair, in units; None for no limit.
        columns: how the values of the tokens of the second unit are combined: max, mean or sum.
        rows: how the values of the tokens of the first unit are then combined: max, mean or sum.
        symmetric: how the two directions of a pair are combined: their mean or the larger.
        apc: whether to apply the average product correction.
        steps: number of steps of the Gibbs sampler; the first fifth is discarded.
        k: number of symbols that "topk" tries at each place.
        seed: seed of the Gibbs sampler.
        exact_pairs: for "fast", the number of strongest pairs, divided by N, that are computed exactly.
        candidates: token ids that are possible at a place; None for all ordinary ids.
        together: whether units that name the same thing (`Encoding.symbols`) are hidden, or changed,
            together. The first of them represents all. Otherwise other records of the same code would give
            the same information, and single records would hardly depend on each other. The methods "pmi" and
            "couplings" hide nothing.
        window: for "pmi", the largest distance in units at which two units are counted as a pair.

    Raises:
        UsageError: a setting is out of range.
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
            raise UsageError(f"estimator must be one of {', '.join(ESTIMATORS)}, not {self.estimator!r}")
        if self.distance is not None and self.distance < 1:
            raise UsageError(f"distance must be at least 1 unit, not {self.distance}")
        if self.steps < 10 or self.k < 2 or self.window < 1 or self.exact_pairs < 0:
            raise UsageError(
                "steps must be at least 10, k at least 2, window at least 1, and exact_pairs at least 0"
            )


@dataclass(frozen=True, eq=False)
class Places:
    """The positions of a sequence that an estimator compares, and their pairs.

    Args:
        encoding: the sequence.
        at: (M,) positions of its ordinary tokens.
        unit: (M,) unit of each position, ascending.
        count: N, the number of units.
        pairs: (P, 2) pairs of places in 0..M-1, from different units, the smaller first.
        repeats: for a position, the other positions with the same content, which are always hidden or
            changed together with it.
    """

    encoding: Encoding
    at: Longs
    unit: Longs
    count: int
    pairs: Longs
    repeats: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def of_units(cls, encoding: Encoding, count: int, pairs: Longs) -> Self:
        """Places that are whole units, one for each unit, whatever its tokens are."""
        return cls(encoding, np.arange(count), np.arange(count), count, pairs)


class Estimator(ABC):
    """Computes dependence maps of sequences that fit into the model.

    A subclass that queries the model only once implements only `queries` and `read_map`.

    Args:
        settings: settings of the maps.
        conditionals: answers queries to the model.
        units: rule that defines the units.

    Attributes:
        name: name of the method in the maps.
        nats: whether its values are in nats.
        whole_units: whether it queries only whole units, and can thus be used with units that share tokens.
        max_symbols: largest possible alphabet, if all symbols are tried; None for no limit.
        remedy: advice for the message if the alphabet is larger.

    Raises:
        UsageError: the alphabet is larger than `max_symbols`.
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
                f"{self.name} tries every symbol at every place, but there are {len(self.alphabet):,} "
                f"symbols; {self.remedy}"
            )

    @abstractmethod
    def passes(self, units: int, tokens: int) -> int:
        """Number of copies that a sequence needs.

        Args:
            units: number of units; units of several tokens need more copies.
            tokens: number of tokens.
        """

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        """A map for each sequence, in order.

        Raises:
            UsageError: the method is not possible for one of the sequences.
        """
        all_places = [self.places(encoding) for encoding in encodings]
        answers = self.answers(chain.from_iterable([self.queries(places) for places in all_places]))
        return [self.read_map(places, answers) for places in all_places]

    def queries(self, places: Places) -> Iterable[Query]:
        """The queries about a sequence."""
        return ()

    def read_map(self, places: Places, answers: Iterator[Answer]) -> DependenceMap:
        """The map of a sequence, from the next answers."""
        raise NotImplementedError

    def places(self, encoding: Encoding) -> Places:
        """The positions and pairs of a sequence that are queried."""
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
        """(P, 2) indices into the ascending `units`, for all pairs that are 1 to `distance` units apart."""
        pairs = np.stack(np.triu_indices(len(units), 1), axis=1)
        distances = units[pairs[:, 1]] - units[pairs[:, 0]]
        return pairs[(distances > 0) & (distances <= (self.settings.distance or np.inf))]

    def representatives(self, encoding: Encoding) -> Longs:
        """(N,) the unit that represents each unit: itself, or the first unit that names the same thing."""
        firsts = np.arange(len(self.units.numbers(encoding)))
        if self.settings.together:
            numbers = unit_numbers(encoding)
            inside = numbers >= 0
            first_units = numbers[first_namesakes(encoding, self._space.is_special)]
            np.minimum.at(firsts, numbers[inside], first_units[inside])
        return firsts

    def passes_of(self, encoding: Encoding) -> int:
        """Number of copies that this sequence needs."""
        return self.passes(len(self.places(encoding).at), len(encoding))

    def pairs(self, units: int) -> int:
        """Number of pairs in a sequence with this number of units of one token."""
        reach = min(units - 1, self.settings.distance or units)
        return max(0, units * reach - reach * (reach + 1) // 2)

    def answers(self, queries: Iterable[Query], want: Sequence[Reduction] = (Rows(),)) -> Iterator[Answer]:
        """The answers of the model, lazily and in order."""
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
        """The map of units from directed values of tokens.

        Args:
            places: places of the sequence.
            directed: (M, M) values of tokens, with one direction of each pair in each triangle.
            error: (M, M) their standard errors, or None. Errors are not available for units of several
                tokens.
            passes: number of copies that were computed.
            details: figures about the whole map.
        """
        settings = self.settings
        if len(np.unique(places.unit)) == len(places.unit):  # one token per unit; some units have none
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
    """(count, count) matrix with the values (M, M) at the rows and columns `at` (M,), NaN elsewhere."""
    matrix = np.full((count, count), np.nan)
    matrix[np.ix_(at, at)] = values
    return matrix


def first_namesakes(encoding: Encoding, special: Bools) -> Longs:
    """(L,) for each token, the token that represents it in the first unit of the same name.

    Tokens are matched by their index in the unit; if the first unit is shorter, its last token represents
    the rest. A token represents itself if it names nothing, if it is special, or if the encoding has no
    symbols.

    Args:
        encoding: the sequence.
        special: (V,) True at special ids.
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
    """The sequence with the names (N,) of its units as symbols."""
    _, number = np.unique(np.array(names, dtype=np.object_), return_inverse=True)
    return replace(encoding, symbols=np.append(number, -1)[unit_numbers(encoding)].astype(np.int32))


def copy_query(
    places: Places,
    masked: Sequence[tuple[int, int]],
    targets: Sequence[tuple[int, int]],
    substituted: Sequence[tuple[int, int, int]],
    allowed: Ids,
) -> Query:
    """A query with several copies of a sequence.

    Each [MASK] or substitute at a position is also applied to the positions that repeat it.

    Args:
        places: places of the sequence.
        masked: (copy, position) of each [MASK].
        targets: (copy, position) of each answer, in the order of copies.
        substituted: (copy, position, token id) of each substitute.
        allowed: (A,) token ids that the answers are restricted to.
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
    """(M, M) matrix of the values (P,) of the pairs, NaN elsewhere.

    Args:
        places: places of the sequence.
        values: (P,) values of the pairs.
        backward: (P,) values of the other direction; None for the same values.
    """
    matrix = np.full((len(places.at), len(places.at)), np.nan)
    matrix[places.pairs[:, 0], places.pairs[:, 1]] = values
    matrix[places.pairs[:, 1], places.pairs[:, 0]] = values if backward is None else backward
    return matrix


def partners_by_place(places: Places) -> list[Longs]:
    """For each place, the places that it forms a pair with, ascending."""
    paired = np.zeros((len(places.at), len(places.at)), dtype=np.bool_)
    paired[places.pairs[:, 0], places.pairs[:, 1]] = True
    return [np.flatnonzero(row) for row in paired | paired.T]


def single_mask_query(places: Places, allowed: Ids) -> Query:
    """A query with one copy for each place, in which this place is hidden and predicted."""
    targets = [(n, position) for n, position in enumerate(places.at.tolist())]
    return copy_query(places, targets, targets, [], allowed)


def substitution_queries(places: Places, alphabet: Ids, *, itself: bool = False) -> Iterator[Query]:
    """One query for each place, about its partners, with one copy for each symbol in this place.

    Nothing is hidden. A place without partners queries itself, so that every place has an answer.

    Args:
        places: places of the sequence.
        alphabet: (A,) token ids to try.
        itself: whether every place also queries itself.
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
