"""A cache model on top of an n-gram: counts within the same file improve predictions.

Sources: Tu et al. 2014, "On the localness of software"; Kuhn and De Mori 1990 for speech. The counts c are
over the units of the file that are not to be predicted. P_0 is the probability of the n-gram, and h_k are the
k - 1 units before:

    P_k(w) = (c(h_k w) + s_k P_{k-1}(w)) / (c(h_k) + s_k)        k = 1 .. order

As in `ngram.py`, the model knows the number of tokens of a unit. Therefore it counts only units with the same
number of tokens. The strengths s_k are selected on other files than the files they are applied to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from ngram import Unit
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

ORDER = 3
_STRENGTHS = tuple(2.0**e for e in range(-2, 12))
_SWEEPS = 2
_Context = tuple[Hashable, ...]


def cached_bits(
    base: Doubles,
    sequences: Sequence[Sequence[Unit]],
    chosen: Sequence[Sequence[int]],
    files: Sequence[Hashable],
    order: int = ORDER,
) -> Doubles:
    """-log2 P of chosen units by an n-gram with a cache.

    The files are divided in two halves; each uses the strengths that are best for the other.

    Args:
        base: (U,) -log2 P of each chosen unit by the n-gram, sequence after sequence.
        sequences: their units, as `unit_symbols` gives them.
        chosen: for each sequence the unit numbers to be predicted.
        files: for each sequence the file it belongs to; a file's sequences share a cache.
        order: units in the longest n-gram of the cache.

    Returns:
        (U,) bits.
    """
    events, contexts = _counts(sequences, chosen, files, order)
    half = np.repeat([_side(file) for file in files], [len(units) for units in chosen])
    bits = np.empty_like(base)
    for side in (False, True):
        own, other = half == side, half != side
        strengths = _tuned(base[other], events[other], contexts[other])
        bits[own] = _chain(base[own], events[own], contexts[own], strengths)
    return bits


def _side(file: Hashable) -> bool:
    return bool(sum(str(file).encode()) % 2)


def _counts(
    sequences: Sequence[Sequence[Unit]],
    chosen: Sequence[Sequence[int]],
    files: Sequence[Hashable],
    order: int,
) -> tuple[Doubles, Doubles]:
    """(U, order) counts in its file of each chosen unit after its context, and of the context."""
    events: dict[Hashable, Counter[_Context]] = {}
    contexts: dict[Hashable, Counter[_Context]] = {}
    for sequence, hidden, file in zip(sequences, map(set, chosen), files, strict=True):
        event, context = events.setdefault(file, Counter()), contexts.setdefault(file, Counter())
        for place, unit in enumerate(sequence):
            if unit and place not in hidden:
                for key in _keys(sequence, place, order):
                    context[key] += 1
                    event[(*key, unit)] += 1
    rows = [
        [
            (events[file][(*key, sequence[place])], contexts[file][key])
            for key in _keys(sequence, place, order)
        ]
        for sequence, wanted, file in zip(sequences, chosen, files, strict=True)
        for place in wanted
    ]
    table = np.array(rows, dtype=np.float64).reshape(len(rows), order, 2)
    return table[..., 0], table[..., 1]


def _keys(sequence: Sequence[Unit], place: int, order: int) -> list[_Context]:
    """The contexts of a unit: its number of tokens, and 0, 1, ... units before it."""
    size = len(sequence[place])
    return [(length, size, *sequence[max(0, place - length) : place]) for length in range(order)]


def _chain(base: Doubles, events: Doubles, contexts: Doubles, strengths: Sequence[float]) -> Doubles:
    bits = base
    for k, strength in enumerate(strengths):
        with np.errstate(divide="ignore"):
            seen = np.log2(events[:, k]) - np.log2(contexts[:, k] + strength)
            handed = math.log2(strength) - np.log2(contexts[:, k] + strength) - bits
        bits = -np.logaddexp2(seen, handed)
    return bits


def _tuned(base: Doubles, events: Doubles, contexts: Doubles) -> list[float]:
    """The strengths with the fewest bits, by coordinate descent; large ones without data."""
    strengths = [_STRENGTHS[-1]] * events.shape[1]
    for _ in range(_SWEEPS if len(base) else 0):
        for k in range(len(strengths)):
            trials = [[*strengths[:k], trial, *strengths[k + 1 :]] for trial in _STRENGTHS]
            costs = [float(_chain(base, events, contexts, trial).mean()) for trial in trials]
            strengths = trials[int(np.argmin(costs))]
    return strengths
