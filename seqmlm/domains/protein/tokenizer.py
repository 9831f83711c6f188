"""Tokenize proteins with ESM's 33 tokens in ESM's order. Each residue is a token and a unit.

The order is taken from facebookresearch/esm `esm/data.py` (Alphabet "ESM-1b"). ESM-2's Hugging Face
checkpoints use the same order, so their embeddings fit. Only the 25 letters are ordinary tokens. Gaps (`.`,
`-`) and `<null_1>` are special, and therefore never masked, inserted or predicted. Only the 20 standard
residues are scored (`ResidueUnits`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.query import Query
from seqmlm.engine.types import SPECIAL_GROUP, Bools, Encoding, Ids, TokenSpace
from seqmlm.engine.units import EXACT, Mode, Units
from seqmlm.tokenizers.base import Tokenizer, Traits, Unknown, UnknownUnit, read_card, split_encodings
from seqmlm.tokenizers.letters import LetterTokenizer
from seqmlm.tokenizers.spelling import Letters

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

RESIDUES = "LAGVSERTIDPKQNFYMHWCXBUZO"
STANDARD = "ACDEFGHIKLMNPQRSTVWY"
GAPS = ".-"
TOKENS = ("<cls>", "<pad>", "<eos>", "<unk>", *RESIDUES, *GAPS, "<null_1>", "<mask>")
_ID = {token: number for number, token in enumerate(TOKENS)}
_BLOCK = 64
_LAST_RESIDUE = _ID[RESIDUES[-1]]
_CLS, _EOS = _ID["<cls>"], _ID["<eos>"]

SPACE = TokenSpace(
    size=len(TOKENS),
    pad=_ID["<pad>"],
    mask=_ID["<mask>"],
    unk=_ID["<unk>"],
    start=_CLS,
    end=_EOS,
    special=tuple(number for token, number in _ID.items() if token not in RESIDUES),
)


# A raw sequence as Latin-1 bytes indexes this table; -1 marks letters that are not in the alphabet.
_TABLE = np.full(256, -1, dtype=np.int32)
_TABLE[[*map(ord, RESIDUES + GAPS)]] = [_ID[letter] for letter in RESIDUES + GAPS]
_TABLE[ord("J")] = _ID["X"]  # I or L, for which ESM has no letter

# Any residue (X), one of two residues (B, Z), selenocysteine and pyrrolysine. They are rare in every corpus.
# Their surprisal therefore reflects the rare letter and not the residue.
_NOT_SCORED = np.isin(np.array(TOKENS), list(set(RESIDUES) - set(STANDARD)))


class ResidueUnits(Units):
    """Residues, of which only the 20 standard ones are scored.

    The other letters are used in training, seen by the model and masked in the same way. But they are never
    scored. An unknown residue, or one of the two rare residues, is not evidence that a protein is unusual.
    """

    def questions(
        self, encoding: Encoding, owned: Bools | None = None, mode: Mode = EXACT
    ) -> Iterator[Query]:
        standard = ~_NOT_SCORED[encoding.ids]
        yield from super().questions(encoding, standard if owned is None else standard & owned, mode)


class ResidueTokenizer(Tokenizer):
    """One token per residue, with `<cls>` at the start and `<eos>` at the end.

    Letters are upper case (readers ensure that), and J is read as X. Any other letter is an error that names
    its place. A silent `<unk>` would make every score of that sequence meaningless.

    >>> ResidueTokenizer().encode("MKV").ids.tolist()
    [0, 20, 15, 7, 2]
    """

    name: ClassVar[str] = "residue.v1"
    traits: ClassVar[Traits] = Traits(unit="residue", closed=True, single_tokens=True)
    space = SPACE
    tokens = TOKENS
    units = ResidueUnits(SPACE)
    spelling = Letters(TOKENS)

    def encode_batch(self, raws: Sequence[str]) -> list[Encoding]:
        """Encode proteins. Groups are residue indices; gaps belong to no unit.

        Raises:
            UnknownUnit: a letter is outside the alphabet.
        """
        # Blocks that fit into the processor's cache are twice as fast as one large block.
        encodings: list[Encoding] = []
        for start in range(0, len(raws), _BLOCK):
            encodings += self._encode_block(raws[start : start + _BLOCK], start)
        return encodings

    def _encode_block(self, raws: Sequence[str], first: int) -> list[Encoding]:
        ids, starts = _lookup(raws)
        if len(ids) and ids.min() < 0:
            index = int(np.searchsorted(starts, np.argmax(ids < 0), side="right")) - 1
            raise UnknownUnit(self.unknown(raws[index])[0], alphabet=RESIDUES + GAPS, index=first + index)
        lengths = np.diff(starts)
        # Offset of each token inside its own raw sequence. `<cls>` gets -1, and `<eos>` gets the length.
        groups = np.arange(len(ids), dtype=np.int32) - np.repeat(starts[:-1].astype(np.int32) + 1, lengths)
        spans = np.empty((len(ids), 2), dtype=np.int32)
        spans[:, 0], spans[:, 1] = groups, groups + 1
        edges = np.concatenate([starts[:-1], starts[1:] - 1])
        spans[edges] = 0
        groups[edges] = SPECIAL_GROUP
        groups[ids > _LAST_RESIDUE] = SPECIAL_GROUP
        return split_encodings(pairwise(starts.tolist()), ids, groups, spans)

    def unknown(self, raw: str) -> list[Unknown]:
        return [Unknown(i, raw[i]) for i in np.flatnonzero(_TABLE[_letters(raw)] < 0).tolist()]

    def hf(self) -> PreTrainedTokenizerFast:
        """A tokenizer in which every character is a token, and `<cls>` and `<eos>` are added."""
        from tokenizers import Regex, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast

        from seqmlm.tokenizers.fast import word_level

        backend = word_level(TOKENS, "<unk>")
        # Spaces between residues (as in ProtBert) are dropped, like in EsmTokenizer.
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("."), behavior="isolated")]
        )
        backend.add_special_tokens([token for token in TOKENS if token.startswith("<")])
        backend.post_processor = processors.TemplateProcessing(
            single="<cls> $A <eos>",
            pair="<cls> $A <eos> $B <eos>",
            special_tokens=[(token, _ID[token]) for token in ("<cls>", "<eos>")],
        )
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            cls_token="<cls>",
            pad_token="<pad>",
            eos_token="<eos>",
            unk_token="<unk>",
            mask_token="<mask>",
        )

    @classmethod
    def load(cls, directory: Path) -> Self:
        read_card(directory, expected=cls.name)
        return cls()

    @classmethod
    def of_checkpoint(cls, checkpoint: PreTrainedTokenizerBase) -> Self | None:
        """The tokenizer of a checkpoint with ESM's vocabulary; None for every other checkpoint.

        ESM's own Hugging Face tokenizer is slow, has no spans and turns unknown letters into `<unk>`.
        """
        return cls() if checkpoint.get_vocab() == _ID else None


class ResidueLetters(LetterTokenizer):
    """Protein tokenizer for a checkpoint that has a token for each of the 20 residues (ProtBert, AntiBERTy).

    Only these 20 are scored. Rare and ambiguous residues are read as X if the vocabulary has no token for
    them, or has ProtBert's layout. Without an X, they are unknown.
    """

    name: ClassVar[str] = "residue_letters.v1"
    traits: ClassVar[Traits] = ResidueTokenizer.traits
    scored: ClassVar[str] = STANDARD
    unscored_letters: ClassVar[str] = "XBUZOJ.-"
    stand_in: ClassVar[str] = "X"


def _letters(raw: str) -> NDArray[np.uint8]:
    """One byte per character. A character beyond Latin-1 becomes "?", which is unknown too."""
    return np.frombuffer(raw.encode("latin-1", errors="replace"), dtype=np.uint8)


def _lookup(raws: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
    """Ids of all sequences end to end, -1 if unknown, and the (N + 1,) token offsets of their starts."""
    lengths = np.fromiter(map(len, raws), dtype=np.int64, count=len(raws))
    starts = np.zeros(len(raws) + 1, dtype=np.int64)
    np.cumsum(lengths + 2, out=starts[1:])
    # "\0\0" leaves room for `<eos>` and the next `<cls>`.
    ids: Ids = _TABLE.take(_letters("\0" + "\0\0".join(raws) + "\0" if raws else ""))
    ids[starts[:-1]] = _CLS
    ids[starts[1:] - 1] = _EOS
    return ids, starts
