"""The Python lexer: tokens from a regular expression, classes and symbols from the syntax tree.

For every file that the module `tokenize` accepts, the tokens are the same (tests compare both on the standard
library). The regular expression has three advantages. It never fails, and it takes a fraction of the time. It
also divides f-strings in the same way in every version of Python: into text, and the code in braces.

Classes and symbols come from the syntax tree. A text that does not parse (Python 2, an incomplete piece) has
the same tokens. Its classes come from neighbouring tokens, and its symbols from spellings.
"""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from keyword import kwlist

import numpy as np

from seqmlm.domains.code.lexers.classes import (
    ATTRIBUTE,
    CALL,
    COMMENT,
    DEFINITION,
    EXCEPTION,
    IDENTIFIERS,
    IMPORT,
    KEYWORD,
    NUMBER,
    OPERATOR,
    PUNCTUATION,
    STRING,
    TYPE,
    USE,
    LexerTokens,
    Positions,
    lexer_tokens,
)
from seqmlm.domains.code.lexers.python_scopes import ATTRIBUTES, Scopes

_DIGITS = "[0-9](?:_?[0-9])*"
_EXPONENT = rf"[eE][+-]?{_DIGITS}"
_NUMBER = (
    rf"0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+"
    rf"|(?:{_DIGITS}\.(?:{_DIGITS})?|\.{_DIGITS})(?:{_EXPONENT})?[jJ]?|{_DIGITS}{_EXPONENT}[jJ]?|{_DIGITS}[jJ]?"
)
_LONG = "|".join(rf"{q}{q}{q}[^{q}\\]*(?:(?:\\.|{q}(?!{q}{q}))[^{q}\\]*)*{q}{q}{q}" for q in "\"'")
_SHORT = "|".join(rf"{q}[^{q}\\\r\n]*(?:\\(?:\r\n|.)[^{q}\\\r\n]*)*{q}" for q in "\"'")
_PREFIX = r"(?:[bB][rR]?|[rR][bB]?|[uU]|[fFtT][rR]?|[rR][fFtT])?"
_OPERATORS = r"\*\*=?|//=?|>>=?|<<=?|\.\.\.|->|:=|[-+*/%&|^=<>!@]=|[-+*/%&|^~<>=@.,:;()\[\]{}]"
# The number of the group is the kind: string, name, number, comment, line break, operator, other.
_TOKEN = re.compile(
    rf"({_PREFIX}(?:{_LONG}|{_SHORT}))|([^\W\d]\w*)|({_NUMBER})|(#[^\r\n]*)|(\r\n|\r|\n)|({_OPERATORS})|(\S)",
    re.DOTALL,
)
_STRING, _NAME, _NUMBER_KIND, _COMMENT, _BREAK, _OPERATOR, _OTHER = range(1, 8)

_CLASS_OF_KIND = {
    _STRING: STRING,
    _NAME: USE,
    _NUMBER_KIND: NUMBER,
    _COMMENT: COMMENT,
    _OPERATOR: OPERATOR,
    _OTHER: PUNCTUATION,
}
_WORDS = dict.fromkeys(kwlist, KEYWORD) | dict.fromkeys(("and", "or", "not", "is", "in"), OPERATOR)
_PUNCTUATION = frozenset((*"()[]{},:;.=", "->", ":=", "..."))
_FORMATTED = re.compile(r"(?i)(?:f|t|fr|rf|tr|rt)['\"]")
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_IS_IDENTIFIER = np.zeros(64, dtype=np.bool_)
_IS_IDENTIFIER[list(IDENTIFIERS)] = True


