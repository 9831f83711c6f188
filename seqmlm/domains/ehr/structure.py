"""Maps of dependence in histories: a network of codes over a cohort, with the time between two.

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
        first_days: dict[str, float] = {}
        for event in record.raw.events:
            if event.time is not None:
                first_days.setdefault(event.code, event.time / _DAY)
        return first_days

    def near_pairs(self, record: Record, names: Sequence[str]) -> NDArray[np.bool_]:
        """(N, N) codes that are recorded on one day at some time: units do not say of which visit."""
        days: dict[str, set[int]] = {}
        for event in record.raw.events:
            if event.time is not None:
                days.setdefault(event.code, set()).add(int(event.time // _DAY))
        code_days = [days.get(name, set()) for name in names]
        shared = np.array([[bool(a & b) for b in code_days] for a in code_days], dtype=np.bool_)
        return shared.reshape(len(names), len(names))

    def truths(self, path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
        """The planted graph of `truth.json`: conditions, their drugs and measurements.

        Indirect are codes with a common cause in the graph, and those of which one leads to the other through
        others.
        Pairs without a condition are unknown: two drugs of one condition depend on each other through it,
        whether it is recorded beside them or not.
        """
        truth = read_truth(path, SCHEMA, ("conditions", "edges", "labs", "patients"))
        conditions = {condition["code"] for condition in truth["conditions"]}
        linked = _links(truth)
        indirect = _indirect(linked, truth)
        subjects = {patient["subject"] for patient in truth["patients"]}

        def truth_of(record: Record, units: Sequence[str]) -> Truth | None:
            """The planted pairs of a patient; None for a patient who is not of the sample."""
            if str(record.raw.subject) not in subjects:
                return None
            return _truth(units, conditions, linked, indirect)

        return truth_of


def _links(truth: Mapping[str, Any]) -> dict[Codes, str]:
    """The kind of every planted pair of codes: "comorbidity", "drug" or "measurement"."""
    edges = {frozenset((edge["source"], edge["target"])): str(edge["kind"]) for edge in truth["edges"]}
    return edges | {frozenset((lab["condition"], lab["code"])): "measurement" for lab in truth["labs"]}


def _indirect(linked: Mapping[Codes, str], truth: Mapping[str, Any]) -> set[Codes]:
    """Codes that are not linked but share a cause, themselves being causes of themselves."""
    import networkx as nx

    graph = nx.DiGraph((edge["source"], edge["target"]) for edge in truth["edges"])
    graph.add_edges_from((lab["condition"], lab["code"]) for lab in truth["labs"])
    above = {node: {node, *nx.ancestors(graph, node)} for node in graph}
    pairs = {frozenset((a, b)) for a in graph for b in graph if a < b and above[a] & above[b]}
    return pairs - linked.keys()


def _truth(
    units: Sequence[str], conditions: set[str], linked: Mapping[Codes, str], indirect: set[Codes]
) -> Truth:
    """The planted pairs among the codes of a patient."""
    kinds: dict[Pair, str] = {}
    for i, first in enumerate(units):
        for j in range(i + 1, len(units)):
            pair = frozenset((first, units[j]))
            if pair in linked:
                kinds[i, j] = linked[pair]
            elif pair in indirect:
                kinds[i, j] = "indirect"

    def is_known(pair: Pair) -> bool:
        """Whether a pair is known: two codes, one of them a condition."""
        pair_codes = {units[pair[0]], units[pair[1]]}
        return len(pair_codes) == 2 and bool(pair_codes & conditions)

    edges = frozenset(pair for pair, kind in kinds.items() if kind != "indirect")
    return Truth(edges=edges, kinds=kinds, covers=is_known)
