"""Estimators of dependence: from sequences to dependence maps, with the same interface for every method.

    estimate = estimator(StructureSettings(), conditionals, units)
    [dependence] = estimate.maps([encoding])

Each method has a cost, the number of copies of a sequence that the model computes (passes). More accurate
methods need more passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from seqmlm.engine.query import Answer, Query
from seqmlm.engine.reductions import Rows
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import QUERY_TOKENS, Units, unit_symbols
from seqmlm.errors import UsageError
from seqmlm.structure.base import (
    ESTIMATORS,
    MASKED,
    SMALL_ALPHABET,
    Estimator,
    Places,
    StructureSettings,
    pair_matrix,
    partners_by_place,
    substitution_queries,
)
from seqmlm.structure.cmi import Exact, Fast, Gibbs, TopK
from seqmlm.structure.maps import DependenceMap, Longs

if TYPE_CHECKING:
    from seqmlm.engine.conditionals import Conditionals

__all__ = ["ESTIMATORS", "KINDS", "Estimator", "PairCounts", "StructureSettings", "estimator"]

Unit = tuple[int, ...]

CHEAP = 20_000
"""Largest number of passes of a sequence for which `auto` uses the better estimator."""

MOST_ELEMENTS = 1 << 28
"""Number of elements of the largest Jacobian: 1 GiB."""


class Cpmi(Estimator):
    """Conditional pointwise mutual information of the observed units (Hoover et al. 2021).

    It is log p(x_i | rest) - log p(x_i | rest without x_j) in nats, and may be negative. Each unit is hidden
    as a whole. Both directions of a pair come from one copy in which both units are hidden. If several units
    are hidden together, the first is predicted.
    """

    name = "cpmi"
    whole_units = True

    def passes(self, units: int, tokens: int) -> int:
        return units + self.pairs(units)

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        hidden_pairs = [self._hidden_pairs(encoding) for encoding in encodings]
        queries = [self._queries(*copies) for copies in zip(encodings, hidden_pairs, strict=True)]
        answers = self._conditionals.ask(chain.from_iterable(queries), self.units.needs())
        maps = []
        for encoding, unit_pairs, sequence_queries in zip(encodings, hidden_pairs, queries, strict=True):
            count, done = len(self.units.numbers(encoding)), 0
            single_log_probs = np.full(count, np.nan)  # of each unit while only this unit is hidden
            pair_log_probs = np.full((count, count), np.nan)  # of each unit while another is also hidden
            for query in sequence_queries:
                copy, unit, total = self.units.unit_log_probs(query, next(answers)).totals()
                first, second = unit_pairs[done + copy].T
                single = first == second
                single_log_probs[unit[single]] = total[single]
                partner = np.where(unit == first, second, first)[~single]
                pair_log_probs[unit[~single], partner] = total[~single]
                done += query.variants
            places = Places.of_units(encoding, count, unit_pairs[:0])
            values = single_log_probs[:, None] - pair_log_probs
            maps.append(self.unit_map(places, values, passes=len(unit_pairs)))
        return maps

    def passes_of(self, encoding: Encoding) -> int:
        return self.passes(len(self._queried_units(encoding)), len(encoding))

    def _queried_units(self, encoding: Encoding) -> Longs:
        """(M,) numbers of the units that are queried."""
        units = np.flatnonzero(np.diff(self.units.symbols_of(encoding)[0]))
        firsts: Longs = units[self.representatives(encoding)[units] == units]
        return firsts

    def _hidden_pairs(self, encoding: Encoding) -> Longs:
        """(C, 2) units that are hidden together; a unit that is hidden without another is listed twice."""
        units = self._queried_units(encoding)
        pairs = units[self.pairs_within_distance(units)]
        return np.concatenate([np.stack([units, units], axis=1), pairs])

    def _queries(self, encoding: Encoding, copies: Longs) -> list[Query]:
        """The queries for a sequence: a copy for each of its hidden pairs (C, 2)."""
        step = max(1, QUERY_TOKENS // max(1, len(encoding)))
        first = self.representatives(encoding)
        same = np.argsort(first, kind="stable")  # units, grouped by the unit that represents them
        counts = np.bincount(first, minlength=len(first))
        begins = np.cumsum(counts) - counts
        queries = []
        for begin in range(0, len(copies), step):
            batch = copies[begin : begin + step]
            flat, copy = batch.ravel(), np.repeat(np.arange(len(batch)), 2)
            size = counts[flat]
            hidden = same[np.repeat(begins[flat] - np.cumsum(size) + size, size) + np.arange(size.sum())]
            hidden_in = np.repeat(copy, size)
            queries.append(self.units.ask(encoding, hidden, flat, hidden_in=hidden_in, asked_in=copy))
        return queries


class Substitutions(Estimator):
    """Base class of estimators that try every symbol at every place of the unmasked sequence."""

    nats = False
    max_symbols = SMALL_ALPHABET

    def passes(self, units: int, tokens: int) -> int:
        return units * len(self.alphabet)

    def queries(self, places: Places) -> Iterable[Query]:
        return substitution_queries(places, self.alphabet)


class Jacobian(Substitutions):
    """The categorical Jacobian (Zhang et al. 2024): how each symbol at each place changes other logits.

    J[i, a, j, b] is centred along all four axes and made symmetric. The value of a pair is the Frobenius
    norm of its (A, A) block. The authors apply the average product correction (`apc`).
    """

    name = "jacobian"

    def queries(self, places: Places) -> Iterable[Query]:
        count, size = len(places.at), len(self.alphabet)
        if count**2 * size**2 > MOST_ELEMENTS:
            raise UsageError(
                f"the Jacobian of {count:,} places and {size} symbols does not fit into memory; "
                "use --method dependency, or cmi with --set estimator=fast"
            )
        everywhere = replace(places, pairs=np.stack(np.triu_indices(count, 1), axis=1))
        return substitution_queries(everywhere, self.alphabet, itself=True)

    def read_map(self, places: Places, answers: Iterator[Answer]) -> DependenceMap:
        count, size = len(places.at), len(self.alphabet)
        moved = np.zeros((count, size, count, size), dtype=np.float32)
        for place in range(count):
            moved[place] = next(answers).values[Rows.name].reshape(size, count, size)
        for axis in range(4):
            moved -= moved.mean(axis=axis, keepdims=True)
        norms = np.zeros((count, count))
        for place in range(count):
            block = (moved[place] + moved[:, :, place].transpose(2, 0, 1)) / 2
            norms[place] = np.sqrt(np.einsum("amb,amb->m", block, block, dtype=np.float64))
        first, second = places.pairs.T
        return self.unit_map(places, pair_matrix(places, norms[first, second]), passes=count * size)


class Dependency(Substitutions):
    """The dependency map (Tomaz da Silva et al. 2024): the largest change of log2 odds by one substitution.

    e_ij is the maximum over symbols a at i and b at j of |log2 odds(x_j = b | x_i = a) - log2 odds(x_j =
    b)|. Nothing is hidden in the sequences. The value of a pair is the larger of both directions.
    """

    name = "dependency"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.settings = replace(self.settings, symmetric="max")

    def read_map(self, places: Places, answers: Iterator[Answer]) -> DependenceMap:
        count, size = len(places.at), len(self.alphabet)
        directed = np.full((count, count), np.nan)
        for place, partners in enumerate(partners_by_place(places)):
            rows = next(answers).values[Rows.name].astype(np.float64).reshape(size, -1, size)
            if len(partners):
                shares = np.exp(rows) + 1e-10
                shares /= shares.sum(axis=-1, keepdims=True)
                odds = np.log2(shares / (1 - shares + 1e-10))
                here = self._symbol[places.encoding.ids[places.at[place]]]
                change = np.abs(odds - odds[here if here != MASKED else 0])
                directed[place, partners] = change.max(axis=(0, 2))
        return self.unit_map(places, directed, passes=count * size)


class Couplings(Estimator):
    """Frobenius norms of the couplings of a linear model in the zero-sum gauge (Ekeberg et al. 2013).

    They are read from the parameters, without queries. All sequences have the values of their columns.

    Raises:
        UsageError: the model is not linear.
    """

    name = "couplings"
    nats = False
    whole_units = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        from seqmlm.engine.linear import LinearRows, columns_of, coupling_norms

        rows = self._conditionals.rows
        if not isinstance(rows, LinearRows):
            raise UsageError(
                "--method couplings needs a linear model (train --size linear), and this is another kind; "
                "use --method cmi or jacobian"
            )
        self._columns, self._norms = partial(columns_of, rows.model), coupling_norms(rows.model)

    def passes(self, units: int, tokens: int) -> int:
        return 0

    def read_map(self, places: Places, answers: Iterator[Answer]) -> DependenceMap:
        first, second = self._columns(len(places.encoding))[places.at][places.pairs].T
        return self.unit_map(places, pair_matrix(places, self._norms[first, second]), passes=0)


class PairCounts:
    """Counts of units, and of pairs of units that are at most a window apart, in some sequences.

    Args:
        window: largest distance of the units of a pair, in units.
    """

    ADDED = 0.1
    """Number that is added to each count, so that pairs that never occur have a finite value."""

    def __init__(self, window: int) -> None:
        self.window, self.together, self.total = window, 0, 0
        self._unit_counts, self._pair_counts = Counter[Unit](), Counter[tuple[Unit, Unit]]()

    def add(self, units: Sequence[Unit]) -> None:
        """Count the units and pairs of one sequence."""
        self._unit_counts.update(units)
        self.total += len(units)
        for distance in range(1, min(self.window, len(units) - 1) + 1):
            for first, second in zip(units, units[distance:], strict=False):
                self._pair_counts[first, second] += 1
                self._pair_counts[second, first] += 1
                self.together += 2

    def information(self, first: Unit, second: Unit) -> float:
        """The pointwise mutual information log p(a, b) / (p(a) p(b)) of two units, in nats."""
        joint = (self._pair_counts[first, second] + self.ADDED) / (self.together + self.ADDED)
        product = (self._unit_counts[first] + self.ADDED) * (self._unit_counts[second] + self.ADDED)
        return float(np.log(joint) - np.log(product) + 2 * np.log(self.total + self.ADDED))


class Pmi(Estimator):
    """Pointwise mutual information from counts of units, without a model.

    Args:
        counts: counts in a corpus; None counts in the sequences given to `maps`.
    """

    name = "pmi"
    whole_units = True

    def __init__(self, *arguments: Any, counts: PairCounts | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._counts = counts

    def passes(self, units: int, tokens: int) -> int:
        return 0

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        spellings = [unit_symbols(self.units, encoding) for encoding in encodings]
        counts = self._counts
        if counts is None:
            counts = PairCounts(self.settings.window)
            for units in spellings:
                counts.add(units)
        maps = []
        for encoding, units in zip(encodings, spellings, strict=True):
            firsts = np.flatnonzero(self.representatives(encoding) == np.arange(len(units)))
            places = Places.of_units(encoding, len(units), firsts[self.pairs_within_distance(firsts)])
            values = np.array([counts.information(units[i], units[j]) for i, j in places.pairs.tolist()])
            maps.append(self.unit_map(places, pair_matrix(places, values), passes=0))
        return maps


class Auto(Estimator):
    """The best estimator of conditional mutual information that is cheap enough for a sequence.

    For alphabets of up to `SMALL_ALPHABET` symbols, every symbol is tried: in pairs (exact) or, for longer
    sequences, in the unmasked sequence (fast). For larger alphabets, the most probable symbols are tried
    (topk), or for longer sequences only the observed symbols are used (cpmi).
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        small = len(self.alphabet) <= SMALL_ALPHABET
        self._best: Estimator = (Exact if small else TopK)(*arguments, **options)
        self._cheap: Estimator = (Fast if small else Cpmi)(*arguments, **options)
        self._longest = max((n for n in range(2, 4096) if self._best.passes(n, n) <= CHEAP), default=1)

    @property
    def name(self) -> str:  # type: ignore[override]
        """The names of both estimators, and the length up to which the better one is used."""
        return f"{self._best.name} up to {self._longest} units, {self._cheap.name} beyond"

    def _estimator_of_length(self, places: int) -> Estimator:
        """The estimator for a sequence with this number of places."""
        return self._best if places <= self._longest else self._cheap

    def _estimator_of(self, encoding: Encoding) -> Estimator:
        """The estimator for this sequence, according to its number of places."""
        return self._estimator_of_length(len(self.places(encoding).at))

    def passes(self, units: int, tokens: int) -> int:
        return self._estimator_of_length(units).passes(units, tokens)

    def passes_of(self, encoding: Encoding) -> int:
        return self._estimator_of(encoding).passes_of(encoding)

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        choices = [self._estimator_of(encoding) for encoding in encodings]
        maps: dict[int, DependenceMap] = {}
        for estimate in dict.fromkeys(choices):
            numbers = [number for number, choice in enumerate(choices) if choice is estimate]
            maps |= dict(zip(numbers, estimate.maps([encodings[number] for number in numbers]), strict=True))
        return [maps[number] for number in range(len(encodings))]


