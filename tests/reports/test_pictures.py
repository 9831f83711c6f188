"""Pictures of code and of patients: what is drawn points at what was scored, and nothing is markup."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest
from histories import histories
from reported import Reported
from tiny_domain_models import MODULE, code_model, patients, patients_model, source

from seqmlm.data.problems import Problems
from seqmlm.domains.code import CODE
from seqmlm.domains.code.levels import ClassNorms, LineLevel
from seqmlm.domains.ehr import EHR
from seqmlm.domains.ehr.levels import CodeCounts, VisitLevel
from seqmlm.engine.units import Mode
from seqmlm.inference.detector import JudgedRow
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session


def shown(page: str) -> str:
    """The text of a page, as a person reads it."""
    return html.unescape(re.sub(r"<[^>]*>", "", page))


@pytest.fixture(scope="module")
def code() -> str:
    """The report of a file with a line that alarms."""
    text = MODULE.replace("import os", "import os  # <script>alert(1)</script>")
    scorer = RecordScorer(Session(code_model()))
    [one] = scorer.unit_scores(scorer.encoded([source(text)], Problems()), Mode("partition", 4))
    norms = ClassNorms(np.zeros((17, 4, 3))).learn([one] * 10)
    report = Reported(scorer.session.tokenizer, pictures=CODE.pictures(LineLevel()), unit="lexer token")
    for row in LineLevel().rows(one, norms):
        report.add(JudgedRow(row=row, scored_record=one, p_value=0.5, alarm=row.line == 8))
    return report.html()


def test_source_has_its_lines_with_gutters(code):
    text = shown(code)
    lines = MODULE.split("\n")
    for number in (5, 16, 18):
        assert re.search(rf"^ +{number} +[\d.]+ │ {re.escape(lines[number - 1])}$", text, re.MULTILINE), (
            number
        )
    assert re.search(r"^ +8 +[\d.]+ ▶         return len\(self\.items\) \+ 1$", text, re.MULTILINE)
    assert re.search(r"^ +3 + │ $", text, re.MULTILINE) or re.search(r"^ +3 +[\d.]+ │ $", text, re.MULTILINE)


def test_source_is_escaped_and_its_tokens_can_be_pointed_at(code):
    assert "<script>alert" not in code
    assert "# <script>alert(1)</script>" in shown(code)
    assert re.search(r'<b class="s\d" data-tip="push: [\d.]+ bits[^"]*" tabindex="-?\d">push</b>', code)


def test_of_a_long_file_only_what_is_near_a_finding_is_shown():
    text = "".join(f"value_{n} = {n}\n" for n in range(1, 200))
    scorer = RecordScorer(Session(code_model()))
    [one] = scorer.unit_scores(scorer.encoded([source(text)], Problems()), Mode("partition", 4))
    norms = ClassNorms(np.zeros((17, 4, 3))).learn([one])
    row = next(row for row in LineLevel().rows(one, norms) if row.line == 100)
    report = Reported(scorer.session.tokenizer, pictures=CODE.pictures(LineLevel()))
    report.add(JudgedRow(row=row, scored_record=one, p_value=0.001, alarm=True))
    told = shown(report.html())
    numbers = [int(n) for n in re.findall(r"^ +(\d+) +[\d.]+ [│▶] value_", told, re.MULTILINE)]
    assert numbers == list(range(94, 107))
    assert "⋯" in told


def test_a_patient_has_a_timeline_and_codes_by_visit():
    model = patients_model()
    record = patients(4)[3]
    level = VisitLevel()
    scorer = RecordScorer(Session(model))
    [one] = scorer.unit_scores(scorer.encoded([record], Problems()), want=level.want, view=level.view)
    counts = CodeCounts.fit(model.tokenizer.encode_batch(histories(60)), model.tokenizer, seed=0)
    report = Reported(model.tokenizer, pictures=EHR.pictures(level), unit="event")
    rows = list(level.rows(one, counts))
    rows[0].extra["missing"][:] = [{"unit": "ICD10//<b>", "p": 0.75}]  # type: ignore[index]
    for place, row in enumerate(rows):
        report.add(JudgedRow(row=row, scored_record=one, p_value=0.01, alarm=place == 1))
    page = report.html()
    told = shown(page)
    head = page.partition("<tbody>")[0].rpartition("<thead>")[2]
    assert "when" in head
    assert ">place<" not in head  # characters of a text that nobody counts
    assert page.count("<svg") >= 3  # scores, all rows in time, the patient's visits
    assert "ICD10//<b>" not in page
    assert "expected but missing: ICD10//<b> 75%" in told
    for place, row in enumerate(rows):
        codes = [one.text(unit) for unit in row.units.tolist()]
        assert f"{row.extra['date']} {'▶' if place == 1 else '│'} {'  '.join(codes)}" in told
