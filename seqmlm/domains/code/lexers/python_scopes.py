"""Resolve the identifiers of a Python file to the scopes that bind them, from its syntax tree.

The rules are the scoping rules of Python (Language Reference 4.2.2). A name is local to the innermost scope
that binds it. Names of a class body are not visible in the functions of the class. `global` and `nonlocal`
refer to outer scopes.

Methods and class attributes are accessed as attributes. They therefore have the same symbol as the attribute
of this name. Attributes are distinguished only by name, because the type of their owner is unknown.

Fields of nodes without expressions are not visited, which halves the time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from seqmlm.domains.code.lexers.classes import DEFINITION, DOCSTRING, EXCEPTION, IMPORT, PARAMETER, TYPE, USE

# Fields of nodes that have no expression, statement or pattern.
_LEAVES = frozenset(
    (
        *("ctx", "op", "ops", "attr", "name", "names", "kwd_attrs", "type_comment", "type_ignores"),
        *("is_async", "simple", "conversion", "level", "module", "kind", "id", "arg"),
    )
)


@cache
def fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields that must be visited in nodes of this kind."""
    if kind in (ast.Constant, ast.Pass, ast.MatchSingleton):
        return ()
    return tuple(field for field in kind._fields if field not in _LEAVES)


ATTRIBUTES = -1
"""The scope number of attributes, and of names that class bodies bind."""
_BUILTINS = -2
_KEYWORDS = -3

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


class Place(NamedTuple):
    """The class of an identifier, its name, and the scope in which it occurs."""

    role: int
    scope: int
    name: str


