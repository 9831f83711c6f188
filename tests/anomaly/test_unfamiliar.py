"""Unfamiliar rows: of mostly unknown units, in fields where what is unknown is no evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import protein_model, random_model, residues

from seqmlm import plugins
from seqmlm.anomaly.judge import Normal
from seqmlm.anomaly.levels import Frequencies, Level, RecordLevel, UnitLevel
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.dna import levels as dna
from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.protein import levels as protein
from seqmlm.domains.text import levels as text
from seqmlm.engine.types import InMemory
from seqmlm.inference import model_folder
from seqmlm.inference.detector import Detector, JudgedRow
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.reports.page import Page
from seqmlm.reports.report import ScoreReport
from seqmlm.scoring.calibrate import Calibrator, Records
from seqmlm.scoring.labels import ranked_by
from seqmlm.scoring.output import Tally, line, warnings
from seqmlm.tokenizers.subword import BpeTokenizer

SENTENCES = ["the keys to the cabinet are on the table", "the cabinet is old", "a key opens a cabinet"]
BPE = BpeTokenizer.train(SENTENCES * 4, vocabulary_size=300)
SEEN = Frequencies.fit(InMemory([BPE.encode(one) for one in SENTENCES]), BPE, seed=0)


def record(raw: str, name: str = "r") -> Record:
    return Record(id=name, raw=raw, source="a.txt", line=1)


def judged(session: Session, level: Level, raws: Sequence[str], background: object = None) -> list[JudgedRow]:
    """Rows at an alarm rate of .5, by a calibration in which every finite value is unusual."""
    lengths = np.arange(1, 401)
    normal = {name: np.full(400, -1e6) + lengths for name in level.statistics.judging}
    known = {"background": background, "calibration": Normal.fit(normal, lengths, seed=0), "alpha": 0.5}
    detector = Detector(RecordScorer(session), level, **known)  # type: ignore[arg-type]
    return list(detector.judged_rows([record(raw) for raw in raws], Problems()))


def flags(rows: Sequence[JudgedRow]) -> list[bool]:
    """Whether rows are unfamiliar; those that are must raise no alarm and have no p-value."""
    for one in rows:
        assert one.unfamiliar is not one.alarm, "each row is an alarm, unless it is unfamiliar"
        assert (one.p_value is None) is (one.p_values == {}) is one.unfamiliar
    return [one.unfamiliar for one in rows]


def test_each_field_says_whether_what_it_does_not_know_is_evidence() -> None:
    evidence = {
        name: {level.unknown_is_evidence for level in plugins.domain(name).levels}
        for name in ("text", "protein", "dna", "ehr", "logs", "code")
    }
    no, yes = {False}, {True}
    assert evidence == {"text": no, "protein": no, "dna": no, "ehr": no, "logs": yes, "code": yes}


@pytest.mark.parametrize(
    ("raw", "unfamiliar"),
    [
        ("the key is on the table", False),
        ("xyz zzyx qqq on the key", False),  # half of its words are new
        ("xyz zzyx qqq wwq the", True),
        ("bloke chosen", False),  # two words of known letters say little
        ("xyz zzyx qqq - - - 1 2 3 , , , ; ; ;", True),  # signs and numbers count for nothing
        ("- 1 2 3 , ; - 1 2 3 , ;", False),
        ("\u043a\u043b\u044e\u0447", True),  # one word of another script
        ("\u043a\u043b\u044e\u0447 on the table", False),
    ],
)
def test_a_text_of_mostly_new_words_is_unfamiliar_and_each_of_its_words_is(
    raw: str, unfamiliar: bool
) -> None:
    session = Session(random_model("text", BPE))
    for level in (text.SentenceLevel(), text.WordLevel("word")):
        assert set(flags(judged(session, level, [raw], SEEN))) == {unfamiliar}


def test_a_model_that_keeps_no_words_knows_of_no_unfamiliar_text() -> None:
    session = Session(random_model("text", BPE))
    rows = judged(session, text.SentenceLevel(), ["xyz zzyx qqq wwq the"], SEEN.discreet())
    assert flags(rows) == [False]


@pytest.mark.parametrize(("unknown", "unfamiliar"), [(20, False), (21, True), (40, True)])
def test_a_protein_of_mostly_unknown_residues_is_unfamiliar(unknown: int, unfamiliar: bool) -> None:
    raw = residues(40 - unknown) + "X" * unknown
    for level in (protein.ProteinLevel(), RecordLevel("protein"), UnitLevel("residue")):
        rows = judged(Session(protein_model()), level, [raw])
        assert set(flags(rows)) <= {unfamiliar}
        assert rows or level.name == "residue"


def test_dna_of_mostly_unknown_bases_is_unfamiliar_and_its_bases_are_not() -> None:
    session = Session(random_model("dna", BaseTokenizer()))
    raws = ["ACGT" * 20, "ACGT" * 20 + "N" * 80, "ACGT" * 20 + "N" * 81, "N" * 300]
    assert flags(judged(session, dna.RecordLevel(), raws)) == [False, False, True, True]
    windows = judged(session, dna.WindowLevel(), raws[-1:])
    assert [one.unfamiliar for one in windows] == [True]
    assert not any(flags(judged(session, dna.BaseLevel(), raws[2:3])))


def test_a_level_whose_unknown_units_are_evidence_keeps_the_alarm() -> None:
    class Lines(RecordLevel):
        unknown_is_evidence = True

    [row] = judged(Session(protein_model()), Lines("protein"), ["ACD" + "X" * 37])
    assert (row.unfamiliar, row.alarm) == (False, True)


def test_unfamiliar_rows_are_not_among_those_that_normal_is_estimated_by(tmp_path: Path) -> None:
    model = replace(protein_model(), path=str(tmp_path))
    raws = [residues(20 + seed) for seed in range(40)]
    strange = [residues(5 + seed % 5) + "X" * 30 for seed in range(40)]
    made = []
    for own in (raws, [*raws, *strange]):
        records = [record(raw, str(n)) for n, raw in enumerate(own)]
        normal = Records(records=records, of=len(own), source="f")
        one = Calibrator(session=Session(model), problems=Problems())
        [stored] = one.calibrate(RecordLevel("protein"), ["exact"], normal, None).values()
        made.append(stored.fitted)
    assert [one.rows for one in made] == [40, 40]
    assert [one.unfamiliar for one in made] == [0, 0]


def test_the_summary_and_the_report_count_unfamiliar_rows_and_do_not_call_them_unusual() -> None:
    level, session = RecordLevel("protein"), Session(protein_model())
    rows = judged(session, level, [residues(40), *["ACD" + "X" * 37] * 3])
    tally, report = Tally(), ScoreReport()
    lines = [line(one, session.tokenizer, calibrated=True, level=level) for one in rows]
    for one in lines:
        tally.add(one)
    assert (tally.rows, tally.unfamiliar, tally.with_p, tally.alarms) == (4, 3, 1, 1)
    counts = {"rows": 4, "unfamiliar": 3}
    assert "do not have" not in "".join(warnings(counts))
    assert any("unfamiliar rows" in one and one.endswith(": 3") for one in warnings(counts))
    page = Page("t", "s")
    report.draw(page, lines)
    drawn = page.html()
    assert "Unfamiliar rows (mostly units that the model does not know): 3" in drawn
    assert "Most unusual: 1 of 4 rows" in drawn


def test_rows_are_ranked_by_their_p_values_where_the_first_is_unfamiliar(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id,score,p_value,unfamiliar\na,9,,true\nb,2,0.01,\n")
    assert ranked_by([str(file)]) == "p_value"


def test_a_scoring_of_unfamiliar_rows_alone_ends_with_exit_code_3(
    tmp_path: Path, seqmlm: Callable[..., Any]
) -> None:
    loaded, folder, out = protein_model(), tmp_path / "model", tmp_path / "rows.jsonl"
    model_folder.write(folder, loaded.rows, loaded.tokenizer, loaded.card)
    strange, mixed = tmp_path / "x.fasta", tmp_path / "mixed.fasta"
    strange.write_text("".join(f">x{n}\nACD{'X' * 37}\n" for n in range(3)))
    mixed.write_text(strange.read_text() + f">known\n{residues(40)}\n")
    ended = seqmlm("score", folder, strange, "--out", out)
    assert ended.code == 3
    assert "all rows are unfamiliar" in ended.err
    assert "--domain protein" in ended.err
    assert len(out.read_text().splitlines()) == 3  # the rows are there, and complete
    assert seqmlm("score", folder, mixed, "--out", tmp_path / "mixed.jsonl").code == 0
