"""Conditional mutual information I(x_i; x_j | rest), in nats: by trying all symbols, some, or by sampling.

Both places of a pair have a conditional given the other. `Exact` makes a joint distribution of them, `Fast`
ranks pairs by what the model says of the whole sequence, `TopK` and `Gibbs` take the stationary law of the
sampler that draws both places in turn (Zhang and Hashimoto 2021).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np

from seqmlm.engine.query import Answer, Query
from seqmlm.engine.randomness import uniform
from seqmlm.engine.reductions import Rows, TargetLogProb, TopIds, TopLogProbs, top
from seqmlm.engine.types import Encoding, Ids
from seqmlm.engine.units import QUERY_TOKENS
from seqmlm.structure.base import (
    MASKED,
    Estimator,
    Places,
    both_ways,
    copies,
    neighbours,
    one_by_one,
    substitutions,
)
from seqmlm.structure.joints import Conditional, pair_query, read_pair
from seqmlm.structure.maps import DependenceMap, Doubles, Longs, symmetrized

_TOLERANCE, _ROUNDS = 1e-12, 10_000  # of power iteration

BURNED = 0.2
"""Share of the steps, the first ones, that is left out."""

BATCHES = 20
"""Of the steps, whose means give the standard error."""

_REMEMBERED = 1 << 26  # elements of the distributions kept at a time: 512 MiB
_USUAL = 256  # distributions that a chain meets, by estimate


class Exact(Estimator):
    """Conditional mutual information by trying every symbol at either place.

    The joint distribution is the mean of the two that the chain rule gives, p(x_i) p(x_j | x_i) and the other
    way round; how far these are apart (total variation) is reported as `incompatibility`.
    """

    name = "cmi/exact"
    most, remedy = 2048, "use --set estimator=topk, or --method cpmi"

    def passes(self, units: int, tokens: int) -> int:
        return self.pairs(units) * (2 * len(self.alphabet) + 1)

    def queries(self, places: Places) -> Iterator[Query]:
        """One for each pair."""
        symbols = self.alphabet
        for i, j in places.at[places.pairs].tolist():
            yield pair_query(places, i, j, symbols, symbols, symbols)

    def read(self, places: Places, answers: Iterator[Answer]) -> DependenceMap:
        values, details, passes = self.informed(places, answers)
        return self.finished(places, both_ways(places, values), passes=passes, details=details)

    def informed(self, places: Places, answers: Iterator[Answer]) -> tuple[Doubles, dict[str, float], int]:
        """(P,) the information of each pair; how far its two joints are apart on average; and the passes."""
        size, count = len(self.alphabet), len(places.pairs)
        found = [information(read_pair(answer, size, size)) for answer in islice(answers, count)]
        values, apart = np.array(found).reshape(-1, 2).T
        details = {"incompatibility": float(apart.mean())} if count else {}
        return values, details, count * (2 * size + 1)


class Fast(Exact):
    """Every symbol at every place of the sequence as it is; then the strongest pairs as `Exact` has them.

    With p_i(a) = p(x_i = a | rest) and r_a the distribution of x_j where x_i = a, read from tokens that the
    model sees, a pair has sum_a p_i(a) KL(r_a || sum_b p_i(b) r_b). It still knows the observed x_j, so it
    ranks pairs; `exact_pairs` of them times N are computed again.
    """

    name = "cmi/fast"

    def passes(self, units: int, tokens: int) -> int:
        exact = min(self.pairs(units), round(self.settings.exact_pairs * units))
        return units * (1 + len(self.alphabet)) + exact * (2 * len(self.alphabet) + 1)

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        every = [self.places(one) for one in encodings]
        hidden = self.answers(one_by_one(places, self.alphabet) for places in every if len(places.at))
        alone = [
            next(hidden).values[Rows.name].astype(np.float64) if len(places.at) else np.zeros((0, 0))
            for places in every
        ]
        seen = self.answers(chain.from_iterable(substitutions(places, self.alphabet) for places in every))
        ranked = [self._ranked(places, own, seen) for places, own in zip(every, alone, strict=True)]
        chosen = [self._strongest(places, values) for places, values in zip(every, ranked, strict=True)]
        again = self.answers(chain.from_iterable(map(self.queries, chosen)))
        found = []
        for places, values, strong in zip(every, ranked, chosen, strict=True):
            exact, details, passes = self.informed(strong, again)
            i, j = strong.pairs.T
            values[i, j] = values[j, i] = exact
            passes += len(places.at) * (1 + len(self.alphabet))
            details = {"exact_pairs": float(len(exact)), **details}
            found.append(self.finished(places, values, passes=passes, details=details))
        return found

    def _ranked(self, places: Places, alone: Doubles, answers: Iterator[Answer]) -> Doubles:
        """(M, M) what each place (row) tells of each other one (column)."""
        count, size = len(places.at), len(self.alphabet)
        values = np.full((count, count), np.nan)
        near = neighbours(places)
        for place in range(count):
            rows = next(answers).values[Rows.name].astype(np.float64).reshape(size, -1, size)
            if rows.shape[1]:
                values[place, near[place]] = conditional_information(np.exp(alone[place]), rows)
        return values

    def _strongest(self, places: Places, values: Doubles) -> Places:
        """The places with the pairs that are computed exactly."""
        most = round(self.settings.exact_pairs * len(np.unique(places.unit)))
        own = symmetrized(values)[places.pairs[:, 0], places.pairs[:, 1]]
        return replace(places, pairs=places.pairs[np.sort(np.argsort(-own, kind="stable")[:most])])


class TopK(Estimator):
    """The most probable symbols of both places while both are hidden, and the observed ones, tried in turn.

    The two conditionals, restricted to them, are the kernel of a Gibbs sampler, and its stationary law stands
    for the samples: I = H(mean p) - mean H(p). `covered` is the probability of what was tried.
    """

    name = "cmi/topk"

    def passes(self, units: int, tokens: int) -> int:
        return self.pairs(units) * (1 + 2 * min(self.settings.k + 1, len(self.alphabet)))

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        every = [self.places(one) for one in encodings]
        hidden = self.answers(
            chain.from_iterable(both_hidden(one, self.alphabet) for one in every),
            (*top(min(self.settings.k, len(self.alphabet))), TargetLogProb()),
        )
        chosen = [self._chosen(places, hidden) for places in every]
        queries = (
            pair_query(places, i, j, self.alphabet[one], self.alphabet[two], self.alphabet)
            for places, (tried, _) in zip(every, chosen, strict=True)
            for (i, j), (one, two) in zip(places.at[places.pairs].tolist(), tried, strict=True)
        )
        answers, found = self.answers(queries), []
        for places, (tried, covered) in zip(every, chosen, strict=True):
            values, passes = np.zeros((len(tried), 2)), 0
            for number, (one, two) in enumerate(tried):
                own = read_pair(next(answers), len(one), len(two))
                values[number] = kernel_information(own, one, two)
                passes += 1 + len(one) + len(two)  # copies that the first answers had come again are few
            directed = both_ways(places, values[:, 0], values[:, 1])
            details = {"covered": float(np.mean(covered))} if covered else {}
            found.append(self.finished(places, directed, passes=passes, details=details))
        return found

    def _chosen(
        self, places: Places, answers: Iterator[Answer]
    ) -> tuple[list[tuple[Longs, Longs]], list[float]]:
        """Symbols of both places of each pair, ascending, and their share of the probability."""
        sides, covered = list[Longs](), list[float]()
        while len(sides) < 2 * len(places.pairs):
            values = next(answers).values
            best, shares = values[TopIds.name], np.exp(values[TopLogProbs.name].astype(np.float64))
            for ids, own, seen in zip(best, shares, values[TargetLogProb.name].tolist(), strict=True):
                place = places.pairs[len(sides) // 2, len(sides) % 2]
                symbol = self._symbol[places.encoding.ids[places.at[place]]]
                tried = self._symbol[ids[ids >= 0]]
                known = symbol == MASKED or bool((tried == symbol).any())
                covered.append(float(own.sum()) + (0.0 if known else float(np.exp(seen))))
                sides.append(np.unique(tried if known else np.append(tried, symbol)))
        return list(zip(sides[::2], sides[1::2], strict=True)), covered


def both_hidden(places: Places, allowed: Ids) -> Iterator[Query]:
    """Both places of each pair while both are hidden, several pairs in a query."""
    step = max(1, QUERY_TOKENS // max(1, len(places.encoding)))
    for begin in range(0, len(places.pairs), step):
        both = places.at[places.pairs[begin : begin + step]]
        each = [(n, position) for n, own in enumerate(both.tolist()) for position in own]
        yield copies(places, each, each, [], allowed)


def kernel_information(own: Conditional, first: Longs, second: Longs) -> tuple[float, float]:
    """I(x_i; x_j) from either side, under the stationary law of a kernel restricted to the symbols at places
    (K,) and (K',) of the alphabet, of which `own` has the rows."""
    of_second = np.exp(own.given_first)  # (K, A) of x_j
    of_first = np.exp(own.given_second)  # (K', A) of x_i
    law_first, law_second = stationary(of_second[:, second], of_first[:, first])
    one = float(entropy(law_second @ of_first) - law_second @ entropy(of_first))
    two = float(entropy(law_first @ of_second) - law_first @ entropy(of_second))
    return max(0.0, one), max(0.0, two)


@dataclass(slots=True)
class _Chain:
    """A pair on its way: positions i and j, and the number of its random numbers.

    now: symbols at both places. For either side, rows: number of the distribution by the symbol at the other;
    met: that number at each step; drawn: the symbol of each step.
    """

    places: Places
    i: int
    j: int
    number: int
    now: list[int] = field(default_factory=lambda: [MASKED, MASKED])
    rows: tuple[dict[int, int], dict[int, int]] = field(default_factory=lambda: ({}, {}))
    met: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    drawn: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))


