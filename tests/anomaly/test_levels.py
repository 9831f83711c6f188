"""The share of unknown units: counted naively, in every field that has it, and what it does to alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import protein_model, random_model, residues

from seqmlm.anomaly import levels
from seqmlm.anomaly.judge import Normal
from seqmlm.anomaly.levels import UNKNOWN, Frequencies, Level
from seqmlm.anomaly.values import Doubles, ScoredRecord
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.dna import levels as dna
from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.protein import levels as protein
from seqmlm.domains.text import levels as text
from seqmlm.engine.types import InMemory
from seqmlm.engine.units import unit_symbols
from seqmlm.inference.detector import Detector, JudgedRow
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.scoring.output import reason
from seqmlm.tokenizers.base import Tokenizer
from seqmlm.tokenizers.subword import BpeTokenizer, WordPieceTokenizer

SENTENCES = ["the keys to the cabinet are on the table", "the cabinet is old", "a key opens a cabinet"]
BPE = BpeTokenizer.train(SENTENCES * 4, vocabulary_size=300)


def record(raw: str) -> Record:
    return Record(id="r", raw=raw, source="a.txt", line=1)


def seen(tokenizer: Tokenizer, sentences: Sequence[str] = SENTENCES) -> Frequencies:
    train = InMemory([tokenizer.encode(one) for one in sentences])
    return Frequencies.fit(train, tokenizer, seed=0)


def judged(session: Session, level: Level, raw: str, known: Frequencies | None = None) -> list[JudgedRow]:
    detector = Detector(RecordScorer(session), level, background=known)
    return list(detector.judged_rows([record(raw)], Problems()))


LETTERS = st.text(alphabet="abcdef ", min_size=1, max_size=40)


@given(train=st.lists(LETTERS, min_size=1, max_size=6), raw=LETTERS)
def test_what_training_never_had_is_what_no_sequence_of_it_holds(train: list[str], raw: str) -> None:
    known = seen(BPE, train)
    met = {unit for one in train for unit in unit_symbols(BPE.units, BPE.encode(one))}
    encoding = BPE.encode(raw)
    expected = [unit not in met for unit in unit_symbols(BPE.units, encoding)]
    [scored] = _scored(Session(random_model("text", BPE)), raw)
    assert known.new_units(scored).tolist() == expected
    again = Frequencies.load(known.arrays(), BPE)
    assert again.new_units(scored).tolist() == expected


def _scored(session: Session, raw: str) -> list[ScoredRecord]:
    scorer = RecordScorer(session)
    return scorer.unit_scores(scorer.encoded([record(raw)], Problems()))


def test_of_sensitive_data_no_word_is_kept() -> None:
    known = seen(BPE)
    assert known.arrays().keys() == {"log_probs", "seen"}
    discreet = known.discreet()
    assert discreet.arrays().keys() == {"log_probs"}
    [row] = judged(Session(random_model("text", BPE)), text.SentenceLevel(), "quite unheard of", discreet)
    assert row.row.statistics[UNKNOWN] == 0  # its bytes are all in the vocabulary


def test_more_words_than_can_be_kept_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "_MOST_SEEN", 5)
    assert seen(BPE).unit_hashes is None


def test_a_word_outside_the_vocabulary_is_unknown_without_a_background() -> None:
    tokenizer = WordPieceTokenizer.train(SENTENCES * 4, vocabulary_size=80)
    session = Session(random_model("text", tokenizer))
    for raw, share in (("the cabinet is old", 0.0), ("the \u044f is old", 0.25), ("\u044f \u044f", None)):
        [row] = judged(session, text.SentenceLevel(), raw)
        assert row.row.statistics[UNKNOWN] == share or (share is None and row.row.score is None)


@pytest.mark.parametrize(("letter", "count"), [("X", 3), ("B", 1), ("U", 2)])
def test_residues_that_are_none_of_the_twenty_are_unknown(letter: str, count: int) -> None:
    raw = residues(40 - count) + letter * count
    [row] = judged(Session(protein_model()), protein.ProteinLevel(), raw)
    assert row.row.statistics[UNKNOWN] == pytest.approx(count / 40)


def test_bases_that_are_not_known() -> None:
    session = Session(random_model("dna", BaseTokenizer()))
    raw = "ACGT" * 20 + "NNNN" + "ACGT" * 20
    [whole] = judged(session, dna.RecordLevel(), raw)
    assert whole.row.statistics[UNKNOWN] == pytest.approx(4 / 164)
    found = {one.row.start: one.row.statistics[UNKNOWN] for one in judged(session, dna.WindowLevel(), raw)}
    assert found == {0: 0.04, 50: 0.04, 64: 0.04}


def calibrated(share: float = 0.0) -> tuple[Session, Frequencies, Normal, dict[str, Doubles]]:
    """A text model, what it saw, and a calibration by 400 rows, a share of them with an unknown word."""
    rng = np.random.default_rng(0)
    names = [name for name in text.SentenceLevel().statistics.judging if name != UNKNOWN]
    normal = {name: rng.normal(3, 1, 400) for name in names}
    normal[UNKNOWN] = (rng.random(400) < share) * 0.1
    fitted = Normal.fit(normal, np.full(400, 6), seed=0)
    return Session(random_model("text", BPE)), seen(BPE), fitted, normal


def test_where_nothing_is_unknown_it_is_no_evidence_and_where_much_is_it_alarms() -> None:
    session, known, calibration, _ = calibrated()
    level = text.SentenceLevel()
    detector = Detector(RecordScorer(session), level, background=known, calibration=calibration, alpha=0.05)
    usual, foreign = detector.judged_rows(
        [record("the key is on the table"), record("xyz zzyx qqq on the key")], Problems()
    )
    assert usual.p_values[UNKNOWN] == 1.0
    assert foreign.p_values[UNKNOWN] < 0.01
    again = replace(foreign, fired=UNKNOWN)
    assert "50 % of its words do not occur in the training data" in reason("sentence", level, again)
    least = replace(foreign, fired="lift")  # told even where another statistic says more
    assert reason("sentence", level, least).endswith(" 50 % of its words do not occur in the training data.")
    assert "training" not in reason("sentence", level, replace(usual, fired="lift"))
    assert foreign.row.score == foreign.row.statistics["bits_per_unit"]  # the score is what it was


def test_alarms_are_as_many_as_without_it_where_nothing_is_unknown() -> None:
    _, _, _, normal = calibrated()
    rng = np.random.default_rng(1)
    fresh = {name: rng.normal(3, 1, 2000) for name in normal if name != UNKNOWN}
    sizes, some = np.full(2000, 6), np.full(400, 6)
    with_it = Normal.fit(normal, some, seed=0).judge({**fresh, UNKNOWN: np.zeros(2000)}, sizes)
    without = Normal.fit({k: v for k, v in normal.items() if k != UNKNOWN}, some, seed=0).judge(fresh, sizes)
    np.testing.assert_array_equal(with_it.p_value, without.p_value)
