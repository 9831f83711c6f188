"""Fitted corrections against models whose every output is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.one_pass import fit, least_squares, spearman
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.errors import DataError

SPACE = TokenSpace(size=24, pad=0, mask=1, unk=None, start=2, end=3, special=(0, 1, 2, 3))


class Trained(torch.nn.Module):
    """An optimal model of independent tokens q, whose logits add `seen` where a token is shown."""

    def __init__(self, q: np.ndarray[Any, Any], seen: np.ndarray[Any, Any]) -> None:
        super().__init__()
        self.space, self.probability, self.model = SPACE, "ordinary", torch.nn.Identity()
        self.log_q = torch.nn.Parameter(torch.from_numpy(np.log(q)).float())
        self.seen = torch.from_numpy(seen).float()

    def forward(self, batch: Any, *, output: str) -> torch.Tensor:
        assert output == "logits"
        shown = batch.input_ids[0, batch.asked]
        logits = self.log_q.repeat(len(shown), 1)
        logits[torch.arange(len(shown)), shown] += self.seen[shown]
        return logits.masked_fill(torch.from_numpy(SPACE.is_special), -torch.inf)


def encodings(classes: bool) -> list[Encoding]:
    rng = np.random.default_rng(0)
    made = []
    for length in rng.integers(5, 60, 40).tolist():
        ids = np.concatenate([[2], rng.integers(4, 24, length), [3]]).astype(np.int32)
        groups = np.concatenate([[-1], np.arange(length), [-1]]).astype(np.int32)
        kinds = np.where(ids < 4, -1, ids % 2).astype(np.int16) if classes else None
        made.append(Encoding(ids=ids, groups=groups, classes=kinds))
    return made


Q = np.where(SPACE.is_special, 1e-30, np.random.default_rng(1).gamma(0.5, size=24) + 1e-6)
Q /= Q.sum()


@pytest.mark.parametrize("c", [0.0, 3.53, 9.7, 15.0])
def test_the_number_a_model_was_made_with_is_found(c: float) -> None:
    model = Trained(Q, np.where(SPACE.is_special, 0, c))
    found = fit(Conditionals(model), encodings(False), n=200, seed=3)  # type: ignore[arg-type]
    assert found.correction.kind == "fitted"
    assert found.correction.seen is not None
    np.testing.assert_allclose(found.correction.seen[4:], c, atol=1e-3)
    assert (found.correction.seen[:4] == 0).all()
    assert found.positions == 200
    assert found.rmse < 1e-3 < found.raw_rmse + (c == 0)
    assert found.spearman > 0.9999


def test_classes_have_numbers_of_their_own() -> None:
    seen = np.where(SPACE.is_special, 0, np.where(np.arange(24) % 2, 2.0, 6.0))
    ask = Conditionals(Trained(Q, seen))  # type: ignore[arg-type]
    apart, together = fit(ask, encodings(True), n=300), fit(ask, encodings(False), n=300)
    assert apart.correction.seen is not None
    np.testing.assert_allclose(apart.correction.seen, seen, atol=1e-3)
    assert apart.rmse < 1e-3 < together.rmse < together.raw_rmse


def test_the_same_seed_asks_the_same_positions() -> None:
    rng = np.random.default_rng(5)
    ask = Conditionals(Trained(Q, rng.random(24) * 4))  # type: ignore[arg-type]
    first, again, other = (fit(ask, encodings(False), n=50, seed=seed) for seed in (1, 1, 2))
    assert first.correction.seen is not None
    assert again.correction.seen is not None
    assert first.correction.seen.tolist() == again.correction.seen.tolist()
    assert first.rmse == again.rmse != other.rmse


def test_nothing_to_ask_is_an_error() -> None:
    empty = Encoding(ids=np.array([2, 3], dtype=np.int32), groups=np.array([-1, -1], dtype=np.int32))
    ask = Conditionals(Trained(Q, np.zeros(24)))  # type: ignore[arg-type]
    for nothing in ([], [empty]):
        with pytest.raises(DataError, match="no positions"):
            fit(ask, nothing)


def test_least_squares_is_the_lowest_error_of_all() -> None:
    rng = np.random.default_rng(0)
    odds, log_probs = rng.normal(5, 4, 100), -rng.gamma(2, size=100)
    found = least_squares(odds, log_probs)

    def error(c: float) -> float:
        return float(np.mean((-np.logaddexp(0, c - odds) - log_probs) ** 2))

    assert error(found) <= min(error(c) for c in np.linspace(0, 40, 40_001)) + 1e-9


def test_rank_correlation_with_ties() -> None:
    assert spearman(np.array([1.0, 2, 2, 9]), np.array([0.1, 0.3, 0.3, 0.4])) == pytest.approx(1)
    assert spearman(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == pytest.approx(-1)
    assert np.isnan(spearman(np.ones(3), np.arange(3.0)))
