"""Words of a report: white space can be seen, and only statistics that say something are named."""

from __future__ import annotations

from seqmlm.reports.report import firing, verdict, visible


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
