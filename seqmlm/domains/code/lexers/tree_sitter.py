"""Classes of names from tree-sitter parsers, for Java, JavaScript and Go (the extra `tree-sitter`).

Lexer tokens, ids, units and spans are the same as from the generic lexer. The parser only gives better
classes of names. A model therefore reads the same tokens with and without the parsers.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from typing import Any

from seqmlm.domains.code.lexers.classes import (
    ATTRIBUTE,
    CALL,
    DEFINITION,
    IDENTIFIERS,
    IMPORT,
    PARAMETER,
    TYPE,
    USE,
    LexerTokens,
    Positions,
)
from seqmlm.domains.code.lexers.generic import lex_generic
from seqmlm.errors import UsageError

PARSED = ("java", "javascript", "go")
_TYPES = ("type_identifier", "integral_type", "floating_point_type", "boolean_type", "void_type")
_NAMES = ("identifier", "property_identifier", "field_identifier", "package_identifier", *_TYPES)
# (type of the parent node, field of the parent node) -> class of the name
_ROLES = {
    ("formal_parameter", "name"): PARAMETER,
    ("parameter_declaration", "name"): PARAMETER,
    ("formal_parameters", None): PARAMETER,
    ("method_declaration", "name"): DEFINITION,
    ("function_declaration", "name"): DEFINITION,
    ("method_definition", "name"): DEFINITION,
    ("class_declaration", "name"): DEFINITION,
    ("interface_declaration", "name"): DEFINITION,
    ("constructor_declaration", "name"): DEFINITION,
    ("variable_declarator", "name"): DEFINITION,
    ("type_spec", "name"): DEFINITION,
    ("var_spec", "name"): DEFINITION,
    ("const_spec", "name"): DEFINITION,
    ("field_declaration", "name"): DEFINITION,
    ("method_invocation", "name"): CALL,
    ("call_expression", "function"): CALL,
    ("field_access", "field"): ATTRIBUTE,
    ("member_expression", "property"): ATTRIBUTE,
    ("selector_expression", "field"): ATTRIBUTE,
    ("scoped_identifier", "name"): IMPORT,
    ("import_declaration", None): IMPORT,
    ("import_specifier", "name"): IMPORT,
}


def available(language: str) -> bool:
    """Whether the wheels for a language are installed."""
    names = ("tree_sitter", f"tree_sitter_{language}")
    return language in PARSED and all(importlib.util.find_spec(name) is not None for name in names)


def lex_tree_sitter(text: str, language: str) -> LexerTokens:
    """The tokens of the generic lexer, with classes of names from the syntax tree.

    Raises:
        UsageError: the wheels for this language are not installed.
    """
    tokens = lex_generic(text, language)
    positions = Positions(text)
    roles = {positions.offset((1, at)): role for at, role in _roles(_parser(language), text)}
    for number, start in enumerate(tokens.starts.tolist()):
        role = roles.get(start)
        if role is not None and tokens.classes[number] in IDENTIFIERS:
            tokens.classes[number] = role
    return tokens


def _roles(parser: Any, text: str) -> Iterator[tuple[int, int]]:
    """The byte offset and class of each name. There is no recursion, because files can be nested deeply."""
    cursor = parser.parse(text.encode("utf-8", "replace")).walk()
    while True:
        node = cursor.node
        if node.child_count == 0 and node.type in _NAMES:
            yield node.start_byte, _role(node, cursor.field_name)
        if cursor.goto_first_child() or cursor.goto_next_sibling():
            continue
        while cursor.goto_parent():
            if cursor.goto_next_sibling():
                break
        else:
            return


def _role(node: Any, field: str | None) -> int:
    """The class of a name, from its parent node and its field in the parent."""
    parent = node.parent
    kind = None if parent is None else parent.type
    if kind in ("selector_expression", "member_expression") and field != "operand" and field != "object":
        around = parent.parent
        is_callee = around is not None and around.type == "call_expression"
        return CALL if is_callee and around.child_by_field_name("function") == parent else ATTRIBUTE
    role = _ROLES.get((kind or "", field))
    return role if role is not None else TYPE if node.type in _TYPES else USE


@cache
def _parser(language: str) -> Any:
    """The tree-sitter parser for a language.

    Raises:
        UsageError: its wheel is not installed.
    """
    if not available(language):
        raise UsageError(
            f"the lexer 'tree-sitter' has no parser for {language or 'text of unknown language'!r}: "
            f"use lexer=auto, or, for {', '.join(PARSED)}, run pip install 'seqmlm[tree-sitter]'"
        )
    sitter = importlib.import_module("tree_sitter")
    grammar = importlib.import_module(f"tree_sitter_{language}")
    return sitter.Parser(sitter.Language(grammar.language()))
