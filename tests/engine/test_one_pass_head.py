"""The one-pass head learns what a small model says behind masks, and is the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seqmlm.engine.backbones import ModelConfig, build
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.correction import Correction
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.one_pass import HeadConfig, HeadRows, restored, train
from seqmlm.engine.scoring import Scorer
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.engine.units import EXACT, ONE_PASS, ONE_PASS_HEAD, Mode
from seqmlm.errors import DataError

SPACE = TokenSpace(size=17, pad=0, mask=1, unk=2, start=3, end=4, special=(0, 1, 2, 3, 4))
CONFIG = HeadConfig(positions=600, epochs=30, batch=32, learning_rate=3e-3, seed=1)


@pytest.fixture(scope="module")
def rows() -> MaskedRows:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    overrides = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return MaskedRows(build(ModelConfig(overrides={**overrides, "initializer_range": 0.3}), SPACE), SPACE)


def encodings(n: int, seed: int = 0) -> list[Encoding]:
    rng = np.random.default_rng(seed)
    made = []
    for length in rng.integers(8, 30, n).tolist():
        ids = np.concatenate([[3], rng.integers(5, 17, length), [4]]).astype(np.int32)
        made.append(Encoding(ids=ids, groups=np.array([-1, *range(length), -1], dtype=np.int32)))
    return made


def surprisals(rows: MaskedRows | HeadRows, mode: Mode) -> np.ndarray:
    scorer = Scorer(Conditionals(rows), mode=mode, correction=None if mode.head else Correction())
    return np.concatenate([s.log_probs for s in scorer.windows((e, None) for e in encodings(20, seed=9))])


def test_a_trained_head_is_nearer_to_exact_scores_than_raw_outputs(rows: MaskedRows) -> None:
    before = {name: value.clone() for name, value in rows.state_dict().items()}
    trained = train(Conditionals(rows), encodings(80), CONFIG)
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
    ask, few = Conditionals(rows), encodings(10)
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


def test_nothing_to_learn_from_is_an_error(rows: MaskedRows) -> None:
    empty = Encoding(ids=np.array([3, 4], dtype=np.int32), groups=np.array([-1, -1], dtype=np.int32))
    with pytest.raises(DataError, match="no positions"):
        train(Conditionals(rows), [empty], CONFIG)


def test_the_mode_has_a_name() -> None:
    assert Mode.parse("one-pass:head") == ONE_PASS_HEAD != ONE_PASS
    assert str(ONE_PASS_HEAD) == "one-pass:head"
