"""What depends on what in a Python file, spelled out by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import seqmlm
from seqmlm.domains.code.syntax import PAIRS, syntax


def spelled(text: str, links: list[tuple[int, ...]]) -> list[str]:
    """Links as "token<-token", a token by its first letters."""
    return ["<-".join(re.match(r"\w+|\W", text[at:])[0] for at in link) for link in links]


@pytest.mark.parametrize(
    ("text", "parents"),
    [
        ("x = a + b * 2", ["=<-x", "a<-+", "+<-x", "b<-*", "*<-+", "2<-*"]),
        ("f(a, b)  # said", ["(<-f", "a<-f", ",<-f", "b<-f", ")<-f"]),
        ("a.b[c]", ["a<-b", ".<-b", "[<-b", "c<-b", "]<-b"]),
        ("(a)", ["(<-a", ")<-a"]),
        ("x\ny", []),
        ("if a:\n    b", ["a<-if", ":<-if", "b<-if"]),
        (
            "def f(a=1): return a",
            [
                *("f<-def", "(<-def", "a<-def", "=<-def", "1<-def", ")<-def", ":<-def", "return<-def"),
                "a<-return",
            ],
        ),
        ("[x for x in y]", ["[<-for", "x<-for", "x<-for", "in<-for", "y<-for", "]<-for"]),
        ("é = 'ü' + ö", ["=<-é", "'<-+", "+<-é", "ö<-+"]),
        ("not a", ["a<-not"]),
    ],
)
def test_parents(text: str, parents: list[str]):
    found = syntax(text)
    assert spelled(text, found.parents) == parents


def test_names_are_linked_with_their_last_binding():
    text = "import os\ndef f(a):\n    x = a\n    x = x + os\n    return x, g()\ndef g(): pass\n"
    found = syntax(text)
    assert [(text.count("\n", 0, a), text.count("\n", 0, b)) for a, b in found.uses] == [
        (1, 2),  # a
        (3, 3),  # x: bound at the start of the line
        (0, 3),  # os
        (3, 4),  # x
        (5, 4),  # g, bound behind its use
    ]
    assert spelled(text, found.uses) == ["a<-a", "x<-x", "os<-os", "x<-x", "g<-g"]


def test_brackets_are_linked_and_those_in_strings_are_none():
    text = "f([x, '('], {1: (2)})"
    found = syntax(text)
    assert found.brackets == [(2, 9), (16, 18), (12, 19), (1, 20)]
    assert all(PAIRS[text[b]] == text[a] for a, b in found.brackets)


@pytest.mark.parametrize(
    ("text", "probes"),
    [
        ("a + b * c", ["b<-*<-+"]),
        ("a * b + c", ["b<-*<-+"]),
        ("a + b - c", []),  # as tight as each other
        ("(a + b) * c", []),
        ("a * (b + c)", []),
        ("a + b.c(d) * e", ["b<-*<-+"]),
        ("a.b * c[d] + e", ["]<-*<-+"]),
        ("a or b and c", ["b<-and<-or"]),
        ("a + b < c * d", ["b<-+<-<", "c<-*<-<"]),
        ("a not in b + c", []),  # an operator of two words
        ("a < b < c", []),
        ("a ** b * c", ["b<-*<-*"]),
    ],
)
def test_operators_around_one_operand(text: str, probes: list[str]):
    found = syntax(text)
    assert spelled(text, found.precedence) == probes


def test_what_does_not_parse_has_no_syntax():
    assert syntax("def f(:") is None
    assert syntax("x\0") is None
    assert syntax("") == ([], [], [], [])


def test_the_parents_of_real_files_are_trees():
    for path in sorted(Path(seqmlm.__file__).parent.glob("data/*.py"))[:8]:
        found = syntax(path.read_text(encoding="utf-8"))
        parent = dict(found.parents)
        assert len(parent) == len(found.parents)  # one each
        for token in parent:
            seen = set()
            while token in parent:
                assert token not in seen
                seen.add(token)
                token = parent[token]
