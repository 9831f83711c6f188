"""Joint distributions of two places, made of what a masked language model says of each given the other.

The conditionals that a model has of two places hardly ever belong to one joint distribution. The
constructions that Torroba Hennigen and Kim (2023) compare each give one, (A, B) log-probabilities, and
measures say how far its conditionals are from those of the model. `given` asks; all else is a function of its
`Conditional`. The trade-off: both conditionals are held, two matrices, and a joint is a third; in float32
where the vocabulary is large, which for 8,000 symbols is 768 MB.
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
from seqmlm.structure.base import Places, copies
from seqmlm.structure.maps import Doubles, Longs

if TYPE_CHECKING:
    from seqmlm.engine.conditionals import Conditionals

TOLERANCE, ROUNDS = 1e-4, 1000
"""Of Arnold-Gokhale: it has settled where a step moves its marginals by less, in sum; most steps."""

OTHERS = -1
"""In place of a token id: all that are no candidates."""

_DOUBLES = 1 << 22  # elements of a matrix that is held in float64
_BLOCK = 1 << 22  # elements that are asked at once
_CELLS = 1 << 17  # elements of a temporary, which a processor's cache holds
_REFINED = 5  # rounds of mask-predict in which one of two places is hidden, of ten
_LEAST = 1e-300  # probability that is never reached, so that its logarithm is finite
_TINY = 1e-30  # the same in single precision
_FAR = float(np.log(3))  # from the last step, where two steps further are foretold
_CALM = 2  # steps of so little change that marginals have settled: one may follow what was foretold


class Conditional(NamedTuple):
    """Log-probabilities at both places of a pair.

    Args:
        first, second: (A,), (B,) while both are hidden.
        given_first: (K, B) of the second for symbols at the first. given_second: (K', A) likewise.
        scale_first, scale_second: (K,), (K') log of the sum of exponentials that each of these rows was
            divided by: added to a row it is logits again.
    """

    first: Doubles
    second: Doubles
    given_first: Doubles
    given_second: Doubles
    scale_first: Doubles = np.zeros(1)
    scale_second: Doubles = np.zeros(1)


class Pair(NamedTuple):
    """Two places of a sequence: positions of tokens."""

    encoding: Encoding
    i: int
    j: int


class Candidates(NamedTuple):
    """Token ids (K,) that are tried at the two places; of all others together `OTHERS`, the last one."""

    first: Ids
    second: Ids


# What the model is asked


def pair_query(places: Places, i: int, j: int, at_first: Ids, at_second: Ids, allowed: Ids) -> Query:
    """Both places while both are hidden; then one of them for each symbol to try at the other. Answers are
    about the allowed token ids (A,)."""
    one, two = at_first.tolist(), at_second.tolist()
    behind = 1 + len(one)
    hidden = [
        (0, i),
        (0, j),
        *((1 + n, j) for n in range(len(one))),
        *((behind + n, i) for n in range(len(two))),
    ]
    put = [*((1 + n, i, a) for n, a in enumerate(one)), *((behind + n, j, b) for n, b in enumerate(two))]
    return copies(places, hidden, hidden, put, allowed)


def read_pair(answer: Answer, at_first: int, at_second: int) -> Conditional:
    """The answer to `pair_query`."""
    rows = answer.values[Rows.name].astype(np.float64)
    return Conditional(rows[0], rows[1], rows[2 : 2 + at_first], rows[2 + at_first :])


def most_probable(
    model: Conditionals, pairs: Sequence[Pair], alphabet: Ids, k: int | None, *, observed: bool = False
) -> list[Candidates]:
    """For each pair the K most probable symbols of each place alone, while both are hidden, and `OTHERS`; all
    of the alphabet (A,), where K is None or no less. With `observed`, what stands there is always among
    them."""
    if k is None or k >= len(alphabet):
        return [Candidates(alphabet, alphabet)] * len(pairs)
    hidden = model.ask([_query(one, alphabet[:0], alphabet[:0], alphabet) for one in pairs], (Rows(),))
    found = []
    for pair, answer in zip(pairs, hidden, strict=True):
        seen = [pair.encoding.ids[at] if observed else OTHERS for at in (pair.i, pair.j)]
        rows = zip(answer.values[Rows.name], seen, strict=True)
        found.append(Candidates(*(_most_probable(row, alphabet, k, own) for row, own in rows)))
    return found


def given(
    model: Conditionals, pairs: Sequence[Pair], alphabet: Ids, tried: Sequence[Candidates] | None = None
) -> Iterator[Conditional]:
    """Ask a model about pairs, lazily and in order: at either place the symbols `tried` for it, or all of the
    alphabet (A,) of token ids that may stand there."""
    tried = [Candidates(alphabet, alphabet)] * len(pairs) if tried is None else tried
    step = max(1, _BLOCK // len(alphabet))
    blocks = [[*_blocks(own, step)] for own in tried]
    queries = (_query(one, *block, alphabet) for one, own in zip(pairs, blocks, strict=True) for block in own)
    answers = model.ask(queries, (Rows(), Normaliser()))
    return (_joined(answers, own, each, alphabet) for each, own in zip(tried, blocks, strict=True))


def _query(pair: Pair, at_first: Ids, at_second: Ids, alphabet: Ids) -> Query:
    places = Places.of_units(pair.encoding, 0, np.zeros((0, 2), dtype=np.int64))
    return pair_query(places, pair.i, pair.j, at_first, at_second, alphabet)


def _most_probable(row: Doubles, alphabet: Ids, k: int, observed: int) -> Ids:
    """The ids of the K most probable symbols, ascending, one observed symbol among them, and `OTHERS`."""
    order = np.argsort(-row, kind="stable")
    there = np.flatnonzero(alphabet[order] == observed)
    taken = alphabet[np.concatenate([order[there], np.delete(order, there)])[:k]]
    return np.append(np.sort(taken), OTHERS).astype(np.int32)


def _blocks(tried: Candidates, step: int) -> Iterator[tuple[Ids, Ids]]:
    """The symbols of the first place, then those of the second, so many at a time."""
    first, second = (own[own != OTHERS] for own in tried)
    for begin in range(0, len(first) + len(second), step):
        end = begin + step
        yield first[begin:end], second[max(0, begin - len(first)) : max(0, end - len(first))]


def _joined(
    answers: Iterator[Answer], blocks: Sequence[tuple[Ids, Ids]], tried: Candidates, alphabet: Ids
) -> Conditional:
    """The answers about a pair in one, those that are no candidates as one symbol."""
    columns = [None if own[-1] != OTHERS else np.searchsorted(alphabet, own[:-1]) for own in tried]
    size = len(tried.first), len(tried.second)
    kind = np.float64 if size[0] * size[1] <= _DOUBLES else np.float32
    tables = np.empty(size, dtype=kind), np.empty(size[::-1], dtype=kind)
    scales, done, alone = (np.zeros(size[0]), np.zeros(size[1])), [0, 0], []
    for block in blocks:
        answer = next(answers)
        rows, sums = answer.values[Rows.name], answer.values[Normaliser.name]
        alone = [(_lumped(rows[side], columns[side]), sums[side]) for side in (0, 1)]
        begin = 2
        for side, symbols in enumerate(block):
            here, there = slice(begin, begin + len(symbols)), slice(done[side], done[side] + len(symbols))
            tables[side][there] = _lumped(rows[here], columns[1 - side])
            scales[side][there] = sums[here]
            begin, done[side] = here.stop, there.stop
    for side in (0, 1):
        if columns[side] is not None:
            tables[side][-1] = _rest(alone[side][0][-1], alone[1 - side][0], tables[1 - side][:-1, -1])
            scales[side][-1] = alone[1 - side][1]
    return Conditional(alone[0][0].astype(kind), alone[1][0].astype(kind), *tables, *scales)


def _lumped(rows: Doubles, columns: Longs | None) -> Doubles:
    """(..., K + 1) log-probabilities of some columns, and of all others together."""
    rows = rows.astype(np.float64)
    if columns is None:
        return rows
    others = np.delete(rows, columns, axis=-1)
    return np.concatenate([rows[..., columns], np.logaddexp.reduce(others, axis=-1, keepdims=True)], axis=-1)


def _rest(own: float, other: Doubles, given: Doubles) -> Doubles:
    """(K + 1,) log-probabilities of the other place where none of the candidates stands at this one.

    By Bayes's rule and the law of total probability, which conditionals of one joint fulfil; where others
    leave nothing for two that are no candidates, these are taken for independent.

    Args:
        own: log-probability that no candidate stands at this place, other: (K + 1,) of the other place, while
            both are hidden. given: (K,) that none stands here, for each candidate there.
    """
    cells = np.exp(other[:-1] + given)
    left = np.exp(own) - cells.sum()
    row = np.append(cells, left if left > 0 else np.exp(own + other[-1]))
    found: Doubles = np.log(np.maximum(row / row.sum(), _LEAST))
    return found


def mask_predict(own: Conditional, tried: Candidates) -> tuple[int, int]:
    """What mask-predict puts at both places (Ghazvininejad et al. 2019): the symbols that are most probable
    alone; then, again and again, the less sure one anew, given the other."""
    sizes = [int((ids != OTHERS).sum()) for ids in tried]
    alone, tables = own[:2], (own.given_second, own.given_first)
    found = [int(row[:size].argmax()) for row, size in zip(alone, sizes, strict=True)]
    sure = [float(row[symbol]) for row, symbol in zip(alone, found, strict=True)]
    for _ in range(_REFINED):
        side = int(sure[1] < sure[0])
        row = tables[side][found[1 - side]]
        found[side] = int(row[: sizes[side]].argmax())
        sure[side] = float(row[found[side]])
    return found[0], found[1]


# Joint distributions


def product(own: Conditional) -> Doubles:
    """The marginals while both are hidden, as if the places were independent."""
    return _joint(own, lambda rows: own.first[rows, None] + own.second)


def mrf(own: Conditional) -> Doubles:
    """A Markov random field whose potentials are the log-probabilities of both conditionals."""
    return _joint(own, lambda rows: own.given_first[rows] + own.given_second.T[rows])


def mrf_logits(own: Conditional) -> Doubles:
    """The same with logits as potentials."""
    one, two, of_first = own.scale_first[:, None], own.scale_second, own.given_second.T
    return _joint(own, lambda rows: own.given_first[rows] + of_first[rows] + (one[rows] + two))


def hcb(own: Conditional) -> Doubles:
    """Hammersley, Clifford and Besag, around the symbol of the first place that is most probable alone."""
    pivot, of_first = int(own.first.argmax()), own.given_second.T
    ratio = own.given_first[pivot] - of_first[pivot]
    return _joint(own, lambda rows: of_first[rows] + ratio)


def chain(own: Conditional) -> Doubles:
    """The mean of p(x_i) p(x_j | x_i) and p(x_j) p(x_i | x_j)."""
    one, of_first = own.first[:, None], own.given_second.T
    return _joint(
        own, lambda rows: _sum_of_two(one[rows] + own.given_first[rows], of_first[rows] + own.second)
    )


class Settled(NamedTuple):
    """What Arnold-Gokhale came to: the joint, the steps, and by how much the last one moved marginals."""

    joint: Doubles
    steps: int
    change: float


def arnold_gokhale(own: Conditional, steps: int | None = None, *, uniform: bool = True) -> Settled:
    """The joint that is nearest to both conditionals, by summed divergence (Arnold and Gokhale 1998).

    q(a, b) is proportional to (p(a | b) + p(b | a)) / (1 / q(a) + 1 / q(b)) of the step before: its state is
    two marginals. They begin as the model has them while both are hidden, and settle in few steps: after
    every two, where further ones lead is foretold (SQUAREM, scheme S3 of Varadhan and Roland 2008).

    Args:
        steps: so many; None: until the marginals have settled, and not from uniform ones.
        uniform: begin with uniform marginals, as published.
    """
    both = np.exp(own.given_first)
    for rows in _slices(both):
        both[rows] += np.exp(own.given_second.T[rows])
    begin = own[:2] if steps is None or not uniform else [np.zeros(len(one)) for one in own[:2]]
    state = np.concatenate([np.exp(x.astype(np.float64) - np.logaddexp.reduce(x)) for x in begin])
    change, done, calm, most = np.inf, 1, 0, ROUNDS if steps is None else steps
    before = state
    while done < most and (steps is not None or calm < _CALM):
        new = _marginals(both, state)
        change, done = float(np.abs(new - state).sum()), done + 1
        calm = calm + 1 if change < TOLERANCE else 0
        further = steps is None and done % 2 and not calm
        before, state = state, _foretold(before, state, new, len(own.first)) if further else new
    one, two = np.split(-np.log(np.maximum(state, _LEAST)), [len(own.first)])
    for rows in _slices(both):
        both[rows] = _sum_of_two(own.given_first[rows], own.given_second.T[rows])
        both[rows] -= _sum_of_two(one[rows, None], two)
    return Settled(_normal(both), done, change)


def _marginals(both: Doubles, state: Doubles) -> Doubles:
    """(A + B,) the marginals after a step."""
    one, two = np.split(np.maximum(state, _TINY).astype(both.dtype), [len(both)])
    first, second = np.zeros(len(one)), np.zeros(len(two))
    for rows in _slices(both):
        here = one[rows, None]
        weighted = here * two
        weighted /= here + two
        weighted *= both[rows]
        first[rows] = weighted.sum(axis=1)
        second += weighted.sum(axis=0)
    return np.concatenate([first / first.sum(), second / second.sum()])


def _foretold(start: Doubles, one: Doubles, two: Doubles, size: int) -> Doubles:
    """Where steps from `start` over `one` and `two` lead, by their logarithms; no share gets far from `two`.
    The first marginal has `size` shares."""
    begin, middle, end = (np.log(np.maximum(x, _LEAST)) for x in (start, one, two))
    step, bend = middle - begin, end - 2 * middle + begin
    length = max(1.0, float(np.sqrt((two @ step**2) / max(two @ bend**2, _TINY))))
    there = np.clip(begin + 2 * length * step + length**2 * bend, end - _FAR, end + _FAR)
    return np.concatenate([x / x.sum() for x in np.split(np.exp(there), [size])])


METHODS: Mapping[str, Callable[[Conditional], Doubles]] = {
    "product": product,
    "mrf": mrf,
    "mrf-logits": mrf_logits,
    "hcb": hcb,
    "chain": chain,
    "ag": lambda own: arnold_gokhale(own).joint,
}
"""By name: (A, B) log-probabilities of a `Conditional` that knows all symbols of both places."""


def _joint(own: Conditional, cells: Callable[[slice], Doubles]) -> Doubles:
    """(A, B) log-probabilities of what is known up to a factor of some rows at a time: one matrix is made."""
    joint = np.empty_like(own.given_first)
    for rows in _slices(joint):
        joint[rows] = cells(rows)
    return _normal(joint)


def _normal(joint: Doubles) -> Doubles:
    """Log-probabilities; the sum is made row by row."""
    joint -= np.logaddexp.reduce([_sum(joint[rows], axis=None).item() for rows in _slices(joint)])
    return joint


def _sum(logs: Doubles, axis: int | None) -> Doubles:
    """The logarithm of the sum of exponentials along an axis, which is kept; a tenth of the time that
    `np.logaddexp.reduce` takes, which goes number by number."""
    most = logs.max(axis=axis, keepdims=True)
    found: Doubles = most + np.log(np.exp(logs - most).sum(axis=axis, keepdims=True))
    return found


def _sum_of_two(one: Doubles, two: Doubles) -> Doubles:
    """The same of two: `np.logaddexp` in a fifth of its time."""
    found: Doubles = np.maximum(one, two) + np.log1p(np.exp(-np.abs(one - two)))
    return found


def _slices(matrix: Doubles) -> Iterator[slice]:
    step = max(1, _CELLS // matrix.shape[1])
    ends = [*range(0, len(matrix), step), len(matrix)]
    return (slice(*ends) for ends in pairwise(ends))


# Measures


def deviation(own: Conditional) -> float:
    """How far two conditionals are from those of one joint, by Arnold and Press (1989), 0 if they are its
    own: the mean square of C + C.. - Ci. - C.j with C = log p(a | b) - log p(b | a), where a dot is the log
    of a sum of exponentials."""
    ratio = own.given_second.T - own.given_first
    of_first = np.concatenate([_sum(ratio[rows], axis=1) for rows in _slices(ratio)])
    of_second = reduce(_sum_of_two, (_sum(ratio[rows], axis=0) for rows in _slices(ratio)))
    ratio += _sum(of_first, axis=0) - of_second
    ratio -= of_first
    return float(np.mean(np.square(ratio, out=ratio)))


def measures(own: Conditional, joint: Doubles, a: int, b: int) -> dict[str, float]:
    """How good a joint is at a pair of symbols, and how near its conditionals are to the model's; nats.

    Args:
        a, b: row and column of what stands there.

    Returns:
        u: of the unary perplexity, -(log q(a | b) + log q(b | a)) / 2. p: of the pairwise one, -log q(a, b) /
        2. g_kl: the mean of KL(p || q) of both conditionals given what stands there; a_kl: of those given any
        symbol. jsd: their Jensen-Shannon divergence.
    """
    of_second, of_first = _divergences(own.given_first, joint), _divergences(own.given_second, joint.T)
    every = np.concatenate([of_second, of_first], axis=1).mean(axis=1)
    row, column = np.logaddexp.reduce(joint[a]), np.logaddexp.reduce(joint[:, b])
    return {
        "u": float(row + column) / 2 - float(joint[a, b]),
        "p": -float(joint[a, b]) / 2,
        "g_kl": float(of_second[0, a] + of_first[0, b]) / 2,
        "a_kl": float(every[0]),
        "jsd": float(every[1]),
    }


def unary(own: Conditional, a: int, b: int) -> dict[str, float]:
    """The perplexities of the model itself, in nats: of its conditionals, and of its marginals."""
    return {
        "u": -float(own.given_first[a, b] + own.given_second[b, a]) / 2,
        "p": -float(own.first[a] + own.second[b]) / 2,
    }


def _divergences(table: Doubles, joint: Doubles) -> Doubles:
    """(2, A) KL(p || q) and the Jensen-Shannon divergence of each row p and q, of the joint."""
    found = []
    for rows in _slices(joint):
        p, q = table[rows], joint[rows] - _sum(joint[rows], axis=1)
        of_p, of_q = np.exp(p), np.exp(q)
        middle = np.log(np.maximum((of_p + of_q) / 2, _TINY))
        halves = (_expected(of_p, p - middle), _expected(of_q, q - middle))
        found.append([_expected(of_p, p - q), (halves[0] + halves[1]) / 2])
    return np.concatenate(found, axis=1)


def _expected(shares: Doubles, values: Doubles) -> Doubles:
    """(A,) the mean of each row, of what occurs."""
    found: Doubles = np.where(shares > 0, shares * values, 0.0).sum(axis=1)
    return found