KINDS: dict[str, type[Estimator]] = {
    "cmi": Auto,
    "cpmi": Cpmi,
    "pmi": Pmi,
    "jacobian": Jacobian,
    "dependency": Dependency,
    "couplings": Couplings,
}
"""The class of estimators for each method."""

_CMI: dict[str, type[Estimator]] = {"auto": Auto, "exact": Exact, "fast": Fast, "topk": TopK, "gibbs": Gibbs}


def estimator(
    settings: StructureSettings, conditionals: Conditionals, units: Units, *, counts: PairCounts | None = None
) -> Estimator:
    """The estimator for the given settings.

    Args:
        settings: settings of the maps.
        conditionals: answers queries to the model.
        units: rule that defines the units.
        counts: counts for the method "pmi", or None.

    Raises:
        UsageError: the method does not exist, or cannot be used with these units.
    """
    if settings.method not in KINDS:
        raise UsageError(f"--method must be one of {', '.join(KINDS)}, not {settings.method!r}")
    kind = _CMI[settings.estimator] if settings.method == "cmi" else KINDS[settings.method]
    if not kind.whole_units and units.facts.names is not None:
        raise UsageError(
            f"--method {settings.method} changes single tokens, but a token of this model shows several "
            "units; use --method cpmi, or a model with one unit per token"
        )
    options = {"counts": counts} if kind is Pmi else {}
    return kind(settings, conditionals, units, **options)
