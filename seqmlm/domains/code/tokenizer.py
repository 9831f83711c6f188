"""`code.v1`: byte-level BPE inside the atoms of source code; units, classes and symbols from a lexer.

Two layers, so that ids do not depend on a parser:

    atoms   names, numbers, operators, quotes, line breaks with their indentation: one regular expression for
            all languages, run by the `tokenizers` library. BPE never crosses an atom. A single space belongs
            to the atom after it, so the text can be restored from the ids, and the Hugging Face form
            gives the same ids without any lexer.
    lexer   groups atoms into lexer tokens ("&" "&" is one operator in Java; a name is one atom) and
            classifies them. A lexer changes units, classes and symbols, never ids.

Both see a file with LF at its line ends and four spaces for each tab that a line begins with, so that it has
the same ids, units and scores however it was saved; spans point into the file as it is. Tokenizers stored
before that see files as they are.

The unit is the lexer token; in strings, comments and docstrings it is a word (a run without white space, of
at most 16 atoms), so that units stay comparable and a page of prose is not hidden at once. A line break with
the indentation behind it (NEWLINE, INDENT and DEDENT in one) is a unit of class "whitespace"; white space
inside a line belongs to no unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Regex, normalizers, pre_tokenizers

from seqmlm.domains.code.lexers import Lexer, lex
from seqmlm.domains.code.lexers.classes import CLASSES, PROSE, RATES, WHITESPACE, LexerTokens
from seqmlm.domains.code.lexers.source import SourceText
from seqmlm.engine.types import SPECIAL_GROUP, Bools, Encoding, Ids, Longs
from seqmlm.engine.units import UnitFacts, Units
from seqmlm.errors import DataError, UsageError
from seqmlm.tokenizers.backend import Pieces, word_numbers
from seqmlm.tokenizers.base import Traits
from seqmlm.tokenizers.subword import BpeTokenizer, count_words, fitted_size

DEFAULT_VOCABULARY = 8192
_LONGEST_RUN = 16  # atoms of a unit of prose
_NUMBER = (
    r"0[xX][0-9a-fA-F_]+|0[oObB][0-7_]+"
    r"|(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+\-]?[0-9][0-9_]*)?[jJ]?"
)
_OPERATOR = r"\*\*=?|//=?|>>=?|<<=?|\.\.\.|->|:=|[-+*/%&|\^=<>!@]=|\"\"\"|'''"
_ATOM = rf" ?(?:{_OPERATOR})| ?(?:{_NUMBER})| ?\w+| ?[^\s\w]|\s*[\r\n]\s*|\s+(?!\S)|\s+"
# What `\\s` means to the regular expressions of the `tokenizers` library.
_SPACES = np.array(
    [*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
)
_IS_PROSE = np.zeros(len(CLASSES), dtype=np.bool_)
_IS_PROSE[list(PROSE)] = True


class _Atomic(Pieces):
    """Pieces of atoms: any run of letters may be a name, and a line's end has its indentation."""

    def unit_text(self, token: int) -> str | None:
        return self.surface(token) or self._backend.decoder.decode([self.tokens[token]])


