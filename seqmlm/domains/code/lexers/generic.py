"""The lexer for all languages except Python: a regular expression, and classes from neighbouring tokens.

Languages have different marks for comments. Strings, numbers, names and operators are similar enough for one
expression. The class of a name is inferred from the tokens next to it (`x(`, `.x`, `class X`, `new X`). Names
with the same spelling have the same symbol, because scopes would need a parser.
"""

from __future__ import annotations

import re
from functools import cache

from seqmlm.domains.code.lexers.classes import (
    ATTRIBUTE,
    CALL,
    COMMENT,
    DEFINITION,
    EXCEPTION,
    IMPORT,
    KEYWORD,
    NUMBER,
    OPERATOR,
    PUNCTUATION,
    STRING,
    TYPE,
    USE,
    LexerTokens,
    lexer_tokens,
)
from seqmlm.parsing import word_list

_SLASHES = r"//[^\r\n]*|/\*.*?(?:\*/|\Z)"
_HASH = r"\#[^\r\n]*"
_DASHES = r"--[^\r\n]*"
_COMMENTS = {
    **dict.fromkeys(("ruby", "perl", "shell", "r", "julia"), _HASH),
    "php": rf"{_SLASHES}|{_HASH}",
    "lua": rf"--\[\[.*?(?:\]\]|\Z)|{_DASHES}",
    "sql": rf"{_DASHES}|/\*.*?(?:\*/|\Z)",
    "haskell": rf"{{-.*?(?:-}}|\Z)|{_DASHES}",
    "": rf"{_SLASHES}|\#[ !][^\r\n]*",
}
_STRINGS = r'"""(?:[^\\"]|\\.|"(?!""))*"""' + "".join(
    rf"|{q}[^{q}\\{n}]*(?:\\(?:\r\n|.)[^{q}\\{n}]*)*{q}"
    for q, n in (('"', r"\r\n"), ("'", r"\r\n"), ("`", ""))
)
_NUMBER = (
    r"0[xX][0-9a-fA-F_]+[uUlLnN]*|0[bB][01_]+[uUlLnN]*"
    r"|(?:[0-9][0-9_]*(?:\.[0-9][0-9_]*|\.(?![.\w]))?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?[a-zA-Z]{0,3}"
)
_OPERATORS = (
    r">>>=|<<=|>>=|>>>|\.\.\.|\.\.=|===|!==|<=>|\*\*=|&&=|\|\|=|\?\?=|->|=>|<-|::|:=|\+\+|--|&&|\|\||\?\?|\?\."
    r"|<<|>>|\*\*|\.\.|<>|[-+*/%&|^=<>!~]=|[-+*/%&|^=<>!~?@$]"
)
_MARKS = r"[.,:;()\[\]{}\\]"

_KEYWORDS = frozenset(
    word_list("""
    abstract alignas alignof as asm assert async await break case catch chan class const constexpr
    continue debugger def default defer defined delete do done elif else elsif elseif end ensure enum
    esac except explicit export extends extern fallthrough false final finally fn for foreach friend
    from fun func function global go goto if implements import in include inline instanceof interface
    internal is let local loop match mod module move mut mutable namespace native new nil null None
    nullptr of operator out override package private protected pub public range readonly ref register
    repeat require rescue return sealed select self Self sizeof static strictfp struct super switch
    synchronized template then this throw throws trait transient true True False try type typedef
    typename typeof union unless unsafe until use using val var virtual volatile when where while with
    yield begin undefined SELECT FROM WHERE INSERT UPDATE DELETE CREATE TABLE INTO VALUES JOIN ON
    """)
)
_WORD_OPERATORS = frozenset(("and", "or", "not", "xor", "AND", "OR", "NOT"))
_TYPES = frozenset(
    word_list("""
    bool boolean byte char double float int long short signed unsigned void string str number any object
    int8 int16 int32 int64 uint uint8 uint16 uint32 uint64 uintptr float32 float64 complex64 complex128
    rune error i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 isize usize size_t auto
    """)
)
_DEFINES = frozenset(
    word_list("""
    class interface struct enum union trait def func fn function fun type typedef namespace module
    package let var val const mod
    """)
)
_REACHES = frozenset((".", "->", "::", "?."))
_IMPORTS = frozenset(("import", "package", "use", "using", "require", "include"))
_NUMBERS = range(1, 8)
_COMMENT, _STRING, _NAME, _NUMERIC, _OPERATOR, _MARK, _OTHER = _NUMBERS


@cache
def _pattern(language: str) -> re.Pattern[str]:
    """The expression for the tokens of a language. The group of a match is the kind of the token."""
    comments = _COMMENTS.get(language, _SLASHES)
    return re.compile(
        rf"({comments})|({_STRINGS})|([^\W\d][\w]*)|({_NUMBER})|({_OPERATORS})|({_MARKS})|(\S)", re.DOTALL
    )


def lex_generic(text: str, language: str = "") -> LexerTokens:
    """Divide source code of any language into lexer tokens.

    The classes of names are inferred from neighbouring tokens, and symbols from spellings.

    Args:
        text: the source.
        language: a key of `seqmlm.domains.code.lexers.source.LANGUAGES`; "" if unknown.
    """
    starts: list[int] = []
    ends: list[int] = []
    classes: list[int] = []
    names: list[str | None] = []
    plain = {_COMMENT: COMMENT, _STRING: STRING, _NUMERIC: NUMBER, _OPERATOR: OPERATOR, _OTHER: PUNCTUATION}
    previous, last_line, importing = "", 0, False
    for match in _pattern(language).finditer(text):
        kind = match.lastindex or _OTHER
        start, stop = match.span()
        name = None
        if kind == _NAME:
            word = match.group()
            importing = importing and "\n" not in text[last_line:start]
            role = _role(word, previous, text[stop : stop + 1], importing)
            if role not in (KEYWORD, OPERATOR):
                name = word
            elif word in _IMPORTS:
                importing, last_line = True, stop
            previous = word
        elif kind == _MARK:
            word = match.group()
            role = PUNCTUATION
            importing = importing and word != ";"
            previous = word
        else:
            role = plain[kind]
            previous = text[start:stop] if kind == _OPERATOR else previous if kind == _COMMENT else ""
        starts.append(start)
        ends.append(stop)
        classes.append(role)
        names.append(name)
    return lexer_tokens(starts, ends, classes, names)


def _role(word: str, previous: str, following: str, importing: bool) -> int:
    """The class of a word, inferred from the token before it and the character after it."""
    if previous in _REACHES and not importing:
        return CALL if following == "(" else ATTRIBUTE
    if word in _KEYWORDS:
        return KEYWORD
    if word in _WORD_OPERATORS:
        return OPERATOR
    if importing:
        return IMPORT
    if previous in _DEFINES:
        return DEFINITION
    if word in _TYPES:
        return TYPE
    if word.endswith(("Exception", "Error")) and word[:1].isupper():
        return EXCEPTION
    if previous == "new" or (previous in ("extends", "implements", "throws") and word[:1].isupper()):
        return TYPE
    return CALL if following == "(" else USE
