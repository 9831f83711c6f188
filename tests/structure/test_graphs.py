"""GraphML: what networkx reads back."""

from __future__ import annotations

import io

import networkx as nx

from seqmlm.structure.graphs import Component, graphml


def test_sequences_are_components_of_one_graph() -> None:
    made = graphml(
        [
            Component("a", ["x", "\x00<&\ud800", "\n"], [(0, 2, 1.5), (0, 1, float("nan"))]),
            Component("a", ["y"], []),
        ]
    )
    graph = nx.read_graphml(io.BytesIO(made))
    assert dict(graph.nodes(data="unit")) == {"0:0": "x", "0:1": "\\x00<&\\ud800", "0:2": "\\n", "1:0": "y"}
    assert {tuple(edge) for edge in graph.edges(data="value")} == {("0:0", "0:2", 1.5), ("0:0", "0:1", None)}
    assert graph.nodes["1:0"] == {"sequence": "a", "place": 0, "unit": "y"}
    assert len(nx.read_graphml(io.BytesIO(graphml([])))) == 0
