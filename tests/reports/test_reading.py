"""Words of a report: how to read it, what is named of a row, and no word of p-values that are not there."""

from __future__ import annotations

import pytest

from seqmlm import plugins
from seqmlm.reports.report import reading_sentences, verdict_text, visible_text


def test_without_calibration_it_says_so_and_tells_of_no_p_value() -> None:
    told = " ".join(reading_sentences("residue", 10, {}, calibrated=False))
    assert "not calibrated" in told
    assert "p-value" not in told


def test_it_tells_how_many_rows_chance_alone_gives() -> None:
    told = " ".join(
        reading_sentences("line", 2000, {"slor": "beyond frequency", "of-a-plugin": ""}, calibrated=True)
    )
    assert "about 20.0 of them" in told
    assert "The p-value is that of: slor (beyond frequency)." in told
    assert "of-a-plugin" not in told


@pytest.mark.parametrize("field", ["code", "dna", "ehr", "logs", "protein", "text"])
def test_every_built_in_statistic_is_explained_by_its_level(field: str) -> None:
    for level in plugins.domain(field).levels:
        told = " ".join(reading_sentences("unit", 10, level.statistics, calibrated=True))
        assert level.statistics
        for name, meaning in level.statistics.items():
            assert len(meaning) > 5
            assert f"{name} ({meaning})" in told


def test_white_space_alone_is_shown_by_signs() -> None:
    assert visible_text(" a b\n") == "a b"
    assert visible_text("\r\n\t ") == "↵⇥␣"


def test_a_verdict_has_what_is_known() -> None:
    assert verdict_text(3.25, None, None) == "score 3.25"
    assert verdict_text(3.25, 0.001, True) == "score 3.25, p 0.001, alarm"
