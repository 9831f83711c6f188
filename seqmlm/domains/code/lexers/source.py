"""Source text with its language, which comes from the name of the file."""

from __future__ import annotations

from pathlib import PurePath

LANGUAGES = {
    "python": (".py", ".pyi", ".pyw"),
    "java": (".java",),
    "javascript": (".js", ".jsx", ".mjs", ".cjs"),
    "typescript": (".ts", ".tsx"),
    "go": (".go",),
    "c": (".c", ".h"),
    "cpp": (".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx"),
    "csharp": (".cs",),
    "rust": (".rs",),
    "kotlin": (".kt", ".kts"),
    "scala": (".scala",),
    "swift": (".swift",),
    "php": (".php",),
    "ruby": (".rb",),
    "perl": (".pl", ".pm"),
    "shell": (".sh", ".bash"),
    "r": (".r",),
    "julia": (".jl",),
    "lua": (".lua",),
    "sql": (".sql",),
    "haskell": (".hs",),
}
_OF_SUFFIX = {suffix: language for language, suffixes in LANGUAGES.items() for suffix in suffixes}


class SourceText(str):
    """The text of a file or of a part of a file: a `str` with the attribute `language`.

    >>> SourceText("x = 1", "python").language
    'python'
    """

    __slots__ = ("language",)
    language: str

    def __new__(cls, text: str, language: str = "") -> SourceText:
        source = super().__new__(cls, text)
        source.language = language
        return source

    def __reduce__(self) -> tuple[type[SourceText], tuple[str, str]]:
        return SourceText, (str(self), self.language)


def language_of(name: str) -> str:
    """The language of a file, from the ending of its name; "" if it is unknown.

    >>> language_of("src/Main.java"), language_of("README")
    ('java', '')
    """
    return _OF_SUFFIX.get(PurePath(name).suffix.lower(), "")
