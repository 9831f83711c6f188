"""Statements about dependence hold where they are exact, and a broken estimator is caught."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from theory import (
    PLACES,
    conditional,
    edges,
    errors,
    information,
    latent,
    linear,
    masked,
    mixture,
    node_by_node,
    potts,
    regression,
)

Doubles = NDArray[np.float64]


def test_masked_regression_is_two_stage_regression_where_no_noise_is_shared() -> None:
    rows = [*masked(True)]
    assert [row["masked"] for row in rows] == sorted((row["masked"] for row in rows), reverse=True)
    assert rows[-1]["masked"] == pytest.approx(0, abs=1e-12)
    assert rows[-1]["pca"] > 0.01


def test_regression_on_what_is_hidden_is_caught() -> None:
    def peeping(covariance: Doubles, target: int) -> Doubles:
        found = 0.9 * regression(covariance, target)
        found[target] = 0.1
        return found

    with pytest.raises(AssertionError, match="masked regression"):
        [*masked(True, peeping)]


def test_the_latent_variable_moves_information_by_no_more_than_its_entropy() -> None:
    assert len([*latent(True)]) == 180


def test_information_that_is_not_conditional_is_caught() -> None:
    def marginal(table: Doubles, i: int, j: int, known: Sequence[int]) -> float:
        return information(table, i, j, known[:1])

    with pytest.raises(AssertionError, match=r"mixture|hidden Markov"):
        [*latent(True, marginal)]
    with pytest.raises(AssertionError, match="outside of edges"):
        [*edges(True, marginal)]


def test_information_is_that_of_the_definition() -> None:
    table = mixture(1.0, 0, places=3).sum(axis=0)
    given = table.sum(axis=(0, 1), keepdims=True)
    one, two = table.sum(axis=1, keepdims=True), table.sum(axis=0, keepdims=True)
    assert information(table, 0, 1, [2]) == pytest.approx(
        float((table * np.log(table * given / one / two)).sum())
    )


def test_edges_alone_have_conditional_information() -> None:
    rows = [*edges(True)]
    assert {row["cmi"] for row in rows} == {1.0}
    assert np.mean([row["pmi"] for row in rows]) < 1


def softened(i: int, hidden: Sequence[int]) -> Doubles:
    """Conditionals of a model that is not sure enough."""
    found = conditional(potts(), i, hidden) ** 0.7
    return found / found.sum(axis=i, keepdims=True)


def test_the_error_of_information_is_within_the_divergence() -> None:
    rows = [*errors(potts(), softened, [(0, 1), (0, 5), (1, 5)])]
    assert all(abs(row["error"]) <= row["bound"] for row in rows)
    exact = [*errors(potts(), lambda i, hidden: conditional(potts(), i, hidden), [(0, 1)])]
    assert exact[0]["error"] == pytest.approx(0, abs=1e-12)
    assert potts().ndim == PLACES


def test_conditionals_that_are_no_distributions_are_caught() -> None:
    with pytest.raises(AssertionError, match="a negative divergence"):
        [*errors(potts(), lambda i, hidden: 2 * softened(i, hidden), [(0, 1)])]


def test_the_linear_model_is_neighbourhood_selection() -> None:
    rows = [*linear(True)]
    assert max(row["apart"] for row in rows) < 1e-2
    assert min(row["linear recall"] for row in rows) > 0.8


def test_regressions_that_share_nothing_are_another_problem() -> None:
    with pytest.raises(AssertionError, match="couplings"):
        [*linear(True, node_by_node)]
