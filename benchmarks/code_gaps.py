"""Gaps in Python files as questions: which operator, bracket, exception, argument or variable is missing?

Each question shows the lines around the gap. The candidates are those that a programmer would consider: all
operators, the exceptions of Python, or the local names of the function. They are ranked by their mean
log-probability per token. The baseline needs no model. It selects the most frequent candidate among all other
gaps between the same neighbours. Ties are
resolved by the gaps after the same left neighbour, then by all gaps.
"""

from __future__ import annotations

import ast
import builtins
import io
import tokenize
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from seqmlm.domains.code.lexers.source import SourceText
from seqmlm.domains.holes import Hole, Prompt
from seqmlm.inference.cloze import Cloze

KINDS = ("operator", "bracket", "exception", "argument", "variable")

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
LINES = 40
"""Lines in front of a gap and behind it that are part of the question."""

_BUILT_IN = {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Gap(NamedTuple):
    """A gap: its kind, the lines around it, the answer, the candidates, and the neighbours."""

    kind: str
    prompt: Prompt
    answer: str
    candidates: tuple[str, ...]
    beside: tuple[str, str]


def gaps(text: str) -> Iterator[Gap]:
    """The gaps of a file, in order; none of one that cannot be parsed."""
    try:
        tree = ast.parse(text)
        tokens = [one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.string.strip()]
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError):
        return
    lines = text.splitlines(keepends=True)
    marks = {place: (kind, *own) for kind, place, own in (*_marks(tree, lines, tokens), *_names(tree, lines))}
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    for number, one in enumerate(tokens):
        if one.start not in marks:
            continue
        kind, length, candidates = marks[one.start]
        last = tokens[number + length - 1]
        place, end = (starts[row - 1] + column for row, column in (one.start, last.end))
        first = starts[max(0, one.start[0] - 1 - LINES)]
        part = text[first : starts[min(len(lines), last.end[0] + LINES)]]
        behind = tokens[number + length].string if number + length < len(tokens) else ""
        yield Gap(
            kind=kind,
            prompt=Prompt(raw=SourceText(part, "python"), holes=(Hole(place - first, end - first),)),
            answer=text[place:end],
            candidates=tuple(dict.fromkeys((*candidates, text[place:end]))),
            beside=(tokens[number - 1].string if number else "", behind),
        )


def predicted(cloze: Cloze, gap: Gap) -> str:
    """The candidate with the largest log-probability a token."""
    fits = cloze.fits(
        cloze.encode_filled([gap.prompt] * len(gap.candidates), [[one] for one in gap.candidates])
    )
    return max(zip(gap.candidates, fits, strict=True), key=lambda own: own[1].log_prob / own[1].units)[0]


def counted(found: Sequence[Gap]) -> list[str]:
    """The answer for each gap by the counts of all other gaps of the same kind."""
    around = Counter((*one.beside, one.answer) for one in found)
    behind = Counter((one.beside[0], one.answer) for one in found)
    alone = Counter(one.answer for one in found)
    usual = {answer for answer, _ in alone.most_common(2)}

    def guess(gap: Gap) -> str:
        def known(answer: str) -> tuple[int, ...]:
            own = int(answer == gap.answer)  # this gap itself
            before = gap.beside[0]
            return around[(*gap.beside, answer)] - own, behind[before, answer] - own, alone[answer] - own

        here = {answer for before, answer in behind if before == gap.beside[0]}
        return max(sorted(here | usual), key=known)

    return [guess(one) for one in found]


Mark = tuple[str, tuple[int, int], tuple[int, Sequence[str]]]
"""Kind, (line, column), and the number of tokens with the candidates."""


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
    """(line, character) of a place that the syntax tree gives in bytes."""
    return line, len(lines[line - 1].encode()[:column].decode())


def _names(tree: ast.Module, lines: Sequence[str]) -> Iterator[Mark]:
    """Exceptions, and local names of functions, as arguments of calls and elsewhere."""

    def place(node: Any) -> tuple[int, int]:
        return _place(lines, node.lineno, node.col_offset)

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
