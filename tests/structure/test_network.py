"""Pruned triangles and a network of three sequences by hand; graphs are what networkx reads back."""

from __future__ import annotations

import io
import math
from copy import deepcopy

import networkx as nx
import numpy as np
import pytest

from seqmlm.structure.graphs import Component
from seqmlm.structure.graphs import graphml as components
from seqmlm.structure.network import (
    INDIRECT,
    LINKED,
    UNKNOWN,
    UNLINKED,
    Link,
    Pool,
    graphml,
    indirect_pairs,
    outlier_threshold,
    ranking_figures,
    tsv_lines,
)


def square(size: int, pairs: dict[tuple[int, int], float]) -> np.ndarray:
    found = np.full((size, size), np.nan)
    for (i, j), value in pairs.items():
        found[i, j] = found[j, i] = value
    return found


def test_the_weakest_side_of_every_triangle_is_indirect() -> None:
    # 0-1 and 1-2 explain 0-2; 2-3 and 0-2 do not explain 0-3, which is as strong; 1-3 is not known.
    values = square(4, {(0, 1): 3.0, (1, 2): 2.0, (0, 2): 1.0, (2, 3): 4.0, (0, 3): 1.0})
    assert np.argwhere(np.triu(indirect_pairs(values))).tolist() == [[0, 2]]
    values[0, 3] = values[3, 0] = 0.9
    assert np.argwhere(np.triu(indirect_pairs(values))).tolist() == [[0, 2], [0, 3]], (
        "a pruned side prunes too"
    )
    assert not indirect_pairs(square(3, {(0, 1): 1.0, (1, 2): 1.0, (0, 2): 1.0})).any()


def test_what_stands_out_is_told_by_median_and_deviation() -> None:
    values = square(5, {(0, 1): 1.0, (0, 2): 2.0, (0, 3): 3.0, (0, 4): 4.0, (1, 2): 100.0})
    judged = np.triu(np.ones((5, 5), dtype=np.bool_), 1)
    assert outlier_threshold(values, judged) == pytest.approx(3 + 3 * 1.4826 * 1)
    assert outlier_threshold(np.full((2, 2), np.nan), judged[:2, :2]) == math.inf


@pytest.fixture
def pool() -> Pool:
    """a-b in three sequences, a-c and b-c in two of these."""
    made = Pool()
    near = np.zeros((3, 3), dtype=np.bool_)
    near[0, 1] = near[1, 0] = True
    truth = np.array(
        [[UNKNOWN, LINKED, INDIRECT], [LINKED, UNKNOWN, UNLINKED], [INDIRECT, UNLINKED, UNKNOWN]], np.int8
    )
    first = square(3, {(0, 1): 4.0, (0, 2): 1.0, (1, 2): 2.0})
    made.add(["a", "b", "c"], first, near=near, times={"a": 0.0, "b": 10.0, "c": 5.0}, truth=truth)
    second = square(3, {(0, 1): 2.0, (0, 2): 0.0, (1, 2): 6.0})
    made.add(["c", "a", "b"], second, near=near, times={"a": 1.0, "b": 5.0})
    # Two b: the sequence counts once, with the mean of 1 and 3; equal names are no pair.
    third = square(3, {(0, 1): 1.0, (1, 2): 3.0, (0, 2): 50.0})
    made.add(["b", "a", "b"], third, near=np.zeros_like(near), times={})
    return made


