"""Which lexer tokens of a Python file depend on which: by its syntax tree, its names, brackets, operators.

A node of the syntax tree is told by its head: the first of its own tokens that is no punctuation (`def`,
`+`, `=`, a name), or, where it has none, the head of its first part (of a call, what is called). A token
that is no head depends on the head of the innermost node it is in, a head on that of the node around.
Statements of a module depend on nothing. Comments and white space have no part in it.
"""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from seqmlm.domains.code.lexers import lex
from seqmlm.domains.code.lexers.classes import (
    COMMENT,
    DEFINITION,
    IDENTIFIERS,
    IMPORT,
    PARAMETER,
    PUNCTUATION,
    WHITESPACE,
    Positions,
)
from seqmlm.domains.code.lexers.python import parse
from seqmlm.domains.code.lexers.source import SourceText

Link = tuple[int, int]
"""Offsets of two tokens' first characters in the file."""

PAIRS = {")": "(", "]": "[", "}": "{"}
"""Opening bracket of each closing one."""

_BINDING = (DEFINITION, PARAMETER, IMPORT)

# How tightly operators bind, loosest first (the table of the language reference).
_LEVELS: tuple[tuple[type[ast.AST], ...], ...] = (
    (ast.Or,),
    (ast.And,),
    (ast.cmpop,),
    (ast.BitOr,),
    (ast.BitXor,),
    (ast.BitAnd,),
    (ast.LShift, ast.RShift),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.MatMult, ast.Div, ast.FloorDiv, ast.Mod),
    (ast.Pow,),
)


class Syntax(NamedTuple):
    """What depends on what in a file; every token is told by the offset of its first character.

    parents: (token, what it depends on), ascending.
    uses: (where a name is bound, where it is used): the last binding in front of the use, else the first.
    brackets: (opening, closing).
    precedence: (operand, tighter operator, looser one) of two operators around one operand.
    """

    parents: list[Link]
    uses: list[Link]
    brackets: list[Link]
    precedence: list[tuple[int, int, int]]


class _Tokens:
    """The tokens of a file that take part, and the syntax tree's nodes in them."""

    def __init__(self, text: str) -> None:
        found = lex(SourceText(text, "python"))
        kept = ~np.isin(found.classes, (WHITESPACE, COMMENT))
        self.starts, ends = found.starts[kept].tolist(), found.ends[kept].tolist()
        self.classes, self.symbols = found.classes[kept].tolist(), found.symbols[kept].tolist()
        self.spelled = [text[a:b] for a, b in zip(self.starts, ends, strict=True)]
        self._positions = Positions(text)

    def within(self, node: ast.AST) -> range:
        """Tokens of a node with a place; of any other none."""
        if getattr(node, "end_lineno", None) is None:
            return range(0)
        start = self._positions.offset((node.lineno, node.col_offset))  # type: ignore[attr-defined]
        end = self._positions.offset((node.end_lineno, node.end_col_offset))  # type: ignore[attr-defined]
        return range(bisect_left(self.starts, start), bisect_left(self.starts, end))


class _Node(NamedTuple):
    tree: ast.AST
    tokens: range
    around: int  # number of the node around it with tokens, -1 for none


def syntax(text: str) -> Syntax | None:
    """What depends on what in a Python file; None if it does not parse."""
    tree = parse(text)
    if tree is None:
        return None
    tokens = _Tokens(text)
    nodes = list(_nodes(tree, tokens))
    owner = np.full(len(tokens.starts), -1)
    for number, node in enumerate(nodes):  # from outside in: the innermost remains
        owner[node.tokens.start : node.tokens.stop] = number
    own: list[list[int]] = [[] for _ in nodes]
    for token, number in enumerate(owner.tolist()):
        if number >= 0:
            own[number].append(token)
    heads = _heads(nodes, own, tokens)
    parents: set[Link] = set()
    for number, node in enumerate(nodes):
        parents.update((token, heads[number]) for token in own[number] if token != heads[number])
        if node.around >= 0 and heads[node.around] != heads[number]:
            parents.add((heads[number], heads[node.around]))
    at = tokens.starts
    probes = sorted(set(_precedence(tree, tokens)))
    return Syntax(
        [(at[a], at[b]) for a, b in sorted(parents)],
        [(at[a], at[b]) for a, b in _uses(tokens)],
        [(at[a], at[b]) for a, b in _brackets(tokens)],
        [(at[a], at[b], at[c]) for a, b, c in probes],
    )


