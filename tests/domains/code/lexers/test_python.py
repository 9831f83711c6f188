"""The Python lexer: tokens as `tokenize` cuts them, roles and symbols as a reader of the code would say."""

from __future__ import annotations

import io
import re
import sysconfig
import tokenize
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqmlm.domains.code.lexers.classes import CLASSES, IDENTIFIERS, LexerTokens
from seqmlm.domains.code.lexers.python import lex_python

STDLIB = Path(sysconfig.get_paths()["stdlib"])
_PASSED_OVER = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_F_STRING = re.compile(r"(?i)[rb]*[ft][rb]*['\"]")


def named(text: str) -> list[tuple[str, str, int]]:
    """(token, class, symbol) of every token."""
    lexed = lex_python(text)
    return [
        (text[a:b], CLASSES[c], s) for a, b, c, s in zip(*(column.tolist() for column in lexed), strict=True)
    ]


def role(text: str, *wanted: str) -> list[str]:
    """The classes of the tokens spelled so, in order."""
    return [kind for token, kind, _ in named(text) if token in wanted]


def symbols(text: str, name: str) -> list[int]:
    return [symbol for token, _, symbol in named(text) if token == name]


def check_cover(text: str, lexed: LexerTokens) -> None:
    """Tokens ascend, do not overlap, and leave out white space alone."""
    assert (lexed.starts < lexed.ends).all()
    assert (lexed.starts[1:] >= lexed.ends[:-1]).all()
    between = np.ones(len(text) + 1, dtype=bool)
    for a, b in zip(lexed.starts.tolist(), lexed.ends.tolist(), strict=True):
        between[a:b] = False
    assert not re.sub(r"\s", "", "".join(c for c, out in zip(text, between, strict=False) if out))


