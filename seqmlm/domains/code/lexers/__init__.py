"""Divide source code into lexer tokens, with the class of each token and a symbol for each name."""

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
        text: the source. A `SourceText` has its language. Any other text is Python if it parses as Python.
        lexer: "python" and "generic" are used for all languages. The default, "auto", uses the Python lexer
            for Python, and the generic lexer for other languages, so its result is the same on every machine.
            The option "tree-sitter" uses a tree-sitter parser if there is one for the language. It has the
            same tokens but better classes.

    Raises:
        UsageError: unknown lexer, or the wheels for "tree-sitter" are not installed.
    """
    if lexer not in get_args(Lexer):
        raise UsageError(f"lexer must be one of {', '.join(get_args(Lexer))}; got {lexer!r}")
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
