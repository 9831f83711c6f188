"""Evaluation in bits: what is masked, what is counted, and that nothing in it flatters."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from seqmlm.engine.backbones import build
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.masking.base import Corruptor, MaskingConfig, uniform_units
from seqmlm.engine.masking.uniform import Uniform
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import Document, pack
from seqmlm.engine.randomness import EVALUATION, rng
from seqmlm.engine.shapes import ModelConfig
from seqmlm.engine.types import Encoding, InMemory, TokenSpace
from seqmlm.engine.units import Units, unit_numbers, unit_symbols
from seqmlm.errors import UsageError
from seqmlm.evaluation.bits import BitsReport, memorization_gap, unigram, unit_bits

SPACE = TokenSpace(size=30, pad=0, mask=1, unk=2, start=3, end=4, special=(0, 1, 2, 3, 4))
FLAT = np.where(SPACE.is_special, 0.0, 1 / 25)


def masked_bits(*arguments: Any, **named: Any) -> BitsReport:
    return unit_bits(*arguments, **named).report()


def corpus(count: int, seed: int = 0) -> InMemory:
    """Sentences of words of one to three tokens."""
    random, made = np.random.default_rng(seed), list[Encoding]()
    for _ in range(count):
        length = int(random.integers(3, 25))
        ids = np.concatenate([[3], random.zipf(1.6, length).clip(max=25) + 4, [4]])
        groups = np.concatenate([[-1], np.cumsum(random.random(length) < 0.6), [-1]])
        made.append(Encoding(ids=ids.astype(np.int32), groups=groups.astype(np.int32)))
    return InMemory(made)


def model(seed: int = 0) -> MaskedRows:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    overrides = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "initializer_range": 0.3,
    }
    return MaskedRows(build(ModelConfig(overrides=overrides), SPACE), SPACE)


def test_report_equals_the_definition_sequence_by_sequence() -> None:
    rows, sequences = model().eval(), corpus(30)
    frequencies = unigram(sequences, SPACE)
    bits = unigram_bits = 0.0
    units = tokens = 0
    for index in range(3, 30, 2):
        encoding = sequences[index]
        chosen = np.flatnonzero(uniform_units(encoding, SPACE, 0.3, rng(7, 0, index, EVALUATION)))
        ids = encoding.ids.copy()
        ids[chosen] = SPACE.mask
        batch = pack([Document(ids=ids, asked=chosen, targets=encoding.ids[chosen])])
        with torch.no_grad():
            bits += rows(batch).item() / math.log(2)
        unigram_bits -= np.log2(frequencies[encoding.ids[chosen]]).sum()
        units += len(set(encoding.groups[chosen].tolist()))
        tokens += len(chosen)
    report = masked_bits(
        Conditionals(rows), sequences, range(3, 30, 2), unigram=frequencies, rate=0.3, seed=7
    )
    assert (report.units, report.tokens) == (units, tokens)
    assert units < tokens
    assert report.bits_per_unit == pytest.approx(bits / units, rel=1e-5)
    assert report.unigram_bits_per_unit == pytest.approx(unigram_bits / units, rel=1e-9)
    assert report.loss == pytest.approx(bits * math.log(2) / tokens, rel=1e-5)


def test_units_are_masked_whole_and_do_not_depend_on_model_or_company() -> None:
    sequences = corpus(40)
    one = unit_bits(Conditionals(model(0)), sequences, range(40), unigram=FLAT, seed=1)
    other = unit_bits(
        Conditionals(model(1), tokens_per_batch=50), sequences, range(20, 40), unigram=FLAT, seed=1
    )
    late = one.sample >= 20
    for name in ("sample", "unit", "tokens", "unigram_bits"):
        np.testing.assert_array_equal(getattr(one, name)[late], getattr(other, name))
    assert not np.allclose(one.bits[late], other.bits)
    for sample, unit, tokens in zip(one.sample, one.unit, one.tokens, strict=True):
        assert len(unit_symbols(Units(SPACE), sequences[sample])[unit]) == tokens
    again = unit_bits(Conditionals(model(0)), sequences, range(40), unigram=FLAT, seed=2)
    assert not np.array_equal(one.unit, again.unit)


def test_the_model_sees_masks_alone_where_it_is_asked() -> None:
    """Other tokens in the masked places change no input, and none is kept or replaced."""
    sequences, changed = corpus(10), list[Encoding]()
    for index, encoding in enumerate(sequences):
        chosen = uniform_units(encoding, SPACE, 0.15, rng(5, 0, index, EVALUATION))
        changed.append(replace(encoding, ids=np.where(chosen, 9, encoding.ids).astype(np.int32)))
    rows, seen = model(), []
    rows.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    for one in (sequences, InMemory(changed)):
        unit_bits(Conditionals(rows), one, range(10), unigram=FLAT, seed=5)
    before = seen[0]
    assert (before.input_ids[0, before.asked] == SPACE.mask).all()
    assert int((before.input_ids == SPACE.mask).sum()) == len(before.asked)
    documents = [sorted(tuple(t.tolist()) for t in b.input_ids[0].split(b.lengths)) for b in seen]
    assert documents[0] == documents[1]


def test_a_model_that_knows_nothing_costs_what_the_uniform_costs() -> None:
    """With all logits equal, a token costs log2 of the ordinary tokens: special ones take no share."""
    rows = model()
    with torch.no_grad():
        for parameter in rows.parameters():
            parameter.zero_()
    report = masked_bits(Conditionals(rows), corpus(20), range(20), unigram=FLAT, seed=0)
    assert report.loss == pytest.approx(math.log(25), rel=1e-6)
    assert report.bits_per_unit == pytest.approx(report.unigram_bits_per_unit, rel=1e-6)
    assert report.bits_per_unit == pytest.approx(math.log2(25) * report.tokens / report.units, rel=1e-6)


def test_sequences_without_ordinary_tokens_are_passed_over() -> None:
    empty = Encoding(ids=np.array([3, 4], np.int32), groups=np.array([-1, -1], np.int32))
    sequences = InMemory([empty, *corpus(2), empty])
    ask = Conditionals(model())
    assert masked_bits(ask, sequences, range(4), unigram=FLAT, seed=0).units >= 2
    nothing = masked_bits(ask, sequences, [0, 3], unigram=FLAT, seed=0)
    assert (nothing.units, nothing.tokens) == (0, 0)
    assert math.isnan(nothing.bits_per_unit)


def test_the_unigram_is_add_one_and_leaves_special_tokens_out() -> None:
    sequences = corpus(5)
    counts = np.bincount(np.concatenate([e.ids for e in sequences]), minlength=SPACE.size)
    expected = (counts[5:] + 1) / (counts[5:].sum() + 25)
    for source in (sequences, counts):
        probabilities = unigram(source, SPACE)
        assert (probabilities[:5] == 0).all()
        np.testing.assert_allclose(probabilities[5:], expected)
    with pytest.raises(UsageError, match=r"shape \(29,\)"):
        unigram(counts[1:], SPACE)
    with pytest.raises(UsageError, match="a unigram of shape"):
        masked_bits(Conditionals(model()), sequences, [0], unigram=FLAT[1:], seed=0)


def test_units_of_a_sequence() -> None:
    encoding = Encoding(
        ids=np.array([3, 7, 8, 2, 9, 2, 10, 4], np.int32),
        groups=np.array([-1, 5, 5, 6, 8, 8, 5, -1], np.int32),
    )
    assert unit_symbols(Units(SPACE), encoding) == [(7, 8, 10), (), (9,)]
    assert unit_numbers(encoding).tolist() == [-1, 0, 0, 1, 2, 2, 0, -1]
    empty = Encoding(ids=np.array([3], np.int32), groups=np.array([-1], np.int32))
    assert unit_symbols(Units(SPACE), empty) == []


def train(rows: MaskedRows, sequences: InMemory, corruptor: Corruptor, epochs: int) -> None:
    optimizer = torch.optim.AdamW(rows.parameters(), lr=3e-3)
    for epoch in range(epochs):
        masked = [corruptor(encoding, epoch, i) for i, encoding in enumerate(sequences)]
        batch = pack([Document(ids=m.ids, asked=m.positions, targets=m.targets) for m in masked])
        optimizer.zero_grad()
        (rows(batch) / len(batch.asked)).backward()
        optimizer.step()


def make_corruptor(dynamic: bool) -> Corruptor:
    config = MaskingConfig(dynamic=dynamic, rate=0.3)
    return Corruptor(config, Uniform(rate=0.3, space=SPACE), SPACE, None, seed=3)


def test_memorization_shows_as_a_negative_gap_with_static_masks_alone() -> None:
    """Tokens drawn independently: there is nothing to learn beyond the masks that were seen."""
    random, made = np.random.default_rng(0), list[Encoding]()
    for _ in range(16):
        ids = np.concatenate([[3], random.integers(5, 30, 12), [4]]).astype(np.int32)
        groups = np.concatenate([[-1], np.arange(12), [-1]]).astype(np.int32)
        made.append(Encoding(ids=ids, groups=groups))
    sequences = InMemory(made)
    gaps = {}
    for dynamic in (True, False):
        rows, corruptor = model(), make_corruptor(dynamic)
        before = memorization_gap(Conditionals(rows), sequences, range(16), corruptor)
        train(rows.train(), sequences, corruptor, epochs=60)
        assert corruptor.config.dynamic is dynamic
        gaps[dynamic] = memorization_gap(Conditionals(rows), sequences, range(16), corruptor)
        assert abs(before) < 0.7
        assert rows.training
    assert gaps[False] < -1.5
    assert gaps[False] < gaps[True] - 1


def test_the_gap_compares_the_trained_masks_as_they_were_trained() -> None:
    """Oracle: the loss on the corruptor's own output, kept and replaced tokens included."""
    rows, sequences, corruptor = model().eval(), corpus(12), make_corruptor(dynamic=False)

    def loss(made: Corruptor, epoch: int) -> float:
        masked = [made(sequences[i], epoch, i) for i in range(12)]
        batch = pack([Document(ids=m.ids, asked=m.positions, targets=m.targets) for m in masked])
        with torch.no_grad():
            return rows(batch).item() / len(batch.asked)

    expected = loss(corruptor, 0) - loss(make_corruptor(dynamic=True), 2**40)
    assert memorization_gap(Conditionals(rows), sequences, range(12), corruptor) == pytest.approx(
        expected, abs=1e-5
    )
