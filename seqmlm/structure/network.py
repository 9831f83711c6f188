"""Networks of named units over many sequences: values pooled by name, and direct apart from indirect.

The codes of patients, the kinds of lines: what has a name occurs in many sequences, and what one map says of
two of its units is noisy. A `Pool` reads maps one by one and holds a few figures for each pair of names that
occur together, at most the square of the number of names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from seqmlm.errors import printable
from seqmlm.evaluation.detection import Detection

Bools = NDArray[np.bool_]
Doubles = NDArray[np.float64]
Marks = NDArray[np.int8]

LINKED, INDIRECT, APART, UNTOLD = 1, 2, 0, -1
"""What a truth says of two units: that they depend on each other, only through others, not, or nothing."""

SEEN = 3
"""Sequences from which a link is listed by its value: the mean of one or two may be anything."""

_ADDED = 0.1  # to every count, so that a pair that never meets has a finite PMI


def indirect(values: Doubles) -> Bools:
    """(N, N) pairs i-k that are weaker than both i-j and j-k for some j.

    What reaches k from i through j alone cannot be more than either step passes on (the data processing
    inequality), so that of a triangle the weakest side is taken to be indirect: ARACNE, Margolin et al. 2006.
    A direct link that is weaker than a way around it is pruned as well.

    Args:
        values: (N, N) symmetric; NaN says nothing, and prunes nothing.

    >>> indirect(np.array([[0.0, 3.0, 1.0], [3.0, 0.0, 2.0], [1.0, 2.0, 0.0]]))[0].tolist()
    [False, False, True]
    """
    known = values.copy()
    np.fill_diagonal(known, np.nan)
    weaker = np.zeros(known.shape, dtype=np.bool_)
    for row in known:
        # A comparison with NaN is false.
        weaker |= known < np.minimum(row[:, None], row[None, :])
    return weaker


def outstanding(values: Doubles, judged: Bools, deviations: float = 3.0) -> float:
    """The value from which a pair of those judged (N, N) stands out of a map: the median and some standard
    deviations, estimated by 1.4826 x the median absolute deviation, which a few strong pairs hardly change.
    """
    found = values[judged & np.isfinite(values)]
    if not len(found):
        return math.inf
    middle = float(np.median(found))
    return middle + deviations * 1.4826 * float(np.median(np.abs(found - middle)))


@dataclass(frozen=True, kw_only=True)
class Link:
    """Two names over all sequences that have both.

    Args:
        first, second: the one that tends to be first, and the other.
        value: mean of the maps' values, each sequence counting once.
        count: sequences that have a value.
        lag: mean time from the first occurrence of `first` to that of `second`; NaN where times are unknown.
        pmi: pointwise mutual information of occurring in one sequence, nats, by counting alone.
        near: sequences in which the two are near each other.
        direct: not pruned by `indirect` among the means.
        truth: one of LINKED, INDIRECT, APART, UNTOLD.
    """

    first: str
    second: str
    value: float
    count: int
    lag: float
    pmi: float
    near: int
    direct: bool
    truth: int


@dataclass(slots=True)
class _Tally:
    """Sums over sequences, of a pair in the order of its names' numbers."""

    value: float = 0.0
    count: int = 0
    together: int = 0
    lag: float = 0.0
    timed: int = 0
    near: int = 0
    truth: int = UNTOLD


