"""Scoring of records: windows of long ones, bad ones, order."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.backbones import ModelConfig, build
from seqmlm.engine.conditionals import Conditionals, Query
from seqmlm.engine.model import MaskedRows
from seqmlm.tasks.bundle import Card, LoadedModel
from seqmlm.tasks.score import score_records
from seqmlm.tokenizers.residue import ResidueTokenizer

RESIDUES = "LAGVSERTIDPKQNFYMHWC"


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    torch.manual_seed(3)
    torch.set_num_threads(1)
    tokenizer = ResidueTokenizer()
    overrides = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    rows = MaskedRows(
        build(ModelConfig(max_length=22, overrides=overrides), tokenizer.space), tokenizer.space
    )
    card = Card(
        domain="protein", unit="residue", tokenizer="residue.v1", max_length=22, probability="ordinary"
    )
    return LoadedModel(
        rows=rows, tokenizer=tokenizer, domain=plugins.domain("protein"), card=card, path="nowhere"
    )


def _records(*sequences: str) -> Iterator[Record]:
    for line, raw in enumerate(sequences, start=1):
        yield Record(id=f"r{line}", raw=raw, source="x.fasta", line=line)


def _sequence(length: int) -> str:
    return "".join(RESIDUES[(7 * i + i * i) % 20] for i in range(length))


def test_a_long_record_is_scored_where_each_residue_is_most_central(model: LoadedModel) -> None:
    sequence = _sequence(70)
    [scored] = score_records(model, _records(sequence), Problems(), per_unit=True)
    assert scored.units == 70
    assert scored.per_unit is not None
    assert [(unit.start, unit.unit) for unit in scored.per_unit] == list(enumerate(sequence))
    # The definition, residue by residue: some window of 20 with the residue at least 5 from an inner edge.
    ask = Conditionals(model.rows)
    for place, unit in enumerate(scored.per_unit):
        windows = [start for start in range(51) if start <= place < start + 20]
        surprisals = []
        for start in windows:
            inner = (start == 0 or place - start >= 5) and (start == 50 or start + 20 - place > 5)
            encoding = model.tokenizer.encode(sequence[start : start + 20])
            at = np.array([place - start + 1], dtype=np.int32)
            if inner:
                answer = next(ask.ask([Query(encoding=encoding, masked=at, asked=at)]))
                surprisals.append(-float(answer.log_probs[0]) / math.log(2))
        assert min(abs(unit.surprisal - value) for value in surprisals) < 1e-4


def test_order_is_kept_and_bad_records_are_named(model: LoadedModel) -> None:
    problems = Problems("skip")
    records = _records(_sequence(5), "AC1", _sequence(40), "", _sequence(3))
    scored = list(score_records(model, records, problems))
    assert [(one.id, one.units) for one in scored] == [("r1", 5), ("r3", 40), ("r4", 0), ("r5", 3)]
    assert scored[2].score is None
    assert problems.bad_count == 1


def test_scores_do_not_depend_on_the_company(model: LoadedModel) -> None:
    sequences = [_sequence(n) for n in (4, 33, 9)]
    together = [
        one.pll for one in score_records(model, _records(*sequences), Problems(), tokens_per_batch=64)
    ]
    alone = [next(score_records(model, _records(s), Problems())).pll for s in sequences]
    assert together == pytest.approx(alone, abs=1e-4)
