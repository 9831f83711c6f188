"""What records are estimated to cost, and what a batch holds by it."""

from __future__ import annotations

import pytest
from tiny_models import protein_model, residues

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.layout import exact_cost
from seqmlm.engine.units import Mode
from seqmlm.inference.record_batches import Budget, forward_tokens, tokens_per_second
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session

NEARBY, EVERYWHERE = "nearby.v1", "everywhere.v1"


@pytest.mark.parametrize("pattern", [NEARBY, EVERYWHERE])
@pytest.mark.parametrize("longest", [60, 512])
def test_an_exact_score_is_estimated_by_what_the_engine_computes(pattern: str, longest: int) -> None:
    model = protein_model(longest, pattern)
    cost = forward_tokens(model)
    for length in {1, 2, 5, 13, 40, 47, longest // 2 + 1, longest - 1, longest}:
        assert cost(length) == pytest.approx(exact_cost(length, model.rows.layers), rel=0.02), length
    assert cost(0) == 0


@pytest.mark.parametrize("pattern", [NEARBY, EVERYWHERE])
@pytest.mark.parametrize("length", [70, 98, 400])
@pytest.mark.parametrize("mode", ["exact", "one-pass", "partition:3"])
def test_the_estimate_is_near_what_scoring_takes(pattern: str, length: int, mode: str) -> None:
    model, asked = protein_model(100, pattern), Mode.parse(mode)
    session = Session(model, tokens_per_batch=10**6)
    scorer = RecordScorer(session)
    record = Record(id="r", raw=residues(length), source="x", line=1)
    scorer.unit_scores(scorer.encoded([record], Problems()), asked)
    assert forward_tokens(model, asked)(length + 2) == pytest.approx(session.forward_tokens, rel=0.15)


def test_a_batch_holds_as_many_records_as_their_scores_are_cheap() -> None:
    near, far = (protein_model(512, pattern) for pattern in (NEARBY, EVERYWHERE))
    one, other = Budget.of(near), Budget.of(far)
    assert one.batch == other.batch == int(2 * tokens_per_second(far))
    assert one.cost(500) < other.cost(500) / 10