@dataclass(slots=True)
class Pool:
    """Figures of pairs of names, sequence after sequence."""

    _numbers: dict[str, int] = field(default_factory=dict)
    _having: Counter[str] = field(default_factory=Counter)  # sequences that have each name
    _pairs: dict[tuple[int, int], _Tally] = field(default_factory=dict)
    _sequences: int = 0

    def add(
        self,
        names: Sequence[str],
        values: Doubles,
        *,
        near: Bools,
        times: Mapping[str, float],
        truth: Marks | None = None,
    ) -> None:
        """Take in one sequence.

        Args:
            names: (N,) of its units; pairs of equal names are left out.
            values: (N, N) its map, NaN where a pair has no value.
            near: (N, N) which units are near each other.
            times: when a name first occurs, of the names for which that is known.
            truth: (N, N) what is known of its pairs.
        """
        own = list(dict.fromkeys(names))
        for name in own:
            self._numbers.setdefault(name, len(self._numbers))
        self._sequences += 1
        self._having.update(own)
        members = {name: np.flatnonzero([one == name for one in names]) for name in own}
        for pair in combinations(own, 2):
            one, two = sorted(pair, key=self._numbers.__getitem__)
            here = np.ix_(members[one], members[two])
            tally = self._pairs.setdefault((self._numbers[one], self._numbers[two]), _Tally())
            tally.together += 1
            tally.near += bool(near[here].any())
            found = values[here][np.isfinite(values[here])]
            if len(found):
                tally.value, tally.count = tally.value + float(found.mean()), tally.count + 1
            if one in times and two in times:
                tally.lag, tally.timed = tally.lag + times[two] - times[one], tally.timed + 1
            if truth is not None:
                tally.truth = _joined(tally.truth, truth[here])

    def links(self, fewest: int = 1) -> list[Link]:
        """All pairs with a value, the strongest first, but those that fewer than `SEEN` sequences have last;
        pairs in fewer sequences than `fewest` are left out, and prune nothing."""
        names = list(self._numbers)
        kept = {pair: own for pair, own in self._pairs.items() if own.count >= max(fewest, 1)}
        means = np.full((len(names), len(names)), np.nan)
        for (a, b), own in kept.items():
            means[a, b] = means[b, a] = own.value / own.count
        pruned = indirect(means)
        found = []
        for (a, b), own in kept.items():
            lag = own.lag / own.timed if own.timed else math.nan
            x, y = (b, a) if lag < 0 else (a, b)
            one, two = (self._having[names[name]] + _ADDED for name in (a, b))
            found.append(
                Link(
                    first=names[x],
                    second=names[y],
                    value=float(means[a, b]),
                    count=own.count,
                    lag=abs(lag),
                    pmi=math.log((own.together + _ADDED) / (one * two / self._sequences)),
                    near=own.near,
                    direct=not pruned[a, b],
                    truth=own.truth,
                )
            )
        return sorted(found, key=lambda one: (one.count < SEEN, -one.value, one.first, one.second))


def _joined(known: int, here: Marks) -> int:
    """What is known of two names, from what was known and what one sequence says."""
    said = {known, *np.unique(here).tolist()}
    return next((mark for mark in (LINKED, INDIRECT, APART) if mark in said), UNTOLD)


def measured(links: Sequence[Link]) -> dict[str, float]:
    """How well links are ranked where a truth tells of them, by value and by counting alone.

    AUPRC and AUROC of the mean value, of the size of PMI (what excludes each other is linked as well, and a
    map has no sign) and of the number of sequences in which two are near each other;
    the same AUROC of links against indirect pairs alone; and precision and recall of what is not pruned.
    """
    told = [one for one in links if one.truth != UNTOLD]
    labels = np.array([one.truth == LINKED for one in told], dtype=np.bool_)
    if not labels.any() or labels.all():
        return {}
    scores = {
        "": np.array([one.value for one in told]),
        "_of_pmi": np.array([abs(one.pmi) for one in told]),
        "_of_nearness": np.array([float(one.near) for one in told]),
    }
    curves = {name: Detection(labels, own).curve() for name, own in scores.items()}
    found = {f"auprc{name}": own.average_precision for name, own in curves.items()}
    found["prevalence"] = float(labels.mean())
    found |= {f"auroc{name}": own.auroc for name, own in curves.items()}
    either = np.array([one.truth in (LINKED, INDIRECT) for one in told], dtype=np.bool_)
    if (either & ~labels).any():
        apart = {name: Detection(labels[either], own[either]).curve() for name, own in scores.items()}
        found |= {f"auroc_against_indirect{name}": own.auroc for name, own in apart.items()}
    direct = np.array([one.direct for one in told], dtype=np.bool_)
    found["precision_of_direct"] = float((direct & labels).sum() / max(direct.sum(), 1))
    found["recall_of_direct"] = float((direct & labels).sum() / labels.sum())
    return found


def graphml(links: Sequence[Link], lag: str) -> Iterator[str]:
    """The links as a directed graph, in pieces; a node is a name, an edge goes from what tends to be first.
    `lag` names the attribute that holds the lag, with its unit."""
    import networkx as nx

    graph = nx.DiGraph()
    for one in links:
        known = {"value": one.value, "count": one.count, "pmi": one.pmi, "direct": one.direct}
        known |= {} if math.isnan(one.lag) else {lag: one.lag}
        graph.add_edge(printable(one.first), printable(one.second), **known)
    yield from (line + "\n" for line in nx.generate_graphml(graph))


def table(links: Sequence[Link], lag: str) -> Iterator[str]:
    """The links as lines of a TSV file, the strongest first."""
    yield f"first\tsecond\tvalue\tcount\tpmi\t{lag}\tdirect\n"
    for one in links:
        far = "" if math.isnan(one.lag) else f"{one.lag:.6g}"
        names, direct = f"{printable(one.first)}\t{printable(one.second)}", "true" if one.direct else "false"
        yield f"{names}\t{one.value:.6g}\t{one.count}\t{one.pmi:.6g}\t{far}\t{direct}\n"
