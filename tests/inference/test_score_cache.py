"""What was scored is remembered, and nothing but equal sequences is taken for equal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tiny_models import residues

from seqmlm.anomaly.values import ScoredRecord
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.reductions import Rank
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import EXACT, ONE_PASS
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import ScoreCache, Session, digest


def records(*lengths: int) -> list[Record]:
    return [
        Record(id=f"r{i}", raw=residues(length), source="x.fasta", line=i) for i, length in enumerate(lengths)
    ]


def test_equal_sequences_are_asked_once_and_keep_their_own_records(model: LoadedModel) -> None:
    scorer = RecordScorer(Session(model))
    batch = scorer.encoded(records(12, 30, 12), Problems())
    first = scorer.unit_scores(batch)
    asked = scorer.session.conditionals().statistics.variants
    assert asked == 12 + 30
    again = scorer.unit_scores(batch[::-1])
    assert scorer.session.conditionals().statistics.variants == asked
    assert [one.record.id for one in again] == ["r2", "r1", "r0"]
    for old, new in zip(first, again[::-1], strict=True):
        assert new.encoding is old.encoding
        assert new.surprisal.tolist() == old.surprisal.tolist()
        assert new.raw == old.raw


def test_another_request_is_asked_anew(model: LoadedModel) -> None:
    scorer = RecordScorer(Session(model))
    batch = scorer.encoded(records(12), Problems())
    [exact], [once] = scorer.unit_scores(batch, EXACT), scorer.unit_scores(batch, ONE_PASS)
    assert exact.surprisal.tolist() != once.surprisal.tolist()
    [ranked] = scorer.unit_scores(batch, EXACT, want=[Rank()])
    assert not exact.values
    assert ranked.values.keys() == {"rank"}


def test_what_was_not_asked_for_longest_is_forgotten(model: LoadedModel) -> None:
    scorer, memory = RecordScorer(Session(model)), ScoreCache(units=38)
    batch = scorer.encoded(records(10, 12, 14), Problems())
    truth = scorer.unit_scores(batch)
    asked: list[int] = []
    for number in (0, 1, 0, 2, 0, 1):  # 10 + 12 + 14 units are one record too many

        def score(chosen: list[int], number: int = number) -> list[ScoredRecord]:
            asked.append(number)
            return [truth[number] for _ in chosen]

        [one] = memory.scores([batch[number].encoding], "exact", score)
        assert one.surprisal is truth[number].surprisal
        assert not one.record.raw
        assert len(one.encoding) == 0
    assert asked == [0, 1, 2, 1]


def test_a_sequence_longer_than_the_memory_is_scored(model: LoadedModel) -> None:
    scorer = RecordScorer(Session(model))
    scorer.session.cache = ScoreCache(units=5)
    [one] = scorer.unit_scores(scorer.encoded(records(30), Problems()))
    assert len(one) == 30


def test_digests_differ_where_a_model_can_tell() -> None:
    base = Encoding(ids=np.arange(4, dtype=np.int32), groups=np.array([-1, 0, 1, -1], dtype=np.int32))
    others = [
        replace(base, ids=base.ids[::-1].copy()),
        replace(base, groups=np.array([-1, 0, 0, -1], dtype=np.int32)),
        replace(base, positions=np.arange(4, dtype=np.int32)),
        replace(base, channels={"age": np.zeros(4, dtype=np.float32)}),
        replace(base, channels={"age": np.ones(4, dtype=np.float32)}),
        replace(base, channels={"time": np.ones(4, dtype=np.float32)}),
    ]
    assert len({digest(one) for one in [base, *others]}) == 7
    assert digest(base) == digest(replace(base, spans=np.ones((4, 2), dtype=np.int32)))
