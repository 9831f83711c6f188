"""The dependency model against a sum over all trees, one by one."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from dmv import LEFT, RIGHT, DependencyModel

from seqmlm.errors import UsageError

TAGS = "NVD"


def drawn(seed: int) -> DependencyModel:
    """A model with random probabilities."""
    made, random = DependencyModel(TAGS), np.random.default_rng(seed)
    made.root = torch.log(torch.from_numpy(random.dirichlet(np.ones(3))))
    made.attach = torch.log(torch.from_numpy(random.dirichlet(np.ones(3), (3, 2))))
    stop = torch.from_numpy(random.uniform(0.1, 0.9, (3, 2, 2)))
    made.stop, made.go = stop.log(), (1 - stop).log()
    return made


def heads_of(size: int) -> list[tuple[int, ...]]:
    """All projective trees: the head of each word, -1 for the root."""
    found = []
    for heads in product(range(-1, size), repeat=size):
        if heads.count(-1) != 1 or any(_above(heads, word) is None for word in range(size)):
            continue
        if all(
            head in (_above(heads, between) or ())
            for word, head in enumerate(heads)
            if head >= 0
            for between in range(min(word, head) + 1, max(word, head))
        ):
            found.append(heads)
    return found


def _above(heads: tuple[int, ...], word: int) -> list[int] | None:
    chain = [word]
    while heads[chain[-1]] >= 0:
        chain.append(heads[chain[-1]])
        if len(chain) > len(heads):
            return None
    return chain


def probability(model: DependencyModel, tags: list[int], heads: tuple[int, ...]) -> float:
    """Of one tree, as Klein and Manning write it."""
    total = float(model.root[tags[heads.index(-1)]])
    for head, tag in enumerate(tags):
        for side in (LEFT, RIGHT):
            own = [d for d, h in enumerate(heads) if h == head and (d > head) == (side == RIGHT)]
            for number, dependent in enumerate(own):
                total += float(
                    model.go[tag, side, int(number == 0)] + model.attach[tag, side, tags[dependent]]
                )
            total += float(model.stop[tag, side, int(not own)])
    return total


@pytest.mark.parametrize("size", range(1, 5))
@pytest.mark.parametrize("seed", range(3))
def test_the_chart_is_the_sum_over_all_trees_and_finds_the_best(size: int, seed: int):
    model, random = drawn(seed), np.random.default_rng(seed)
    tags = random.integers(3, size=size).tolist()
    sentence = [TAGS[tag] for tag in tags]
    trees = {heads: probability(model, tags, heads) for heads in heads_of(size)}
    assert len(trees) == [1, 2, 7, 30][size - 1]
    assert model.log_likelihood(sentence) == pytest.approx(float(np.logaddexp.reduce(list(trees.values()))))
    best = max(trees, key=trees.__getitem__)
    [found] = model.trees([sentence])
    assert found == {(min(w, h), max(w, h)) for w, h in enumerate(best) if h >= 0}


def test_em_never_lowers_the_likelihood_and_keeps_probabilities():
    random = np.random.default_rng(0)
    sentences = [[TAGS[k] for k in random.integers(3, size=random.integers(1, 8))] for _ in range(60)]
    model, likelihood = DependencyModel.fit(sentences, steps=12)
    assert all(after >= before - 1e-9 for before, after in pairwise(likelihood))
    assert likelihood[-1] > likelihood[0] + 1
    assert sum(map(model.log_likelihood, sentences)) >= likelihood[-1]
    assert torch.allclose(model.root.exp().sum(), torch.ones((), dtype=torch.float64))
    assert torch.allclose(model.attach.exp().sum(dim=-1), torch.ones((3, 2), dtype=torch.float64))
    assert torch.allclose(model.stop.exp() + model.go.exp(), torch.ones((3, 2, 2), dtype=torch.float64))


def test_what_cannot_be_learnt_from_or_asked_is_refused():
    for sentences in ([], [["N"], []]):
        with pytest.raises(UsageError, match="at least one tag"):
            DependencyModel.fit(sentences)
    with pytest.raises(UsageError, match="without the tag 'X'"):
        drawn(0).log_likelihood(["X"])