def reference(text: str) -> list[tuple[int, int]]:
    """Spans of the standard library's tokens; f-strings whole."""
    lines = [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", text))]
    spans: list[tuple[int, int]] = []
    depth = begin = 0
    for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
        start = lines[token.start[0] - 1] + token.start[1]
        end = lines[token.end[0] - 1] + token.end[1]
        name = tokenize.tok_name[token.type]
        if name in ("FSTRING_START", "TSTRING_START"):  # from Python 3.12 on they come in parts
            begin, depth = (begin if depth else start), depth + 1
        elif name in ("FSTRING_END", "TSTRING_END"):
            depth -= 1
            if not depth:
                spans.append((begin, end))
        elif not depth and token.type not in _PASSED_OVER:
            spans.append((start, end))
    return spans


def whole(text: str, lexed: LexerTokens, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The lexer's spans with the parts of each f-string joined, and without line continuations."""
    formatted = [(a, b) for a, b in spans if _F_STRING.match(text[a:b])]
    starts, ends = lexed.starts.tolist(), lexed.ends.tolist()
    found = [(a, b) for a, b in zip(starts, ends, strict=True) if text[a:b] != "\\"]
    outside = [(a, b) for a, b in found if not any(x <= a and b <= y for x, y in formatted)]
    joined = [(x, y) for x, y in formatted if x in starts and y in ends]
    return sorted([*outside, *joined])


def check_tokens(text: str) -> None:
    lexed = lex_python(text)
    spans = reference(text)
    assert whole(text, lexed, spans) == spans
    check_cover(text, lexed)


@pytest.mark.parametrize("name", ["json/decoder.py", "email/_header_value_parser.py", "typing.py", "ast.py"])
def test_tokens_are_those_of_the_standard_library(name):
    with tokenize.open(STDLIB / name) as handle:
        check_tokens(handle.read())


@pytest.mark.parametrize(
    "text",
    [
        "x = 0xFF_ff + 1_000.5e-3j + .5 + 1. + 0o17 + 0b1_0\n",
        "a = b'\\'' + rb\"\\\\\" + u'x' + '''a\n'b''' \\\n + 1\n",
        "def f(*, a, **k) -> int: return a if a else ...\n",
        "x = yield_ if not lambda: 1 else 2 @ 3 // 4 ** 5 >> 6\n",
        "s = f'{a!r:>{w}}{{}}{b=}{c[\"d\"]}{e:%H:%M}{x != y}'\n",
        "if (n := 10) > 5: x <<= 1; y //= 2\n\f\nz: list[int] = []\n",
        "é = 'ü'  # naïve 😀\nmatch é:\n\tcase {'a': A(b=1), **rest}: pass\n",
    ],
)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_tokens_of_hand_written_lines(text, ends):
    check_tokens(text.replace("\n", ends))


@given(text=st.text(alphabet=st.sampled_from(list("ab1_.'\"{}()[]#:=\\ \n\tfrüß😀,+*")), max_size=60))
@settings(max_examples=150)
def test_any_text_is_covered_once(text):
    check_cover(text, lex_python(text))


def test_roles_of_a_function():
    text = (
        "import os.path as p\n"
        "from a import b\n"
        "def f(x: int, *rest, k=None) -> 'str':\n"
        "    '''What it does.'''\n"
        "    y = g(x).z + 1  # why\n"
        "    return y.upper() and not 'no'\n"
    )
    assert role(text, "os", "path", "p", "a", "b") == ["import"] * 5
    assert role(text, "f") == ["definition"]
    assert role(text, "x") == ["parameter", "use"]
    assert role(text, "rest", "k") == ["parameter"] * 2
    assert role(text, "int", "'str'") == ["type"] * 2
    assert role(text, "'''What it does.'''") == ["docstring"]
    assert role(text, "y") == ["definition", "use"]
    assert role(text, "g", "upper") == ["call", "call"]
    assert role(text, "z") == ["attribute"]
    assert role(text, "def", "return", "None") == ["keyword"] * 3
    assert role(text, "and", "not", "+") == ["operator"] * 3
    assert role(text, "=", ",", "->", ":") == ["punctuation"] * len(role(text, "=", ",", "->", ":"))
    assert role(text, "1", "# why", "'no'") == ["number", "comment", "string"]


def test_exceptions_and_annotations():
    text = (
        "try:\n    x: dict[str, Foo] = {}\nexcept (ValueError, os.error) as e:\n"
        "    raise KeyError('k') from e\nelse:\n    raise e\n"
    )
    assert role(text, "ValueError", "error", "KeyError") == ["exception"] * 3
    assert role(text, "dict", "str", "Foo") == ["type"] * 3
    assert role(text, "e") == ["definition", "use", "use"]
    assert len(set(symbols(text, "e"))) == 1


def test_in_is_an_operator_but_for_loops():
    assert role("for x in y:\n    a = x in [z for z in x if z in y]\n", "in") == [
        *("keyword", "operator", "keyword", "operator")
    ]


def test_soft_keywords_are_keywords_where_they_are():
    text = "match x:\n    case [first, *others] as whole:\n        match = case = whole\n"
    assert role(text, "match", "case") == ["keyword", "keyword", "definition", "definition"]
    assert role(text, "first", "others") == ["definition", "definition"]
    assert role(text, "whole") == ["definition", "use"]


def test_symbols_follow_the_scopes():
    text = (
        "x = 1\n"
        "def f(x):\n"
        "    def g():\n"
        "        return x\n"
        "    return [x for x in x]\n"
        "class A:\n"
        "    x = 2\n"
        "    def m(self):\n"
        "        return self.x + x\n"
        "def h():\n"
        "    global x\n"
        "    x = 3\n"
    )
    found = symbols(text, "x")
    names = ("module", "parameter", "inner", "element", "element", "parameter")
    names += ("class", "attribute", "module", "global", "stored")
    same = dict(zip(names, found, strict=True))
    assert same["inner"] == same["parameter"] != same["module"]
    assert same["element"] not in (same["parameter"], same["module"])
    assert same["class"] == same["attribute"] != same["module"]
    assert same["global"] == same["stored"] == same["module"]
    assert found[3] == found[4]


def test_nonlocal_walrus_and_f_strings():
    text = (
        "def f():\n    n = 0\n    def g():\n        nonlocal n\n        n += 1\n"
        "    if any((m := k) for k in []):\n        return f'{m} and {n:{m}}'\n"
    )
    assert len(set(symbols(text, "n"))) == 1
    assert len(set(symbols(text, "m"))) == 1
    assert role(text, "n")[-1] == "use"
    assert role("k = 2\ns = f'{2 ** k} {g(**k)}'\n", "k", "g") == ["definition", "use", "call", "use"]
    assert role("match x:\n    case {'a': 1, **rest}:\n        y = rest\n", "rest") == ["definition", "use"]


def test_positions_are_exact_behind_tabs_form_feeds_and_other_scripts():
    text = "\f\nimport ü\r\nclass Ä:\r\n\tdef ö(self, ñ: 'é' = \"日本\"): return ñ + ü.ö('😀')\r\n"
    assert role(text, "ü") == ["import", "use"]
    assert role(text, "ñ") == ["parameter", "use"]
    assert role(text, "'é'", '"日本"') == ["type", "string"]
    assert role(text, "ö") == ["definition", "call"]
    assert len(set(symbols(text, "ö"))) == 1


PYTHON_2 = (
    "print 'hello', x\nexec code in space\ntry:\n    y = `x` <> 0777L\nexcept E, e:\n    raise E, ur'no'\n"
)


def test_python_2_is_cut_all_the_same():
    check_cover(PYTHON_2, lex_python(PYTHON_2))
    assert role(PYTHON_2, "print", "exec", "try") == ["keyword"] * 3
    assert role(PYTHON_2, "'hello'") == ["string"]
    assert len(set(symbols(PYTHON_2, "x"))) == 1
    assert len(set(symbols(PYTHON_2, "x") + symbols(PYTHON_2, "y"))) == 2


ODD = ("", "\n", "x" * 5000, "(" * 3000, "'" * 99, "-" * 20000 + "1", "\0", "a\x0cb")


@pytest.mark.parametrize("text", ODD, ids=lambda text: repr(text[:9]))
def test_odd_texts_neither_fail_nor_take_long(text):
    lexed = lex_python(text)
    assert (lexed.symbols >= 0).sum() <= np.isin(lexed.classes, IDENTIFIERS).sum()


def test_tokens_do_not_depend_on_the_tree():
    text = "def f(a):\n    return f'{a}' + g(a)\n"
    torn = text + "def broken(:\n"
    parsed, unparsed = lex_python(text), lex_python(torn)
    assert unparsed.starts[: len(parsed.starts)].tolist() == parsed.starts.tolist()
