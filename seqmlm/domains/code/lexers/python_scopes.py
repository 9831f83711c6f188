"""The identifiers of a Python file resolved to the scopes that bind them, from its syntax tree.

Python's scoping rules (Language Reference 4.2.2): a name is local to the innermost scope that binds it, class
bodies are not visible from the functions in them, `global` and `nonlocal` point elsewhere. What a class body
binds (methods, class attributes) is reached by attribute, so it shares its symbol with the attribute of that
name; attributes are distinguished by name alone, because their owner's type is not known. Fields of nodes
without expressions are not visited, which halves the time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from seqmlm.domains.code.lexers.classes import DEFINITION, DOCSTRING, EXCEPTION, IMPORT, PARAMETER, TYPE, USE

# Fields of nodes that hold no expression, statement or pattern.
_LEAVES = frozenset(
    (
        *("ctx", "op", "ops", "attr", "name", "names", "kwd_attrs", "type_comment", "type_ignores"),
        *("is_async", "simple", "conversion", "level", "module", "kind", "id", "arg"),
    )
)


@cache
def fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields of a kind of node whose values must be visited."""
    if kind in (ast.Constant, ast.Pass, ast.MatchSingleton):
        return ()
    return tuple(field for field in kind._fields if field not in _LEAVES)


ATTRIBUTES = -1
"""The scope number of attributes, and of what class bodies bind."""
_BUILTINS = -2
_KEYWORDS = -3

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


class Place(NamedTuple):
    """Class of an identifier, and the name and scope it has before it is resolved."""

    role: int
    scope: int
    name: str


