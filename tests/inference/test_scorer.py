"""Scoring of records against the definition: where long ones are asked, what masking was unequal about."""

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
from seqmlm.engine.masking.lexicon import Lexicon
from seqmlm.engine.reductions import Rows
from seqmlm.engine.types import Floats, TokenSpace
from seqmlm.engine.units import EXACT, ONE_PASS_HEAD, Mode
from seqmlm.errors import NotFiniteError
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return protein_model()


def _surprisals(model: LoadedModel, mode: Mode, *sequences: str) -> list[list[float]]:
    scorer = RecordScorer(Session(model))
    records = [Record(id=raw, raw=raw, source="x.fasta", line=1) for raw in sequences]
    found = scorer.scored(scorer.encoded(records, Problems()), mode)
    assert [one.record.raw for one in found] == list(sequences)
    for one in found:
        assert [one.text(unit) for unit in range(len(one))] == list(str(one.record.raw))
    return [one.surprisal.tolist() for one in found]


def test_a_long_record_is_scored_where_each_residue_is_most_central(model: LoadedModel) -> None:
    sequence = residues(70)
    [found] = _surprisals(model, EXACT, sequence)
    # The definition, residue by residue: some window of 20 with the residue at least 5 from an inner edge.
    ask = Conditionals(model.rows)
    for place, surprisal in enumerate(found):
        windows = [start for start in range(51) if start <= place < start + 20]
        possible = []
        for start in windows:
            inner = (start == 0 or place - start >= 5) and (start == 50 or start + 20 - place > 5)
            encoding = model.tokenizer.encode(sequence[start : start + 20])
            at = np.array([place - start + 1], dtype=np.int32)
            if inner:
                answer = next(ask.ask([Query(encoding=encoding, masked=at, asked=at)]))
                possible.append(-float(answer.values["log_prob"][0]) / math.log(2))
        assert min(abs(surprisal - value) for value in possible) < 1e-4


def test_scores_do_not_depend_on_the_company(model: LoadedModel) -> None:
    sequences = [residues(n) for n in (4, 33, 9)]
    for together, sequence in zip(_surprisals(model, EXACT, *sequences), sequences, strict=True):
        assert together == pytest.approx(_surprisals(model, EXACT, sequence)[0], abs=1e-4)


@pytest.mark.parametrize("mode", [EXACT, Mode("whole-unit"), Mode("partition", 3)])
def test_what_was_hidden_more_often_is_taken_off_in_every_mode(
    model: LoadedModel, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = model.tokenizer.space
    rates = np.where(space.is_special, 0.0, 0.1).astype(np.float32)
    rates[space.ordinary[::2]] = 0.4
    masking = {"masker": "lexicon.v1", "options": {"words": ["L"]}}
    unequal = replace(model, card=replace(model.card, masking=masking))
    sequence = residues(15)
    equal = _surprisals(model, mode, sequence)[0]
    assert _surprisals(unequal, mode, sequence)[0] == pytest.approx(equal), "one rate for all it selects"

    def selection_rate(self: Lexicon, space: TokenSpace) -> Floats:
        return rates

    monkeypatch.setattr(Lexicon, "selection_rate", selection_rate)
    [found] = _surprisals(unequal, mode, sequence)
    # p(t) / s(t), normalized again: from whole rows of the model as it is.
    ids = model.tokenizer.encode(sequence).ids[1:-1]
    expected = [_reweighted(model, mode, sequence, place, rates)[ids[place]] for place in range(15)]
    assert found == pytest.approx((-np.log2(expected)).tolist(), abs=1e-4)
    [text] = RecordScorer(Session(unequal)).sequences([model.tokenizer.encode(sequence)], mode)
    assert text.pll == pytest.approx(float(np.log(expected).sum()), abs=1e-3)


def _reweighted(model: LoadedModel, mode: Mode, sequence: str, place: int, rates: Floats) -> Floats:
    """(V,) p(t | rest) / s(t), normalized, at a residue."""
    encoding = model.tokenizer.encode(sequence)
    rule = model.tokenizer.units
    for query in rule.questions(encoding, None, mode):
        shown = np.flatnonzero(query.asked == place + 1)
        if len(shown):
            [answer] = Conditionals(model.rows).ask([query], [Rows()])
            row = np.exp(answer.values["rows"][shown[0]].astype(np.float64))
            weighted = np.divide(row, rates, out=np.zeros_like(row), where=rates > 0)
            return (weighted / weighted.sum()).astype(np.float32)
    raise AssertionError(f"residue {place} is not asked")


def test_each_precision_has_answers_of_its_own(model: LoadedModel) -> None:
    records = [Record(id="a", raw=residues(33), source="x.fasta", line=1)]
    found = {}
    for precision in ("fp32", "bf16", "auto"):
        scorer = RecordScorer(Session(model, precision=precision))
        asked = scorer.encoded(records, Problems())
        found[precision] = [scorer.scored(asked)[0].surprisal for _ in range(2)]
        [text] = scorer.sequences([asked[0].encoding])
        assert text.pll == pytest.approx(-math.log(2) * float(found[precision][0].sum()), abs=1e-4)
        assert found[precision][0].tolist() == found[precision][1].tolist()
        assert scorer.session.conditionals().precision == scorer.session.precision
    apart = np.abs(found["bf16"][0] - found["fp32"][0])
    assert 0 < apart.max() < 0.2
    if not torch.accelerator.is_available():
        assert found["auto"][0].tolist() == found["fp32"][0].tolist()


def test_a_one_pass_head_is_asked_in_the_scorers_precision(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqmlm.inference.session.head_for", lambda model: model.rows)
    scorer = RecordScorer(Session(model, precision="bf16"))
    records = [Record(id="a", raw=residues(9), source="x.fasta", line=1)]
    scorer.scored(scorer.encoded(records, Problems()), ONE_PASS_HEAD)
    [made] = scorer._scorers.values()
    assert made.conditionals is not scorer.session.conditionals()
    assert made.conditionals.precision == "bf16"


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
        scorer.scored(scorer.encoded(records, Problems()))
    assert str(caught.value).startswith("nowhere: record x.fasta:")
    assert ("(p" in str(caught.value)) is not sensitive
    encodings = [model.tokenizer.encode(one.raw) for one in records]
    with pytest.raises(NotFiniteError, match=r"nowhere: sequence [01]: "):
        scorer.sequences(encodings)
    with pytest.raises(NotFiniteError, match=r"nowhere: one of [01]: "):
        scorer.sequences(encodings, named="one of {}".format)
