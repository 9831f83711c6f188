"""Records to rows: windows of long records, parts asked anew, order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import protein_model, residues
from torch import Tensor

from seqmlm.anomaly.levels import RecordLevel, UnitLevel
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.correction import Correction
from seqmlm.engine.reductions import Block, Entropy, Rank, Reduction
from seqmlm.engine.scoring import Scorer
from seqmlm.engine.units import EXACT, ONE_PASS, Mode
from seqmlm.inference import one_pass
from seqmlm.inference.detector import Detector
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.tasks.score_output import line
from seqmlm.tasks.score_plan import EXPECTED


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return protein_model()


def _records(*lengths: int) -> list[Record]:
    return [
        Record(id=f"r{i}", raw=residues(length), source="x.fasta", line=i)
        for i, length in enumerate(lengths, start=1)
    ]


class Margin(Reduction):
    """How much likelier the most probable token is than the second; nothing in the package knows of it."""

    name = "margin"

    def apply(self, block: Block) -> Tensor:
        best = torch.log_softmax(block.logits, -1).topk(2).values
        return best[:, 0] - best[:, 1]


@pytest.mark.parametrize("mode", [EXACT, Mode("partition", 4), Mode("whole-unit")])
def test_parts_that_are_asked_anew_are_those_of_a_whole_scoring(model: LoadedModel, mode: Mode) -> None:
    scorer = RecordScorer(Session(model, correction=Correction()))
    batch = scorer.encoded(_records(70, 3, 30), Problems())
    truth = scorer.scored(batch, EXACT, want=[Entropy(), Rank(), Margin()])
    level = RecordLevel("protein")
    level.want = (Margin(), Rank())
    detector = Detector(scorer, level, mode=mode, want=[Entropy()])
    rough = detector.scored(batch)
    units = [np.arange(0, 70, 7), np.array([1]), np.arange(30)]
    better = detector.refine(batch, rough, units)
    for old, new, exact, asked in zip(rough, better, truth, units, strict=True):
        again = np.isin(np.arange(len(old)), asked)
        assert new.surprisal[again] == pytest.approx(exact.surprisal[again], abs=1e-4)
        assert new.surprisal[~again].tolist() == old.surprisal[~again].tolist()
        assert new.values.keys() == exact.values.keys() == {"margin", "rank", "entropy"}
        for name in ("margin", "entropy"):
            assert new.values[name][again] == pytest.approx(exact.values[name][again], abs=1e-4)
            assert new.values[name][~again].tolist() == old.values[name][~again].tolist()


@pytest.mark.parametrize("mode", [EXACT, Mode("partition", 4)])
def test_unequal_selection_rates_are_taken_off_in_every_mode(
    model: LoadedModel, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    bias = np.random.default_rng(0).normal(size=model.tokenizer.space.size).astype(np.float32)
    monkeypatch.setattr(one_pass, "bias_for", lambda _: bias)
    plain = Conditionals(model.rows)
    [record] = _records(12)
    encoding = model.tokenizer.encode(record.raw)
    asked = Scorer(plain, model.tokenizer.units, mode=mode, correction=Correction(bias=bias))
    [expected] = asked.windows([(encoding, None)])
    for correction in (None, Correction(seen=np.ones_like(bias), kind="fitted")):
        scorer = RecordScorer(Session(model, correction=correction))
        [found] = scorer.scored(scorer.encoded([record], Problems()), mode)
        assert found.surprisal == pytest.approx(-expected.log_probs / np.log(2), abs=1e-4)
    [raw] = Scorer(plain, model.tokenizer.units, mode=mode).windows([(encoding, None)])
    assert expected.log_probs != pytest.approx(raw.log_probs, abs=1e-2)


def test_rows_of_units_point_at_their_letters(model: LoadedModel) -> None:
    scorer = RecordScorer(Session(model, correction=Correction()))
    detector = Detector(scorer, UnitLevel("residue"), mode=ONE_PASS, want=EXPECTED)
    [record] = _records(50)
    rows = list(detector.judged([record], Problems()))
    assert [record.raw[one.row.start : one.row.end] for one in rows] == list(record.raw)
    fields = line(rows[7], model.tokenizer, per_unit=True)
    assert fields["id"] == "r1#7"
    assert fields["units"] == 1
    assert fields["score"] == fields["bits_per_unit"] == fields["top"][0]["surprisal"]
    expected = fields["per_unit"][0]["expected"]
    assert len(expected) == 3
    assert expected[0]["p"] >= expected[1]["p"]


def test_a_record_without_units_has_no_score(model: LoadedModel) -> None:
    detector = Detector(RecordScorer(Session(model)), RecordLevel("protein"))
    [row] = detector.judged([Record(id="e", raw="", source="x", line=1)], Problems())
    assert row.row.score is None
    fields = line(row, model.tokenizer)
    assert fields["bits_per_unit"] is None
    assert fields["pll"] == 0
