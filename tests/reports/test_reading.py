"""Words of a report: how to read it, what is named of a row, and no word of p-values that are not there."""

from __future__ import annotations

import pytest

from seqmlm import plugins
from seqmlm.reports.report import firing, reading, verdict, visible


def test_without_calibration_it_says_so_and_tells_of_no_p_value() -> None:
    told = " ".join(reading("residue", 10, {}, calibrated=False))
    assert "not calibrated" in told
    assert "p-value" not in told


def test_it_tells_how_many_rows_chance_alone_gives() -> None:
    told = " ".join(reading("line", 2000, {"slor": "beyond frequency", "of-a-plugin": ""}, calibrated=True))
    assert "about 20.0 of them" in told
    assert "slor: beyond frequency." in told
    assert "of-a-plugin" not in told


@pytest.mark.parametrize("field", ["code", "dna", "ehr", "logs", "protein", "text"])
def test_every_built_in_statistic_is_explained_by_its_level(field: str) -> None:
    for level in plugins.domain(field).levels:
        told = " ".join(reading("unit", 10, level.statistics, calibrated=True))
        assert level.statistics
        for name, meaning in level.statistics.items():
            assert len(meaning) > 5
            assert f"{name}: {meaning}" in told


def test_white_space_alone_is_shown_by_signs() -> None:
    assert visible(" a b\n") == "a b"
    assert visible("\r\n\t ") == "↵⇥␣"


def test_the_smallest_p_values_are_named_first_and_those_of_one_not() -> None:
    p_values = {"a": 0.5, "b": 1.0, "c": 0.01234, "d": 0.2, "e": 0.3, "f": 0.9}
    assert firing(p_values) == "c 0.012, d 0.2, e 0.3, a 0.5"
    assert firing({"a": 1.0, "b": 0.5}) == "b 0.5"
    assert firing({"a": 1.0}) == "a 1"


def test_a_verdict_has_what_is_known() -> None:
    assert verdict(3.25, None, None) == "score 3.25"
    assert verdict(3.25, 0.001, True) == "score 3.25, p 0.001, alarm"