class CodeTokenizer(BpeTokenizer):
    """Byte-level BPE inside atoms, with units, classes and symbols from a lexer; see the module.

    Args:
        backend: a trained tokenizer; `train` and `load` make it.
        lexer: see `seqmlm.domains.code.lexers.lex`.
    """

    name: ClassVar[str] = "code.v1"
    traits: ClassVar[Traits] = replace(BpeTokenizer.traits, unit="lexer token")
    pieces: ClassVar[type[Pieces]] = _Atomic

    def __init__(self, backend: tokenizers.Tokenizer, *, lexer: Lexer = "auto") -> None:
        super().__init__(backend)
        self._evens = backend.normalizer is not None  # else its vocabulary was learnt from files as they are
        lex("", lexer)  # an unknown lexer fails here, not at the first text
        self._lexer: Lexer = lexer
        self.options = {"lexer": lexer}

    @cached_property
    def units(self) -> Units:
        masking = {"classes": CLASSES, "class_rates": RATES}
        return Units(self.space, UnitFacts(unfamiliar=self.space.unknown_ids, masking=masking))

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        vocabulary_size: int | None = None,
        lexer: Lexer = "auto",
        **options: Any,
    ) -> Self:
        """Learn a vocabulary from source texts.

        Args:
            texts: read once.
            vocabulary_size: the most ids; None fits it to the text (`fitted_size`), 8,192 at most.
            lexer: kept for `encode`; learning needs none.

        Raises:
            UsageError: an unknown option or lexer, or a vocabulary size that leaves no room.
            DataError: no words in the texts.
        """
        if options:
            raise UsageError(f"{cls.name} has no option {min(options)!r}; known: lexer")
        lex("", lexer)
        counts = count_words((even_whitespace(str(text))[0] for text in texts), None, cls._pre_tokenizer())
        if not counts:
            raise DataError(
                "there is no source text to learn a vocabulary from", remedy="give files that contain code"
            )
        size = min(fitted_size(counts), DEFAULT_VOCABULARY) if vocabulary_size is None else vocabulary_size
        return cls._of_counts(counts, size, cls._normalizer(lowercase=False), lexer=lexer)

    def encode_batch(self, raws: Sequence[str]) -> list[Encoding]:
        """Encode source texts; groups are units, classes and symbols the lexer's, spans without spaces in
        front.

        The pieces of one character that takes several tokens all have that character's span.
        """
        texts = [even_whitespace(str(raw)) if self._evens else (str(raw), None) for raw in raws]
        encodings = self._backend.encode_batch([text for text, _ in texts])
        return [
            self._encoding(SourceText(text, getattr(raw, "language", "")), encoding, places)
            for raw, (text, places), encoding in zip(raws, texts, encodings, strict=True)
        ]

    def _encoding(self, raw: str, pieces: Any, places: Longs | None) -> Encoding:
        ids = np.array(pieces.ids, dtype=np.int32)
        spans = np.fromiter(chain.from_iterable(pieces.offsets), np.int32, 2 * len(ids)).reshape(-1, 2)
        encoding = _encoding(str(raw), lex(raw, self._lexer), ids, spans, word_numbers(pieces.word_ids))
        return encoding if places is None else replace(encoding, spans=places[spans].astype(np.int32))

    @classmethod
    def _around_mask(cls, content: dict[str, Any], *, plain: bool) -> None:
        """White space is code: none belongs to a mask, and none is added."""

    @classmethod
    def _post_processor(cls) -> Any:
        # Without the trimming of byte-level BPE: spans here include the space in front, see `_encoding`.
        return super(BpeTokenizer, cls)._post_processor()

    @classmethod
    def _normalizer(cls, lowercase: bool) -> Any:
        # The same as `even_whitespace`, for the Hugging Face form; \G is where the tab before ended.
        ends = normalizers.Replace(Regex(r"\r\n?"), "\n")
        return normalizers.Sequence([ends, normalizers.Replace(Regex(r"(?:^|\G)\t"), _TAB)])

    @classmethod
    def _pre_tokenizer(cls) -> Any:
        bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_ATOM), behavior="isolated"), bytes_of])


_TAB = "    "
_UNEVEN = re.compile(r"\r\n?|(?:\A|(?<=[\r\n]))\t+")