class Gibbs(Estimator):
    """I(x_i; x_j | rest) from samples; both sides of a pair give an estimate.

    With p_t the distribution of a side at step t and m the mean of these, the estimate is H(m) - mean H(p_t)
    (Rao-Blackwell, at least 0), or, `plain`, mean log p_t(x_t) - log m(x_t) of what was drawn, as published.
    `cached`: a conditional is asked once for each symbol, and not at each step.
    """

    name = "cmi/gibbs"
    plain = False
    cached = True

    def passes(self, units: int, tokens: int) -> int:
        """At most: how often a symbol comes again is not known before."""
        steps = min(self.settings.steps, len(self.alphabet) + 1) if self.cached else self.settings.steps
        return 2 * steps * self.pairs(units)

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        every = [self.places(one) for one in encodings]
        pairs = [(places, i, j) for places in every for i, j in places.at[places.pairs].tolist()]
        chains = [_Chain(*pair, number) for number, pair in enumerate(pairs)]
        most = max(1, _REMEMBERED // (2 * len(self.alphabet) * min(_USUAL, len(self.alphabet) + 1)))
        values, errors, passes = np.zeros((len(chains), 2)), np.zeros((len(chains), 2)), np.zeros(len(chains))
        for begin in range(0, len(chains), most):
            some = chains[begin : begin + most]
            table = self._sampled(some)
            for number, own in enumerate(some, begin):
                for side in (0, 1):
                    values[number, side], errors[number, side] = self._estimate(own, side, table)
                passes[number] = sum(map(len, own.rows if self.cached else own.met))
        found, done = [], 0
        for places in every:
            here = slice(done, done := done + len(places.pairs))
            value, error = (both_ways(places, *one[here].T) for one in (values, errors))
            found.append(self.finished(places, value, error=error, passes=int(passes[here].sum())))
        return found

    def _sampled(self, chains: Sequence[_Chain]) -> Doubles:
        """Run the chains; (K, A) the distributions they met."""
        kept: list[Doubles] = []
        streams = np.array([chain.number for chain in chains])
        for step in range(self.settings.steps):
            for side in (0, 1):
                self._ask(chains, side, kept)
                numbers = uniform(self.settings.seed, streams, np.full(len(chains), 2 * step + side))
                for own, number in zip(chains, numbers.tolist(), strict=True):
                    row = own.rows[side][own.now[1 - side]]
                    sums = kept[row][1]
                    symbol = int(np.searchsorted(sums, number * sums[-1], side="right"))
                    own.met[side].append(row)
                    own.drawn[side].append(symbol)
                    own.now[side] = symbol
        return np.stack([one[0] for one in kept]) if kept else np.zeros((0, len(self.alphabet)))

    def _ask(self, chains: Sequence[_Chain], side: int, kept: list[Doubles]) -> None:
        """See to it that each chain knows the distribution it draws from next."""
        fresh = [one for one in chains if not self.cached or one.now[1 - side] not in one.rows[side]]
        answers = self.answers(self._query(one, side) for one in fresh)
        for own, answer in zip(fresh, answers, strict=True):
            shares = np.exp(answer.values[Rows.name][0].astype(np.float64))
            own.rows[side][own.now[1 - side]] = len(kept)
            kept.append(np.stack([shares, shares.cumsum()]))

    def _query(self, pair: _Chain, side: int) -> Query:
        own, other = (pair.i, pair.j) if side == 0 else (pair.j, pair.i)
        there = pair.now[1 - side]
        hidden = [(0, own)] if there != MASKED else [(0, own), (0, other)]
        put = [] if there == MASKED else [(0, other, int(self.alphabet[there]))]
        return copies(pair.places, hidden, [(0, own)], put, self.alphabet)

    def _estimate(self, pair: _Chain, side: int, table: Doubles) -> tuple[float, float]:
        """Information by one side, and its standard error by means of batches of steps."""
        burned = round(BURNED * self.settings.steps)
        met = np.array(pair.met[side][burned:])
        rows, place, count = np.unique(met, return_inverse=True, return_counts=True)
        shares = table[rows]
        mean = count @ shares / count.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(shares > 0, np.log(shares) - np.log(mean), 0.0)
        if self.plain:
            steps = ratio[place, np.array(pair.drawn[side][burned:])]
        else:
            steps = (shares * ratio).sum(axis=1)[place]
        means = np.array([part.mean() for part in np.array_split(steps, BATCHES) if len(part)])
        error = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else float("nan")
        return float(steps.mean()), error


# Two places


def entropy(shares: Doubles) -> Doubles:
    """(...,) of distributions (..., A), nats."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Doubles = -np.where(shares > 0, shares * np.log(shares), 0.0).sum(axis=-1)
    return found


def information(own: Conditional) -> tuple[float, float]:
    """Mutual information under the mean of both joints that the chain rule gives; and the total variation
    between these, in 0..1, which is 0 where the conditionals are of one joint."""
    one = np.exp(own.first[:, None] + own.given_first)
    two = np.exp(own.second[:, None] + own.given_second).T
    joint = (one + two) / 2
    joint /= joint.sum()
    found = entropy(joint.sum(axis=1)) + entropy(joint.sum(axis=0)) - entropy(joint.ravel())
    return max(0.0, float(found)), float(np.abs(one - two).sum() / 2)


def conditional_information(shares: Doubles, given: Doubles) -> Doubles:
    """(M,) sum_a p(a) KL(r_a || sum_b p(b) r_b) in nats at M places, of p (A,) and log r (A, M, A)."""
    weights = shares / shares.sum()
    probabilities = np.exp(given)
    mean = np.einsum("a,amb->mb", weights, probabilities)
    found: Doubles = entropy(mean) - np.einsum("a,am->m", weights, entropy(probabilities))
    return np.maximum(found, 0.0)


def stationary(to_second: Doubles, to_first: Doubles) -> tuple[Doubles, Doubles]:
    """The laws (K,) and (K',) of both places that a Gibbs sampler comes to, by weights (K, K') of x_j for
    each x_i and (K', K) of x_i for each x_j; rows need not sum to 1."""
    forward = to_second / to_second.sum(axis=1, keepdims=True)
    back = to_first / to_first.sum(axis=1, keepdims=True)
    law = np.full(len(back), 1 / len(back))
    for _ in range(_ROUNDS):
        before, law = law, law @ back @ forward
        law /= law.sum()
        if np.abs(law - before).sum() < _TOLERANCE:
            break
    return law @ back, law
