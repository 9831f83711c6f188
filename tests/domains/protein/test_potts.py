"""Exact answers of a Potts model on paths, against summing over every sequence."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from seqmlm.domains.protein.sample import PathPotts, information

LETTERS, LENGTH = 3, 6
PATHS = ((4, 1, 2), (0, 5), (3,))


@pytest.fixture(scope="module")
def model() -> PathPotts:
    rng = np.random.default_rng(5)
    coupling = rng.normal(0, 1.2, (LETTERS, LETTERS))
    return PathPotts(rng.normal(0, 1, (LENGTH, LETTERS)), coupling + coupling.T, PATHS)


@pytest.fixture(scope="module")
def joint(model: PathPotts) -> np.ndarray:
    """p(x) of all 3^6 sequences, from the definition."""
    weights = np.zeros((LETTERS,) * LENGTH)
    for x in itertools.product(range(LETTERS), repeat=LENGTH):
        energy = sum(model.fields[i, a] for i, a in enumerate(x))
        energy += sum(model.coupling[x[i], x[j]] for path in PATHS for i, j in itertools.pairwise(path))
        weights[x] = math.exp(energy)
    return weights / weights.sum()


def entropy(p: np.ndarray) -> float:
    return -sum(v * math.log2(v) for v in p.ravel() if v > 0)


def keep(p: np.ndarray, *axes: int) -> np.ndarray:
    return p.sum(axis=tuple(set(range(LENGTH)) - set(axes)))


def test_contacts_are_the_coupled_pairs(model):
    assert model.contacts == [(0, 5), (1, 2), (1, 4)]


def test_marginals(model, joint):
    assert np.allclose(model.marginals(), [keep(joint, i) for i in range(LENGTH)], atol=1e-8)


def test_joints_of_contacts(model, joint):
    joints = model.contact_joints()
    assert sorted(joints) == model.contacts
    for (i, j), found in joints.items():
        assert np.allclose(found, keep(joint, i, j), atol=1e-8)
        expected = entropy(keep(joint, i)) + entropy(keep(joint, j)) - entropy(keep(joint, i, j))
        assert information(found) == pytest.approx(expected, abs=1e-6)


def test_entropies(model, joint):
    assert model.entropy() == pytest.approx(entropy(joint), abs=1e-6)
    expected = [entropy(joint) - entropy(joint.sum(axis=i)) for i in range(LENGTH)]
    assert np.allclose(model.conditional_entropies(), expected, atol=1e-6)


def test_draws_follow_the_distribution(model, joint):
    n = 40_000
    drawn = model.draw(n, np.random.Generator(np.random.Philox(1)))
    counts = np.zeros_like(joint)
    np.add.at(counts, tuple(drawn.T), 1)
    # Chi-square over the states with enough expected draws, the rest in one bin: mean df, sd sqrt(2 df).
    likely = joint * n >= 5
    bins = [(counts[likely], joint[likely] * n), (counts[~likely].sum(), joint[~likely].sum() * n)]
    statistic = sum(float(np.sum((seen - wanted) ** 2 / wanted)) for seen, wanted in bins)
    freedom = int(likely.sum())
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)
