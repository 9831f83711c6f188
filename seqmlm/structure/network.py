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

LINKED, INDIRECT, UNLINKED, UNKNOWN = 1, 2, 0, -1
"""Marks of a truth for two units: they depend on each other, only through others, not, or it says nothing."""

MIN_SEQUENCES = 3
"""Number of sequences from which a link is listed by its value: the mean of one or two may be anything."""

_ADDED = 0.1  # to every count, so that a pair that never meets has a finite PMI


def indirect_pairs(values: Doubles) -> Bools:
    """(N, N) True for each pair i-k that is weaker than both i-j and j-k for some j.

    What reaches k from i through j alone cannot be more than either step passes on (the data processing
    inequality), so that of a triangle the weakest side is taken to be indirect: ARACNE, Margolin et al. 2006.
    A direct link that is weaker than a way around it is pruned as well.

    Args:
        values: (N, N) symmetric; NaN says nothing, and prunes nothing.

    >>> indirect_pairs(np.array([[0.0, 3.0, 1.0], [3.0, 0.0, 2.0], [1.0, 2.0, 0.0]]))[0].tolist()
    [False, False, True]
    """
    weights = values.copy()
    np.fill_diagonal(weights, np.nan)
    weaker = np.zeros(weights.shape, dtype=np.bool_)
    for row in weights:
        # A comparison with NaN is false.
        weaker |= weights < np.minimum(row[:, None], row[None, :])
    return weaker


def outlier_threshold(values: Doubles, pairs: Bools, deviations: float = 3.0) -> float:
    """The value from which one of the `pairs` (N, N) stands out of a map: the median and some standard
    deviations, estimated by 1.4826 x the median absolute deviation, which a few strong pairs hardly change.
    """
    finite = values[pairs & np.isfinite(values)]
    if not len(finite):
        return math.inf
    middle = float(np.median(finite))
    return middle + deviations * 1.4826 * float(np.median(np.abs(finite - middle)))


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
        direct: not pruned by `indirect_pairs` among the means.
        truth: one of LINKED, INDIRECT, UNLINKED, UNKNOWN.
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
    truth: int = UNKNOWN


@dataclass(slots=True)
class Pool:
    """Figures of pairs of names, sequence after sequence."""

    _numbers: dict[str, int] = field(default_factory=dict)
    _sequences_with: Counter[str] = field(default_factory=Counter)  # sequences that have each name
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
        distinct = list(dict.fromkeys(names))
        for name in distinct:
            self._numbers.setdefault(name, len(self._numbers))
        self._sequences += 1
        self._sequences_with.update(distinct)
        members = {name: np.flatnonzero([label == name for label in names]) for name in distinct}
        for pair in combinations(distinct, 2):
            first, second = sorted(pair, key=self._numbers.__getitem__)
            here = np.ix_(members[first], members[second])
            tally = self._pairs.setdefault((self._numbers[first], self._numbers[second]), _Tally())
            tally.together += 1
            tally.near += bool(near[here].any())
            finite = values[here][np.isfinite(values[here])]
            if len(finite):
                tally.value, tally.count = tally.value + float(finite.mean()), tally.count + 1
            if first in times and second in times:
                tally.lag, tally.timed = tally.lag + times[second] - times[first], tally.timed + 1
            if truth is not None:
                tally.truth = _merge_marks(tally.truth, truth[here])

    def links(self, fewest: int = 1) -> list[Link]:
        """All pairs with a value, the strongest first; those that fewer than `MIN_SEQUENCES` have come last.
        Pairs in fewer sequences than `fewest` are left out, and prune nothing."""
        names = list(self._numbers)
        tallies = {pair: tally for pair, tally in self._pairs.items() if tally.count >= max(fewest, 1)}
        means = np.full((len(names), len(names)), np.nan)
        for (a, b), tally in tallies.items():
            means[a, b] = means[b, a] = tally.value / tally.count
        pruned = indirect_pairs(means)
        pooled = []
        for (a, b), tally in tallies.items():
            lag = tally.lag / tally.timed if tally.timed else math.nan
            x, y = (b, a) if lag < 0 else (a, b)
            first_count, second_count = (self._sequences_with[names[name]] + _ADDED for name in (a, b))
            pooled.append(
                Link(
                    first=names[x],
                    second=names[y],
                    value=float(means[a, b]),
                    count=tally.count,
                    lag=abs(lag),
                    pmi=math.log((tally.together + _ADDED) / (first_count * second_count / self._sequences)),
                    near=tally.near,
                    direct=not pruned[a, b],
                    truth=tally.truth,
                )
            )
        return sorted(
            pooled, key=lambda link: (link.count < MIN_SEQUENCES, -link.value, link.first, link.second)
        )


