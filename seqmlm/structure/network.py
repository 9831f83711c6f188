"""Networks of named units over many sequences: values are pooled by name, and indirect links are separated.

The codes of patients and the kinds of log lines have names that occur in many sequences. The value of two
units in one map is noisy. A `Pool` reads maps one by one. It keeps a few figures for each pair of names that
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
"""Marks of the known truth for two units: linked, linked only through others, not linked, or unknown."""

MIN_SEQUENCES = 3
"""Smallest number of sequences for which a link is ranked by its value.

The mean over one or two sequences is too noisy.
"""

_ADDED = 0.1  # added to every count, so that a pair that never occurs has a finite PMI


def indirect_pairs(values: Doubles) -> Bools:
    """(N, N) True for each pair i-k that is weaker than both i-j and j-k for some j.

    Dependence of k on i only through j cannot be stronger than either step (the data processing inequality).
    The weakest side of a triangle is therefore treated as indirect (ARACNE, Margolin et al. 2006). This also
    prunes a direct link that is weaker than a path around it.

    Args:
        values: (N, N) symmetric; pairs with NaN are unknown and prune nothing.

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
    """The value from which a pair is an outlier of a map: the median plus some standard deviations.

    The standard deviation is estimated as 1.4826 x the median absolute deviation, which a few strong pairs
    hardly change. The result is infinite if no pair has a value.

    Args:
        values: (N, N) values of the map.
        pairs: (N, N) True at the pairs to use.
        deviations: number of standard deviations.
    """
    finite = values[pairs & np.isfinite(values)]
    if not len(finite):
        return math.inf
    middle = float(np.median(finite))
    return middle + deviations * 1.4826 * float(np.median(np.abs(finite - middle)))


@dataclass(frozen=True, kw_only=True)
class Link:
    """Two names, and their figures over all sequences that contain both.

    Args:
        first, second: the name that tends to be first, and the other name.
        value: mean value of the maps, in which each sequence counts once.
        count: number of sequences with a value.
        lag: mean time from the first occurrence of `first` to the first occurrence of `second`; NaN if times
            are unknown.
        pmi: pointwise mutual information of occurring in the same sequence, in nats, from counts only.
        near: number of sequences in which the two are near each other.
        direct: whether `indirect_pairs` of the means does not prune the link.
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
    """Sums over sequences for a pair, in the order of the numbers of its names."""

    value: float = 0.0
    count: int = 0
    together: int = 0
    lag: float = 0.0
    timed: int = 0
    near: int = 0
    truth: int = UNKNOWN


@dataclass(slots=True)
class Pool:
    """Figures of pairs of names, added sequence by sequence."""

    _numbers: dict[str, int] = field(default_factory=dict)
    _sequences_with: Counter[str] = field(default_factory=Counter)  # number of sequences with each name
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
        """Add one sequence.

        Args:
            names: (N,) names of its units; pairs of equal names are left out.
            values: (N, N) its map, NaN for pairs without a value.
            near: (N, N) True for units that are near each other.
            times: time of the first occurrence of each name, for names with a known time.
            truth: (N, N) marks of its pairs, or None.
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
        """All pairs with a value, the strongest first.

        Pairs in fewer than `MIN_SEQUENCES` sequences are last.

        Args:
            fewest: pairs in fewer sequences than this are left out, and prune nothing.
        """
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
    """The strongest of the mark of two names so far and their marks in one sequence."""
    marks = {mark_before, *np.unique(new_marks).tolist()}
    return next((mark for mark in (LINKED, INDIRECT, UNLINKED) if mark in marks), UNKNOWN)


def ranking_figures(links: Sequence[Link]) -> dict[str, float]:
    """Figures of how well links are ranked if a truth is known, by value and by counts only.

    Returns:
        AUPRC and AUROC for three rankings: the mean value, the absolute PMI, and the number of sequences in
        which the two are near each other. The sign of PMI is ignored, because names that exclude each other
        are also linked. The same AUROC for links against indirect pairs only. Precision and recall of the
        links that are not pruned. The result is empty if the known pairs are all linked, or none is.
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
    """The links as a directed graph in GraphML, in pieces of text.

    A node is a name. An edge goes from the name that tends to be first.

    Args:
        links: the links.
        lag: name of the attribute for the lag, with its unit.
    """
    import networkx as nx

    graph = nx.DiGraph()
    for link in links:
        attributes = {"value": link.value, "count": link.count, "pmi": link.pmi, "direct": link.direct}
        attributes |= {} if math.isnan(link.lag) else {lag: link.lag}
        graph.add_edge(printable(link.first), printable(link.second), **attributes)
    yield from (line + "\n" for line in nx.generate_graphml(graph))


def tsv_lines(links: Sequence[Link], lag: str) -> Iterator[str]:
    """The links as lines of a TSV file, the strongest first; `lag` is the name of the column for the lag."""
    yield f"first\tsecond\tvalue\tcount\tpmi\t{lag}\tdirect\n"
    for link in links:
        lag_text = "" if math.isnan(link.lag) else f"{link.lag:.6g}"
        names = f"{printable(link.first)}\t{printable(link.second)}"
        direct = "true" if link.direct else "false"
        yield f"{names}\t{link.value:.6g}\t{link.count}\t{link.pmi:.6g}\t{lag_text}\t{direct}\n"
