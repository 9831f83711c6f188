"""Which questions a pseudo-log-likelihood asks, and how the answers become scores."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from likelihood import pseudo_log_likelihood

from seqmlm.engine import units
from seqmlm.engine.backbones import build
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.layout import lay_out
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.scoring import SequenceScore
from seqmlm.engine.shapes import ModelConfig
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.engine.units import Units

SPACE = TokenSpace(size=20, pad=0, mask=1, unk=2, start=3, end=4, special=(0, 1, 2, 3, 4))


def encoding(ids: list[int], groups: list[int]) -> Encoding:
    return Encoding(ids=np.array(ids, dtype=np.int32), groups=np.array(groups, dtype=np.int32))


def asked(one: Encoding) -> list[tuple[int, list[int]]]:
    """(asked position, token ids it is asked with), query after query."""
    found = []
    for query in Units(SPACE).questions(one):
        layout = lay_out([query], SPACE, rows_limit=100, capacity=None)
        copies = layout.documents.batch(0, len(layout.documents)).input_ids.view(-1, len(one))
        found += [(int(p), copies[row].tolist()) for p, row in zip(query.asked, layout.row, strict=True)]
    return found


@pytest.fixture(scope="module")
def ask() -> Conditionals:
    torch.manual_seed(0)
    overrides = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return Conditionals(MaskedRows(build(ModelConfig(overrides=overrides), SPACE), SPACE))


def test_a_unit_whose_tokens_lie_apart_is_one_unit() -> None:
    assert asked(encoding([7, 8, 9], [1, 0, 1])) == [(0, [1, 8, 1]), (1, [7, 1, 9]), (2, [7, 8, 1])]


def test_a_sequence_of_special_tokens_asks_nothing_and_keeps_its_place(ask: Conditionals) -> None:
    empty, one = encoding([3, 4], [-1, -1]), encoding([3, 9, 4], [-1, 0, -1])
    scores = list(pseudo_log_likelihood(ask, [empty, empty, one, empty, one, empty]))
    assert [len(score.positions) for score in scores] == [0, 0, 1, 0, 1, 0]
    assert scores[0].pll == 0
    assert scores[2].pll == scores[4].pll < 0


def test_very_long_sequences_are_asked_in_parts(ask: Conditionals, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    long = encoding(rng.integers(5, 20, 30).tolist(), np.cumsum(rng.random(30) < 0.5).tolist())
    whole, rows = list(pseudo_log_likelihood(ask, [long, long])), asked(long)
    monkeypatch.setattr(units, "QUERY_TOKENS", 100)
    assert len(list(Units(SPACE).questions(long))) == 10
    assert asked(long) == rows
    for score, expected in zip(pseudo_log_likelihood(ask, [long, long]), whole, strict=True):
        np.testing.assert_array_equal(score.positions, expected.positions)
        np.testing.assert_allclose(score.log_probs, expected.log_probs, atol=1e-5)


def test_unit_sums_and_bits() -> None:
    score = SequenceScore(
        positions=np.array([1, 2, 4], dtype=np.int32),
        log_probs=np.log(np.array([0.5, 0.25, 0.125], dtype=np.float32)),
        groups=np.array([3, 3, 6], dtype=np.int32),
    )
    numbers, sums = score.units
    assert numbers.tolist() == [3, 6]
    np.testing.assert_allclose(sums, np.log([0.125, 0.125]), rtol=1e-6)
    assert score.pll == pytest.approx(np.log(1 / 64))


def test_sequences_stream(ask: Conditionals) -> None:
    read = []

    def source() -> Iterator[Encoding]:
        for number in range(40):
            read.append(number)
            yield encoding([3, 5 + number % 15, 5 + number // 15, 9, 4], [-1, 0, 1, 2, -1])

    few = Conditionals(ask.rows, lookahead=6)
    for number, _ in enumerate(pseudo_log_likelihood(few, source())):
        assert len(read) <= number + 3
    assert len(read) == 40
    assert few.statistics.variants == 3 * 40
