"""Faults put into Python source: a wrong operator, swapped operands, a misused variable as in CuBERT.

The text stays Python that parses, and differs from the original at one place alone.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from seqmlm.domains.code.lexers.classes import Positions

KINDS = ("operator", "operands", "variable")

_SPELLED: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.And: "and",
    ast.Or: "or",
}
_WRONG = {
    "+": ("-", "*"),
    "-": ("+", "*"),
    "*": ("+", "/"),
    "/": ("*", "//"),
    "//": ("/", "%"),
    "%": ("//", "+"),
    "==": ("!=", "is"),
    "!=": ("==", "is not"),
    "<": (">", "<="),
    "<=": ("<", ">="),
    ">": ("<", ">="),
    ">=": (">", "<="),
    "is": ("is not", "=="),
    "is not": ("is", "!="),
    "in": ("not in",),
    "not in": ("in",),
    "and": ("or",),
    "or": ("and",),
}
_COMMUTATIVE = frozenset(("+", "*", "==", "!=", "and", "or", "is", "is not"))


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One planted fault.

    Args:
        text: the source with it.
        kind: one of `KINDS`.
        start, end: half-open characters of what is wrong, in `text`.
        original: what stood there.
    """

    text: str
    kind: str
    start: int
    end: int
    original: str

    @property
    def line(self) -> int:
        """The 1-based line it begins in."""
        return self.text.count("\n", 0, self.start) + 1


def faults(text: str, rng: np.random.Generator, count: int = 1, kind: str | None = None) -> list[Fault]:
    """Up to `count` faults, each alone in a copy of the text, at different places.

    Args:
        text: Python; without a place to spoil, or not parsing, it gives none.
        rng: chooses places and what is put there.
        kind: of the faults; None for all kinds, alike often where the text allows.
    """
    tree = _parsed(text)
    if tree is None:
        return []
    places = Positions(text)
    found = {one: [] for one in KINDS if kind in (None, one)}
    for fault in _possible(text, tree, places, rng):
        if fault.kind in found:
            found[fault.kind].append(fault)
    made: list[Fault] = []
    while len(made) < count and any(found.values()):
        kinds = [one for one, own in found.items() if own]
        own = found[kinds[int(rng.integers(len(kinds)))]]
        fault = own.pop(int(rng.integers(len(own))))
        if _parsed(fault.text) is not None:
            made.append(fault)
    return made


def _parsed(text: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            return None


def _possible(text: str, tree: ast.Module, places: Positions, rng: np.random.Generator) -> Iterator[Fault]:
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp):
            yield from _of_operation(text, places, node.left, node.op, node.right, rng)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from _of_operation(text, places, node.left, node.ops[0], node.comparators[0], rng)
        elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
            yield from _of_operation(text, places, node.values[0], node.op, node.values[1], rng)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _misused(text, places, node, rng)


def _span(places: Positions, node: ast.expr) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return places.offset((node.lineno, node.col_offset)), places.offset(
        (node.end_lineno, node.end_col_offset)
    )


def _of_operation(
    text: str, places: Positions, left: ast.expr, op: ast.AST, right: ast.expr, rng: np.random.Generator
) -> Iterator[Fault]:
    spelled = _SPELLED.get(type(op))
    (a, b), (c, d) = _span(places, left), _span(places, right)
    if spelled is None or b > c:
        return
    at = re.search(re.escape(spelled).replace(r"\ ", r"\s+"), text[b:c])
    if at is None or "#" in text[b:c]:
        return
    start, end = b + at.start(), b + at.end()
    wrong = _WRONG[spelled][int(rng.integers(len(_WRONG[spelled])))]
    yield _replaced(text, "operator", start, end, wrong)
    if spelled not in _COMMUTATIVE and text[a:b] != text[c:d] and not isinstance(left, ast.Constant):
        yield _replaced(text, "operands", a, d, text[c:d] + text[b:c] + text[a:b])


def _misused(
    text: str, places: Positions, function: ast.FunctionDef | ast.AsyncFunctionDef, rng: np.random.Generator
) -> Iterator[Fault]:
    """Uses of a local name, each turned into another local name of the function."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    local = sorted(
        {node.id for node in names if isinstance(node.ctx, ast.Store)} | {one.arg for one in arguments}
    )
    for node in names:
        others = [name for name in local if name not in (node.id, "self", "cls")]
        if isinstance(node.ctx, ast.Load) and node.id in local and node.id not in ("self", "cls") and others:
            start, end = _span(places, node)
            if text[start:end] == node.id:  # not inside an f-string, whose positions older parsers get wrong
                yield _replaced(text, "variable", start, end, others[int(rng.integers(len(others)))])


def _replaced(text: str, kind: str, start: int, end: int, wrong: str) -> Fault:
    spoilt = text[:start] + wrong + text[end:]
    return Fault(text=spoilt, kind=kind, start=start, end=start + len(wrong), original=text[start:end])