def _merge_marks(mark_before: int, new_marks: Marks) -> int:
    """The mark of two names, from their mark so far and those of one sequence: the strongest claim."""
    marks = {mark_before, *np.unique(new_marks).tolist()}
    return next((mark for mark in (LINKED, INDIRECT, UNLINKED) if mark in marks), UNKNOWN)


def ranking_figures(links: Sequence[Link]) -> dict[str, float]:
    """Figures of how well links are ranked where a truth is known, by value and by counting alone.

    AUPRC and AUROC of the mean value, of the size of PMI (what excludes each other is linked as well, and a
    map has no sign) and of the number of sequences in which two are near each other;
    the same AUROC of links against indirect pairs alone; and precision and recall of what is not pruned.
    """
    judged_links = [link for link in links if link.truth != UNKNOWN]
    labels = np.array([link.truth == LINKED for link in judged_links], dtype=np.bool_)
    if not labels.any() or labels.all():
        return {}
    scores = {
        "": np.array([link.value for link in judged_links]),
        "_of_pmi": np.array([abs(link.pmi) for link in judged_links]),
        "_of_nearness": np.array([float(link.near) for link in judged_links]),
    }
    curves = {name: Detection(labels, score).curve() for name, score in scores.items()}
    figures = {f"auprc{name}": curve.average_precision for name, curve in curves.items()}
    figures["prevalence"] = float(labels.mean())
    figures |= {f"auroc{name}": curve.auroc for name, curve in curves.items()}
    either = np.array([link.truth in (LINKED, INDIRECT) for link in judged_links], dtype=np.bool_)
    if (either & ~labels).any():
        indirect_curves = {
            name: Detection(labels[either], score[either]).curve() for name, score in scores.items()
        }
        figures |= {f"auroc_against_indirect{name}": curve.auroc for name, curve in indirect_curves.items()}
    direct = np.array([link.direct for link in judged_links], dtype=np.bool_)
    figures["precision_of_direct"] = float((direct & labels).sum() / max(direct.sum(), 1))
    figures["recall_of_direct"] = float((direct & labels).sum() / labels.sum())
    return figures


def graphml(links: Sequence[Link], lag: str) -> Iterator[str]:
    """The links as a directed graph, in pieces; a node is a name, an edge goes from what tends to be first.
    `lag` names the attribute that holds the lag, with its unit."""
    import networkx as nx

    graph = nx.DiGraph()
    for link in links:
        attributes = {"value": link.value, "count": link.count, "pmi": link.pmi, "direct": link.direct}
        attributes |= {} if math.isnan(link.lag) else {lag: link.lag}
        graph.add_edge(printable(link.first), printable(link.second), **attributes)
    yield from (line + "\n" for line in nx.generate_graphml(graph))


def tsv_lines(links: Sequence[Link], lag: str) -> Iterator[str]:
    """The links as lines of a TSV file, the strongest first."""
    yield f"first\tsecond\tvalue\tcount\tpmi\t{lag}\tdirect\n"
    for link in links:
        lag_text = "" if math.isnan(link.lag) else f"{link.lag:.6g}"
        names = f"{printable(link.first)}\t{printable(link.second)}"
        direct = "true" if link.direct else "false"
        yield f"{names}\t{link.value:.6g}\t{link.count}\t{link.pmi:.6g}\t{lag_text}\t{direct}\n"
