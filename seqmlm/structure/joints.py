"""Joint distributions of two places, made from the conditionals of a masked language model.

The two conditionals of a model (each place given the other) hardly ever belong to one joint distribution.
Torroba Hennigen and Kim (2023) compare constructions that each give one: (A, B) log-probabilities. Measures
tell how much its conditionals differ from the conditionals of the model. `pair_conditionals` queries the
model. All other functions take its `Conditional`.

Both conditionals are kept in memory as matrices, and a joint is a third matrix. They are float32 if the
vocabulary is large: 768 MB for 8,000 symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from seqmlm.engine.query import Answer, Query
from seqmlm.engine.reductions import Normaliser, Rows
from seqmlm.engine.types import Encoding, Ids
from seqmlm.structure.base import Places
from seqmlm.structure.maps import Doubles, Longs
from seqmlm.structure.pairs import Conditional, pair_query

if TYPE_CHECKING:
    from seqmlm.engine.conditionals import Conditionals

TOLERANCE, ROUNDS = 1e-4, 1000
"""Limits of Arnold-Gokhale: it has converged if a step changes its marginals by less than TOLERANCE, in sum.

ROUNDS is its largest number of steps.
"""

OTHERS = -1
"""Represents all symbols that are not candidates, in place of a token id."""

_DOUBLES = 1 << 22  # largest number of elements of a matrix in float64
_BLOCK = 1 << 22  # number of elements that one query returns
_CELLS = 1 << 17  # number of elements of a temporary array that fits into the cache of a processor
_REFINED = 5  # rounds of mask-predict, of ten, in which one of two places is hidden
_LEAST = 1e-300  # lower bound of probabilities, so that their logarithm is finite
_TINY = 1e-30  # the same in single precision
_FAR = float(np.log(3))  # largest change of a log-probability by extrapolation
_CALM = 2  # number of successive small steps for convergence; one may be due to the extrapolation


class Pair(NamedTuple):
    """Two places of a sequence.

    Args:
        encoding: the sequence.
        i, j: positions of the two tokens.
    """

    encoding: Encoding
    i: int
    j: int


class Candidates(NamedTuple):
    """Token ids (K,) that are tried at the two places.

    The last id is `OTHERS` if the alphabet has other symbols; it represents them together.
    """

    first: Ids
    second: Ids


# Queries to the model


def top_candidates(
    model: Conditionals, pairs: Sequence[Pair], alphabet: Ids, k: int | None, *, observed: bool = False
) -> list[Candidates]:
    """For each pair, the candidates at both places: the K most probable symbols of each place, and `OTHERS`.

    The probabilities are those while both places are hidden. If K is None or at least the size of the
    alphabet, the candidates are the whole alphabet.

    Args:
        model: answers the queries.
        pairs: the pairs.
        alphabet: (A,) token ids that are possible at a place.
        k: K, or None.
        observed: whether the observed symbol is always a candidate.
    """
    if k is None or k >= len(alphabet):
        return [Candidates(alphabet, alphabet)] * len(pairs)
    hidden = model.ask([_query(pair, alphabet[:0], alphabet[:0], alphabet) for pair in pairs], (Rows(),))
    candidates = []
    for pair, answer in zip(pairs, hidden, strict=True):
        observed_ids = [pair.encoding.ids[at] if observed else OTHERS for at in (pair.i, pair.j)]
        rows = zip(answer.values[Rows.name], observed_ids, strict=True)
        candidates.append(Candidates(*(_top_ids(row, alphabet, k, observed_id) for row, observed_id in rows)))
    return candidates


def pair_conditionals(
    model: Conditionals, pairs: Sequence[Pair], alphabet: Ids, tried: Sequence[Candidates] | None = None
) -> Iterator[Conditional]:
    """The conditionals of a model for each pair, computed lazily and in order.

    Args:
        model: answers the queries.
        pairs: the pairs.
        alphabet: (A,) token ids that are possible at a place.
        tried: symbols to try at either place of each pair; None for the whole alphabet.
    """
    tried = [Candidates(alphabet, alphabet)] * len(pairs) if tried is None else tried
    step = max(1, _BLOCK // len(alphabet))
    blocks = [[*_blocks(candidates, step)] for candidates in tried]
    queries = (
        _query(pair, *block, alphabet)
        for pair, pair_blocks in zip(pairs, blocks, strict=True)
        for block in pair_blocks
    )
    answers = model.ask(queries, (Rows(), Normaliser()))
    return (
        _merge_blocks(answers, pair_blocks, candidates, alphabet)
        for candidates, pair_blocks in zip(tried, blocks, strict=True)
    )


def _query(pair: Pair, at_first: Ids, at_second: Ids, alphabet: Ids) -> Query:
    """The `pair_query` for two positions of a sequence, whatever its units are."""
    places = Places.of_units(pair.encoding, 0, np.zeros((0, 2), dtype=np.int64))
    return pair_query(places, pair.i, pair.j, at_first, at_second, alphabet)


def _top_ids(row: Doubles, alphabet: Ids, k: int, observed: int) -> Ids:
    """Ids of the K most probable symbols, ascending, including the observed symbol if any, and `OTHERS`."""
    order = np.argsort(-row, kind="stable")
    there = np.flatnonzero(alphabet[order] == observed)
    ids = alphabet[np.concatenate([order[there], np.delete(order, there)])[:k]]
    return np.append(np.sort(ids), OTHERS).astype(np.int32)


def _blocks(tried: Candidates, step: int) -> Iterator[tuple[Ids, Ids]]:
    """The symbols of the first place, then the symbols of the second place, at most `step` at a time."""
    first, second = (ids[ids != OTHERS] for ids in tried)
    for begin in range(0, len(first) + len(second), step):
        end = begin + step
        yield first[begin:end], second[max(0, begin - len(first)) : max(0, end - len(first))]


def _merge_blocks(
    answers: Iterator[Answer], blocks: Sequence[tuple[Ids, Ids]], tried: Candidates, alphabet: Ids
) -> Conditional:
    """The next answers, all about one pair, as one `Conditional`; all other symbols are merged into one."""
    columns = [None if ids[-1] != OTHERS else np.searchsorted(alphabet, ids[:-1]) for ids in tried]
    size = len(tried.first), len(tried.second)
    kind = np.float64 if size[0] * size[1] <= _DOUBLES else np.float32
    tables = np.empty(size, dtype=kind), np.empty(size[::-1], dtype=kind)
    scales, done, marginals = (np.zeros(size[0]), np.zeros(size[1])), [0, 0], []
    for block in blocks:
        answer = next(answers)
        rows, sums = answer.values[Rows.name], answer.values[Normaliser.name]
        marginals = [(_lump_columns(rows[side], columns[side]), sums[side]) for side in (0, 1)]
        begin = 2
        for side, symbols in enumerate(block):
            here, there = slice(begin, begin + len(symbols)), slice(done[side], done[side] + len(symbols))
            tables[side][there] = _lump_columns(rows[here], columns[1 - side])
            scales[side][there] = sums[here]
            begin, done[side] = here.stop, there.stop
    for side in (0, 1):
        if columns[side] is not None:
            tables[side][-1] = _row_of_others(
                marginals[side][0][-1], marginals[1 - side][0], tables[1 - side][:-1, -1]
            )
            scales[side][-1] = marginals[1 - side][1]
    return Conditional(marginals[0][0].astype(kind), marginals[1][0].astype(kind), *tables, *scales)


def _lump_columns(rows: Doubles, columns: Longs | None) -> Doubles:
    """(..., K + 1) log-probabilities of the selected columns, and of all others together."""
    rows = rows.astype(np.float64)
    if columns is None:
        return rows
    excluded = np.delete(rows, columns, axis=-1)
    return np.concatenate(
        [rows[..., columns], np.logaddexp.reduce(excluded, axis=-1, keepdims=True)], axis=-1
    )


def _row_of_others(log_none: float, partner: Doubles, none_given_partner: Doubles) -> Doubles:
    """(K + 1,) log-probabilities of the other place if none of the candidates is at this one.

    They follow from Bayes's rule and the law of total probability, which the conditionals of one joint
    distribution fulfil. If the candidates leave no probability for this case, the two places are treated as
    independent.

    Args:
        log_none: log-probability that no candidate is at this place, while both are hidden.
        partner: (K + 1,) log-probabilities of the other place, while both are hidden.
        none_given_partner: (K,) log-probability that no candidate is at this place, for each candidate at
            the other.
    """
    cells = np.exp(partner[:-1] + none_given_partner)
    remainder = np.exp(log_none) - cells.sum()
    row = np.append(cells, remainder if remainder > 0 else np.exp(log_none + partner[-1]))
    log_probs: Doubles = np.log(np.maximum(row / row.sum(), _LEAST))
    return log_probs


def mask_predict(conditional: Conditional, tried: Candidates) -> tuple[int, int]:
    """Rows of the symbols that mask-predict puts at both places (Ghazvininejad et al. 2019).

    Each place starts with the symbol that is most probable while both are hidden. Then, in each round, the
    symbol with the lower probability is replaced by the most probable symbol given the other.
    """
    sizes = [int((ids != OTHERS).sum()) for ids in tried]
    marginals, tables = conditional[:2], (conditional.given_second, conditional.given_first)
    symbols = [int(row[:size].argmax()) for row, size in zip(marginals, sizes, strict=True)]
    sure = [float(row[symbol]) for row, symbol in zip(marginals, symbols, strict=True)]
    for _ in range(_REFINED):
        side = int(sure[1] < sure[0])
        row = tables[side][symbols[1 - side]]
        symbols[side] = int(row[: sizes[side]].argmax())
        sure[side] = float(row[symbols[side]])
    return symbols[0], symbols[1]


# Joint distributions


def product_joint(conditional: Conditional) -> Doubles:
    """(A, B) log joint distribution of two independent places: the product of the marginals."""
    return _joint(conditional, lambda rows: conditional.first[rows, None] + conditional.second)


def mrf_joint(conditional: Conditional) -> Doubles:
    """(A, B) log joint distribution of the Markov random field with conditional log-probabilities.

    They are the potentials of the field.
    """
    return _joint(conditional, lambda rows: conditional.given_first[rows] + conditional.given_second.T[rows])


def logit_mrf_joint(conditional: Conditional) -> Doubles:
    """(A, B) log joint distribution of the Markov random field with conditional logits as potentials."""
    of_second, of_first = conditional.given_first, conditional.given_second.T
    scale_first, scale_second = conditional.scale_first[:, None], conditional.scale_second
    return _joint(
        conditional, lambda rows: of_second[rows] + of_first[rows] + (scale_first[rows] + scale_second)
    )


def hcb_joint(conditional: Conditional) -> Doubles:
    """(A, B) log joint distribution according to Hammersley, Clifford and Besag.

    It is built around the most probable symbol of the first place.
    """
    pivot, of_first = int(conditional.first.argmax()), conditional.given_second.T
    ratio = conditional.given_first[pivot] - of_first[pivot]
    return _joint(conditional, lambda rows: of_first[rows] + ratio)


def chain_joint(conditional: Conditional) -> Doubles:
    """(A, B) log joint distribution: the mean of p(x_i) p(x_j | x_i) and p(x_j) p(x_i | x_j)."""
    first, second = conditional.first[:, None], conditional.second
    of_second, of_first = conditional.given_first, conditional.given_second.T
    return _joint(conditional, lambda rows: _log_add(first[rows] + of_second[rows], of_first[rows] + second))


class JointFit(NamedTuple):
    """The result of Arnold-Gokhale.

    Args:
        joint: (A, B) log joint distribution.
        steps: number of steps.
        change: change of the marginals in the last step, in sum.
    """

    joint: Doubles
    steps: int
    change: float


def arnold_gokhale(conditional: Conditional, steps: int | None = None, *, uniform: bool = True) -> JointFit:
    """The joint distribution that is nearest to both conditionals, by summed divergence.

    The source is Arnold and Gokhale (1998). In each step, q(a, b) is proportional to (p(a | b) + p(b | a)) /
    (1 / q(a) + 1 / q(b)) with the previous q. The state therefore consists of two marginals. They start with
    those of the model while both places are hidden, and converge in few steps. After every two steps, the
    following ones are extrapolated (SQUAREM, scheme S3 of Varadhan and Roland 2008).

    Args:
        conditional: the conditionals of a model.
        steps: number of steps; None iterates until the marginals have converged, and never starts with
            uniform ones.
        uniform: whether to start with uniform marginals, as published.
    """
    of_second, of_first = conditional.given_first, conditional.given_second.T
    sums = np.exp(of_second)
    for rows in _slices(sums):
        sums[rows] += np.exp(of_first[rows])
    marginals = conditional[:2]
    begin = marginals if steps is None or not uniform else [np.zeros(len(logs)) for logs in marginals]
    state = np.concatenate([np.exp(x.astype(np.float64) - np.logaddexp.reduce(x)) for x in begin])
    change, done, calm, max_steps = np.inf, 1, 0, ROUNDS if steps is None else steps
    previous, size = state, len(conditional.first)
    while done < max_steps and (steps is not None or calm < _CALM):
        moved = _next_marginals(sums, state)
        change, done = float(np.abs(moved - state).sum()), done + 1
        calm = calm + 1 if change < TOLERANCE else 0
        extrapolate = steps is None and done % 2 and not calm
        previous, state = state, _extrapolate(previous, state, moved, size) if extrapolate else moved
    first, second = np.split(-np.log(np.maximum(state, _LEAST)), [size])
    for rows in _slices(sums):
        sums[rows] = _log_add(of_second[rows], of_first[rows])
        sums[rows] -= _log_add(first[rows, None], second)
    return JointFit(_normalise(sums), done, change)


def _next_marginals(sums: Doubles, state: Doubles) -> Doubles:
    """(A + B,) the marginals after one more step."""
    first_shares, second_shares = np.split(np.maximum(state, _TINY).astype(sums.dtype), [len(sums)])
    first, second = np.zeros(len(first_shares)), np.zeros(len(second_shares))
    for rows in _slices(sums):
        here = first_shares[rows, None]
        weighted = here * second_shares
        weighted /= here + second_shares
        weighted *= sums[rows]
        first[rows] = weighted.sum(axis=1)
        second += weighted.sum(axis=0)
    return np.concatenate([first / first.sum(), second / second.sum()])


def _extrapolate(state_0: Doubles, state_1: Doubles, state_2: Doubles, size: int) -> Doubles:
    """(A + B,) the marginals extrapolated from three successive states, in logarithms.

    No probability gets far from the probability of the last state. The first marginal has `size` entries.
    """
    begin, middle, end = (np.log(np.maximum(x, _LEAST)) for x in (state_0, state_1, state_2))
    step, bend = middle - begin, end - 2 * middle + begin
    length = max(1.0, float(np.sqrt((state_2 @ step**2) / max(state_2 @ bend**2, _TINY))))
    there = np.clip(begin + 2 * length * step + length**2 * bend, end - _FAR, end + _FAR)
    return np.concatenate([x / x.sum() for x in np.split(np.exp(there), [size])])


METHODS: Mapping[str, Callable[[Conditional], Doubles]] = {
    "product": product_joint,
    "mrf": mrf_joint,
    "mrf-logits": logit_mrf_joint,
    "hcb": hcb_joint,
    "chain": chain_joint,
    "ag": lambda conditional: arnold_gokhale(conditional).joint,
}
"""Constructions by name: from a `Conditional` with all symbols of both places to (A, B) log-probabilities."""


def _joint(conditional: Conditional, cells: Callable[[slice], Doubles]) -> Doubles:
    """(A, B) log-probabilities of a joint distribution, computed in one matrix.

    Args:
        conditional: the conditionals of a model.
        cells: function that returns some rows of the log joint distribution, up to a constant.
    """
    joint = np.empty_like(conditional.given_first)
    for rows in _slices(joint):
        joint[rows] = cells(rows)
    return _normalise(joint)


def _normalise(joint: Doubles) -> Doubles:
    """Turn logarithms of weights into log-probabilities, in place; the sum is computed row by row."""
    joint -= np.logaddexp.reduce([_log_sum(joint[rows], axis=None).item() for rows in _slices(joint)])
    return joint


def _log_sum(logs: Doubles, axis: int | None) -> Doubles:
    """The logarithm of the sum of exponentials along an axis, which is kept.

    It takes a tenth of the time of `np.logaddexp.reduce`, which adds number by number.
    """
    peak = logs.max(axis=axis, keepdims=True)
    log_sum: Doubles = peak + np.log(np.exp(logs - peak).sum(axis=axis, keepdims=True))
    return log_sum


def _log_add(first: Doubles, second: Doubles) -> Doubles:
    """The logarithm of the sum of two exponentials: `np.logaddexp` in a fifth of its time."""
    log_sum: Doubles = np.maximum(first, second) + np.log1p(np.exp(-np.abs(first - second)))
    return log_sum


def _slices(matrix: Doubles) -> Iterator[slice]:
    """Slices of the rows of a matrix, each small enough for the cache of a processor."""
    step = max(1, _CELLS // matrix.shape[1])
    ends = [*range(0, len(matrix), step), len(matrix)]
    return (slice(*ends) for ends in pairwise(ends))


# Measures


def deviation(conditional: Conditional) -> float:
    """The distance of two conditionals from the conditionals of one joint distribution; 0 if they have one.

    With C = log p(a | b) - log p(b | a), it is the mean square of C + C.. - Ci. - C.j (Arnold and Press
    1989). A dot is the log of a sum of exponentials.
    """
    ratio = conditional.given_second.T - conditional.given_first
    of_first = np.concatenate([_log_sum(ratio[rows], axis=1) for rows in _slices(ratio)])
    of_second = reduce(_log_add, (_log_sum(ratio[rows], axis=0) for rows in _slices(ratio)))
    ratio += _log_sum(of_first, axis=0) - of_second
    ratio -= of_first
    return float(np.mean(np.square(ratio, out=ratio)))


def joint_measures(conditional: Conditional, joint: Doubles, a: int, b: int) -> dict[str, float]:
    """Perplexities of a joint distribution at a pair of symbols, and divergences of its conditionals.

    All values are in nats:

    * u: logarithm of the unary perplexity, -(log q(a | b) + log q(b | a)) / 2;
    * p: logarithm of the pairwise perplexity, -log q(a, b) / 2;
    * g_kl: mean of KL(p || q) over both conditionals, given the observed symbols;
    * a_kl: mean of KL(p || q) over both conditionals and all given symbols;
    * jsd: mean Jensen-Shannon divergence over both conditionals and all given symbols.

    Args:
        conditional: the conditionals of a model, p.
        joint: (A, B) log joint distribution, q.
        a, b: row and column of the observed symbols.
    """
    of_second, of_first = (
        _divergences(conditional.given_first, joint),
        _divergences(conditional.given_second, joint.T),
    )
    means = np.concatenate([of_second, of_first], axis=1).mean(axis=1)
    row, column = np.logaddexp.reduce(joint[a]), np.logaddexp.reduce(joint[:, b])
    return {
        "u": float(row + column) / 2 - float(joint[a, b]),
        "p": -float(joint[a, b]) / 2,
        "g_kl": float(of_second[0, a] + of_first[0, b]) / 2,
        "a_kl": float(means[0]),
        "jsd": float(means[1]),
    }


def unary_perplexities(conditional: Conditional, a: int, b: int) -> dict[str, float]:
    """The perplexities of the model itself, in nats: from its conditionals (u) and from its marginals (p)."""
    return {
        "u": -float(conditional.given_first[a, b] + conditional.given_second[b, a]) / 2,
        "p": -float(conditional.first[a] + conditional.second[b]) / 2,
    }


def _divergences(table: Doubles, joint: Doubles) -> Doubles:
    """(2, A) KL(p || q) and Jensen-Shannon divergence between each row p and the same row q of the joint."""
    divergences = []
    for rows in _slices(joint):
        p, q = table[rows], joint[rows] - _log_sum(joint[rows], axis=1)
        of_p, of_q = np.exp(p), np.exp(q)
        middle = np.log(np.maximum((of_p + of_q) / 2, _TINY))
        halves = (_expectations(of_p, p - middle), _expectations(of_q, q - middle))
        divergences.append([_expectations(of_p, p - q), (halves[0] + halves[1]) / 2])
    return np.concatenate(divergences, axis=1)


def _expectations(shares: Doubles, values: Doubles) -> Doubles:
    """(A,) the mean of each row of values, weighted by its shares; values with share 0 do not count."""
    means: Doubles = np.where(shares > 0, shares * values, 0.0).sum(axis=1)
    return means
