"""Conditional mutual information I(x_i; x_j | rest) in nats: by trying all symbols or some, or by sampling.

Both places of a pair have a conditional distribution given the other. `Exact` makes a joint distribution
from them. `Fast` ranks pairs by the predictions for the whole sequence. `TopK` and `Gibbs` use the
stationary distribution of the sampler that draws the two places in turn (Zhang and Hashimoto 2021).
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
    copy_query,
    pair_matrix,
    partners_by_place,
    single_mask_query,
    substitution_queries,
)
from seqmlm.structure.maps import DependenceMap, Doubles, Longs, symmetric_values
from seqmlm.structure.pairs import Conditional, pair_query, read_pair

_TOLERANCE, _ROUNDS = 1e-12, 10_000  # of power iteration

BURNED = 0.2
"""Fraction of the steps that is discarded at the start."""

BATCHES = 20
"""Number of batches of steps, whose means give the standard error."""

_REMEMBERED = 1 << 26  # largest number of elements of the distributions that are kept: 512 MiB
_USUAL = 256  # estimated number of distributions that a chain uses


class Exact(Estimator):
    """Conditional mutual information by trying every symbol at each of the two places.

    The joint distribution is the mean of the two that the chain rule gives: p(x_i) p(x_j | x_i) and p(x_j)
    p(x_i | x_j). The total variation between these two is reported as `incompatibility`.
    """

    name = "cmi/exact"
    max_symbols, remedy = 2048, "use --set estimator=topk, or --method cpmi"

    def passes(self, units: int, tokens: int) -> int:
        return self.pairs(units) * (2 * len(self.alphabet) + 1)

    def queries(self, places: Places) -> Iterator[Query]:
        """One query for each pair."""
        symbols = self.alphabet
        for i, j in places.at[places.pairs].tolist():
            yield pair_query(places, i, j, symbols, symbols, symbols)

    def read_map(self, places: Places, answers: Iterator[Answer]) -> DependenceMap:
        values, details, passes = self.pair_information(places, answers)
        return self.unit_map(places, pair_matrix(places, values), passes=passes, details=details)

    def pair_information(
        self, places: Places, answers: Iterator[Answer]
    ) -> tuple[Doubles, dict[str, float], int]:
        """The information of each pair.

        Returns:
            (P,) nats; `incompatibility`, the mean distance of the two joint distributions; the number of
            copies.
        """
        size, count = len(self.alphabet), len(places.pairs)
        estimates = [mutual_information(read_pair(answer, size, size)) for answer in islice(answers, count)]
        values, variations = np.array(estimates).reshape(-1, 2).T
        details = {"incompatibility": float(variations.mean())} if count else {}
        return values, details, count * (2 * size + 1)


class Fast(Exact):
    """Ranks pairs by trying every symbol at every place of the sequence, then computes the best ones exactly.

    Let p_i(a) = p(x_i = a | rest), and r_a the distribution of x_j if x_i = a. They are read from tokens
    that the model sees. The value of a pair is sum_a p_i(a) KL(r_a || sum_b p_i(b) r_b). The model still
    sees the observed x_j, so this value only ranks pairs. The strongest `exact_pairs` x N pairs are then
    computed as in `Exact`.
    """

    name = "cmi/fast"

    def passes(self, units: int, tokens: int) -> int:
        exact = min(self.pairs(units), round(self.settings.exact_pairs * units))
        return units * (1 + len(self.alphabet)) + exact * (2 * len(self.alphabet) + 1)

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        all_places = [self.places(encoding) for encoding in encodings]
        mask_answers = self.answers(
            single_mask_query(places, self.alphabet) for places in all_places if len(places.at)
        )
        log_probs = [
            next(mask_answers).values[Rows.name].astype(np.float64) if len(places.at) else np.zeros((0, 0))
            for places in all_places
        ]
        substitution_answers = self.answers(
            chain.from_iterable(substitution_queries(places, self.alphabet) for places in all_places)
        )
        rankings = [
            self._ranking_values(places, rows, substitution_answers)
            for places, rows in zip(all_places, log_probs, strict=True)
        ]
        chosen = [self._strongest_pairs(*ranking) for ranking in zip(all_places, rankings, strict=True)]
        exact_answers = self.answers(chain.from_iterable(map(self.queries, chosen)))
        maps = []
        for places, values, strong in zip(all_places, rankings, chosen, strict=True):
            exact, details, passes = self.pair_information(strong, exact_answers)
            i, j = strong.pairs.T
            values[i, j] = values[j, i] = exact
            passes += len(places.at) * (1 + len(self.alphabet))
            details = {"exact_pairs": float(len(exact)), **details}
            maps.append(self.unit_map(places, values, passes=passes, details=details))
        return maps

    def _ranking_values(self, places: Places, log_probs: Doubles, answers: Iterator[Answer]) -> Doubles:
        """(M, M) conditional information of each place (row) about each other place (column), in nats."""
        count, size = len(places.at), len(self.alphabet)
        values = np.full((count, count), np.nan)
        partners = partners_by_place(places)
        for place in range(count):
            rows = next(answers).values[Rows.name].astype(np.float64).reshape(size, -1, size)
            if rows.shape[1]:
                values[place, partners[place]] = conditional_information(np.exp(log_probs[place]), rows)
        return values

    def _strongest_pairs(self, places: Places, values: Doubles) -> Places:
        """The places with only the pairs that are computed exactly."""
        max_pairs = round(self.settings.exact_pairs * len(np.unique(places.unit)))
        pair_values = symmetric_values(values)[places.pairs[:, 0], places.pairs[:, 1]]
        return replace(
            places, pairs=places.pairs[np.sort(np.argsort(-pair_values, kind="stable")[:max_pairs])]
        )


class TopK(Estimator):
    """Conditional mutual information from the most probable symbols of both places, and the observed ones.

    The most probable symbols are those while both places are hidden. Restricted to these symbols, the two
    conditionals are the kernel of a Gibbs sampler. Its stationary distribution is used instead of samples: I
    = H(mean p) - mean H(p). `covered` is the total probability of the symbols that are tried.
    """

    name = "cmi/topk"

    def passes(self, units: int, tokens: int) -> int:
        return self.pairs(units) * (1 + 2 * min(self.settings.k + 1, len(self.alphabet)))

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        all_places = [self.places(encoding) for encoding in encodings]
        hidden = self.answers(
            chain.from_iterable(pair_mask_queries(places, self.alphabet) for places in all_places),
            (*top(min(self.settings.k, len(self.alphabet))), TargetLogProb()),
        )
        chosen = [self._tried_symbols(places, hidden) for places in all_places]
        queries = (
            pair_query(places, i, j, self.alphabet[first], self.alphabet[second], self.alphabet)
            for places, (tried, _) in zip(all_places, chosen, strict=True)
            for (i, j), (first, second) in zip(places.at[places.pairs].tolist(), tried, strict=True)
        )
        answers, maps = self.answers(queries), []
        for places, (tried, covered) in zip(all_places, chosen, strict=True):
            values, passes = np.zeros((len(tried), 2)), 0
            for number, (first, second) in enumerate(tried):
                conditional = read_pair(next(answers), len(first), len(second))
                values[number] = kernel_information(conditional, first, second)
                passes += 1 + len(first) + len(second)  # few of these copies were already computed above
            directed = pair_matrix(places, values[:, 0], values[:, 1])
            details = {"covered": float(np.mean(covered))} if covered else {}
            maps.append(self.unit_map(places, directed, passes=passes, details=details))
        return maps

    def _tried_symbols(
        self, places: Places, answers: Iterator[Answer]
    ) -> tuple[list[tuple[Longs, Longs]], list[float]]:
        """Symbols that are tried at both places of each pair, ascending, and their total probabilities."""
        sides, covered = list[Longs](), list[float]()
        while len(sides) < 2 * len(places.pairs):
            values = next(answers).values
            best, shares = values[TopIds.name], np.exp(values[TopLogProbs.name].astype(np.float64))
            log_probs = values[TargetLogProb.name].tolist()
            for ids, row_shares, observed_log_prob in zip(best, shares, log_probs, strict=True):
                place = places.pairs[len(sides) // 2, len(sides) % 2]
                symbol = self._symbol[places.encoding.ids[places.at[place]]]
                tried = self._symbol[ids[ids >= 0]]
                included = symbol == MASKED or bool((tried == symbol).any())
                uncovered = 0.0 if included else float(np.exp(observed_log_prob))
                covered.append(float(row_shares.sum()) + uncovered)
                sides.append(np.unique(tried if included else np.append(tried, symbol)))
        return list(zip(sides[::2], sides[1::2], strict=True)), covered


def pair_mask_queries(places: Places, allowed: Ids) -> Iterator[Query]:
    """Queries for both places of each pair while both are hidden, with several pairs in each query."""
    step = max(1, QUERY_TOKENS // max(1, len(places.encoding)))
    for begin in range(0, len(places.pairs), step):
        positions = places.at[places.pairs[begin : begin + step]]
        targets = [(n, position) for n, pair in enumerate(positions.tolist()) for position in pair]
        yield copy_query(places, targets, targets, [], allowed)


def kernel_information(conditional: Conditional, first: Longs, second: Longs) -> tuple[float, float]:
    """I(x_i; x_j) in nats, from either side, under the stationary distribution of a restricted kernel.

    Args:
        conditional: the conditionals of both places, with a row for each symbol that is tried.
        first, second: (K,) and (K',) indices in the alphabet of the symbols at the two places.
    """
    of_second = np.exp(conditional.given_first)  # (K, A) of x_j
    of_first = np.exp(conditional.given_second)  # (K', A) of x_i
    law_first, law_second = stationary_laws(of_second[:, second], of_first[:, first])
    by_first = float(entropy(law_second @ of_first) - law_second @ entropy(of_first))
    by_second = float(entropy(law_first @ of_second) - law_first @ entropy(of_second))
    return max(0.0, by_first), max(0.0, by_second)


@dataclass(slots=True)
class _Chain:
    """The Gibbs chain of a pair.

    Args:
        places: places of the sequence.
        i, j: positions of the pair.
        number: number of the chain, which selects its random numbers.
        symbols: current symbols at both places.
        rows: for either side, the index of its distribution for each symbol at the other place.
        step_rows: for either side, this index at each step.
        step_symbols: for either side, the symbol at each step.
    """

    places: Places
    i: int
    j: int
    number: int
    symbols: list[int] = field(default_factory=lambda: [MASKED, MASKED])
    rows: tuple[dict[int, int], dict[int, int]] = field(default_factory=lambda: ({}, {}))
    step_rows: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    step_symbols: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))


class Gibbs(Estimator):
    """I(x_i; x_j | rest) from samples; both sides of a pair give an estimate.

    Let p_t be the distribution of a side at step t, and m the mean of these distributions. The estimate is
    H(m) - mean H(p_t), which is at least 0 (Rao-Blackwell). With `plain`, it is the mean of log p_t(x_t) -
    log m(x_t) over the drawn x_t, as published. With `cached`, a conditional is computed once for each
    symbol, not at each step.
    """

    name = "cmi/gibbs"
    plain = False
    cached = True

    def passes(self, units: int, tokens: int) -> int:
        """The largest possible number of copies; how often a symbol is drawn again is not known before."""
        steps = min(self.settings.steps, len(self.alphabet) + 1) if self.cached else self.settings.steps
        return 2 * steps * self.pairs(units)

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        all_places = [self.places(encoding) for encoding in encodings]
        pairs = [(places, i, j) for places in all_places for i, j in places.at[places.pairs].tolist()]
        chains = [_Chain(*pair, number) for number, pair in enumerate(pairs)]
        batch_size = max(1, _REMEMBERED // (2 * len(self.alphabet) * min(_USUAL, len(self.alphabet) + 1)))
        values, errors, passes = np.zeros((len(chains), 2)), np.zeros((len(chains), 2)), np.zeros(len(chains))
        for begin in range(0, len(chains), batch_size):
            batch = chains[begin : begin + batch_size]
            table = self._run_chains(batch)
            for number, walk in enumerate(batch, begin):
                for side in (0, 1):
                    values[number, side], errors[number, side] = self._estimate(walk, side, table)
                passes[number] = sum(map(len, walk.rows if self.cached else walk.step_rows))
        maps, done = [], 0
        for places in all_places:
            here = slice(done, done := done + len(places.pairs))
            value, error = (pair_matrix(places, *sides[here].T) for sides in (values, errors))
            maps.append(self.unit_map(places, value, error=error, passes=int(passes[here].sum())))
        return maps

    def _run_chains(self, chains: Sequence[_Chain]) -> Doubles:
        """Run the chains, and return the (K, A) distributions that they drew from."""
        distributions: list[Doubles] = []
        streams = np.array([walk.number for walk in chains])
        for step in range(self.settings.steps):
            for side in (0, 1):
                self._ask_next(chains, side, distributions)
                numbers = uniform(self.settings.seed, streams, np.full(len(chains), 2 * step + side))
                for walk, number in zip(chains, numbers.tolist(), strict=True):
                    row = walk.rows[side][walk.symbols[1 - side]]
                    sums = distributions[row][1]
                    symbol = int(np.searchsorted(sums, number * sums[-1], side="right"))
                    walk.step_rows[side].append(row)
                    walk.step_symbols[side].append(symbol)
                    walk.symbols[side] = symbol
        if not distributions:
            return np.zeros((0, len(self.alphabet)))
        return np.stack([shares for shares, _ in distributions])

    def _ask_next(self, chains: Sequence[_Chain], side: int, distributions: list[Doubles]) -> None:
        """Compute the distribution that each chain draws from next, unless the chain already has it.

        Each element of `distributions` is (2, A): the probabilities and their cumulative sums.
        """
        fresh = [walk for walk in chains if not self.cached or walk.symbols[1 - side] not in walk.rows[side]]
        answers = self.answers(self._query(walk, side) for walk in fresh)
        for walk, answer in zip(fresh, answers, strict=True):
            shares = np.exp(answer.values[Rows.name][0].astype(np.float64))
            walk.rows[side][walk.symbols[1 - side]] = len(distributions)
            distributions.append(np.stack([shares, shares.cumsum()]))

    def _query(self, pair: _Chain, side: int) -> Query:
        """The query for one side of a pair, given the current symbol of the other side."""
        target, partner = (pair.i, pair.j) if side == 0 else (pair.j, pair.i)
        partner_symbol = pair.symbols[1 - side]
        hidden = [(0, target)] if partner_symbol != MASKED else [(0, target), (0, partner)]
        substituted = [] if partner_symbol == MASKED else [(0, partner, int(self.alphabet[partner_symbol]))]
        return copy_query(pair.places, hidden, [(0, target)], substituted, self.alphabet)

    def _estimate(self, pair: _Chain, side: int, table: Doubles) -> tuple[float, float]:
        """Information from one side in nats, and its standard error from the means of batches of steps."""
        burned = round(BURNED * self.settings.steps)
        step_rows = np.array(pair.step_rows[side][burned:])
        rows, place, count = np.unique(step_rows, return_inverse=True, return_counts=True)
        shares = table[rows]
        mean = count @ shares / count.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(shares > 0, np.log(shares) - np.log(mean), 0.0)
        if self.plain:
            steps = ratio[place, np.array(pair.step_symbols[side][burned:])]
        else:
            steps = (shares * ratio).sum(axis=1)[place]
        means = np.array([part.mean() for part in np.array_split(steps, BATCHES) if len(part)])
        error = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else float("nan")
        return float(steps.mean()), error


# Two places


def entropy(shares: Doubles) -> Doubles:
    """(...,) entropies in nats of distributions (..., A)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        entropies: Doubles = -np.where(shares > 0, shares * np.log(shares), 0.0).sum(axis=-1)
    return entropies


def mutual_information(conditional: Conditional) -> tuple[float, float]:
    """Mutual information in nats under the mean of the two joint distributions that the chain rule gives.

    Returns:
        The information. The total variation between the two joint distributions, from 0 to 1; it is 0 if the
        conditionals belong to one joint distribution.
    """
    from_first = np.exp(conditional.first[:, None] + conditional.given_first)
    from_second = np.exp(conditional.second[:, None] + conditional.given_second).T
    joint = (from_first + from_second) / 2
    joint /= joint.sum()
    nats = entropy(joint.sum(axis=1)) + entropy(joint.sum(axis=0)) - entropy(joint.ravel())
    return max(0.0, float(nats)), float(np.abs(from_first - from_second).sum() / 2)


def conditional_information(shares: Doubles, log_rows: Doubles) -> Doubles:
    """(M,) information of one place about M others, in nats: sum_a p(a) KL(r_a || sum_b p(b) r_b).

    Args:
        shares: (A,) p, the distribution of the place.
        log_rows: (A, M, A) log r, the distributions of the others for each symbol of the place.
    """
    weights = shares / shares.sum()
    probabilities = np.exp(log_rows)
    mean = np.einsum("a,amb->mb", weights, probabilities)
    nats: Doubles = entropy(mean) - np.einsum("a,am->m", weights, entropy(probabilities))
    return np.maximum(nats, 0.0)


def stationary_laws(to_second: Doubles, to_first: Doubles) -> tuple[Doubles, Doubles]:
    """The stationary distributions (K,) and (K',) of both places under a Gibbs sampler.

    Args:
        to_second: (K, K') weights of x_j for each x_i; rows need not sum to 1.
        to_first: (K', K) weights of x_i for each x_j; rows need not sum to 1.
    """
    forward = to_second / to_second.sum(axis=1, keepdims=True)
    backward = to_first / to_first.sum(axis=1, keepdims=True)
    law = np.full(len(backward), 1 / len(backward))
    for _ in range(_ROUNDS):
        previous, law = law, law @ backward @ forward
        law /= law.sum()
        if np.abs(law - previous).sum() < _TOLERANCE:
            break
    return law @ backward, law
