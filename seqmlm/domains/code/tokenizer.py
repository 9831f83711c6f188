"""The tokenizer of source code (`code.v1`): byte-level BPE in atoms, and units, classes and symbols from a
lexer.

There are two layers, so that ids do not depend on a parser:

    atoms   names, numbers, operators, quotes, and line breaks with their indentation. One regular expression
            divides all languages into atoms, in the `tokenizers` library. A BPE token is never in two atoms.
            A single space is part of the atom after it. The text can therefore be restored from the ids, and
            the Hugging Face form gives the same ids without a lexer.
    lexer   groups atoms into lexer tokens ("&" "&" is one operator in Java; a name is one atom), and gives
    each
            its class. A lexer changes units, classes and symbols, but never ids.

Before both layers, line ends become LF, and each tab at the start of a line becomes four spaces. A file
therefore has the same ids, units and scores for all line ends and kinds of indentation. Spans are positions
in the unchanged file. Older stored tokenizers do not change files.

The unit is the lexer token. In strings, comments and docstrings, the unit is a word: a run of at most 16
atoms without white space. Units are then of similar size, and a page of prose is not masked at once. A line
break with the indentation after it (NEWLINE, INDENT and DEDENT) is one unit of the class "whitespace". White
space in a line is not part of any unit.
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
_LONGEST_RUN = 16  # maximum atoms of a word in prose
_NUMBER = (
    r"0[xX][0-9a-fA-F_]+|0[oObB][0-7_]+"
    r"|(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+\-]?[0-9][0-9_]*)?[jJ]?"
)
_OPERATOR = r"\*\*=?|//=?|>>=?|<<=?|\.\.\.|->|:=|[-+*/%&|\^=<>!@]=|\"\"\"|'''"
_ATOM = rf" ?(?:{_OPERATOR})| ?(?:{_NUMBER})| ?\w+| ?[^\s\w]|\s*[\r\n]\s*|\s+(?!\S)|\s+"
# The characters that match `\\s` in the regular expressions of the `tokenizers` library.
_SPACES = np.array(
    [*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
)
_IS_PROSE = np.zeros(len(CLASSES), dtype=np.bool_)
_IS_PROSE[list(PROSE)] = True


class _Atomic(Pieces):
    """The spelling of BPE tokens in atoms. Every token can be a unit, because any run of letters can be a
    name, and a line break has its indentation."""

    def unit_text(self, token: int) -> str | None:
        return self.surface(token) or self._backend.decoder.decode([self.tokens[token]])


class CodeTokenizer(BpeTokenizer):
    """Byte-level BPE in atoms, with units, classes and symbols from a lexer (see the module).

    Args:
        backend: a trained tokenizer. `train` and `load` supply it.
        lexer: see `seqmlm.domains.code.lexers.lex`.
    """

    name: ClassVar[str] = "code.v1"
    traits: ClassVar[Traits] = replace(BpeTokenizer.traits, unit="lexer token")
    pieces: ClassVar[type[Pieces]] = _Atomic

    def __init__(self, backend: tokenizers.Tokenizer, *, lexer: Lexer = "auto") -> None:
        super().__init__(backend)
        self._evens = backend.normalizer is not None  # otherwise it was trained on unchanged files
        lex("", lexer)  # so that an unknown lexer fails here, not at the first text
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
        """Train a tokenizer on source texts.

        Args:
            texts: the source texts, which are read once.
            vocabulary_size: maximum number of token ids. None chooses it from the texts (`fitted_size`), with
                at most 8,192.
            lexer: the lexer for `encode`. Training does not need it.

        Raises:
            UsageError: unknown option or lexer, or the vocabulary size is too small.
            DataError: the texts have no words.
        """
        if options:
            raise UsageError(f"{cls.name} has no option {min(options)!r}; known: lexer")
        lex("", lexer)
        counts = count_words((even_whitespace(str(text))[0] for text in texts), None, cls._pre_tokenizer())
        if not counts:
            raise DataError(
                "the files have no source text, so no vocabulary can be trained",
                remedy="give files that contain code",
            )
        size = min(fitted_size(counts), DEFAULT_VOCABULARY) if vocabulary_size is None else vocabulary_size
        return cls._of_counts(counts, size, cls._normalizer(lowercase=False), lexer=lexer)

    def encode_batch(self, raws: Sequence[str]) -> list[Encoding]:
        """Encode source texts.

        Groups are units. Classes and symbols come from the lexer. Spans do not include the space before an
        atom. If a character has several tokens, all of them have the span of the character.
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
        """Add no white space around a mask, because white space is code."""

    @classmethod
    def _post_processor(cls) -> Any:
        # Without the trimming of byte-level BPE: `_encoding` removes the space before an atom from spans.
        return super(BpeTokenizer, cls)._post_processor()

    @classmethod
    def _normalizer(cls, lowercase: bool) -> Any:
        # The same as `even_whitespace`, for the Hugging Face form. \G is the end of the previous tab.
        ends = normalizers.Replace(Regex(r"\r\n?"), "\n")
        return normalizers.Sequence([ends, normalizers.Replace(Regex(r"(?:^|\G)\t"), _TAB)])

    @classmethod
    def _pre_tokenizer(cls) -> Any:
        bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_ATOM), behavior="isolated"), bytes_of])


