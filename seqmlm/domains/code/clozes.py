"""Gaps made of a Python file: which operator, bracket, exception, type, argument or variable stands here?

Each is asked with the lines around it, as far as a model may see. What could stand there is what a
programmer would choose among: all operators, the exceptions and types that Python has or the file names, the
local names of the function.
"""

from __future__ import annotations

import ast
import builtins
import io
import tokenize
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any

from seqmlm.domains.holes import Hole, Prompt, Question
from seqmlm.tokenizers.lexers.source import SourceText

KINDS = ("operator", "bracket", "exception", "type", "argument", "variable")

OPERATORS = (
    *("+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">="),
    *("in", "not in", "is", "is not", "and", "or"),
)
BRACKETS = (")", "]", "}")
EXCEPTIONS = (
    *(
        "ValueError",
        "KeyError",
        "AttributeError",
        "TypeError",
        "OSError",
        "IOError",
        "ImportError",
        "IndexError",
    ),
    *(
        "RuntimeError",
        "Exception",
        "NotImplementedError",
        "AssertionError",
        "StopIteration",
        "UnicodeDecodeError",
    ),
    *("ZeroDivisionError", "OverflowError", "NameError", "FileNotFoundError", "PermissionError", "EOFError"),
)
TYPES = ("int", "str", "float", "bool", "bytes", "list", "dict", "set", "tuple", "object", "Any")

LINES = 40
"""Lines in front of a gap and behind it that are part of the question."""

_BUILT_IN = {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def questions(raw: Any, kinds: Collection[str]) -> Iterator[Question]:
    """The gaps of a file, in order; none of one that is no Python, or cannot be parsed."""
    text = str(raw)
    if getattr(raw, "language", "") not in ("", "python"):
        return
    try:
        tree = ast.parse(text)
        tokens = [one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.string.strip()]
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError):
        return
    lines = text.splitlines(keepends=True)
    marks = (*_marks(tree, lines, tokens), *_names(tree, lines))
    wanted = {place: (kind, *found) for kind, place, found in marks if kind in kinds}
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    for number, one in enumerate(tokens):
        if one.start not in wanted:
            continue
        kind, length, candidates = wanted[one.start]
        last = tokens[number + length - 1]
        place, end = (starts[row - 1] + column for row, column in (one.start, last.end))
        first = max(0, one.start[0] - 1 - LINES)
        part = text[starts[first] : starts[min(len(lines), last.end[0] + LINES)]]
        answer = text[place:end]
        offset = starts[first]
        behind = tokens[number + length].string if number + length < len(tokens) else ""
        yield Question(
            kind=kind,
            prompt=Prompt(
                raw=SourceText(part, "python") if isinstance(raw, SourceText) else part,
                holes=(Hole(place - offset, end - offset),),
            ),
            line=one.start[0],
            answer=answer,
            candidates=tuple(dict.fromkeys((*candidates, answer))),
            beside=(tokens[number - 1].string if number else "", behind),
        )


Mark = tuple[str, tuple[int, int], tuple[int, Sequence[str]]]
"""Kind, (line, column), and how many tokens it has and what could stand there."""


def _marks(tree: ast.Module, lines: Sequence[str], tokens: Sequence[tokenize.TokenInfo]) -> Iterator[Mark]:
    """Closing brackets, and operators between two operands."""
    for own in tokens:
        if own.type == tokenize.OP and own.string in BRACKETS:
            yield "bracket", own.start, (1, BRACKETS)
    starts = [one.start for one in tokens]
    for node in ast.walk(tree):
        operands: list[Any] = []
        if isinstance(node, ast.BinOp):
            operands = [node.left, node.right]
        elif isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.BoolOp):
            operands = [*node.values]
        for left, right in pairwise(operands):
            first = bisect_left(starts, _place(lines, left.end_lineno, left.end_col_offset))
            last = bisect_left(starts, _place(lines, right.lineno, right.col_offset))
            between = [at for at in range(first, last) if tokens[at].string not in ("(", ")")]
            if " ".join(tokens[at].string for at in between) in OPERATORS:
                yield "operator", starts[between[0]], (len(between), OPERATORS)


def _place(lines: Sequence[str], line: int, column: int) -> tuple[int, int]:
    """(line, character) of a place that a syntax tree tells in bytes."""
    return line, len(lines[line - 1].encode()[:column].decode())


def _names(tree: ast.Module, lines: Sequence[str]) -> Iterator[Mark]:
    """Exceptions, types, and local names of functions, as arguments of calls and elsewhere."""

    def place(node: Any) -> tuple[int, int]:
        return _place(lines, node.lineno, node.col_offset)

    annotations = [
        one
        for node in ast.walk(tree)
        for one in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if isinstance(one, ast.Name)
    ]
    types = (*TYPES, *dict.fromkeys(one.id for one in annotations))
    for one in annotations:
        yield "type", place(one), (1, types)
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler | ast.Raise):
            raised: Any = node.type if isinstance(node, ast.ExceptHandler) else node.exc
            raised = raised.func if isinstance(raised, ast.Call) else raised
            if isinstance(raised, ast.Name) and raised.id in _BUILT_IN:
                yield "exception", place(raised), (1, EXCEPTIONS)
        if isinstance(node, _FUNCTIONS):
            yield from (
                ("argument" if given else "variable", place(one), (1, names))
                for one, given, names in _uses(node)
            )


def _uses(function: Any) -> Iterator[tuple[ast.Name, bool, tuple[str, ...]]]:
    """Uses of local names in a function, whether as an argument of a call, and the names it has."""
    own = function.args
    bound = [one.arg for one in (*own.posonlyargs, *own.args, *own.kwonlyargs, own.vararg, own.kwarg) if one]
    inner, given = list[ast.Name](), set[int]()
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue  # it has names of its own
        if isinstance(node, ast.Name):
            inner.append(node)
        if isinstance(node, ast.Call):
            given |= {id(one) for one in (*node.args, *(key.value for key in node.keywords))}
        stack += ast.iter_child_nodes(node)
    bound += [one.id for one in inner if isinstance(one.ctx, ast.Store)]
    names = tuple(dict.fromkeys(bound))
    if len(names) > 1:
        yield from (
            (one, id(one) in given, names)
            for one in inner
            if isinstance(one.ctx, ast.Load) and one.id in names
        )
