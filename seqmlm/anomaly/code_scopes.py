"""Where the functions and classes of a source text stand, so that a finding can name the one it is in.

Python by its syntax tree; other languages by braces and what stands in front of them, which takes no parser
and is right where code is laid out as usual. Languages without braces, and Python that does not parse, have
one scope: the module.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.tokenizers.lexers.classes import COMMENT, DOCSTRING, IDENTIFIERS, KEYWORD, STRING, Lexed
from seqmlm.tokenizers.lexers.generic import lex_generic
from seqmlm.tokenizers.lexers.positions import Positions
from seqmlm.tokenizers.lexers.python import parse

Kind = Literal["module", "class", "function"]
MODULE = "<module>"

_BRACELESS = frozenset(("python", "ruby", "lua", "sql", "haskell", "julia"))
_CLASSES = frozenset(
    ("class", "interface", "struct", "enum", "trait", "impl", "object", "namespace", "union")
)
_CONTROL = frozenset(
    (
        *("if", "else", "elif", "for", "foreach", "while", "do", "switch", "match", "catch", "try", "loop"),
        *("select", "synchronized", "using", "lock", "with", "when", "case", "defer", "unless", "finally"),
    )
)
_USES = frozenset(("=", "new", "return", "=>"))
_OPENING, _CLOSING = "([", ")]"


class Scope(NamedTuple):
    """A stretch of a source text.

    name: its full name, outer scopes in front ("Stack.push"); "<module>" for all of the text.
    kind: what it is.
    start, end: half-open character offsets, decorators included.
    """

    name: str
    kind: Kind
    start: int
    end: int


def scopes(text: str) -> list[Scope]:
    """The module, then all classes and functions in it in the order they begin; an inner one after its outer.

    Args:
        text: the source; a `SourceText` knows its language, any other text is Python if it parses as that.
    """
    language = getattr(text, "language", "")
    module = Scope(MODULE, "module", 0, len(text))
    tree = parse(str(text)) if language in ("", "python") else None
    if tree is not None:
        found = list(_of_tree(tree, Positions(str(text)), ""))
    else:
        found = [] if language in _BRACELESS else _of_braces(str(text), lex_generic(str(text), language))
    return [module, *sorted(found, key=lambda scope: (scope.start, -scope.end))]


def innermost(found: Sequence[Scope], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) index of the innermost scope around each character offset.

    Args:
        found: of `scopes`.
        offsets: (N,) places in the text.
    """
    owner = np.zeros(len(offsets), dtype=np.int64)
    for index, scope in enumerate(found):  # inner ones come later and replace their outer ones
        owner[(offsets >= scope.start) & (offsets < scope.end)] = index
    return owner


def _of_tree(tree: ast.AST, positions: Positions, outer: str) -> Iterator[Scope]:
    waiting = [(node, outer) for node in ast.iter_child_nodes(tree)]
    while waiting:
        node, name = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{name}.{node.name}" if name else node.name
            first = (min(one.lineno for one in (node, *node.decorator_list)), node.col_offset)
            kind: Kind = "class" if isinstance(node, ast.ClassDef) else "function"
            last = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
            yield Scope(name, kind, positions.offset(first), positions.offset(last))
        waiting += [(child, name) for child in ast.iter_child_nodes(node)]


def _of_braces(text: str, tokens: Lexed) -> list[Scope]:
    """Scopes of a language with braces; an unclosed one ends with the text."""
    found: list[Scope] = []
    open_ones: list[tuple[int, str, Kind, int] | None] = []
    header: list[int] = []  # tokens since the last brace or semicolon
    for index, (start, end, kind) in enumerate(
        zip(tokens.starts.tolist(), tokens.ends.tolist(), tokens.classes.tolist(), strict=True)
    ):
        value = text[start:end]
        if kind in (STRING, COMMENT, DOCSTRING):
            continue
        if value == "{":
            outer = [one[1] for one in open_ones if one is not None]
            open_ones.append(_opened(text, tokens, header, outer))
            header = []
        elif value == "}":
            if open_ones and (one := open_ones.pop()) is not None:
                found.append(Scope(one[1], one[2], one[3], end))
            header = []
        elif value == ";":
            header = []
        else:
            header.append(index)
    return found + [Scope(one[1], one[2], one[3], len(text)) for one in open_ones if one is not None]


def _opened(
    text: str, tokens: Lexed, header: list[int], outer: list[str]
) -> tuple[int, str, Kind, int] | None:
    """(index of the first token, full name, kind, start) of what a brace begins; None for a plain block."""
    words = [text[tokens.starts[i] : tokens.ends[i]] for i in header]
    named = _named(words, [int(tokens.classes[i]) for i in header])
    if named is None:
        return None
    name, kind = named
    full = f"{outer[-1]}.{name}" if outer else name
    return header[0], full, kind, int(tokens.starts[header[0]])


def _named(words: list[str], classes: list[int]) -> tuple[str, Kind] | None:
    """Name and kind of what a header introduces: `class X`, `f(...)`, `x = (...) =>`."""
    for place, word in enumerate(words[:-1]):
        if word in _CLASSES and classes[place + 1] in IDENTIFIERS and "(" not in words[:place]:
            return words[place + 1], "class"
    if words[:1] == ["type"] and words[-1] in _CLASSES:  # Go's `type X struct`
        return words[1], "class"
    if words[-1:] == ["=>"] and "=" in words:
        place = words.index("=")
        return (words[place - 1], "function") if place and classes[place - 1] in IDENTIFIERS else None
    first = next((word for word, kind in zip(words, classes, strict=True) if kind == KEYWORD), "")
    if first in _CONTROL or not _balanced(words):
        return None
    for place in range(1, len(words)):
        before = words[place - 1]
        if words[place] == "(" and classes[place - 1] in IDENTIFIERS and before not in _CONTROL:
            used = not _USES.isdisjoint(words[:place])  # `x = call() {`, `return new Call() {`
            return None if used else (before, "function")
    return None


def _balanced(words: list[str]) -> bool:
    opened = sum(word in _OPENING for word in words)
    return opened == sum(word in _CLOSING for word in words)
