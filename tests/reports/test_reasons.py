"""What a row and a report say of counts, in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_models import random_model

from seqmlm import plugins
from seqmlm.anomaly.values import SEEN, ScoredRecord
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.dna.kmer_block import KmerBlockTokenizer
from seqmlm.engine.reductions import top
from seqmlm.engine.types import Encoding, Longs
from seqmlm.engine.units import Units
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.reports.reasons import count_sentence
from seqmlm.reports.report import unit_tip

TOKENIZER = plugins.tokenizer_class("residue")()
RAW = "MKTAYIA"


def of(encoding: Encoding, seen: tuple[int, int, int]) -> ScoredRecord:
    """Scores of the record's units, all counted alike."""
    number = np.unique(encoding.groups[encoding.groups >= 0]).astype(np.int64)
    return ScoredRecord(
        record=Record(id="x", raw=RAW, source="x", line=1),
        encoding=encoding,
        rule=TOKENIZER.units,
        number=number,
        surprisal=np.ones(len(number)),
        values={SEEN: np.array([seen] * len(number))},
    )


@pytest.mark.parametrize(
    ("unit", "seen", "sentence"),
    [
        (3, (0, 12, 40), "seen 12 times in training"),
        (3, (0, 1, 40), "seen 1 time in training"),
        (3, (1, 0, 1), "seen 0 of 1 time after 'T'"),
        (3, (1, 0, 1204), "seen 0 of 1,204 times after 'T'"),
        (3, (2, 3, 5), "seen 3 of 5 times between 'T' and 'Y'"),
        (3, (3, 3, 5), "seen 3 of 5 times between 'KT' and 'Y'"),
        (3, (4, 3, 5), "seen 3 of 5 times between 'KT' and 'YI'"),
        (0, (1, 3, 5), "seen 3 of 5 times at the beginning"),
        (0, (2, 3, 5), "seen 3 of 5 times between the beginning and 'K'"),
        (1, (4, 3, 5), "seen 3 of 5 times between 'M' and 'TA'"),
        (6, (2, 3, 5), "seen 3 of 5 times between 'I' and the end"),
        (5, (4, 3, 5), "seen 3 of 5 times between 'AY' and 'A'"),
    ],
)
def test_the_context_is_named(unit: int, seen: tuple[int, int, int], sentence: str) -> None:
    scored = of(TOKENIZER.encode(RAW), seen)
    assert count_sentence(scored, unit) == sentence
    assert unit_tip(scored, unit, str) == f"{RAW[unit]}: 1.0 bits, {sentence}"
    positions = np.zeros(len(scored.encoding), dtype=np.int32)
    several = replace(scored, encoding=replace(scored.encoding, positions=positions))
    assert ("its set" in count_sentence(several, unit)) is bool(seen[0])


def test_units_of_several_tokens_are_counted_among_their_like() -> None:
    encoding = TOKENIZER.encode(RAW)
    groups = encoding.groups.copy()
    groups[4:6] = 3  # "TA" is one unit
    scored = of(replace(encoding, groups=groups), (1, 0, 9))
    told = [count_sentence(scored, unit) for unit in range(len(scored))]
    assert [one.endswith("among units of 2 tokens") for one in told].count(True) == 1
    assert told[1] == "seen 0 of 9 times after 'M', among units of 1 token"


def test_a_long_record_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, spans = [], Units.spans

    def remembered(self: Units, encoding: Encoding) -> Longs:
        looked.append(encoding)
        return spans(self, encoding)

    monkeypatch.setattr(Units, "spans", remembered)
    scored = of(TOKENIZER.encode(RAW), (2, 3, 5))
    assert len({count_sentence(scored, unit) for unit in range(len(RAW))}) == len(RAW)
    assert scored.spans[-1].tolist() == [6, 7]
    assert len(looked) == 1


def test_what_is_expected_where_a_token_is_several_letters_are_letters() -> None:
    model = random_model("dna", KmerBlockTokenizer(k=3))
    scorer, record = RecordScorer(Session(model)), Record(id="x", raw="ACGTACGTA", source="x", line=1)
    [one] = scorer.unit_scores(scorer.encoded([record], Problems()), want=top(2))
    shown = unit_tip(one, 4, model.tokenizer.spelling.unit_text).partition("expected: ")[2]
    assert shown
    assert {part.split()[0] for part in shown.split(", ")} <= set("ACGT")
