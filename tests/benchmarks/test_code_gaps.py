"""Gaps made of Python files: answers are what stands there, counts and ranks those made by hand."""

from __future__ import annotations

import pytest
from code_gaps import KINDS, OPERATORS, Gap, counted, gaps, predicted
from tiny_models import random_model

from seqmlm.domains.code.tokenizer import CodeTokenizer
from seqmlm.domains.holes import Hole, Prompt
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.session import Session

SOURCE = '''"""Größe: a text before."""
import os


def area(width, height=-1):
    total = width * height
    for side in (width, height):
        if side not in (total, 3) and side is not None:
            total = max(total, side)
    try:
        return total ** 2
    except ValueError as error:
        raise KeyError(total) from error


def one(x):
    return x + 1
'''


def of(kind: str) -> list[Gap]:
    return [one for one in gaps(SOURCE) if one.kind == kind]


def test_the_answer_is_what_stands_in_the_gap() -> None:
    found = list(gaps(SOURCE))
    assert {one.kind for one in found} == set(KINDS)
    for one in found:
        [hole] = one.prompt.holes
        assert str(one.prompt.raw)[hole.start : hole.end] == one.answer
        assert one.candidates.count(one.answer) == 1
        assert len(set(one.candidates)) == len(one.candidates) > 1
    places = [one.prompt.holes[0].start for one in found]
    assert places == sorted(places)


def test_operators_are_those_between_operands() -> None:
    assert [one.answer for one in of("operator")] == ["*", "not in", "and", "is not", "**", "+"]
    assert all(set(OPERATORS) == set(one.candidates) for one in of("operator"))
    assert of("operator")[0].beside == ("width", "height")


def test_brackets_are_closing_ones() -> None:
    assert {one.answer for one in of("bracket")} == {")"}
    assert len(of("bracket")) == SOURCE.count(")")


def test_variables_are_chosen_among_the_names_of_their_function() -> None:
    names = {"width", "height", "total", "side"}
    assert [one.answer for one in of("exception")] == ["ValueError", "KeyError"]
    assert [one.answer for one in of("argument")] == ["total", "side", "total"]
    variables = [one.answer for one in of("variable")]
    assert variables == ["width", "height", "width", "height", "side", "total", "side", "total"]
    assert all(names <= set(one.candidates) for one in (*of("variable"), *of("argument")))


def test_only_lines_around_a_gap_are_asked_with() -> None:
    [one] = list(gaps("x = 1\n" * 500 + "y = x + 2\n" + "z = 3\n" * 500))
    assert str(one.prompt.raw).count("\n") == 81


@pytest.mark.parametrize("text", ["def f(:\n", "int x = a + b;", "", "a + b\n\x00"])
def test_what_is_no_python_has_no_gaps(text: str) -> None:
    assert list(gaps(text)) == []


def test_counts_leave_the_gap_itself_out() -> None:
    prompt = Prompt(raw="", holes=(Hole(0, 0),))
    given = [("+", "a", "b")] * 2 + [("-", "a", "b")] + [("*", "c", "d")] + [("-", "e", "f")] * 3
    found = [
        Gap("operator", prompt, answer, ("+", "-"), (before, behind)) for answer, before, behind in given
    ]
    # Of + without itself one + and one - are left, and - is more frequent elsewhere; of - two +.
    right = [guess == one.answer for guess, one in zip(counted(found), found, strict=True)]
    assert right == [False, False, False, False, True, True, True]


def test_the_prediction_is_that_of_each_candidate_alone() -> None:
    cloze = Cloze(Session(random_model("code", CodeTokenizer.train([SOURCE] * 20, vocabulary_size=300))))
    asked = of("operator")[:3]
    for gap in asked:
        fits = [cloze.fits(cloze.encode_filled([gap.prompt], [[one]]))[0] for one in gap.candidates]
        best = max(range(len(fits)), key=lambda n: fits[n].log_prob / fits[n].units)
        assert predicted(cloze, gap) == gap.candidates[best]