def test_values_counts_and_lags_of_a_pool(pool: Pool) -> None:
    found = {(one.first, one.second): one for one in pool.links()}
    ab, bc, ac = found["a", "b"], found["c", "b"], found["a", "c"]
    assert (ab.value, ab.count, ab.near) == (pytest.approx((4 + 6 + 2) / 3), 3, 1)
    assert ab.lag == pytest.approx((10 + 4) / 2), "of the two whose times are known"
    assert (ac.value, ac.count, ac.lag) == (pytest.approx((1 + 2) / 2), 2, 5.0)
    assert (bc.value, bc.lag, bc.first) == (pytest.approx((2 + 0) / 2), 5.0, "c"), "the earlier one is first"
    assert [one.direct for one in (ab, ac, bc)] == [True, True, False]
    assert [one.truth for one in (ab, ac, bc)] == [LINKED, INDIRECT, UNLINKED]
    assert ab.pmi == pytest.approx(math.log(3.1 * 3 / (3.1 * 3.1)))
    assert [one.first + one.second for one in pool.links(fewest=3)] == ["ab"]


def test_links_of_one_or_two_sequences_come_last(pool: Pool) -> None:
    made = deepcopy(pool)
    made.add(["x", "y"], square(2, {(0, 1): 99.0}), near=np.zeros((2, 2), dtype=np.bool_), times={})
    assert [one.first + one.second for one in made.links()] == ["ab", "xy", "ac", "cb"]


def link(value: float, truth: int, *, pmi: float = 0.0, near: int = 0, direct: bool = True) -> Link:
    given = {"value": value, "count": 1, "lag": math.nan, "pmi": pmi, "near": near}
    return Link(first=f"{value}", second="x<&", direct=direct, truth=truth, **given)


def test_links_against_a_truth() -> None:
    links = [
        link(4.0, LINKED, pmi=1.0),
        link(3.0, INDIRECT, pmi=2.0, direct=False),
        link(2.0, LINKED, pmi=3.0),
        link(1.0, UNLINKED, pmi=0.0),
        link(9.0, UNKNOWN),
    ]
    found = ranking_figures(links)
    assert found["auprc"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["auprc_of_pmi"] == pytest.approx((1 + 2 / 3) / 2)
    assert (found["auroc"], found["auroc_against_indirect"]) == (pytest.approx(3 / 4), pytest.approx(1 / 2))
    assert found["auroc_of_nearness"] == found["auprc_of_nearness"] == found["prevalence"] == 0.5
    assert (found["precision_of_direct"], found["recall_of_direct"]) == (pytest.approx(2 / 3), 1.0)
    assert next(iter(found)) == "auprc"
    assert ranking_figures(links[:1]) == {}


def test_files_of_a_network(pool: Pool) -> None:
    links = [*pool.links(), link(0.5, UNKNOWN)]
    graph = nx.read_graphml(io.BytesIO("".join(graphml(links, "lag_days")).encode()))
    assert graph.is_directed()
    assert graph.edges["a", "b"] == {
        "value": pytest.approx(4.0), "count": 3, "pmi": pytest.approx(links[0].pmi),
        "direct": True, "lag_days": 7.0,
    }  # fmt: skip
    assert "lag_days" not in graph.edges["0.5", "x<&"]
    rows = [line.rstrip("\n").split("\t") for line in tsv_lines(links, "lag_days")]
    assert rows[0] == ["first", "second", "value", "count", "pmi", "lag_days", "direct"]
    assert rows[1][:4] == ["a", "b", "4", "3"]
    assert rows[-1][-2:] == ["", "true"]


def test_sequences_are_components_of_one_graph() -> None:
    made = components(
        [
            Component("a", ["x", "\x00<&\ud800", "\n"], [(0, 2, 1.5), (0, 1, float("nan"))]),
            Component("a", ["y"], []),
        ]
    )
    graph = nx.read_graphml(io.BytesIO("".join(made).encode()))
    assert dict(graph.nodes(data="unit")) == {"0:0": "x", "0:1": "\\x00<&\\ud800", "0:2": "\\n", "1:0": "y"}
    assert {tuple(edge) for edge in graph.edges(data="value")} == {("0:0", "0:2", 1.5), ("0:0", "0:1", None)}
    assert graph.nodes["1:0"] == {"sequence": "a", "place": 0, "unit": "y"}
    assert len(nx.read_graphml(io.BytesIO("".join(components([])).encode()))) == 0
