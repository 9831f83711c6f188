"""Tokenizers for checkpoints with one token per letter. They keep the ids of the checkpoint.

Protein models such as ProtBert and AntiBERTy have a token for each residue. Their Hugging Face tokenizers
need blanks between residues. Without blanks, they read a whole sequence as one unknown word. The tokenizers
here read sequences without blanks, and give each letter its id in the checkpoint. A field derives its own
class from `LetterTokenizer` and lists it in `Defaults.checkpoints`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import tokenizers
from numpy.typing import NDArray

from seqmlm.engine.query import Query
from seqmlm.engine.types import SPECIAL_GROUP, Bools, Encoding, TokenSpace
from seqmlm.engine.units import EXACT, Mode, Units
from seqmlm.tokenizers.backend import checkpoint_space
from seqmlm.tokenizers.base import Tokenizer, Traits, Unknown, UnknownUnit, read_card
from seqmlm.tokenizers.spelling import Letters

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

MARKS = ("##", "▁", "Ġ")
"""Markers in vocabularies, before a token that continues or begins a word."""


class LetterUnits(Units):
    """Units of letters of which only some are scored. The others are seen and masked, but never scored."""

    def __init__(self, space: TokenSpace, scored: Bools) -> None:
        super().__init__(space)
        self._scored = scored

    def questions(
        self, encoding: Encoding, owned: Bools | None = None, mode: Mode = EXACT
    ) -> Iterator[Query]:
        scored = self._scored[encoding.ids]
        yield from super().questions(encoding, scored if owned is None else scored & owned, mode)


class LetterTokenizer(Tokenizer):
    """A tokenizer with one token per letter and the ids of a checkpoint.

    Args:
        tokens: (V,) the vocabulary. The token of a letter is the letter itself.
        ids: the id of every letter that a sequence may have. Several letters may share an id.
        roles: ids of pad, mask, unk, start and end; None if the checkpoint does not have the token.

    Class attributes:
        scored: the letters that are scored. A checkpoint must have all of them.
        unscored_letters: other letters that sequences may have.
        gaps: the letters that are not units, because the residue is unknown or absent.
        stand_in: replaces a letter of `unscored_letters` that is not in the vocabulary. Without it, the
            letter is unknown.
        either_case: whether lower-case letters mean the same as upper-case letters.
    """

    traits: ClassVar[Traits]
    scored: ClassVar[str]
    unscored_letters: ClassVar[str] = ""
    gaps: ClassVar[str] = ".-"
    stand_in: ClassVar[str] = ""
    either_case: ClassVar[bool] = False

    def __init__(
        self, *, tokens: Sequence[str], ids: Mapping[str, int], roles: Mapping[str, int | None]
    ) -> None:
        self.tokens, self._ids = tuple(tokens), dict(ids)
        self.options = {"tokens": [*tokens], "ids": self._ids, "roles": dict(roles)}
        letters = {number for letter, number in ids.items() if tokens[number] == letter}
        ordinary = letters - {ids[gap] for gap in self.gaps if gap in ids}
        self.space = TokenSpace(
            size=len(tokens),
            special=tuple(number for number in range(len(tokens)) if number not in ordinary),
            **roles,  # type: ignore[arg-type]
        )
        scored = np.zeros(len(tokens), dtype=np.bool_)
        scored[[ids[letter] for letter in self.scored]] = True
        self.units = LetterUnits(self.space, scored)
        self.spelling = Letters(self.tokens)
        self._table = np.full(256, -1, dtype=np.int32)
        for letter, number in ids.items():
            for same in {letter, letter.lower()} if self.either_case else {letter}:
                self._table[ord(same)] = number

    @classmethod
    def of_checkpoint(cls, checkpoint: PreTrainedTokenizerBase) -> Self | None:
        """The tokenizer of a checkpoint; None if its vocabulary does not consist of single letters.

        Raises:
            UsageError: the checkpoint has no mask or padding token.
        """
        backend = getattr(checkpoint, "backend_tokenizer", None)
        if backend is None:
            return None
        space = checkpoint_space(checkpoint)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        special = {*space.special}
        ids = dict[str, int]()
        for letter in cls.scored + cls.unscored_letters:
            number = _id_of(letter, vocabulary, backend)
            if number is not None and number not in special and number not in ids.values():
                ids[letter] = number
        if not set(cls.scored) <= ids.keys() or _is_of_words(vocabulary, special, ids):
            return None
        names = {number: token for token, number in vocabulary.items()}
        if names[space.mask].startswith(
            "["
        ):  # ProtTrans replaced rare residues by X, and has tokens for them
            ids = {letter: number for letter, number in ids.items() if letter in cls.scored + cls.stand_in}
        tokens = [names.get(number, f"<unused{number}>") for number in range(space.size)]
        for letter, number in ids.items():
            tokens[number] = letter
        unknown = ids.get(cls.stand_in, space.unk)
        if unknown is not None:
            ids |= dict.fromkeys(
                (letter for letter in cls.unscored_letters if letter not in ids and letter not in ".-"),
                unknown,
            )
        roles = {name: getattr(space, name) for name in ("pad", "mask", "unk", "start", "end")}
        return cls(tokens=tokens, ids=ids, roles=roles)

    def encode_batch(self, raws: Sequence[str]) -> list[Encoding]:
        """Encode sequences. Groups are indices of letters.

        Raises:
            UnknownUnit: a sequence has a letter that the field does not have.
        """
        return [self._encoding(raw, index) for index, raw in enumerate(raws)]

    def _encoding(self, raw: str, index: int) -> Encoding:
        letters = self._table[_bytes(raw)]
        if len(letters) and letters.min() < 0:
            raise UnknownUnit(self.unknown(raw)[0], alphabet="".join(self._ids), index=index)
        edges = [[] if edge is None else [edge] for edge in (self.space.start, self.space.end)]
        ids = np.array([*edges[0], *letters.tolist(), *edges[1]], dtype=np.int32)
        groups = np.full(len(ids), SPECIAL_GROUP, dtype=np.int32)
        inner = slice(len(edges[0]), len(edges[0]) + len(letters))
        places = np.arange(len(letters), dtype=np.int32)
        groups[inner] = np.where(self.space.is_special[letters], SPECIAL_GROUP, places)
        spans = np.zeros((len(ids), 2), dtype=np.int32)
        spans[inner, 0], spans[inner, 1] = places, places + 1
        return Encoding(ids=ids, groups=groups, spans=spans)

    def unknown(self, raw: str) -> list[Unknown]:
        return [Unknown(at, raw[at]) for at in np.flatnonzero(self._table[_bytes(raw)] < 0).tolist()]

    def hf(self) -> PreTrainedTokenizerFast:
        from seqmlm.tokenizers.fast import fast_letter_tokenizer

        aliases = {letter: self.tokens[number] for letter, number in self._ids.items()}
        if self.either_case:
            aliases |= {letter.lower(): token for letter, token in aliases.items()}
        changed = {letter: token for letter, token in aliases.items() if letter != token and len(token) == 1}
        return fast_letter_tokenizer(self.tokens, self.options["roles"], changed)

    @classmethod
    def load(cls, directory: Path) -> Self:
        return cls(**read_card(directory, expected=cls.name)["options"])


def _bytes(raw: str) -> NDArray[np.uint8]:
    """One byte per character. A character beyond Latin-1 becomes "?", which is also unknown."""
    return np.frombuffer(raw.encode("latin-1", errors="replace"), dtype=np.uint8)


def _id_of(letter: str, vocabulary: Mapping[str, int], backend: tokenizers.Tokenizer) -> int | None:
    """The id of a letter: from the vocabulary in either case, or from the tokenizer with only this letter."""
    number = vocabulary.get(letter, vocabulary.get(letter.lower()))
    if number is None:
        ids = backend.encode(letter, add_special_tokens=False).ids
        number = ids[0] if len(ids) == 1 else None
    return number


def _is_of_words(vocabulary: Mapping[str, int], special: set[int], ids: Mapping[str, int]) -> bool:
    """Whether a vocabulary has more tokens of several letters (k-mers, pieces, words) than of one letter."""
    words = 0
    for token, number in vocabulary.items():
        text = token
        for mark in MARKS:
            text = text.removeprefix(mark)
        words += number not in special and len(text) > 1 and text.isalpha()
    return words > len(ids)