def _nodes(tree: ast.AST, tokens: _Tokens) -> Iterator[_Node]:
    """Nodes with tokens, from outside in, in order; strings with fields in them are not looked into."""
    waiting, count = [(tree, -1)], 0
    while waiting:
        node, around = waiting.pop()
        inner = tokens.within(node)
        if len(inner):
            yield _Node(node, inner, around)
            around, count = count, count + 1
        if not isinstance(node, ast.JoinedStr):
            waiting += [(part, around) for part in reversed(list(ast.iter_child_nodes(node)))]


def _heads(nodes: list[_Node], own: list[list[int]], tokens: _Tokens) -> list[int]:
    """The token that stands for each node."""
    heads = [-1] * len(nodes)
    first: dict[int, int] = {}
    for number in range(len(nodes) - 1, -1, -1):  # from inside out
        words = [token for token in own[number] if tokens.classes[token] != PUNCTUATION]
        inner = first.get(number, -1)
        heads[number] = words[0] if words else inner if inner >= 0 else nodes[number].tokens.start
        first[nodes[number].around] = heads[number]  # the last to come is the first part
    return heads


def _uses(tokens: _Tokens) -> Iterator[Link]:
    bound: dict[int, int] = {}
    waiting: dict[int, list[int]] = {}
    for token, symbol in enumerate(tokens.symbols):
        if symbol < 0 or tokens.classes[token] not in IDENTIFIERS:
            continue
        if tokens.classes[token] in _BINDING:
            yield from ((token, use) for use in waiting.pop(symbol, ()))
            bound[symbol] = token
        elif symbol in bound:
            yield bound[symbol], token
        else:
            waiting.setdefault(symbol, []).append(token)


def _brackets(tokens: _Tokens) -> Iterator[Link]:
    waiting: list[int] = []
    for token, text in enumerate(tokens.spelled):
        if text in PAIRS.values():
            waiting.append(token)
        elif text in PAIRS and waiting and tokens.spelled[waiting[-1]] == PAIRS[text]:
            yield waiting.pop(), token


def _precedence(tree: ast.AST, tokens: _Tokens) -> Iterator[tuple[int, int, int]]:
    """Two operators with one operand between them, of which one binds tighter, and no bracket."""
    for outer in ast.walk(tree):
        sides = _sides(outer)
        for left, operator, right in sides:
            for inner, on_right in ((left, False), (right, True)):
                parts = _sides(inner)
                if not parts or _level(parts[0][1]) <= _level(operator):
                    continue
                near = parts[0] if on_right else parts[-1]
                operand, end = (near[0], near[2]) if on_right else (near[2], near[0])
                loose, tight = _between(tokens, left, right), _between(tokens, near[0], near[2])
                whole = tokens.within(operand)
                if loose is None or tight is None or not whole or not tokens.within(end):
                    continue
                if (loose + 1 == whole.start) if on_right else (whole.stop == loose):
                    yield whole.start if on_right else whole.stop - 1, tight, loose


def _sides(node: ast.AST) -> list[tuple[ast.AST, ast.AST, ast.AST]]:
    """(operand, operator, operand) of each operator of an expression."""
    if isinstance(node, ast.BinOp):
        return [(node.left, node.op, node.right)]
    if isinstance(node, ast.BoolOp):
        return [(a, node.op, b) for a, b in zip(node.values, node.values[1:], strict=False)]
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        return [(a, op, b) for a, op, b in zip(operands, node.ops, operands[1:], strict=False)]
    return []


def _level(operator: ast.AST) -> int:
    return next(level for level, kinds in enumerate(_LEVELS) if isinstance(operator, kinds))


def _between(tokens: _Tokens, left: ast.AST, right: ast.AST) -> int | None:
    """The only token between two operands (an operator of two words has none)."""
    before, after = tokens.within(left), tokens.within(right)
    return before.stop if before and after and after.start - before.stop == 1 else None