_TAB = "    "
_UNEVEN = re.compile(r"\r\n?|(?:\A|(?<=[\r\n]))\t+")


def even_whitespace(text: str) -> tuple[str, Longs | None]:
    """Replace line ends with LF, and each tab at the start of a line with four spaces.

    Returns:
        The new text of N characters; (N + 1,) the position in the old text of each character and of the end.
        The first space of a tab has the position of the tab, and its other spaces the position after the tab.
        The positions are None if nothing is replaced.

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
    """The encoding of BPE tokens, with units, classes and symbols from the lexer tokens that contain them.

    Args:
        raw: the text.
        tokens: its lexer tokens.
        ids: (L,) the BPE tokens.
        spans: (L, 2) the spans of the BPE tokens, including the space before an atom. They are changed in
            place, so that they do not include this space.
        pieces: (L,) the number of each token's atom, -1 for special tokens.
    """
    first = np.diff(pieces, prepend=-2) != 0
    number = np.cumsum(first) - 1  # (L,) the number of the atom, with special tokens counted as atoms
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
    """The white space in each of the A atoms of a text."""

    led: Bools  # it begins with one space before other characters
    blank: Bools  # it is only white space
    breaks: Bools  # it is white space with a line break


def _atoms(raw: str, begins: Ids, ends: Ids) -> _Atoms:
    """Find the white space in each atom of a text."""
    text = np.frombuffer((raw + "\0\0").encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    lines = np.flatnonzero((text == 10) | (text == 13))
    is_space = np.isin(text, _SPACES) if not raw.isascii() else (text == 32) | ((text >= 9) & (text <= 13))
    blank = is_space[begins] & (is_space[begins + 1] | (ends - begins == 1))
    breaks = blank & (np.searchsorted(lines, ends) > np.searchsorted(lines, begins))
    return _Atoms((text[begins] == 32) & ~blank & (ends > begins), blank, breaks)


def _units(owner: NDArray[np.intp], inside: Bools, prose: Bools, atoms: _Atoms) -> Ids:
    """(A,) the number of each atom's unit. Units are lexer tokens, or words in prose."""
    is_first = np.ones(len(owner), dtype=np.bool_)
    is_first[1:] = ~inside[1:] | ~inside[:-1] | (owner[1:] != owner[:-1])
    is_first[1:] |= prose[1:] & (atoms.led[1:] | atoms.blank[1:] | atoms.blank[:-1])
    index = np.arange(len(is_first))
    unit_starts = np.maximum.accumulate(np.where(is_first, index, 0))
    is_first |= prose & ((index - unit_starts) % _LONGEST_RUN == 0)
    units: Ids = (np.cumsum(is_first) - 1).astype(np.int32)
    return units