def even_whitespace(text: str) -> tuple[str, Longs | None]:
    """A text with LF at its line ends and four spaces for each leading tab, and where its characters stood.

    Returns:
        That text of N characters; and (N + 1,) where each of them, and the end, stands in the one given: of
        a tab's spaces all but the first behind it. None where there is nothing to change.

    >>> even_whitespace("a\\r\\n\\tb")
    ('a\\n    b', array([0, 1, 3, 4, 4, 4, 4, 5]))
    """
    if "\r" not in text and "\t" not in text:
        return text, None
    widths = np.ones(len(text) + 1, dtype=np.int64)
    for match in _UNEVEN.finditer(text):
        if text[match.start()] == "\t":
            widths[slice(*match.span())] = len(_TAB)
        else:
            widths[match.start() + 1 : match.end()] = 0
    even_text = _UNEVEN.sub(lambda match: match[0].count("\t") * _TAB or "\n", text)
    places = np.repeat(np.arange(len(text) + 1), widths)
    places[1:] += places[1:] == places[:-1]
    return even_text, places


def _encoding(raw: str, tokens: LexerTokens, ids: Ids, spans: Ids, pieces: Ids) -> Encoding:
    """Units, classes and symbols of BPE tokens from the lexer tokens they lie in.

    Args:
        raw: the text.
        tokens: its lexer tokens.
        ids: (L,) BPE tokens.
        spans: (L, 2) with the space in front of an atom, which is taken off here, in place.
        pieces: (L,) number of each token's atom, -1 for special ones.
    """
    first = np.diff(pieces, prepend=-2) != 0
    number = np.cumsum(first) - 1  # (L,) of the atom, special ones counted too
    atoms = _atoms(raw, spans[first, 0], spans[np.append(first[1:], True), 1])
    special = pieces[first] < 0
    spans[first, 0] += atoms.led
    spans[:, 1] = np.maximum(spans[:, 0], spans[:, 1])
    begins = spans[first, 0]
    owner = np.searchsorted(tokens.starts, begins, side="right") - 1
    inside = ~special & (owner >= 0) & (begins < np.append(tokens.ends, 0)[owner])
    classes = np.where(inside, np.append(tokens.classes, 0)[owner], WHITESPACE).astype(np.int16)
    symbols = np.where(inside, np.append(tokens.symbols, -1)[owner], -1).astype(np.int32)
    units = _units(owner, inside, inside & _IS_PROSE[classes], atoms)
    units[special | (~inside & ~atoms.breaks) | (atoms.blank & ~atoms.breaks)] = SPECIAL_GROUP
    classes[special] = SPECIAL_GROUP
    return Encoding(
        ids=ids, groups=units[number], classes=classes[number], spans=spans, symbols=symbols[number]
    )


class _Atoms(NamedTuple):
    """(A,) what each atom of a text begins with and consists of."""

    led: Bools  # one space in front
    blank: Bools  # white space only
    breaks: Bools  # white space with a line break


def _atoms(raw: str, begins: Ids, ends: Ids) -> _Atoms:
    """(A,) the white space in each atom of a text."""
    text = np.frombuffer((raw + "\0\0").encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    lines = np.flatnonzero((text == 10) | (text == 13))
    is_space = np.isin(text, _SPACES) if not raw.isascii() else (text == 32) | ((text >= 9) & (text <= 13))
    blank = is_space[begins] & (is_space[begins + 1] | (ends - begins == 1))
    breaks = blank & (np.searchsorted(lines, ends) > np.searchsorted(lines, begins))
    return _Atoms((text[begins] == 32) & ~blank & (ends > begins), blank, breaks)


def _units(owner: NDArray[np.intp], inside: Bools, prose: Bools, atoms: _Atoms) -> Ids:
    """(A,) the number of each atom's unit: lexer tokens, in prose words."""
    is_first = np.ones(len(owner), dtype=np.bool_)
    is_first[1:] = ~inside[1:] | ~inside[:-1] | (owner[1:] != owner[:-1])
    is_first[1:] |= prose[1:] & (atoms.led[1:] | atoms.blank[1:] | atoms.blank[:-1])
    index = np.arange(len(is_first))
    unit_starts = np.maximum.accumulate(np.where(is_first, index, 0))
    is_first |= prose & ((index - unit_starts) % _LONGEST_RUN == 0)
    units: Ids = (np.cumsum(is_first) - 1).astype(np.int32)
    return units
