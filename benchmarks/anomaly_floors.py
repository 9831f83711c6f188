"""Baselines for sessions of event ids. Each takes about ten lines. Higher values are more unusual."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from anomaly_sessions import Session
from ngram import NGram
from numpy.typing import NDArray

from seqmlm.engine.expert import COUNTS_ALONE, CountExpert, fit_weights
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.engine.units import Units

Doubles = NDArray[np.float64]
Floor = Callable[[Sequence[Session]], Doubles]

ORDERS = (2, 3, 5)

_NEAR = 6


def floors(train: Sequence[Session], *, edit: bool = False) -> dict[str, Floor]:
    """Every baseline, fitted to normal sessions.

    Args:
        train: normal sessions.
        edit: also use the edit distance to the nearest training session, which is slow.
    """
    known = {event for session in train for event in session}
    sequences, multisets = set(train), {tuple(sorted(s)) for s in train}
    common = set.intersection(*map(set, train))
    neighbour = _neighbour(train)
    fitted: dict[str, Floor] = {
        "flag everything": lambda ss: np.ones(len(ss)),
        "length": _length(train),
        "unseen event": lambda ss: np.array([sum(e not in known for e in s) for s in ss], float),
        "missing event": lambda ss: np.array([len(common - set(s)) for s in ss], float),
        "unseen sequence": lambda ss: np.array([s not in sequences for s in ss], float),
        "unseen multiset": lambda ss: np.array([tuple(sorted(s)) not in multisets for s in ss], float),
        "neighbour": neighbour,
        "unseen event, neighbour": lambda ss: (
            neighbour(ss) + 1e6 * ~np.array([known.issuperset(s) for s in ss])
        ),
    }
    for order in ORDERS:
        fitted |= _ngrams(train, order)
    fitted |= _reduced("counts", _counts(train))
    if edit:
        fitted["edit distance"] = _edit(train)
    return fitted


def l1_distance(train: Sequence[Session], sessions: Sequence[Session]) -> Doubles:
    """(N,) L1 distance of the counts of events to the nearest training session."""
    counted = _counter(train)
    vectors = np.unique(counted(train), axis=0)
    return np.array([np.abs(vectors - one).sum(1).min() for one in counted(sessions)])


def _counter(train: Sequence[Session]) -> Callable[[Sequence[Session]], Doubles]:
    """Sessions to (N, E + 1) counts; the last column counts events that training does not have."""
    number = {event: i for i, event in enumerate(sorted({e for s in train for e in s}))}

    def counted(sessions: Sequence[Session]) -> Doubles:
        rows = np.zeros((len(sessions), len(number) + 1))
        for row, session in zip(rows, sessions, strict=True):
            for event, count in Counter(session).items():
                row[number.get(event, -1)] += count
        return rows

    return counted


def _neighbour(train: Sequence[Session]) -> Floor:
    """Euclidean distance of log counts to the nearest training session."""
    counted = _counter(train)
    known = np.log1p(np.unique(counted(train), axis=0))

    def score(sessions: Sequence[Session]) -> Doubles:
        rows = np.log1p(counted(sessions))
        squared = (rows**2).sum(1)[:, None] + (known**2).sum(1) - 2 * rows @ known.T
        return np.asarray(np.sqrt(np.maximum(squared, 0).min(1)))

    return score


def _length(train: Sequence[Session]) -> Floor:
    middle = np.log(np.median([len(s) for s in train]))
    return lambda ss: np.array([abs(np.log(len(s)) - middle) for s in ss])


def _ngrams(train: Sequence[Session], order: int) -> dict[str, Floor]:
    """Surprisal by the n-gram of `seqmlm.evaluation` with tuned smoothing; the session end counts too."""
    number = {event: i + 2 for i, event in enumerate(sorted({e for s in train for e in s}))}

    def spelled(session: Session) -> list[tuple[int, ...]]:
        return [(number.get(event, 1),) for event in session] + [(0,)]  # 1: never seen, 0: the end

    size = len(number) + 2
    model = NGram(order=order, unigram=np.full(size, 1 / size)).fit(map(spelled, train))

    def bits(sessions: Sequence[Session]) -> list[Doubles]:
        ends = np.cumsum([len(s) + 1 for s in sessions])
        return np.split(model.bits(map(spelled, sessions)), ends[:-1])

    return _reduced(f"{order}-gram", bits)


def _counts(train: Sequence[Session]) -> Callable[[Sequence[Session]], list[Doubles]]:
    """Bits by n-grams of both directions and by the rest of the session (`engine/expert.py`).

    Every tenth session selects smoothing and weights.
    """
    number = {event: i + 2 for i, event in enumerate(sorted({e for s in train for e in s}))}
    space = TokenSpace(
        size=len(number) + 2, pad=0, mask=0, unk=None, start=None, end=None, special=(0,)
    )  # 1: never seen

    def encoded(sessions: Sequence[Session]) -> list[Encoding]:
        ids = [np.array([number.get(event, 1) for event in one], dtype=np.int32) for one in sessions]
        return [Encoding(ids=one, groups=np.arange(len(one), dtype=np.int32)) for one in ids]

    rule, held = Units(space), encoded(train[9::10])
    unigram = np.append(0.0, np.full(len(number) + 1, 1 / (len(number) + 1)))
    fitted = CountExpert.fit(encoded([s for i, s in enumerate(train) if i % 10 != 9]), rule, unigram)
    units = fitted.hash_units(held)
    tuned = fitted.with_best_smoothing(units)
    weights = fit_weights(None, tuned.count_log_probs(units))
    expert = replace(tuned, weights={COUNTS_ALONE: weights})

    def bits(sessions: Sequence[Session]) -> list[Doubles]:
        asked = expert.hash_units(encoded(sessions))
        ends = np.cumsum([len(s) for s in sessions])
        return np.split(-expert.count_mixture(expert.count_log_probs(asked)), ends[:-1])

    return bits


def _reduced(name: str, bits: Callable[[Sequence[Session]], list[Doubles]]) -> dict[str, Floor]:
    """The values that rank sessions, from the bits of their events."""
    known: dict[Session, Doubles] = {}  # the four ways read the same bits

    def bits_of(sessions: Sequence[Session]) -> list[Doubles]:
        new = list(dict.fromkeys(s for s in sessions if s not in known))
        if new:
            known.update(zip(new, bits(new), strict=True))
        return [known[s] for s in sessions]

    def reduced(reduce: Callable[[Doubles], float]) -> Floor:
        return lambda ss: np.array([reduce(bits) for bits in bits_of(ss)])

    ways: dict[str, Callable[[Doubles], float]] = {
        "mean": lambda bits: float(bits.mean()),
        "max": lambda bits: float(bits.max()),
        "sum": lambda bits: float(bits.sum()),
        "top 5": lambda bits: float(np.sort(bits)[-5:].mean()),
    }
    return {f"{name} {called}": reduced(way) for called, way in ways.items()}


def _edit(train: Sequence[Session]) -> Floor:
    """Levenshtein distance to the nearest distinct training session, computed for many sessions at once.

    If a session is `_NEAR` events longer or shorter, it is at least that far away. It is left out if a nearer
    session is found.
    """
    known = sorted(set(train), key=len)
    sizes = np.array([len(one) for one in known])

    def nearest(session: Session) -> float:
        first, last = np.searchsorted(sizes, [len(session) - _NEAR, len(session) + _NEAR + 1])
        found = _levenshtein(session, known[first:last])
        return found if found <= _NEAR else _levenshtein(session, known)

    return lambda ss: np.array([nearest(s) for s in ss])


def _levenshtein(session: Session, known: Sequence[Session]) -> float:
    """The smallest distance to the known sessions, which are in order of length; inf if there are none."""
    if not known:
        return float("inf")
    table = np.full((len(known), len(known[-1])), -1)
    for row, one in zip(table, known, strict=True):
        row[: len(one)] = one
    steps = np.arange(table.shape[1] + 1)
    distance = np.tile(steps, (len(known), 1))
    for at, event in enumerate(session, 1):
        kept = np.minimum(distance[:, 1:] + 1, distance[:, :-1] + (table != event))
        whole = np.concatenate([np.full((len(known), 1), at), kept], axis=1)
        distance = np.minimum.accumulate(whole - steps, axis=1) + steps
    return float(distance[np.arange(len(known)), [len(one) for one in known]].min())
