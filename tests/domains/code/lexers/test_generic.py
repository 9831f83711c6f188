"""Other languages: every character covered once, comments and strings known, tree-sitter only for roles."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqmlm.domains.code.lexers import lex, tree_sitter
from seqmlm.domains.code.lexers.classes import CLASSES
from seqmlm.domains.code.lexers.generic import lex_generic
from seqmlm.domains.code.lexers.source import LANGUAGES, SourceText, language_of
from seqmlm.errors import UsageError
from tests.domains.code.lexers.test_python import check_cover

JAVA = """package a.b;
/* what */ public class Box<T> extends Base {
    private int size = 0xFFL; // why
    String name(String key, int... more) throws IOException {
        return this.size >>> 2 != 3 ? call(key) + "a\\"b" : new Box<T>().name('c');
    }
}
"""


def named(text: str, language: str, lexer: str = "auto") -> list[tuple[str, str]]:
    made = lex(SourceText(text, language), lexer)
    return [(text[a:b], CLASSES[c]) for a, b, c in zip(made.starts, made.ends, made.classes, strict=True)]


@pytest.mark.parametrize("language", [*LANGUAGES, ""])
@given(text=st.text(alphabet=st.sampled_from(list("ab1_.'\"`{}()#:=\\ \n\t/*-<>é😀,+!&|")), max_size=60))
@settings(max_examples=25)
def test_any_text_is_covered_once(language, text):
    check_cover(text, lex_generic(text, language))


def test_java():
    found = dict(named(JAVA, "java"))
    expected = {
        "/* what */": "comment",
        "// why": "comment",
        '"a\\"b"': "string",
        "'c'": "string",
        "0xFFL": "number",
        ">>>": "operator",
        "!=": "operator",
        "public": "keyword",
        "int": "type",
        "call": "call",
        "Box": "type",
        "IOException": "exception",
        "a": "import",
        ";": "punctuation",
    }
    assert {token: found[token] for token in expected} == expected


@pytest.mark.parametrize(
    ("language", "comment"),
    [("ruby", "# a // b"), ("lua", "-- a"), ("sql", "-- a"), ("go", "// a # b"), ("c", "/* a\nb */")],
)
def test_comments_are_those_of_the_language(language, comment):
    assert (comment, "comment") in named(f"x = 1 {comment}\ny = 2", language)


def test_the_same_spelling_is_the_same_symbol():
    made = lex_generic("int a = b(a); a += b;", "c")
    assert made.symbols.tolist().count(made.symbols[1]) == 3


def test_languages_by_name():
    assert language_of("A.JAVA") == "java"
    assert language_of("x.tar") == ""
    suffixes = [suffix for own in LANGUAGES.values() for suffix in own]
    assert len(suffixes) == len(set(suffixes))


def test_a_text_of_unknown_language_is_python_if_it_parses():
    assert ("x", "definition") in [("x", CLASSES[int(lex("def x(): pass").classes[1])])]
    assert CLASSES[int(lex("// not python\nint x;").classes[0])] == "comment"


def test_tree_sitter_changes_roles_and_nothing_else():
    pytest.importorskip("tree_sitter_java")
    plain, parsed = lex(SourceText(JAVA, "java")), lex(SourceText(JAVA, "java"), "tree-sitter")
    for column in ("starts", "ends", "symbols"):
        assert getattr(plain, column).tolist() == getattr(parsed, column).tolist()
    roles = {("key", "parameter"), ("name", "definition"), ("name", "call"), ("size", "attribute")}
    assert roles | {("String", "type")} <= set(named(JAVA, "java", "tree-sitter"))


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        (
            "javascript",
            "function f(é) { return a.b(é) + a.c; }",
            {("b", "call"), ("c", "attribute"), ("f", "definition")},
        ),
        (
            "go",
            "func F(é int) error { return x.Y(é) }",
            {("F", "definition"), ("Y", "call"), ("é", "parameter")},
        ),
    ],
)
def test_tree_sitter_of_other_languages(language, text, expected):
    pytest.importorskip(f"tree_sitter_{language}")
    assert expected <= set(named(text, language, "tree-sitter"))


def test_without_the_wheels_tree_sitter_says_what_to_install(monkeypatch):
    monkeypatch.setattr(tree_sitter.importlib.util, "find_spec", lambda name: None)
    tree_sitter._parser.cache_clear()
    with pytest.raises(UsageError, match=r"pip install 'seqmlm\[tree-sitter\]'"):
        lex(SourceText("int x;", "java"), "tree-sitter")


@pytest.mark.parametrize("language", ["java", "javascript", "go"])
def test_real_functions_are_covered(language, real_data: Path):
    path = real_data / "code" / "codesearchnet_functions_unlabelled" / f"{language}.json.gz"
    with gzip.open(path, "rt", encoding="utf-8") as handle:
        texts = [" ".join(row["pl_tokens"]) for row in json.load(handle)]
    for text in texts:
        check_cover(text, lex_generic(text, language))
