"""Scoring of records against the definition: where long ones are asked, and in which precision."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_models import protein_model, residues

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.conditionals import Conditionals, Query
from seqmlm.engine.units import EXACT, Mode
from seqmlm.errors import NotFiniteError
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session


def _surprisals(model: LoadedModel, mode: Mode, *sequences: str) -> list[list[float]]:
    scorer = RecordScorer(Session(model))
    records = [Record(id=raw, raw=raw, source="x.fasta", line=1) for raw in sequences]
    found = scorer.unit_scores(scorer.encoded(records, Problems()), mode)
    assert [one.record.raw for one in found] == list(sequences)
    for one in found:
        assert [one.text(unit) for unit in range(len(one))] == list(str(one.record.raw))
    return [one.surprisal.tolist() for one in found]


def test_a_long_record_is_scored_where_each_residue_is_most_central(model: LoadedModel) -> None:
    sequence, last = residues(45), 25
    [found] = _surprisals(model, EXACT, sequence)
    # The definition, residue by residue: some window of 20 with the residue at least 5 from an inner edge.
    ask = Conditionals(model.rows)
    for place, surprisal in enumerate(found):
        windows = [start for start in range(last + 1) if start <= place < start + 20]
        possible = []
        for start in windows:
            inner = (start == 0 or place - start >= 5) and (start == last or start + 20 - place > 5)
            encoding = model.tokenizer.encode(sequence[start : start + 20])
            at = np.array([place - start + 1], dtype=np.int32)
            if inner:
                answer = next(ask.ask([Query(encoding=encoding, masked=at, asked=at)]))
                possible.append(-float(answer.values["log_prob"][0]) / math.log(2))
        assert min(abs(surprisal - value) for value in possible) < 1e-4
        assert len(possible) == 1 or max(possible) - min(possible) > 1e-3


def test_scores_do_not_depend_on_the_company(model: LoadedModel) -> None:
    sequences = [residues(n) for n in (4, 33, 9)]
    for together, sequence in zip(_surprisals(model, EXACT, *sequences), sequences, strict=True):
        assert together == pytest.approx(_surprisals(model, EXACT, sequence)[0], abs=1e-4)


def test_each_precision_has_answers_of_its_own(model: LoadedModel) -> None:
    records = [Record(id="a", raw=residues(33), source="x.fasta", line=1)]
    found = {}
    for precision in ("fp32", "bf16", "auto"):
        scorer = RecordScorer(Session(model, precision=precision))
        asked = scorer.encoded(records, Problems())
        found[precision] = [scorer.unit_scores(asked)[0].surprisal for _ in range(2)]
        [text] = scorer.sequences([asked[0].encoding])
        assert text.pll == pytest.approx(-math.log(2) * float(found[precision][0].sum()), abs=1e-4)
        assert found[precision][0].tolist() == found[precision][1].tolist()
        assert scorer.session.conditionals().precision == scorer.session.precision
    apart = np.abs(found["bf16"][0] - found["fp32"][0])
    assert 0 < apart.max() < 0.2
    if not torch.accelerator.is_available():
        assert found["auto"][0].tolist() == found["fp32"][0].tolist()


@pytest.mark.parametrize("sensitive", [False, True])
def test_a_score_that_is_no_number_names_model_and_record(sensitive: bool) -> None:
    model = protein_model()
    model = replace(model, card=replace(model.card, sensitive=sensitive))
    scorer = RecordScorer(Session(model))
    records = [
        Record(id=f"p{n}", raw=raw, source="x.fasta", line=n) for n, raw in enumerate(["LAGV", "LAWV"])
    ]
    embedding = model.rows.model.get_input_embeddings().weight.data
    embedding[int(model.tokenizer.encode("W").ids[1])] = 3e38
    with pytest.raises(NotFiniteError) as caught:
        scorer.unit_scores(scorer.encoded(records, Problems()))
    assert str(caught.value).startswith("nowhere: record x.fasta:")
    assert ("(p" in str(caught.value)) is not sensitive
    encodings = [model.tokenizer.encode(one.raw) for one in records]
    with pytest.raises(NotFiniteError, match=r"nowhere: sequence [01]: "):
        scorer.sequences(encodings)
    with pytest.raises(NotFiniteError, match=r"nowhere: one of [01]: "):
        scorer.sequences(encodings, name_of="one of {}".format)
