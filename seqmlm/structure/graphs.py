"""Edges of dependence maps as a GraphML file for other programs, or as JSON, sequence by sequence.

All sequences form one graph, each as its own component, so that one file opens in Cytoscape, Gephi or yEd.
The graph is made with networkx, which keeps it in memory: about a kilobyte for each edge.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from seqmlm.errors import printable


class Component(NamedTuple):
    """One sequence in the graph.

    Args:
        id: id of the sequence.
        units: spellings of its units.
        edges: (unit, unit, value) of each edge; NaN if it has no value.
    """

    id: str
    units: Sequence[str]
    edges: Iterable[tuple[int, int, float]]


def json_pieces(sequences: Iterable[Component]) -> Iterator[str]:
    """A JSON list with one object for each sequence, in pieces of text."""
    comma = "["
    for component in sequences:
        edges = [{"i": i, "j": j, "value": x if math.isfinite(x) else None} for i, j, x in component.edges]
        document = {"id": component.id, "units": list(component.units), "edges": edges}
        yield f"{comma}\n{json.dumps(document, ensure_ascii=False)}"
        comma = ","
    yield "[]\n" if comma == "[" else "\n]\n"


def graphml(sequences: Iterable[Component]) -> Iterator[str]:
    """The text of a GraphML file.

    Every unit of a sequence is a node, with the attributes `sequence`, `place` (from 0) and `unit`. Every
    edge has a `value`. Control characters, which XML cannot contain, are shown as escapes.
    """
    import networkx as nx

    graph = nx.Graph()
    for number, component in enumerate(sequences):
        for place, unit in enumerate(component.units):
            attributes = {"sequence": printable(component.id), "place": place, "unit": printable(unit)}
            graph.add_node(f"{number}:{place}", **attributes)
        for i, j, value in component.edges:
            weight = {"value": float(value)} if math.isfinite(value) else {}
            graph.add_edge(f"{number}:{i}", f"{number}:{j}", **weight)
    out = io.BytesIO()
    nx.write_graphml(graph, out)
    yield out.getvalue().decode()
