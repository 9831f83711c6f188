"""What maps of dependence mean in histories: a network of codes over a cohort, with the time between two.

Of single patients nothing is drawn, and of the network nothing is told that fewer than 11 patients have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.counts import SMALLEST
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.networks import NetworkDecoder
from seqmlm.domains.samples import read_truth
from seqmlm.domains.structure import Pair, Truth

SCHEMA = "seqmlm.sample.ehr.v1"

_DAY = 86_400.0

Codes = frozenset[str]


class CodesDecoder(NetworkDecoder):
    """Codes that depend on each other; a unit is named, and spelled, as its code, whatever its value.

    All records of a code are hidden together: a chronic one is recorded again and again, so that one record
    more tells nothing of others.
    """

    together: bool | None = True
    lag: ClassVar[str] = "lag_days"
    fewest: ClassVar[int] = SMALLEST

    def times(self, record: Record, names: Sequence[str]) -> Mapping[str, float]:
        """Days from 1970 to the first record of each code."""
        found: dict[str, float] = {}
        for event in record.raw.events:
            if event.time is not None:
                found.setdefault(event.code, event.time / _DAY)
        return found

    def near(self, record: Record, names: Sequence[str]) -> NDArray[np.bool_]:
        """(N, N) codes that are recorded on one day at some time: units do not say of which visit."""
        days: dict[str, set[int]] = {}
        for event in record.raw.events:
            if event.time is not None:
                days.setdefault(event.code, set()).add(int(event.time // _DAY))
        own = [days.get(name, set()) for name in names]
        return np.array([[bool(a & b) for b in own] for a in own], dtype=np.bool_).reshape(len(own), len(own))

    def truths(self, path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
        """The planted graph of `truth.json`: conditions, their drugs and measurements.

        Indirect are codes with a common cause in the graph, and those of which one leads to the other through
        others.
        Pairs without a condition are unknown: two drugs of one condition depend on each other through it,
        whether it is recorded beside them or not.
        """
        truth = read_truth(path, SCHEMA, ("conditions", "edges", "labs", "patients"))
        conditions = {one["code"] for one in truth["conditions"]}
        linked = _linked(truth)
        indirect = _indirect(linked, truth)
        subjects = {one["subject"] for one in truth["patients"]}

        def knows(record: Record, units: Sequence[str]) -> Truth | None:
            if str(record.raw.subject) not in subjects:
                return None
            return _truth(units, conditions, linked, indirect)

        return knows


def _linked(truth: Mapping[str, Any]) -> dict[Codes, str]:
    """Every planted pair of codes, and what it is."""
    found = {frozenset((one["source"], one["target"])): str(one["kind"]) for one in truth["edges"]}
    return found | {frozenset((one["condition"], one["code"])): "measurement" for one in truth["labs"]}


def _indirect(linked: Mapping[Codes, str], truth: Mapping[str, Any]) -> set[Codes]:
    """Codes that are not linked but share a cause, themselves being causes of themselves."""
    import networkx as nx

    graph = nx.DiGraph((one["source"], one["target"]) for one in truth["edges"])
    graph.add_edges_from((one["condition"], one["code"]) for one in truth["labs"])
    above = {node: {node, *nx.ancestors(graph, node)} for node in graph}
    pairs = {frozenset((a, b)) for a in graph for b in graph if a < b and above[a] & above[b]}
    return pairs - linked.keys()


def _truth(
    units: Sequence[str], conditions: set[str], linked: Mapping[Codes, str], indirect: set[Codes]
) -> Truth:
    kinds: dict[Pair, str] = {}
    for i, first in enumerate(units):
        for j in range(i + 1, len(units)):
            pair = frozenset((first, units[j]))
            if pair in linked:
                kinds[i, j] = linked[pair]
            elif pair in indirect:
                kinds[i, j] = "indirect"

    def known(pair: Pair) -> bool:
        own = {units[pair[0]], units[pair[1]]}
        return len(own) == 2 and bool(own & conditions)

    edges = frozenset(pair for pair, kind in kinds.items() if kind != "indirect")
    return Truth(edges=edges, kinds=kinds, known=known)
