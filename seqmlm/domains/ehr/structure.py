"""Decode maps of histories into a network of codes for a cohort, with the time between two codes.

Single patients are not drawn. The network has only pairs of codes that at least 11 patients have.
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
    """The decoder of histories: codes that depend on each other. The name of a unit is its code without the
    value.

    All records of a code are masked together. A chronic code is recorded again and again, so any other record
    of the code would give it away.
    """

    together: bool | None = True
    lag: ClassVar[str] = "lag_days"
    fewest: ClassVar[int] = SMALLEST

    def times(self, record: Record, names: Sequence[str]) -> Mapping[str, float]:
        """The day since 1970 of the first record of each code."""
        first_days: dict[str, float] = {}
        for event in record.raw.events:
            if event.time is not None:
                first_days.setdefault(event.code, event.time / _DAY)
        return first_days

    def near_pairs(self, record: Record, names: Sequence[str]) -> NDArray[np.bool_]:
        """(N, N) whether two codes are ever recorded on the same day. Days are used because units do not have
        the visit."""
        days: dict[str, set[int]] = {}
        for event in record.raw.events:
            if event.time is not None:
                days.setdefault(event.code, set()).add(int(event.time // _DAY))
        code_days = [days.get(name, set()) for name in names]
        shared = np.array([[bool(a & b) for b in code_days] for a in code_days], dtype=np.bool_)
        return shared.reshape(len(names), len(names))

    def truths(self, path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
        """A function that finds the planted pairs of a patient, from the graph in `truth.json`.

        The graph links conditions, their drugs and their measurements. A pair of codes is "indirect" if the
        codes have a common cause, or if one code causes the other through other codes. Pairs without a
        condition are unknown: two drugs of a condition depend on each other even if the condition is not
        recorded with them.
        """
        truth = read_truth(path, SCHEMA, ("conditions", "edges", "labs", "patients"))
        conditions = {condition["code"] for condition in truth["conditions"]}
        linked = _links(truth)
        indirect = _indirect(linked, truth)
        subjects = {patient["subject"] for patient in truth["patients"]}

        def truth_of(record: Record, units: Sequence[str]) -> Truth | None:
            """The planted pairs of a patient, or None if the patient is not in the sample."""
            if str(record.raw.subject) not in subjects:
                return None
            return _truth(units, conditions, linked, indirect)

        return truth_of


def _links(truth: Mapping[str, Any]) -> dict[Codes, str]:
    """The kind of each planted pair of codes: "comorbidity", "drug" or "measurement"."""
    edges = {frozenset((edge["source"], edge["target"])): str(edge["kind"]) for edge in truth["edges"]}
    return edges | {frozenset((lab["condition"], lab["code"])): "measurement" for lab in truth["labs"]}


def _indirect(linked: Mapping[Codes, str], truth: Mapping[str, Any]) -> set[Codes]:
    """The pairs of codes that share a cause but are not linked. Each code is also a cause of itself."""
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
        """Whether the truth covers a pair: its codes differ, and one of them is a condition."""
        pair_codes = {units[pair[0]], units[pair[1]]}
        return len(pair_codes) == 2 and bool(pair_codes & conditions)

    edges = frozenset(pair for pair, kind in kinds.items() if kind != "indirect")
    return Truth(edges=edges, kinds=kinds, covers=is_known)