class Scopes:
    """The identifiers and ranges of a text according to its syntax tree.

    Args:
        tree: of `ast.parse`.

    Positions are (line from 1, column in UTF-8 bytes), as the tree has them.

    Attributes:
        places: the identifiers whose exact position the tree has.
        statements: scope of `def`, `class`, `import`, `global`, `except` ... by where they begin, for the
            names whose position it does not have.
        ranges: (start, end, class) of annotations, exception types and docstrings.
        formatted: (start, end, {name: scope}) of f-strings, inside which positions cannot be trusted.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.places: dict[tuple[int, int], Place] = {}
        self.statements: dict[tuple[int, int], int] = {}
        self.ranges: list[tuple[tuple[int, int], tuple[int, int], int]] = []
        self.formatted: list[tuple[tuple[int, int], tuple[int, int], dict[str, int]]] = []
        self._parents = [-1]
        self._is_class = [False]
        self._is_comprehension = [False]
        self._bound: list[set[str]] = [set()]
        self._elsewhere: list[dict[str, int]] = [{}]  # names declared global or nonlocal
        self._resolved: dict[tuple[int, str], tuple[int, str]] = {}
        self._docstring(tree)
        self._walk(tree)

    def resolve(self, scope: int, name: str) -> tuple[int, str]:
        """The scope that binds `name` as seen from `scope`, and the name: equal where the symbol is."""
        key = (scope, name)
        found = self._resolved.get(key)
        if found is None:
            found = self._resolved[key] = (self._binding(scope, name), name)
        return found

    def _binding(self, scope: int, name: str) -> int:
        if scope < 0:
            return scope
        if self._elsewhere[scope].get(name) == 0:
            return 0 if name in self._bound[0] else _BUILTINS
        if name in self._elsewhere[scope]:
            scope = self._parents[scope]
        elif name in self._bound[scope]:
            return ATTRIBUTES if self._is_class[scope] else scope
        else:
            scope = self._parents[scope]
        while scope >= 0:
            if not self._is_class[scope]:
                if self._elsewhere[scope].get(name) == 0:
                    return 0
                if name in self._bound[scope] and name not in self._elsewhere[scope]:
                    return scope
            scope = self._parents[scope]
        return _BUILTINS

    def _new(self, parent: int, *, is_class: bool = False, comprehension: bool = False) -> int:
        self._parents.append(parent)
        self._is_class.append(is_class)
        self._is_comprehension.append(comprehension)
        self._bound.append(set())
        self._elsewhere.append({})
        return len(self._parents) - 1

    def _walk(self, tree: ast.Module) -> None:
        stack: list[tuple[Any, int]] = [(tree, 0)]
        handlers = _HANDLERS
        while stack:
            node, scope = stack.pop()
            kind = node.__class__
            if kind is ast.Name:
                name = node.id
                stored = node.ctx.__class__ is not ast.Load
                if stored:
                    self._bound[scope].add(name)
                self.places[node.lineno, node.col_offset] = Place(DEFINITION if stored else USE, scope, name)
                continue
            handler = handlers.get(kind)
            if handler is not None:
                stack.extend(
                    (child, inner) for child, inner in handler(self, node, scope) if child is not None
                )
                continue
            for field in fields_of(kind):
                child = getattr(node, field, None)
                if child.__class__ is list:
                    stack += [(one, scope) for one in child if one is not None]
                elif child is not None:
                    stack.append((child, scope))

    def _range(self, node: Any, kind: int) -> None:
        end = (node.end_lineno, node.end_col_offset)
        self.ranges.append(((node.lineno, node.col_offset), end, kind))

    def _docstring(self, node: Any) -> None:
        first = node.body[0] if node.body else None
        value = first.value if isinstance(first, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            self._range(value, DOCSTRING)

    def _type_parameters(self, node: Any, scope: int) -> tuple[int, list[tuple[Any, int]]]:
        """The scope of `[T]` behind a name (Python 3.12), or the same one, and what it holds."""
        parameters = getattr(node, "type_params", None)
        if not parameters:
            return scope, []
        inner = self._new(scope)
        inside: list[tuple[Any, int]] = []
        for one in parameters:
            stars = {"TypeVarTuple": 1, "ParamSpec": 2}.get(type(one).__name__, 0)
            self._bound[inner].add(one.name)
            self.places[one.lineno, one.col_offset + stars] = Place(TYPE, inner, one.name)
            inside += [(child, inner) for child in ast.iter_child_nodes(one)]
        return inner, inside

    def _function(self, node: Any, scope: int) -> Iterable[tuple[Any, int]]:
        self._bound[scope].add(node.name)
        self.statements[node.lineno, node.col_offset] = scope
        self._docstring(node)
        outer, found = self._type_parameters(node, scope)
        if node.returns is not None:
            self._range(node.returns, TYPE)
        found += [(one, scope) for one in node.decorator_list]
        inner = self._new(outer)
        found += [(node.returns, outer), *self._arguments(node.args, outer, inner)]
        return [*found, *((one, inner) for one in node.body)]

    def _lambda(self, node: ast.Lambda, scope: int) -> Iterable[tuple[Any, int]]:
        inner = self._new(scope)
        return [*self._arguments(node.args, scope, inner), (node.body, inner)]

    def _arguments(self, args: ast.arguments, outer: int, inner: int) -> list[tuple[Any, int]]:
        found: list[tuple[Any, int]] = [(one, outer) for one in (*args.defaults, *args.kw_defaults)]
        for one in (*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg):
            if one is None:
                continue
            self._bound[inner].add(one.arg)
            self.places[one.lineno, one.col_offset] = Place(PARAMETER, inner, one.arg)
            if one.annotation is not None:
                self._range(one.annotation, TYPE)
                found.append((one.annotation, outer))
        return found

    def _class(self, node: Any, scope: int) -> Iterable[tuple[Any, int]]:
        self._bound[scope].add(node.name)
        self.statements[node.lineno, node.col_offset] = scope
        self._docstring(node)
        outer, found = self._type_parameters(node, scope)
        inner = self._new(outer, is_class=True)
        found += [(one, scope) for one in node.decorator_list]
        found += [(one, outer) for one in (*node.bases, *node.keywords)]
        return [*found, *((one, inner) for one in node.body)]

    def _comprehension(self, node: Any, scope: int) -> Iterable[tuple[Any, int]]:
        inner = self._new(scope, comprehension=True)
        found: list[tuple[Any, int]] = []
        for number, one in enumerate(node.generators):
            found += [(one.target, inner), (one.iter, inner if number else scope)]
            found += [(test, inner) for test in one.ifs]
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        return [*found, *((one, inner) for one in parts)]

    def _named(self, node: ast.NamedExpr, scope: int) -> Iterable[tuple[Any, int]]:
        """`:=` in a comprehension binds in the function around it."""
        around = scope
        while self._is_comprehension[around]:
            around = self._parents[around]
        return [(node.target, around), (node.value, scope)]

    def _annotated(self, node: ast.AnnAssign, scope: int) -> Iterable[tuple[Any, int]]:
        self._range(node.annotation, TYPE)
        return [(node.target, scope), (node.annotation, scope), (node.value, scope)]

    def _alias(self, node: Any, scope: int) -> Iterable[tuple[Any, int]]:
        """`type X = ...` (Python 3.12)."""
        inner, found = self._type_parameters(node, scope)
        self._range(node.value, TYPE)
        return [*found, (node.name, scope), (node.value, inner)]

    def _import(self, node: Any, scope: int) -> Iterable[tuple[Any, int]]:
        self.statements[node.lineno, node.col_offset] = scope
        for one in node.names:
            bound = one.asname or (one.name if isinstance(node, ast.ImportFrom) else one.name.split(".")[0])
            self._bound[scope].add(bound)
            first = one.name.split(".")[0]
            inner = scope if one.asname is None else ATTRIBUTES
            self.places[one.lineno, one.col_offset] = Place(IMPORT, inner, first)
        return ()

    def _declared(self, node: Any, scope: int) -> Iterable[tuple[Any, int]]:
        self.statements[node.lineno, node.col_offset] = scope
        for name in node.names:
            self._elsewhere[scope][name] = 0 if isinstance(node, ast.Global) else 1
            if isinstance(node, ast.Global):
                self._bound[0].add(name)
        return ()

    def _handler(self, node: ast.ExceptHandler, scope: int) -> Iterable[tuple[Any, int]]:
        self.statements[node.lineno, node.col_offset] = scope
        if node.type is not None:
            self._range(node.type, EXCEPTION)
        if node.name is not None:
            self._bound[scope].add(node.name)
        return [(node.type, scope), *((one, scope) for one in node.body)]

    def _raise(self, node: ast.Raise, scope: int) -> Iterable[tuple[Any, int]]:
        """`raise E` and `raise E(...)` name a type where E begins like one, else a variable."""
        what = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        last = what.attr if isinstance(what, ast.Attribute) else getattr(what, "id", "")
        if last[:1].isupper():
            self._range(what, EXCEPTION)
        return [(node.exc, scope), (node.cause, scope)]

    def _keyword(self, node: ast.keyword, scope: int) -> Iterable[tuple[Any, int]]:
        if node.arg is not None:
            self.places[node.lineno, node.col_offset] = Place(PARAMETER, _KEYWORDS, node.arg)
        return [(node.value, scope)]

    def _captured(self, node: Any, scope: int) -> Iterable[tuple[Any, int]]:
        """`case x`, `case ... as x` and `case *x`: the name stands last."""
        if node.name is not None:
            self._bound[scope].add(node.name)
            column = node.end_col_offset - len(node.name.encode())
            self.places[node.end_lineno, column] = Place(DEFINITION, scope, node.name)
        return [(getattr(node, "pattern", None), scope)]

    def _rest(self, node: ast.MatchMapping, scope: int) -> Iterable[tuple[Any, int]]:
        if node.rest is not None:
            self._bound[scope].add(node.rest)
        return [(one, scope) for one in (*node.keys, *node.patterns)]

    def _formatted(self, node: ast.JoinedStr, scope: int) -> Iterable[tuple[Any, int]]:
        """An f-string: which names it holds, since only newer Pythons know where they are."""
        names = {
            one.id: scope
            for one in ast.walk(node)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)
        }
        end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
        self.formatted.append(((node.lineno, node.col_offset), end, names))
        return ()


_HANDLERS: dict[type, Any] = {
    **dict.fromkeys(_FUNCTIONS, Scopes._function),
    **dict.fromkeys(_COMPREHENSIONS, Scopes._comprehension),
    ast.Lambda: Scopes._lambda,
    ast.ClassDef: Scopes._class,
    ast.NamedExpr: Scopes._named,
    ast.AnnAssign: Scopes._annotated,
    ast.Import: Scopes._import,
    ast.ImportFrom: Scopes._import,
    ast.Global: Scopes._declared,
    ast.Nonlocal: Scopes._declared,
    ast.ExceptHandler: Scopes._handler,
    ast.Raise: Scopes._raise,
    ast.keyword: Scopes._keyword,
    ast.MatchAs: Scopes._captured,
    ast.MatchStar: Scopes._captured,
    ast.MatchMapping: Scopes._rest,
    ast.JoinedStr: Scopes._formatted,
}
if hasattr(ast, "TypeAlias"):
    _HANDLERS[ast.TypeAlias] = Scopes._alias
if hasattr(ast, "TemplateStr"):
    _HANDLERS[ast.TemplateStr] = Scopes._formatted
