"""Text levels: statistics against a naive computation, frequencies across save and load."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from scored_records import detector
from tiny_models import random_model

from seqmlm.anomaly.levels import Frequencies, Level
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.text.levels import SentenceLevel, WordLevel
from seqmlm.engine.types import InMemory
from seqmlm.inference.detector import Detector
from seqmlm.tokenizers.subword import BpeTokenizer

SENTENCES = ["the keys to the cabinet are on the table", "the cabinet is old", "a key opens a cabinet"] * 4
TOKENIZER = BpeTokenizer.train(SENTENCES, vocabulary_size=300)
TRAINING = InMemory(TOKENIZER.encode_batch(SENTENCES))


def detector_of(level: Level, background: Frequencies | None = None) -> Detector:
    return detector(random_model("text", TOKENIZER), level, background)


def record(raw: str) -> Record:
    return Record(id="s", raw=raw, source="a.txt", line=1)


def unigram_bits(word_tokens: list[int]) -> float:
    counts = Counter(token for one in SENTENCES for token in TOKENIZER.encode(one).ids.tolist())
    ordinary = TOKENIZER.space.ordinary.tolist()
    total = sum(counts[token] + 1 for token in ordinary)
    return -sum(math.log2((counts[token] + 1) / total) for token in word_tokens)


def test_statistics_of_a_sentence_are_those_of_its_words() -> None:
    detector = detector_of(SentenceLevel(), Frequencies.fit(TRAINING, TOKENIZER, seed=0))
    [found] = detector.judged_rows([record("the table opens an unopened key")], Problems())
    scored = found.scored_record
    ids, groups = scored.encoding.ids, scored.encoding.groups
    frequency = [unigram_bits(ids[groups == number].tolist()) for number in scored.number]
    expected = {
        "bits_per_unit": scored.surprisal.mean(),
        "slor": np.mean(scored.surprisal - np.array(frequency)),
        "lift": max(scored.surprisal - np.array(frequency)),
        "unknown": 2 / 6,  # "an" and "unopened"
    }
    assert found.row.statistics == pytest.approx(expected, abs=1e-9)
    assert found.row.score == expected["bits_per_unit"]


def test_frequencies_survive_saving() -> None:
    background = Frequencies.fit(TRAINING, TOKENIZER, seed=0)
    again = Frequencies.load(background.arrays(), TOKENIZER)
    detector = detector_of(WordLevel("word"))
    [found] = detector.unit_scores(detector.scorer.encoded([record("a table")], Problems()))
    assert again.bits(found).tolist() == background.bits(found).tolist()


def test_words_are_rows_of_their_own() -> None:
    detector = detector_of(WordLevel("word"))
    text = "an unopened cabinet"
    rows = list(detector.judged_rows([record(text)], Problems()))
    assert [text[one.row.start : one.row.end].strip() for one in rows] == text.split()
    for unit, one in enumerate(rows):
        bits = one.scored_record.surprisal[unit]
        assert one.row.statistics == {"surprisal": bits, "unknown": 0.0}
    known = Frequencies.fit(TRAINING, TOKENIZER, seed=0)
    detector = Detector(detector.scorer, WordLevel("word"), background=known)
    judged = detector.judged_rows([record(text)], Problems())
    assert [one.row.statistics["unknown"] for one in judged] == [1.0, 1.0, 0.0]
    lifts = [one.statistics["lift"] for one in WordLevel("word").rows(rows[0].scored_record, known)]
    assert lifts == (rows[0].scored_record.surprisal - known.bits(rows[0].scored_record)).tolist()


def test_an_empty_sentence_has_no_score() -> None:
    [found] = detector_of(SentenceLevel()).judged_rows([record("")], Problems())
    assert found.row.score is None
    assert set(found.row.statistics) == {"bits_per_unit", "unknown"}
    assert math.isnan(found.row.statistics["unknown"])
