"""One pass: fits against models whose every output is known, heads against what a small model says masked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from seqmlm.engine.backbones import ModelConfig, build
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.correction import Correction
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.one_pass import HeadConfig, HeadRows, fit, least_squares, restored, spearman, train
from seqmlm.engine.scoring import Scorer
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.engine.units import EXACT, ONE_PASS, ONE_PASS_HEAD, Mode
from seqmlm.errors import DataError

SPACE = TokenSpace(size=24, pad=0, mask=1, unk=None, start=2, end=3, special=(0, 1, 2, 3))


class Trained(torch.nn.Module):
    """An optimal model of independent tokens q, whose logits add `seen` where a token is shown."""

    layers = None

    def __init__(self, q: np.ndarray[Any, Any], seen: np.ndarray[Any, Any]) -> None:
        super().__init__()
        self.space, self.probability, self.model = SPACE, "ordinary", torch.nn.Identity()
        self.log_q = torch.nn.Parameter(torch.from_numpy(np.log(q)).float())
        self.seen = torch.from_numpy(seen).float()

    def forward(self, batch: Any, *, output: str, layers: Any = None) -> torch.Tensor:
        assert output == "logits"
        shown = batch.asked_ids
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
    found = fit(Conditionals(model), encodings(False), n=200, seed=3)
    assert found.correction.kind == "fitted"
    assert found.correction.seen is not None
    np.testing.assert_allclose(found.correction.seen[4:], c, atol=1e-3)
    assert (found.correction.seen[:4] == 0).all()
    assert found.positions == 200
    assert found.rmse < 1e-3 < found.raw_rmse + (c == 0)
    assert found.spearman > 0.9999


def test_classes_have_numbers_of_their_own() -> None:
    seen = np.where(SPACE.is_special, 0, np.where(np.arange(24) % 2, 2.0, 6.0))
    ask = Conditionals(Trained(Q, seen))
    apart, together = fit(ask, encodings(True), n=300), fit(ask, encodings(False), n=300)
    assert apart.correction.seen is not None
    np.testing.assert_allclose(apart.correction.seen, seen, atol=1e-3)
    assert apart.rmse < 1e-3 < together.rmse < together.raw_rmse


def test_the_same_seed_asks_the_same_positions() -> None:
    rng = np.random.default_rng(5)
    ask = Conditionals(Trained(Q, rng.random(24) * 4))
    first, again, other = (fit(ask, encodings(False), n=50, seed=seed) for seed in (1, 1, 2))
    assert first.correction.seen is not None
    assert again.correction.seen is not None
    assert first.correction.seen.tolist() == again.correction.seen.tolist()
    assert first.rmse == again.rmse != other.rmse


def test_nothing_to_ask_is_an_error() -> None:
    empty = Encoding(ids=np.array([2, 3], dtype=np.int32), groups=np.array([-1, -1], dtype=np.int32))
    ask = Conditionals(Trained(Q, np.zeros(24)))
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


WORDS = TokenSpace(size=17, pad=0, mask=1, unk=2, start=3, end=4, special=(0, 1, 2, 3, 4))
CONFIG = HeadConfig(positions=600, epochs=30, batch=32, learning_rate=3e-3, seed=1)


@pytest.fixture(scope="module")
def rows() -> MaskedRows:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    overrides = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return MaskedRows(build(ModelConfig(overrides={**overrides, "initializer_range": 0.3}), WORDS), WORDS)


def sentences(n: int, seed: int = 0) -> list[Encoding]:
    rng = np.random.default_rng(seed)
    made = []
    for length in rng.integers(8, 30, n).tolist():
        ids = np.concatenate([[3], rng.integers(5, 17, length), [4]]).astype(np.int32)
        made.append(Encoding(ids=ids, groups=np.array([-1, *range(length), -1], dtype=np.int32)))
    return made


def surprisals(rows: MaskedRows | HeadRows, mode: Mode) -> np.ndarray:
    scorer = Scorer(Conditionals(rows), mode=mode, correction=None if mode.head else Correction())
    return np.concatenate([s.log_probs for s in scorer.windows((e, None) for e in sentences(20, seed=9))])


def test_a_trained_head_is_nearer_to_exact_scores_than_raw_outputs(rows: MaskedRows) -> None:
    before = {name: value.clone() for name, value in rows.state_dict().items()}
    trained = train(Conditionals(rows), sentences(80), CONFIG)
    assert all(torch.equal(before[name], value) for name, value in rows.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in rows.parameters())
    head = restored(rows, trained.change.state_dict())
    exact, raw = surprisals(rows, EXACT), surprisals(rows, ONE_PASS)
    learnt = surprisals(head, ONE_PASS_HEAD)
    errors = [float(np.sqrt(np.mean((one - exact) ** 2)) / np.log(2)) for one in (raw, learnt)]
    assert errors[1] < 0.7 * errors[0]
    assert trained.facts["rmse"] == pytest.approx(errors[1], rel=0.5)
    assert 500 < trained.facts["positions"] <= 600


def test_an_untrained_head_changes_nothing_and_seeds_repeat(rows: MaskedRows) -> None:
    ask, few = Conditionals(rows), sentences(10)
    still = train(ask, few, HeadConfig(positions=20, epochs=0))
    np.testing.assert_allclose(
        surprisals(restored(rows, still.change.state_dict()), ONE_PASS_HEAD),
        surprisals(rows, ONE_PASS),
        atol=1e-5,
    )
    first, again, other = (
        train(ask, few, HeadConfig(positions=50, epochs=2, seed=seed)).change for seed in (4, 4, 5)
    )
    assert torch.equal(first.up.weight, again.up.weight)
    assert torch.equal(first.down.weight, again.down.weight)
    assert not torch.equal(first.down.weight, other.down.weight)


def test_nothing_to_learn_a_head_from_is_an_error(rows: MaskedRows) -> None:
    empty = Encoding(ids=np.array([3, 4], dtype=np.int32), groups=np.array([-1, -1], dtype=np.int32))
    with pytest.raises(DataError, match="no positions"):
        train(Conditionals(rows), [empty], CONFIG)


def test_the_mode_has_a_name() -> None:
    assert Mode.parse("one-pass:head") == ONE_PASS_HEAD != ONE_PASS
    assert str(ONE_PASS_HEAD) == "one-pass:head"
