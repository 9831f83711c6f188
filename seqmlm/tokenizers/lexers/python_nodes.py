"""Which fields of a syntax tree's nodes lead on: a walk that looks at no others takes half the time."""

from __future__ import annotations

import ast
from functools import cache

# Fields of nodes that hold no expression, statement or pattern.
_LEAVES = frozenset(
    (
        *("ctx", "op", "ops", "attr", "name", "names", "kwd_attrs", "type_comment", "type_ignores"),
        *("is_async", "simple", "conversion", "level", "module", "kind", "id", "arg"),
    )
)


@cache
def fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields of a kind of node whose values have to be visited."""
    if kind in (ast.Constant, ast.Pass, ast.MatchSingleton):
        return ()
    return tuple(field for field in kind._fields if field not in _LEAVES)
