"""Sequences in, maps of dependence out: one interface for every method, whatever it costs.

    estimate = estimator(StructureSettings(), conditionals, units)
    [found] = estimate.maps([encoding])

The trade-off of each method is accuracy against passes, the copies of a sequence that the model computes.
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
    both_ways,
    neighbours,
    substitutions,
)
from seqmlm.structure.cmi import Exact, Fast, Gibbs, TopK
from seqmlm.structure.maps import DependenceMap, Longs

if TYPE_CHECKING:
    from seqmlm.engine.conditionals import Conditionals

__all__ = ["ESTIMATORS", "KINDS", "Estimator", "PairCounts", "StructureSettings", "estimator"]

Unit = tuple[int, ...]

CHEAP = 20_000
"""Passes of a sequence up to which `auto` takes the better estimator."""

MOST_ELEMENTS = 1 << 28
"""Elements of a Jacobian: 1 GiB."""


class Cpmi(Estimator):
    """Conditional pointwise mutual information of what is observed (Hoover et al. 2021).

    log p(x_i | rest) - log p(x_i | rest without x_j), each unit hidden whole; both directions of a pair come
    from one copy in which both are hidden. It may be negative. Of units that are hidden together the first
    one is asked.
    """

    name = "cpmi"
    whole = True

    def passes(self, units: int, tokens: int) -> int:
        return units + self.pairs(units)

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        copies = [self._copies(one) for one in encodings]
        queries = [self._queries(*given) for given in zip(encodings, copies, strict=True)]
        answers = self._conditionals.ask(chain.from_iterable(queries), self.units.needs())
        found = []
        for encoding, own, asked in zip(encodings, copies, queries, strict=True):
            count, done = len(self.units.numbers(encoding)), 0
            alone, given = np.full(count, np.nan), np.full((count, count), np.nan)
            for query in asked:
                copy, unit, total = self.units.unit_log_probs(query, next(answers)).totals()
                first, second = own[done + copy].T
                single = first == second
                alone[unit[single]] = total[single]
                other = np.where(unit == first, second, first)[~single]
                given[unit[~single], other] = total[~single]
                done += query.variants
            whole = Places.of_units(encoding, count, own[:0])
            found.append(self.finished(whole, alone[:, None] - given, passes=len(own)))
        return found

    def passes_of(self, encoding: Encoding) -> int:
        return self.passes(len(self._chosen(encoding)), len(encoding))

    def _chosen(self, encoding: Encoding) -> Longs:
        """(M,) units that are asked."""
        own = np.flatnonzero(np.diff(self.units.symbols_of(encoding)[0]))
        found: Longs = own[self.representatives(encoding)[own] == own]
        return found

    def _copies(self, encoding: Encoding) -> Longs:
        """(C, 2) units that are hidden together; one alone is there twice."""
        own = self._chosen(encoding)
        return np.concatenate([np.stack([own, own], axis=1), own[self.near(own)]])

    def _queries(self, encoding: Encoding, copies: Longs) -> list[Query]:
        step = max(1, QUERY_TOKENS // max(1, len(encoding)))
        first = self.representatives(encoding)
        same = np.argsort(first, kind="stable")  # units, those that one represents side by side
        counts = np.bincount(first, minlength=len(first))
        begins = np.cumsum(counts) - counts
        made = []
        for begin in range(0, len(copies), step):
            own = copies[begin : begin + step]
            flat, copy = own.ravel(), np.repeat(np.arange(len(own)), 2)
            size = counts[flat]
            hidden = same[np.repeat(begins[flat] - np.cumsum(size) + size, size) + np.arange(size.sum())]
            hidden_in = np.repeat(copy, size)
            made.append(self.units.ask(encoding, hidden, flat, hidden_in=hidden_in, asked_in=copy))
        return made


class Substitutions(Estimator):
    """Every symbol at every place of the sequence as it is."""

    nats = False
    most = SMALL_ALPHABET

    def passes(self, units: int, tokens: int) -> int:
        return units * len(self.alphabet)

    def queries(self, places: Places) -> Iterable[Query]:
        return substitutions(places, self.alphabet)


class Jacobian(Substitutions):
    """The categorical Jacobian (Zhang et al. 2024): how each symbol at each place moves the logits of others.

    J[i, a, j, b] is centred along all four axes and made symmetric; a pair has the Frobenius norm of its
    (A, A) block. The authors apply the average product correction (`apc`).
    """

    name = "jacobian"

    def queries(self, places: Places) -> Iterable[Query]:
        count, size = len(places.at), len(self.alphabet)
        if count**2 * size**2 > MOST_ELEMENTS:
            raise UsageError(
                f"the Jacobian of {count:,} places and {size} symbols does not fit into memory: "
                "use --method dependency, or cmi with --set estimator=fast"
            )
        everywhere = replace(places, pairs=np.stack(np.triu_indices(count, 1), axis=1))
        return substitutions(everywhere, self.alphabet, itself=True)

    def read(self, places: Places, answers: Iterator[Answer]) -> DependenceMap:
        count, size = len(places.at), len(self.alphabet)
        moved = np.zeros((count, size, count, size), dtype=np.float32)
        for place in range(count):
            moved[place] = next(answers).values[Rows.name].reshape(size, count, size)
        for axis in range(4):
            moved -= moved.mean(axis=axis, keepdims=True)
        norms = np.zeros((count, count))
        for place in range(count):
            own = (moved[place] + moved[:, :, place].transpose(2, 0, 1)) / 2
            norms[place] = np.sqrt(np.einsum("amb,amb->m", own, own, dtype=np.float64))
        first, second = places.pairs.T
        return self.finished(places, both_ways(places, norms[first, second]), passes=count * size)


class Dependency(Substitutions):
    """The dependency map (Tomaz da Silva et al. 2024): the largest change of log2 odds by one substitution.

    e_ij = max over symbols a at i and b at j of |log2 odds(x_j = b | x_i = a) - log2 odds(x_j = b)|, in
    sequences of which nothing is hidden; the larger of both directions.
    """

    name = "dependency"

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.settings = replace(self.settings, symmetric="max")

    def read(self, places: Places, answers: Iterator[Answer]) -> DependenceMap:
        count, size = len(places.at), len(self.alphabet)
        directed = np.full((count, count), np.nan)
        for place, near in enumerate(neighbours(places)):
            rows = next(answers).values[Rows.name].astype(np.float64).reshape(size, -1, size)
            if len(near):
                shares = np.exp(rows) + 1e-10
                shares /= shares.sum(axis=-1, keepdims=True)
                odds = np.log2(shares / (1 - shares + 1e-10))
                here = self._symbol[places.encoding.ids[places.at[place]]]
                change = np.abs(odds - odds[here if here != MASKED else 0])
                directed[place, near] = change.max(axis=(0, 2))
        return self.finished(places, directed, passes=count * size)


class Couplings(Estimator):
    """Frobenius norms of the couplings of a linear model in the zero-sum gauge (Ekeberg et al. 2013).

    Read from its parameters: nothing is asked, and all sequences have the numbers of their columns.
    """

    name = "couplings"
    nats = False
    whole = True

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        from seqmlm.engine.linear import LinearRows, columns_of, coupling_norms

        rows = self._conditionals.rows
        if not isinstance(rows, LinearRows):
            raise UsageError(
                "--method couplings reads the parameters of a linear model (train --size linear); of this "
                "one use --method cmi or jacobian"
            )
        self._columns, self._norms = partial(columns_of, rows.model), coupling_norms(rows.model)

    def passes(self, units: int, tokens: int) -> int:
        return 0

    def read(self, places: Places, answers: Iterator[Answer]) -> DependenceMap:
        first, second = self._columns(len(places.encoding))[places.at][places.pairs].T
        return self.finished(places, both_ways(places, self._norms[first, second]), passes=0)


class PairCounts:
    """How often units come together within a window, units apart at most, of some sequences."""

    ADDED = 0.1
    """Of each count, so that pairs that never came have a value."""

    def __init__(self, window: int) -> None:
        self.window, self.together, self.total = window, 0, 0
        self._alone, self._pairs = Counter[Unit](), Counter[tuple[Unit, Unit]]()

    def add(self, units: Sequence[Unit]) -> None:
        """Count one sequence."""
        self._alone.update(units)
        self.total += len(units)
        for apart in range(1, min(self.window, len(units) - 1) + 1):
            for one, another in zip(units, units[apart:], strict=False):
                self._pairs[one, another] += 1
                self._pairs[another, one] += 1
                self.together += 2

    def information(self, one: Unit, another: Unit) -> float:
        """log p(a, b) / (p(a) p(b)), nats."""
        joint = (self._pairs[one, another] + self.ADDED) / (self.together + self.ADDED)
        apart = (self._alone[one] + self.ADDED) * (self._alone[another] + self.ADDED)
        return float(np.log(joint) - np.log(apart) + 2 * np.log(self.total + self.ADDED))


class Pmi(Estimator):
    """Pointwise mutual information by counts of units in a corpus, or else in the sequences that `maps` is
    given; no model is asked."""

    name = "pmi"
    whole = True

    def __init__(self, *given: Any, counts: PairCounts | None = None, **more: Any) -> None:
        super().__init__(*given, **more)
        self._counts = counts

    def passes(self, units: int, tokens: int) -> int:
        return 0

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        spelled = [unit_symbols(self.units, one) for one in encodings]
        counts = self._counts
        if counts is None:
            counts = PairCounts(self.settings.window)
            for own in spelled:
                counts.add(own)
        found = []
        for encoding, own in zip(encodings, spelled, strict=True):
            asked = np.flatnonzero(self.representatives(encoding) == np.arange(len(own)))
            whole = Places.of_units(encoding, len(own), asked[self.near(asked)])
            values = np.array([counts.information(own[i], own[j]) for i, j in whole.pairs.tolist()])
            found.append(self.finished(whole, both_ways(whole, values), passes=0))
        return found


class Auto(Estimator):
    """The best estimator of conditional mutual information that is cheap enough for a sequence.

    Every symbol is tried in alphabets of up to `SMALL_ALPHABET`, in pairs (exact) or, of longer sequences, in
    the sequence as it is (fast); in larger ones the most probable symbols are (topk), or what is observed
    alone (cpmi).
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        small = len(self.alphabet) <= SMALL_ALPHABET
        self._best: Estimator = (Exact if small else TopK)(*given, **more)
        self._cheap: Estimator = (Fast if small else Cpmi)(*given, **more)
        self._longest = max((n for n in range(2, 4096) if self._best.passes(n, n) <= CHEAP), default=1)

    @property
    def name(self) -> str:  # type: ignore[override]
        """Both, and up to which length the better one is taken."""
        return f"{self._best.name} up to {self._longest} units, {self._cheap.name} beyond"

    def _of(self, places: int) -> Estimator:
        return self._best if places <= self._longest else self._cheap

    def _for(self, encoding: Encoding) -> Estimator:
        return self._of(len(self.places(encoding).at))

    def passes(self, units: int, tokens: int) -> int:
        return self._of(units).passes(units, tokens)

    def passes_of(self, encoding: Encoding) -> int:
        return self._for(encoding).passes_of(encoding)

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        chosen = [self._for(one) for one in encodings]
        found: dict[int, DependenceMap] = {}
        for estimate in dict.fromkeys(chosen):
            own = [number for number, one in enumerate(chosen) if one is estimate]
            found |= dict(zip(own, estimate.maps([encodings[number] for number in own]), strict=True))
        return [found[number] for number in range(len(encodings))]


KINDS: dict[str, type[Estimator]] = {
    "cmi": Auto,
    "cpmi": Cpmi,
    "pmi": Pmi,
    "jacobian": Jacobian,
    "dependency": Dependency,
    "couplings": Couplings,
}
"""By method."""

_CMI: dict[str, type[Estimator]] = {"auto": Auto, "exact": Exact, "fast": Fast, "topk": TopK, "gibbs": Gibbs}


def estimator(
    settings: StructureSettings, conditionals: Conditionals, units: Units, *, counts: PairCounts | None = None
) -> Estimator:
    """What makes maps as settings say; `counts` are of "pmi". A UsageError where there is no such method, or
    units that it cannot ask about."""
    if settings.method not in KINDS:
        raise UsageError(f"--method is one of {', '.join(KINDS)}; got {settings.method!r}")
    kind = _CMI[settings.estimator] if settings.method == "cmi" else KINDS[settings.method]
    if not kind.whole and units.facts.names is not None:
        raise UsageError(
            f"--method {settings.method} changes tokens one at a time, and a token of this tokenizer shows "
            "several units: use --method cpmi, or a model of single units"
        )
    given = {"counts": counts} if kind is Pmi else {}
    return kind(settings, conditionals, units, **given)
