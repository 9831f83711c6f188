"""The loss of compatible training is the deviation of a joint's conditionals, and is drawn by torch alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from compatibility import CompatibleRows, Hidden, faithful, squared_deviation
from tiny_models import random_model

from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.packing import Document, PackedBatch, pack
from seqmlm.structure.joints import Pair, deviation, pair_conditionals
from seqmlm.structure.pairs import Conditional

MODEL = random_model("dna", BaseTokenizer(), spread=40)
ENCODING = MODEL.tokenizer.encode("ACGTTGACCA")


@pytest.fixture
def rows() -> CompatibleRows:
    made = CompatibleRows(MODEL.rows.model, MODEL.rows.space, probability=MODEL.rows.probability)
    made.weight, made.pairs, made.symbols = 50, 3, len(made.space.ordinary)
    return made.train()


def batch() -> PackedBatch:
    ids, asked = ENCODING.ids.astype(np.int64), np.array([3])
    return pack([Document(ids=ids, asked=asked, targets=ids[asked]) for _ in range(4)])


def test_it_is_the_deviation_of_whole_tables() -> None:
    random = np.random.default_rng(0)
    of_first = np.log(random.dirichlet(np.ones(5), size=7)).T  # (A, B)
    of_second = np.log(random.dirichlet(np.ones(7), size=5))
    own = Conditional(of_first[:, 0], of_second[0], of_second, of_first.T)
    found = squared_deviation(torch.tensor(of_first)[None], torch.tensor(of_second)[None])
    assert found.tolist() == [pytest.approx(deviation(own))]
    assert deviation(own) > 0.1


def test_it_is_none_where_the_conditionals_are_of_one_joint() -> None:
    joint = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(35)).reshape(5, 7))
    some = np.ix_([0, 2, 3], [1, 4, 5, 6])  # symbols that are drawn
    sides = [(joint / joint.sum(dim=axis, keepdim=True)).log()[some][None] for axis in (0, 1)]
    assert squared_deviation(*sides).item() == pytest.approx(0, abs=1e-20)


def test_a_model_is_asked_as_joints_ask_it(rows: CompatibleRows) -> None:
    ids, alphabet = ENCODING.ids.astype(np.int64), rows.space.ordinary.astype(np.int32)
    ids[[2, 5]] = rows.space.mask
    (own,) = pair_conditionals(Conditionals(MODEL.rows), [Pair(ENCODING, 2, 5)], alphabet)
    found = rows.deviations([Hidden(ids, np.arange(len(ids)), np.array([2, 5]))])
    assert found.item() == pytest.approx(deviation(own), rel=1e-3)


@pytest.mark.parametrize("k", [None, 2])
def test_how_faithful_joints_are_is_a_mean_over_pairs(k: int | None) -> None:
    alphabet = MODEL.rows.space.ordinary.astype(np.int32)
    pairs = [Pair(ENCODING, 2, 5), Pair(ENCODING, 3, 4)]
    found = [faithful(MODEL, own, alphabet, k) for own in (pairs, pairs[:1], pairs[1:])]
    for name, value in found[0].items():
        assert value == pytest.approx(np.mean([one[name] for one in found[1:]]))
    assert found[0]["ag"] < found[0]["hcb"]


def test_it_is_added_to_the_loss_of_a_training_alone(rows: CompatibleRows) -> None:
    torch.manual_seed(1)
    found, state = rows(batch()), torch.get_rng_state()
    torch.manual_seed(1)
    assert rows(batch()).item() == found.item()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    drawn = [one for one in (rows.drawn(batch()) for _ in range(3)) if one is not None]
    expected = rows.deviations(drawn).mean().item() * 50 * 4
    alone = rows.eval()(batch()).item()
    assert found.item() - alone == pytest.approx(expected, rel=1e-2)
    assert expected > 0.01
