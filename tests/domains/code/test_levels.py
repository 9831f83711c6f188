"""Levels of code: norms against numpy, lines and functions against the text, fingerprints against shifts."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import scored_records
from tiny_domain_models import MODULE, code_model, source

from seqmlm.anomaly.findings import CONTENT, PLACE, Fingerprints
from seqmlm.anomaly.values import ALONE, Row, ScoredRecord
from seqmlm.data.record import Record
from seqmlm.domains.code.levels import (
    LEVELS,
    ClassNorms,
    CodeLevel,
    FunctionLevel,
    LineLevel,
    TokenLevel,
    cells,
)
from seqmlm.domains.code.source import is_minified
from seqmlm.engine.units import Mode
from seqmlm.errors import StateError
from seqmlm.inference.model_folder import LoadedModel


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return code_model()


def scored(model: LoadedModel, *records: Record) -> list[ScoredRecord]:
    return scored_records.scored(model, records, Mode("partition", 4))


@pytest.fixture(scope="module")
def norms(model) -> ClassNorms:
    return ClassNorms(np.zeros((17, 4, 3))).learn(scored(model, *[source()] * 10))


def rows(model: LoadedModel, norms: ClassNorms, level: CodeLevel, text: str = MODULE) -> list[Row]:
    return list(level.rows(scored(model, source(text))[0], norms))


def test_norms_are_means_and_deviations_of_well_known_classes(model, norms):
    [one] = scored(model, source())
    kind, subwords = cells(one)
    groups = one.encoding.groups
    for unit in range(len(one)):
        count = int((groups == one.number[unit]).sum())
        assert subwords[unit] == min(count, 4) - 1
    joint = kind * 4 + subwords
    cell = joint == np.bincount(joint).argmax()
    assert cell.sum() > 5
    many = ClassNorms(np.zeros((17, 4, 3))).learn([one] * 2000)
    own = one.surprisal[cell]
    assert many.z(one)[0][cell] == pytest.approx((own - own.mean()) / max(own.std(), 0.1), abs=0.02)
    again = ClassNorms.load(norms.arrays(), model.tokenizer)
    assert again.z(one)[0].tolist() == norms.z(one)[0].tolist()


def test_scores_are_the_models_own_beside_those_with_counts(model):
    [one] = scored(model, source())
    rng = np.random.default_rng(0)
    both = replace(one, values={**one.values, ALONE: one.surprisal + rng.uniform(0, 9, len(one))})
    known = ClassNorms(np.zeros((17, 4, 3))).learn([both] * 10)
    again = ClassNorms.load(known.arrays(), model.tokenizer)
    plain, swapped = ClassNorms(np.zeros((17, 4, 3))), replace(one, surprisal=both.values[ALONE])
    mixed, alone = again.z(both)
    np.testing.assert_allclose(mixed, plain.learn([one] * 10).z(one)[0])
    np.testing.assert_allclose(alone, plain.learn([swapped] * 10).z(swapped)[0])
    for level in (LineLevel(), TokenLevel(), FunctionLevel()):
        [own] = [list(level.rows(swapped, plain.learn([swapped] * 10)))]
        for found, expected in zip(level.rows(both, known), own, strict=True):
            assert found.score == pytest.approx(expected.score)
            assert found.statistics["counted"] != found.score
    units = np.arange(len(one))
    assert [row.statistics["counted"] for row in TokenLevel().rows(both, known)] == mixed[units].tolist()


def test_a_class_never_met_leans_on_all(model, norms):
    [one] = scored(model, source("x = 0x1F if y else 3.25j\n"))
    assert np.isfinite(norms.z(one)[0]).all()


def test_lines_cover_all_units_and_are_the_mean_of_their_three_largest(model, norms):
    [one] = scored(model, source())
    mixed, z = norms.z(one)
    found = rows(model, norms, LineLevel())
    assert sorted(np.concatenate([row.units for row in found]).tolist()) == list(range(len(one)))
    texts = MODULE.split("\n")
    for row in found:
        assert row.score == pytest.approx(np.sort(z[row.units])[-3:].mean())
        line = texts[row.line - 1]
        assert MODULE[row.start : row.end].strip() == line.strip()
        judged = sorted(row.units.tolist(), key=lambda unit: -mixed[unit])[:3]
        peak = max(judged, key=lambda unit: float(one.surprisal[unit]))
        assert row.peak == peak
        assert line[row.extra["column"] - 1 :].startswith(one.text(peak).split("\n")[0])
    inside = {row.line: row.extra.get("function") for row in found}
    assert inside[texts.index("        return self.items.pop()") + 1] == "Stack.pop"
    assert inside[texts.index("import os") + 1] is None


def test_tokens(model, norms):
    [one] = scored(model, source())
    found = rows(model, norms, TokenLevel())
    assert [row.score for row in found] == norms.z(one)[1].tolist()
    plus = next(row for row in found if MODULE[row.start : row.end] == "+")
    assert (plus.extra["class"], plus.extra["function"]) == ("operator", "Stack.push")
    line = MODULE.split("\n")[plus.line - 1]
    assert line[plus.extra["column"] - 1] == "+"


def test_functions_have_their_own_tokens_alone(model, norms):
    text = "def f(a):\n    def g(b):\n        return b\n    return g(a)\n"
    [one] = scored(model, source(text))
    _, z = norms.z(one)
    found = {row.extra["function"]: row for row in rows(model, norms, FunctionLevel(), text)}
    assert {"f", "f.g"} <= set(found) <= {"f", "f.g", "<module>"}
    assert (found["f.g"].line, found["f.g"].extra["last_line"]) == (2, 3)
    assert (found["f"].line, found["f"].extra["last_line"]) == (1, 4)
    for row in found.values():
        assert row.score == pytest.approx(np.percentile(z[row.units], 90))
    assert not set(found["f"].units.tolist()) & set(found["f.g"].units.tolist())


@pytest.mark.parametrize("level", [LineLevel(), TokenLevel(), FunctionLevel()])
def test_fingerprints_survive_shifts_and_tell_equal_lines_apart(model, norms, level):
    text = MODULE + "\n\ndef twice(x):\n    x = x + 1\n    x = x + 1\n    return x\n"
    marks = [row.extra["fingerprints"] for row in rows(model, norms, level, text)]
    assert len({one[PLACE] for one in marks}) == len(marks)
    shifted = rows(model, norms, level, text.replace("import os\n", "import os\n\n\n\n"))
    again = {row.extra["fingerprints"][PLACE] for row in shifted}
    lost = [one for one in marks if one[PLACE] not in again]
    assert len(lost) <= (2 if isinstance(level, TokenLevel) else 0)


def test_a_renamed_file_keeps_the_fingerprints_of_its_content():
    one, other = (
        Fingerprints("a.py").hashes("line", "f", "x  = 1"),
        Fingerprints("b.py").hashes("line", "f", "x = 1"),
    )
    assert one[PLACE] != other[PLACE]
    assert one[CONTENT] == other[CONTENT]
    assert Fingerprints("a.py").hashes("line", "g", "x = 1")[CONTENT] != one[CONTENT]


def test_a_part_of_a_larger_file_counts_lines_from_where_it_begins(model, norms):
    [one] = scored(model, source())
    later = replace(one, record=Record(id="a", raw=one.record.raw, source="a", line=101))
    assert [r.line for r in LineLevel().rows(later, norms)] == [
        r.line + 100 for r in LineLevel().rows(one, norms)
    ]


@pytest.mark.parametrize("norms", [None, ClassNorms(np.zeros((17, 4, 3)))])
def test_what_normal_code_is_must_be_known(model, norms):
    [one] = scored(model, source())
    with pytest.raises(StateError, match=r"seqmlm calibrate.*'file'"):
        LineLevel().rows(one, norms)


def test_an_empty_file(model, norms):
    assert rows(model, norms, LineLevel(), "") == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("tabs", [False, True])
def test_line_ends_and_tabs_change_no_score_and_no_line(model, norms, level, end, *, tabs):
    text = re.sub("(?m)^(?:    )+", lambda m: "\t" * (len(m[0]) // 4), MODULE) if tabs else MODULE
    plain, other = rows(model, norms, level), rows(model, norms, level, text.replace("\n", end))
    assert len(plain) == len(other) > 0
    for one, same in zip(plain, other, strict=True):
        assert one.statistics == same.statistics
        assert (one.line, one.id, one.extra.get("function")) == (
            same.line,
            same.id,
            same.extra.get("function"),
        )
        shown = text.replace("\n", end)[same.start : same.end]
        assert shown.split() == MODULE[one.start : one.end].split()


def test_a_long_file_of_an_old_mac_is_not_minified():
    assert not is_minified(MODULE.replace("\n", "\r") * 99)