def tree_or_broken_line(text: str) -> ast.Module | int:
    """The syntax tree, or the 1-based line of the first syntax error for the running version of Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about the parsed text, such as invalid escapes
        try:
            return ast.parse(text)
        except SyntaxError as error:
            return min(error.lineno or 1, text.count("\n") + 1)
        except (ValueError, RecursionError, MemoryError):
            return 1


def parse(text: str) -> ast.Module | None:
    """The syntax tree, or None if the text does not parse."""
    tree = tree_or_broken_line(text)
    return None if isinstance(tree, int) else tree


def lex_python(text: str, tree: ast.Module | None = None) -> LexerTokens:
    """Divide Python source into lexer tokens with classes and symbols.

    Args:
        text: the source, with any line ends and any characters.
        tree: its syntax tree, if it is already known.
    """
    tree = tree or parse(text)
    scopes = None
    if tree is not None:
        with suppress(RecursionError):  # ast.walk is not recursive, but future nodes could be
            scopes = Scopes(tree)
    reader = _Reader(text, scopes, Positions(text))
    reader.read_tokens(0, len(text))
    return reader.finish()


class _Reader:
    """Reads the tokens of a text once, and gives each token its class and name."""

    def __init__(self, text: str, scopes: Scopes | None, positions: Positions) -> None:
        self.text, self.scopes = text, scopes
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.classes: list[int] = []
        self.names: list[object] = []
        self.positions = positions
        self.places = {} if scopes is None else positions.by_offset(scopes.places)
        self.statements = {} if scopes is None else positions.by_offset(scopes.statements)
        self.f_string_names: Mapping[str, int] | None = None  # names of the f-string being read
        self.f_strings = [] if scopes is None else self._f_string_spans(scopes)
        self._previous = ""  # the last token that is not a comment or a line break
        self._scope = 0  # the scope of the current statement
        self._import = 0  # 1 after `import`, 2 after `from`, 3 after the `import` of a `from`
        self._depth = self._loops = 0
        self._first = True  # at the start of a statement

    def _f_string_spans(self, scopes: Scopes) -> list[tuple[int, int, Mapping[str, int]]]:
        at = self.positions.offset
        return sorted(((at(a), at(b), names) for a, b, names in scopes.f_strings), key=lambda span: span[:2])

    def read_tokens(self, begin: int, end: int) -> None:
        """Read the tokens of text[begin:end]."""
        # This loop takes most of the time, so frequent kinds are handled without a function call.
        starts, ends = self.starts.append, self.ends.append
        classes, names = self.classes.append, self.names.append
        for match in _TOKEN.finditer(self.text, begin, end):
            kind = match.lastindex or _OTHER
            if kind == _BREAK:
                if not self._depth:
                    self._end_statement()
                continue
            word = match.group()
            start, stop = match.span()
            if kind == _STRING and _FORMATTED.match(word):
                self._format_string(word, start, stop)
            else:
                role, name = _CLASS_OF_KIND[kind], None
                if kind == _NAME:
                    role, name = self._name(word, start, stop)
                elif kind == _OPERATOR:
                    role = self._operator(word)
                starts(start)
                ends(stop)
                classes(role)
                names(name)
                if kind == _COMMENT:
                    continue
            self._previous = word
            self._first = False

    def finish(self) -> LexerTokens:
        """The tokens, with the classes of ranges in the tree, such as annotations and docstrings."""
        tokens = lexer_tokens(self.starts, self.ends, self.classes, self.names)
        if self.scopes is not None:
            for begin, end, kind in self.scopes.ranges:
                first = bisect_left(self.starts, self.positions.offset(begin))
                last = bisect_left(self.starts, self.positions.offset(end))
                part = tokens.classes[first:last]
                if kind in (TYPE, EXCEPTION):
                    part[_IS_IDENTIFIER[part] | ((part == STRING) & (kind == TYPE))] = kind
                else:
                    part[part == STRING] = kind
        return tokens

    def _add(self, start: int, stop: int, kind: int, name: object = None) -> None:
        self.starts.append(start)
        self.ends.append(stop)
        self.classes.append(kind)
        self.names.append(name)

    def _end_statement(self) -> None:
        self._first, self._import, self._loops, self._previous = True, 0, 0, ""

    def _operator(self, value: str) -> int:
        """The class of an operator or punctuation mark. It also counts brackets and ends statements."""
        if value not in _PUNCTUATION:
            return PUNCTUATION if value == "@" and self._first else OPERATOR
        if value in _OPENING:
            self._depth += 1
        elif value in _CLOSING:
            self._depth = max(0, self._depth - 1)
        elif not self._depth and (value == ";" or (value == ":" and not self._import)):
            self._end_statement()
        return PUNCTUATION

    def _name(self, value: str, start: int, stop: int) -> tuple[int, object]:
        """The class of a word, and the name that it refers to, or None for a keyword."""
        role = _WORDS.get(value)
        if role is None:
            return self._identifier(value, start, stop)
        if role == KEYWORD:
            self._keyword(value, start)
        elif value == "in" and self._loops:
            self._loops -= 1
            return KEYWORD, None
        return role, None

    def _keyword(self, value: str, start: int) -> None:
        scope = self.statements.get(start)
        if scope is not None:
            self._scope = scope
        if value == "for":
            self._loops += 1
        elif value == "import":
            self._import = 3 if self._import == 2 else 1
        elif value == "from" and self._first:
            self._import = 2

    def _identifier(self, value: str, start: int, stop: int) -> tuple[int, object]:
        """The class and the resolved name of an identifier."""
        place = self.places.get(start)
        is_call = self.text[stop : stop + 1] == "("
        if place is not None and self.scopes is not None:
            role, scope, name = place
            return (CALL if is_call and role == USE else role), self.scopes.resolve(scope, name)
        previous = self._previous
        if self._import and previous != "as":
            return IMPORT, (ATTRIBUTES, value)
        if previous == "." and not self._import:
            return (CALL if is_call else ATTRIBUTE), (ATTRIBUTES, value)
        if previous in ("def", "class"):
            return DEFINITION, self._resolve(self._scope, value)
        if self._import:
            return IMPORT, self._resolve(self._scope, value)
        if previous == "as":
            return DEFINITION, self._resolve(self._scope, value)
        if previous == "**" and self.scopes is not None and self.f_string_names is None:
            return DEFINITION, self._resolve(self._scope, value)
        if self.f_string_names is not None and value in self.f_string_names:
            return (CALL if is_call else USE), self._resolve(self.f_string_names[value], value)
        if self._soft_keyword(value, stop):
            return KEYWORD, None
        return (CALL if is_call else USE), self._resolve(self._scope, value)

    def _soft_keyword(self, value: str, stop: int) -> bool:
        """Whether a word is a soft keyword: `match`, `case`, `type` or `_` where the tree has no name.

        Without a tree, it is `print` or `exec` as a statement of Python 2.
        """
        if self.scopes is None:
            return value in ("print", "exec") and self._first and self.text[stop : stop + 1] == " "
        return value in ("match", "case", "type", "_") and self.f_string_names is None

    def _resolve(self, scope: int, name: str) -> object:
        return name if self.scopes is None else self.scopes.resolve(scope, name)

    def _format_string(self, value: str, start: int, stop: int) -> None:
        """Add the tokens of an f-string: its text as strings, and the code in its braces as code."""
        state = (self._depth, self._loops, self._first, self._import)
        index = bisect_left(self.f_strings, start, key=lambda span: span[1])
        f_string = self.f_strings[index] if index < len(self.f_strings) else None
        self.f_string_names = f_string[2] if f_string is not None and f_string[0] <= start else {}
        done = start
        for begin, end in _fields(value):
            if start + begin > done:
                self._add(done, start + begin, STRING)
            self._previous, self._first = "", False
            self.read_tokens(start + begin, start + end)
            done = start + end
        if stop > done:
            self._add(done, stop, STRING)
        self.f_string_names = None
        self._depth, self._loops, self._first, self._import = state


def _fields(value: str) -> Iterator[tuple[int, int]]:
    """The spans of the expressions in the braces of an f-string, without braces, conversion and format."""
    at, size, depth = 0, len(value), 0
    begin = -1
    while at < size:
        c = value[at]
        if not depth:
            if c in "{}" and value[at : at + 2] == c * 2:
                at += 1
            elif c == "{":
                depth, begin = 1, at + 1
        elif c in "([{":
            depth += 1
        elif c in ")]}" and depth > 1:
            depth -= 1
        elif depth == 1 and begin >= 0 and _ends_field(value, at):
            yield begin, at
            begin = -1
        if c == "}" and depth == 1:
            depth = 0
        at += 1


def _ends_field(value: str, at: int) -> bool:
    """Whether the expression in braces ends at this index: at the brace, format, conversion or `=`."""
    c = value[at]
    if c in "}:":
        return True
    return c in "!=" and value[at + 1 : at + 2] != "=" and value[at - 1] not in "=!<>"