class Scopes:
    """The identifiers and ranges of a text, from its syntax tree.

    Positions are counted as in the tree: the line counted from 1, and the column in UTF-8 bytes.

    Args:
        tree: the result of `ast.parse`.

    Attributes:
        places: position -> identifier, for identifiers with an exact position in the tree.
        statements: start -> scope of `def`, `class`, `import`, `global`, `except` and similar statements. It
            is for names without a position in the tree.
        ranges: (start, end, class) of annotations, exception types and docstrings.
        f_strings: (start, end, {name: scope}) of f-strings. Positions inside of f-strings are not reliable.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.places: dict[tuple[int, int], Place] = {}
        self.statements: dict[tuple[int, int], int] = {}
        self.ranges: list[tuple[tuple[int, int], tuple[int, int], int]] = []
        self.f_strings: list[tuple[tuple[int, int], tuple[int, int], dict[str, int]]] = []
        self._parents = [-1]
        self._is_class = [False]
        self._is_comprehension = [False]
        self._bound_names: list[set[str]] = [set()]
        self._outer_names: list[dict[str, int]] = [{}]  # names declared global or nonlocal
        self._bindings: dict[tuple[int, str], tuple[int, str]] = {}
        self._docstring(tree)
        self._walk(tree)

    def resolve(self, scope: int, name: str) -> tuple[int, str]:
        """The scope that binds `name` for use in `scope`, and the name. Equal results are the same symbol."""
        key = (scope, name)
        binding = self._bindings.get(key)
        if binding is None:
            binding = self._bindings[key] = (self._binding(scope, name), name)
        return binding

    def _binding(self, scope: int, name: str) -> int:
        if scope < 0:
            return scope
        if self._outer_names[scope].get(name) == 0:
            return 0 if name in self._bound_names[0] else _BUILTINS
        if name in self._outer_names[scope]:
            scope = self._parents[scope]
        elif name in self._bound_names[scope]:
            return ATTRIBUTES if self._is_class[scope] else scope
        else:
            scope = self._parents[scope]
        while scope >= 0:
            if not self._is_class[scope]:
                if self._outer_names[scope].get(name) == 0:
                    return 0
                if name in self._bound_names[scope] and name not in self._outer_names[scope]:
                    return scope
            scope = self._parents[scope]
        return _BUILTINS

    def _new_scope(self, parent: int, *, is_class: bool = False, comprehension: bool = False) -> int:
        self._parents.append(parent)
        self._is_class.append(is_class)
        self._is_comprehension.append(comprehension)
        self._bound_names.append(set())
        self._outer_names.append({})
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
                    self._bound_names[scope].add(name)
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
                    stack += [(part, scope) for part in child if part is not None]
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
        """The scope of type parameters such as `[T]` (Python 3.12), and the nodes to visit in it.

        Without type parameters, the scope is unchanged.
        """
        parameters = getattr(node, "type_params", None)
        if not parameters:
            return scope, []
        inner = self._new_scope(scope)
        visits: list[tuple[Any, int]] = []
        for parameter in parameters:
            stars = {"TypeVarTuple": 1, "ParamSpec": 2}.get(type(parameter).__name__, 0)
            self._bound_names[inner].add(parameter.name)
            self.places[parameter.lineno, parameter.col_offset + stars] = Place(TYPE, inner, parameter.name)
            visits += [(child, inner) for child in ast.iter_child_nodes(parameter)]
        return inner, visits

    def _function(self, node: Any, scope: int) -> Iterable[tuple[Any, int]]:
        self._bound_names[scope].add(node.name)
        self.statements[node.lineno, node.col_offset] = scope
        self._docstring(node)
        outer, visits = self._type_parameters(node, scope)
        if node.returns is not None:
            self._range(node.returns, TYPE)
        visits += [(part, scope) for part in node.decorator_list]
        inner = self._new_scope(outer)
        visits += [(node.returns, outer), *self._arguments(node.args, outer, inner)]
        return [*visits, *((part, inner) for part in node.body)]

    def _lambda(self, node: ast.Lambda, scope: int) -> Iterable[tuple[Any, int]]:
        inner = self._new_scope(scope)
        return [*self._arguments(node.args, scope, inner), (node.body, inner)]

    def _arguments(self, args: ast.arguments, outer: int, inner: int) -> list[tuple[Any, int]]:
        visits: list[tuple[Any, int]] = [(part, outer) for part in (*args.defaults, *args.kw_defaults)]
        for part in (*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg):
            if part is None:
                continue
            self._bound_names[inner].add(part.arg)
            self.places[part.lineno, part.col_offset] = Place(PARAMETER, inner, part.arg)
            if part.annotation is not None:
                self._range(part.annotation, TYPE)
                visits.append((part.annotation, outer))
        return visits

    def _class(self, node: Any, scope: int) -> Iterable[tuple[Any, int]]:
        self._bound_names[scope].add(node.name)
        self.statements[node.lineno, node.col_offset] = scope
        self._docstring(node)
        outer, visits = self._type_parameters(node, scope)
        inner = self._new_scope(outer, is_class=True)
        visits += [(part, scope) for part in node.decorator_list]
        visits += [(part, outer) for part in (*node.bases, *node.keywords)]
        return [*visits, *((part, inner) for part in node.body)]

    def _comprehension(self, node: Any, scope: int) -> Iterable[tuple[Any, int]]:
        inner = self._new_scope(scope, comprehension=True)
        visits: list[tuple[Any, int]] = []
        for number, part in enumerate(node.generators):
            visits += [(part.target, inner), (part.iter, inner if number else scope)]
            visits += [(test, inner) for test in part.ifs]
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        return [*visits, *((part, inner) for part in parts)]

    def _named_expression(self, node: ast.NamedExpr, scope: int) -> Iterable[tuple[Any, int]]:
        """Handle `:=`, which in a comprehension binds the name in the function around it."""
        around = scope
        while self._is_comprehension[around]:
            around = self._parents[around]
        return [(node.target, around), (node.value, scope)]

    def _annotation(self, node: ast.AnnAssign, scope: int) -> Iterable[tuple[Any, int]]:
        self._range(node.annotation, TYPE)
        return [(node.target, scope), (node.annotation, scope), (node.value, scope)]

    def _alias(self, node: Any, scope: int) -> Iterable[tuple[Any, int]]:
        """Handle `type X = ...` (Python 3.12)."""
        inner, visits = self._type_parameters(node, scope)
        self._range(node.value, TYPE)
        return [*visits, (node.name, scope), (node.value, inner)]

    def _import(self, node: Any, scope: int) -> Iterable[tuple[Any, int]]:
        self.statements[node.lineno, node.col_offset] = scope
        for alias in node.names:
            bound_name = alias.asname or (
                alias.name if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0]
            )
            self._bound_names[scope].add(bound_name)
            module_name = alias.name.split(".")[0]
            inner = scope if alias.asname is None else ATTRIBUTES
            self.places[alias.lineno, alias.col_offset] = Place(IMPORT, inner, module_name)
        return ()

    def _declaration(self, node: Any, scope: int) -> Iterable[tuple[Any, int]]:
        self.statements[node.lineno, node.col_offset] = scope
        for name in node.names:
            self._outer_names[scope][name] = 0 if isinstance(node, ast.Global) else 1
            if isinstance(node, ast.Global):
                self._bound_names[0].add(name)
        return ()

    def _handler(self, node: ast.ExceptHandler, scope: int) -> Iterable[tuple[Any, int]]:
        self.statements[node.lineno, node.col_offset] = scope
        if node.type is not None:
            self._range(node.type, EXCEPTION)
        if node.name is not None:
            self._bound_names[scope].add(node.name)
        return [(node.type, scope), *((part, scope) for part in node.body)]

    def _raise(self, node: ast.Raise, scope: int) -> Iterable[tuple[Any, int]]:
        """Handle `raise E` and `raise E(...)`. E is an exception type if it begins with a capital letter, or
        otherwise a variable."""
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        last = raised.attr if isinstance(raised, ast.Attribute) else getattr(raised, "id", "")
        if last[:1].isupper():
            self._range(raised, EXCEPTION)
        return [(node.exc, scope), (node.cause, scope)]

    def _keyword(self, node: ast.keyword, scope: int) -> Iterable[tuple[Any, int]]:
        if node.arg is not None:
            self.places[node.lineno, node.col_offset] = Place(PARAMETER, _KEYWORDS, node.arg)
        return [(node.value, scope)]

    def _capture_pattern(self, node: Any, scope: int) -> Iterable[tuple[Any, int]]:
        """Handle `case x`, `case ... as x` and `case *x`, in which the name is last."""
        if node.name is not None:
            self._bound_names[scope].add(node.name)
            column = node.end_col_offset - len(node.name.encode())
            self.places[node.end_lineno, column] = Place(DEFINITION, scope, node.name)
        return [(getattr(node, "pattern", None), scope)]

    def _mapping_pattern(self, node: ast.MatchMapping, scope: int) -> Iterable[tuple[Any, int]]:
        if node.rest is not None:
            self._bound_names[scope].add(node.rest)
        return [(part, scope) for part in (*node.keys, *node.patterns)]

    def _f_string(self, node: ast.JoinedStr, scope: int) -> Iterable[tuple[Any, int]]:
        """Record the names in an f-string, because older versions of Python do not give their positions."""
        names = {
            part.id: scope
            for part in ast.walk(node)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
        }
        end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
        self.f_strings.append(((node.lineno, node.col_offset), end, names))
        return ()


_HANDLERS: dict[type, Any] = {
    **dict.fromkeys(_FUNCTIONS, Scopes._function),
    **dict.fromkeys(_COMPREHENSIONS, Scopes._comprehension),
    ast.Lambda: Scopes._lambda,
    ast.ClassDef: Scopes._class,
    ast.NamedExpr: Scopes._named_expression,
    ast.AnnAssign: Scopes._annotation,
    ast.Import: Scopes._import,
    ast.ImportFrom: Scopes._import,
    ast.Global: Scopes._declaration,
    ast.Nonlocal: Scopes._declaration,
    ast.ExceptHandler: Scopes._handler,
    ast.Raise: Scopes._raise,
    ast.keyword: Scopes._keyword,
    ast.MatchAs: Scopes._capture_pattern,
    ast.MatchStar: Scopes._capture_pattern,
    ast.MatchMapping: Scopes._mapping_pattern,
    ast.JoinedStr: Scopes._f_string,
}
if hasattr(ast, "TypeAlias"):
    _HANDLERS[ast.TypeAlias] = Scopes._alias
if hasattr(ast, "TemplateStr"):
    _HANDLERS[ast.TemplateStr] = Scopes._f_string
