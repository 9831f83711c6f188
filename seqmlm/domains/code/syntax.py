"""Find the dependences between the lexer tokens of a Python file: syntax tree, names, brackets and operators.

Each node of the syntax tree has a head. This is the first of its own tokens that is not punctuation (`def`,
`+`, `=`, a name). If a node has no such token, its head is the head of its first part, for example of the
function in a call.

A token that is not a head depends on the head of its innermost node. A head depends on the head of the node
around it. Statements of a module depend on nothing. Comments and white space are left out.
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
"""The character offsets in the file of the starts of two tokens."""

PAIRS = {")": "(", "]": "[", "}": "{"}
"""Closing bracket -> opening bracket."""

_BINDING = (DEFINITION, PARAMETER, IMPORT)

# Operators by precedence, the loosest first (table in the Python Language Reference).
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
    """The dependences between the tokens of a file. A token is represented by its character offset.

    Attributes:
        parents: (token, the token on which it depends), ascending.
        uses: (binding, use) of names. The binding is the last binding before the use, or else the first
            binding.
        brackets: (opening bracket, closing bracket).
        precedence: (operand, tighter operator, looser operator), if two operators share an operand.
    """

    parents: list[Link]
    uses: list[Link]
    brackets: list[Link]
    precedence: list[tuple[int, int, int]]


class _Tokens:
    """The tokens of a file without white space and comments."""

    def __init__(self, text: str) -> None:
        tokens = lex(SourceText(text, "python"))
        is_code = ~np.isin(tokens.classes, (WHITESPACE, COMMENT))
        self.starts, ends = tokens.starts[is_code].tolist(), tokens.ends[is_code].tolist()
        self.classes, self.symbols = tokens.classes[is_code].tolist(), tokens.symbols[is_code].tolist()
        self.texts = [text[a:b] for a, b in zip(self.starts, ends, strict=True)]
        self._positions = Positions(text)

    def node_tokens(self, node: ast.AST) -> range:
        """The indexes of the tokens in a node; empty for a node without a position."""
        if getattr(node, "end_lineno", None) is None:
            return range(0)
        start = self._positions.offset((node.lineno, node.col_offset))  # type: ignore[attr-defined]
        end = self._positions.offset((node.end_lineno, node.end_col_offset))  # type: ignore[attr-defined]
        return range(bisect_left(self.starts, start), bisect_left(self.starts, end))


class _Node(NamedTuple):
    tree: ast.AST
    tokens: range
    around: int  # number of the innermost node with tokens around it, -1 for none


def syntax(text: str) -> Syntax | None:
    """The dependences between the tokens of a Python file; None if it does not parse."""
    tree = parse(text)
    if tree is None:
        return None
    tokens = _Tokens(text)
    nodes = list(_nodes(tree, tokens))
    owner = np.full(len(tokens.starts), -1)
    for number, node in enumerate(nodes):  # inner nodes come later, and replace their outer nodes
        owner[node.tokens.start : node.tokens.stop] = number
    tokens_of_node: list[list[int]] = [[] for _ in nodes]
    for token, number in enumerate(owner.tolist()):
        if number >= 0:
            tokens_of_node[number].append(token)
    heads = _heads(nodes, tokens_of_node, tokens)
    parents: set[Link] = set()
    for number, node in enumerate(nodes):
        parents.update((token, heads[number]) for token in tokens_of_node[number] if token != heads[number])
        if node.around >= 0 and heads[node.around] != heads[number]:
            parents.add((heads[number], heads[node.around]))
    starts = tokens.starts
    probes = sorted(set(_precedence(tree, tokens)))
    return Syntax(
        [(starts[a], starts[b]) for a, b in sorted(parents)],
        [(starts[a], starts[b]) for a, b in _uses(tokens)],
        [(starts[a], starts[b]) for a, b in _brackets(tokens)],
        [(starts[a], starts[b], starts[c]) for a, b, c in probes],
    )


def _nodes(tree: ast.AST, tokens: _Tokens) -> Iterator[_Node]:
    """The nodes with tokens in order, outer nodes before their inner nodes. F-strings are not divided."""
    waiting, count = [(tree, -1)], 0
    while waiting:
        node, around = waiting.pop()
        inner = tokens.node_tokens(node)
        if len(inner):
            yield _Node(node, inner, around)
            around, count = count, count + 1
        if not isinstance(node, ast.JoinedStr):
            waiting += [(part, around) for part in reversed(list(ast.iter_child_nodes(node)))]


def _heads(nodes: list[_Node], tokens_of_node: list[list[int]], tokens: _Tokens) -> list[int]:
    """The head of each node, as a token index."""
    heads = [-1] * len(nodes)
    first: dict[int, int] = {}
    for number in range(len(nodes) - 1, -1, -1):  # inner nodes before their outer nodes
        words = [token for token in tokens_of_node[number] if tokens.classes[token] != PUNCTUATION]
        inner = first.get(number, -1)
        heads[number] = words[0] if words else inner if inner >= 0 else nodes[number].tokens.start
        first[nodes[number].around] = heads[
            number
        ]  # the loop is backwards, so the first part is written last
    return heads


def _uses(tokens: _Tokens) -> Iterator[Link]:
    """The (binding, use) pairs of names, as token indexes."""
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
    """The (opening, closing) pairs of brackets, as token indexes."""
    waiting: list[int] = []
    for token, text in enumerate(tokens.texts):
        if text in PAIRS.values():
            waiting.append(token)
        elif text in PAIRS and waiting and tokens.texts[waiting[-1]] == PAIRS[text]:
            yield waiting.pop(), token


def _precedence(tree: ast.AST, tokens: _Tokens) -> Iterator[tuple[int, int, int]]:
    """(operand, tighter operator, looser operator) as token indexes, if two operators share an operand."""
    for outer in ast.walk(tree):
        sides = _sides(outer)
        for first, operator, second in sides:
            for inner, on_right in ((first, False), (second, True)):
                parts = _sides(inner)
                if not parts or _level(parts[0][1]) <= _level(operator):
                    continue
                triple = parts[0] if on_right else parts[-1]
                operand, far = (triple[0], triple[2]) if on_right else (triple[2], triple[0])
                loose, tight = (_between(tokens, first, second), _between(tokens, triple[0], triple[2]))
                span = tokens.node_tokens(operand)
                if loose is None or tight is None or not span or not tokens.node_tokens(far):
                    continue
                if (loose + 1 == span.start) if on_right else (span.stop == loose):
                    yield span.start if on_right else span.stop - 1, tight, loose


def _sides(node: ast.AST) -> list[tuple[ast.AST, ast.AST, ast.AST]]:
    """(operand, operator, operand) for each operator of an expression."""
    if isinstance(node, ast.BinOp):
        return [(node.left, node.op, node.right)]
    if isinstance(node, ast.BoolOp):
        return [(a, node.op, b) for a, b in zip(node.values, node.values[1:], strict=False)]
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        return [(a, op, b) for a, op, b in zip(operands, node.ops, operands[1:], strict=False)]
    return []


def _level(operator: ast.AST) -> int:
    """The precedence of an operator, from 0 for `or`. Higher operators bind more tightly."""
    return next(level for level, kinds in enumerate(_LEVELS) if isinstance(operator, kinds))


def _between(tokens: _Tokens, first: ast.AST, second: ast.AST) -> int | None:
    """The index of the token between two operands; None unless there is exactly one (`not in` has two)."""
    first_span, second_span = tokens.node_tokens(first), tokens.node_tokens(second)
    return (
        first_span.stop if first_span and second_span and second_span.start - first_span.stop == 1 else None
    )
