"""Gaps made of Python files: what stands there is the answer, and what could stand there is right."""

from __future__ import annotations

import pytest

from seqmlm.data.record import Record
from seqmlm.domains.code import CODE
from seqmlm.domains.code.clozes import KINDS, OPERATORS
from seqmlm.domains.holes import Question
from seqmlm.tokenizers.lexers.source import SourceText

SOURCE = '''"""Größe: a text before."""
import os


def area(width: int, height: float = -1) -> float:
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


def record(raw: object) -> Record:
    return Record(id="a", raw=raw, source="a.py", line=1)


def asked(text: str = SOURCE, kinds: tuple[str, ...] = KINDS) -> list[Question]:
    return list(CODE.questions(record(SourceText(text, "python")), kinds))


def of(kind: str) -> list[Question]:
    return asked(kinds=(kind,))


def test_the_answer_is_what_stands_in_the_gap() -> None:
    found = asked()
    assert {one.kind for one in found} == set(KINDS)
    for one in found:
        [hole] = one.prompt.holes
        assert str(one.prompt.raw)[hole.start : hole.end] == one.answer
        assert one.candidates.count(one.answer) == 1
        assert len(set(one.candidates)) == len(one.candidates) > 1
        assert one.answer in SOURCE.splitlines()[one.line - 1]
    places = [(one.line, one.prompt.holes[0].start) for one in found]
    assert places == sorted(places)


def test_operators_are_those_between_operands() -> None:
    assert [one.answer for one in of("operator")] == ["*", "not in", "and", "is not", "**", "+"]
    assert all(set(OPERATORS) == set(one.candidates) for one in of("operator"))
    assert of("operator")[0].beside == ("width", "height")


def test_brackets_are_closing_ones() -> None:
    assert {one.answer for one in of("bracket")} == {")"}
    assert len(of("bracket")) == SOURCE.count(")")


def test_exceptions_and_types() -> None:
    assert [one.answer for one in of("exception")] == ["ValueError", "KeyError"]
    assert [one.answer for one in of("type")] == ["int", "float", "float"]


def test_variables_are_chosen_among_the_names_of_their_function() -> None:
    names = {"width", "height", "total", "side"}
    variables = of("variable")
    assert {one.answer for one in variables} <= names
    assert all(names <= set(one.candidates) for one in variables)
    assert not any(one.line > 14 for one in variables), "a function of one name has no choice"
    assert [one.answer for one in of("argument")] == ["total", "side", "total"]
    assert not {(one.line, one.prompt.holes) for one in variables} & {
        (one.line, one.prompt.holes) for one in of("argument")
    }


def test_only_lines_around_a_gap_are_asked_with() -> None:
    long = "x = 1\n" * 500 + "y = x + 2\n" + "z = 3\n" * 500
    [one] = asked(long, ("operator",))
    assert one.line == 501
    assert str(one.prompt.raw).count("\n") == 81


@pytest.mark.parametrize(
    "raw", [SourceText("def f(:\n", "python"), SourceText("int x = a + b;", "c"), "", "a + b\n\x00"]
)
def test_what_is_no_python_has_no_gaps(raw: str) -> None:
    assert list(CODE.questions(record(raw), KINDS)) == []
