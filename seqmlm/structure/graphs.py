"""Edges as a graph that other programs open: GraphML, by networkx; and as JSON, sequence by sequence.

All sequences are one graph, each a component of its own, so that one file opens in Cytoscape, Gephi or yEd.
networkx holds the whole graph in memory, a kilobyte or so an edge.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from seqmlm.errors import printable


class Component(NamedTuple):
    """The edges (unit, unit, value; NaN for none) of one sequence, whose units are spelled so."""

    id: str
    units: Sequence[str]
    edges: Iterable[tuple[int, int, float]]


def listed(sequences: Iterable[Component]) -> Iterator[str]:
    """A JSON list with an object a sequence, in pieces."""
    comma = "["
    for one in sequences:
        edges = [{"i": i, "j": j, "value": x if math.isfinite(x) else None} for i, j, x in one.edges]
        told = {"id": one.id, "units": list(one.units), "edges": edges}
        yield f"{comma}\n{json.dumps(told, ensure_ascii=False)}"
        comma = ","
    yield "[]\n" if comma == "[" else "\n]\n"


def graphml(sequences: Iterable[Component]) -> Iterator[str]:
    """The graph as a file. Every unit of a sequence is a node, with the attributes `sequence`, `place` (from
    0) and `unit`; every edge has a `value`. Control characters, which XML cannot hold, are shown as
    escapes."""
    import networkx as nx

    graph = nx.Graph()
    for number, one in enumerate(sequences):
        for place, unit in enumerate(one.units):
            named = {"sequence": printable(one.id), "place": place, "unit": printable(unit)}
            graph.add_node(f"{number}:{place}", **named)
        for i, j, value in one.edges:
            known = {"value": float(value)} if math.isfinite(value) else {}
            graph.add_edge(f"{number}:{i}", f"{number}:{j}", **known)
    out = io.BytesIO()
    nx.write_graphml(graph, out)
    yield out.getvalue().decode()
