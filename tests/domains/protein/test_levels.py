"""Protein levels: statistics against a naive computation, z-scores by length."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scored_records
from tiny_models import protein_model, residues

from seqmlm.anomaly.levels import Level, highest_stretch
from seqmlm.anomaly.values import ScoredRecord
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.protein.levels import SEGMENT, LengthReference, ProteinLevel, ResidueLevel
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.engine.types import InMemory
from seqmlm.inference.detector import Detector
from seqmlm.scoring.output import line

TOKENIZER = ResidueTokenizer()


def record(length: int) -> Record:
    return Record(id="p", raw=residues(length), source="a.fasta", line=1)


def detector(level: Level, max_length: int = 22, **more: Any) -> Detector:
    return scored_records.detector(protein_model(max_length), level, **more)


def normal(seed: int, count: int = 400) -> list[ScoredRecord]:
    """Proteins of 10 to 500 residues whose bits per residue fall, and spread less, with length."""
    rng = np.random.default_rng(seed)
    found = []
    for length in rng.integers(10, 500, count).tolist():
        bits = 4 - length / 500 + rng.normal(0, 3 / np.sqrt(length))
        raw = residues(length)
        found.append(
            ScoredRecord(
                record=Record(id="n", raw=raw, source="n", line=1),
                encoding=TOKENIZER.encode(raw),
                rule=TOKENIZER.units,
                number=np.arange(length),
                surprisal=np.full(length, bits),
            )
        )
    return found


def reference() -> LengthReference:
    return LengthReference.fit(InMemory([]), TOKENIZER, seed=0).learn(normal(0))


def test_z_scores_of_fresh_normals_are_standard_at_every_length() -> None:
    known = reference()
    pairs = np.array([(len(one), known.z(len(one), one.surprisal.mean())) for one in normal(1, 2000)])
    for short in (True, False):
        z = pairs[(pairs[:, 0] < 200) == short, 1]
        assert abs(z.mean()) < 0.25
        assert 0.8 < z.std() < 1.3
    raw = np.array([(len(one), one.surprisal.mean()) for one in normal(1, 2000)])
    assert np.corrcoef(raw.T)[0, 1] < -0.4 < -0.1 < np.corrcoef(pairs.T)[0, 1]


def test_a_reference_survives_saving_and_holds_no_protein() -> None:
    known = reference()
    arrays = known.arrays()
    assert max(map(len, arrays.values())) <= 10
    again = LengthReference.load(arrays, TOKENIZER)
    assert again.z(77, 3.3) == known.z(77, 3.3)


def test_without_normal_scores_there_is_no_z() -> None:
    empty = LengthReference.fit(InMemory([]), TOKENIZER, seed=0)
    assert empty.z(50, 3.0) is None
    assert empty.learn([]).z(50, 3.0) is None


def test_statistics_of_a_protein_are_those_of_its_residues() -> None:
    [found] = detector(ProteinLevel(), background=reference()).judged_rows([record(60)], Problems())
    scored, row = found.scored_record, found.row
    above = scored.surprisal - scored.values["entropy"]
    expected = {
        "bits_per_unit": scored.surprisal.mean(),
        "unexpected": above.mean(),
        "segment": max(above[i : i + SEGMENT].mean() for i in range(60 - SEGMENT + 1)),
        "unknown": 0.0,
    }
    assert row.statistics == pytest.approx(expected, abs=1e-9)
    first, last = row.extra["segment"]
    assert above[first - 1 : last].mean() == pytest.approx(expected["segment"])
    assert last - first + 1 == SEGMENT
    said = ProteinLevel().reasons.meaning("segment", row)
    assert said == f"the most unexpected stretch, residues {first} to {last}"
    assert row.extra["z"] == reference().z(60, expected["bits_per_unit"])


def test_residues_are_counted_from_one() -> None:
    rows = list(detector(ResidueLevel("residue")).judged_rows([record(30)], Problems()))
    assert [one.row.id for one in rows] == [f"p#{number}" for number in range(1, 31)]
    for unit, one in enumerate(rows):
        bits = one.scored_record.surprisal[unit]
        above = bits - one.scored_record.values["entropy"][unit]
        assert one.row.statistics == {"unexpected": above, "surprisal": bits}
        assert one.row.score == one.row.statistics["unexpected"]


def test_residues_that_are_not_known_change_no_score_of_others_and_no_length() -> None:
    raw = "MKXXLAVGSERTXBZUOJIDPKQ"
    one = Record(id="p", raw=raw, source="a.fasta", line=1)
    for level in (ProteinLevel(), ResidueLevel("residue")):
        scored = next(detector(level, 40).judged_rows([one], Problems())).scored_record
        assert [scored.text(unit) for unit in range(len(scored))] == [c for c in raw if c not in "XBZUOJ"]
    [row] = detector(ProteinLevel(), 40).judged_rows([one], Problems())
    assert row.row.length == 23 - 8
    assert (row.row.start, row.row.end) == (0, 23)


@pytest.mark.parametrize(("raw", "known"), [("M", False), ("XMX", False), ("XXX", False), ("MK", True)])
@pytest.mark.parametrize("level", [ProteinLevel(), ResidueLevel("residue")])
def test_a_residue_without_context_has_no_score(level: Level, raw: str, known: bool) -> None:
    one = Record(id="p", raw=raw, source="a.fasta", line=1)
    rows = list(detector(level).judged_rows([one], Problems()))
    assert len(rows) == (1 if isinstance(level, ProteinLevel) else sum(c != "X" for c in raw))
    for one in rows:
        assert (one.row.score is not None) == known
        assert all(np.isfinite(value) == known for value in one.row.statistics.values())
        fields = line(replace(one, p_value=1.0, alarm=False), TOKENIZER)
        assert (fields["p_value"] == 1.0) == known
        assert (fields["p_value"] is None) != known


@pytest.mark.parametrize("width", [1, 3, 50])
def test_the_highest_stretch_is_that_of_a_loop(width: int) -> None:
    values = np.random.default_rng(0).normal(size=17)
    size = min(width, 17)
    means = [values[i : i + size].mean() for i in range(17 - size + 1)]
    assert highest_stretch(values, width) == (pytest.approx(max(means)), int(np.argmax(means)))
