"""Names say what they hold: limits for words that fit everything. Budgets may only fall."""

from __future__ import annotations

import ast

import house
import pytest

EMPTY_PERCENT = 1.0
"""Percent of the bound names of a package that may be empty words."""

VAGUE_BUDGET = 1.37
PARTICIPLES_BUDGET = 10
REPEATED_BUDGET = 0
RIDDLES_BUDGET = 0


@pytest.mark.parametrize("package", sorted(house.empty_shares()))
def test_a_package_has_hardly_an_empty_name(package: str) -> None:
    percent = 100 * house.empty_shares()[package]
    assert percent <= EMPTY_PERCENT, "rename them: `python benchmarks/house.py --files` lists the files"


def test_empty_names_are_not_replaced_by_vague_ones() -> None:
    assert 100 * house.vague_share() <= VAGUE_BUDGET + 0.05


def test_definitions_are_named_after_what_they_return_or_do() -> None:
    names = house.participles()
    assert len(names) <= PARTICIPLES_BUDGET, names


def test_a_public_name_has_one_meaning() -> None:
    names = house.repeated_public_names()
    assert len(names) <= REPEATED_BUDGET, names


def test_the_first_word_of_a_docstring_names_something() -> None:
    names = house.riddles()
    assert len(names) <= RIDDLES_BUDGET, names


def test_bound_names_are_those_that_are_assigned_looped_over_or_passed() -> None:
    code = "def f(self, one, *, given=1):\n    own, x.kept = one\n    return [found for found in own]"
    assert list(house.bound_names(ast.parse(code))) == ["one", "given", "own", "found"]


def test_docstrings_explain_only_parameters_fields_and_attributes_that_exist() -> None:
    assert house.stale_arguments() == []


def test_docstrings_name_only_what_exists() -> None:
    assert house.stale_references() == []


def test_names_in_docstrings_are_found() -> None:
    docstring = "Args:\n    path, *rest: where. line: number; default: 1.\n\nAttributes:\n    end: of it.\n"
    assert list(house.documented_names(docstring)) == [
        ("Args", "path"),
        ("Args", "rest"),
        ("Args", "line"),
        ("Attributes", "end"),
    ]
    assert house.resolves("seqmlm.load")
    assert house.resolves("seqmlm.anomaly.levels.Level.name")
    assert not house.resolves("seqmlm.anomaly.levels.Level.no_such_member")
    assert not house.resolves("seqmlm.no_such_module")
