"""Lexers: the tokens of a programming language, their classes, and which names refer to the same thing."""

from __future__ import annotations

from typing import Literal, get_args

from seqmlm.domains.code.lexers.classes import LexerTokens
from seqmlm.domains.code.lexers.generic import lex_generic
from seqmlm.domains.code.lexers.python import lex_python, parse
from seqmlm.domains.code.lexers.tree_sitter import available, lex_tree_sitter
from seqmlm.errors import UsageError

Lexer = Literal["auto", "python", "generic", "tree-sitter"]


def lex(text: str, lexer: Lexer = "auto") -> LexerTokens:
    """The lexer tokens of a source text.

    Args:
        text: the source; a `SourceText` knows its language, any other text is Python if it parses as that.
        lexer: "auto" uses the Python lexer for Python and the generic one for everything else, with the same
            result on every machine; "tree-sitter" uses its parser if there is one for the language (the same
            tokens, better roles); the others are used for any language.

    Raises:
        UsageError: an unknown lexer, or "tree-sitter" without its wheels.
    """
    if lexer not in get_args(Lexer):
        raise UsageError(f"lexer must be one of {', '.join(get_args(Lexer))}, not {lexer!r}")
    language = getattr(text, "language", "")
    if lexer == "python" or (lexer != "generic" and language == "python"):
        return lex_python(text)
    if lexer == "tree-sitter" and language:
        parsed = available(language) or not available("java")
        return lex_tree_sitter(text, language) if parsed else lex_generic(text, language)
    if lexer == "generic" or language:
        return lex_generic(text, language)
    tree = parse(text)
    return lex_generic(text) if tree is None else lex_python(text, tree)
