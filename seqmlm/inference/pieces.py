"""What a head reads, and where: long sequences are cut into windows, and labels divided among them.

A part is read in the window in which it is most central, as in scoring; a record's scores are the mean over
its windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.config import from_dict, to_dict
from seqmlm.engine.labels import HeadConfig, Kind, Labels, Pairing
from seqmlm.engine.types import Encoding, Floats, Longs, TokenSpace
from seqmlm.engine.windows import central_windows, join, windows
from seqmlm.errors import DataError, UsageError
from seqmlm.inference.model_folder import LoadedModel

Pool = Literal["start", "mean", "prompt"]
TOKEN_TYPES = "token_type_ids"


@dataclass(frozen=True, kw_only=True)
class HeadCard:
    """Description of the head of a model folder.

    Args:
        kind: what is predicted.
        label: what people call it: the column it was learnt from.
        names: of the classes, tags or values, in the order of the outputs.
        pool: "start", the state of a record's start token, or of the first token of a part; "mean" over all
            tokens of a record, special ones too, as transformers has it, or of a part; "prompt", the gap's.
        crf: see `HeadConfig`.
        temperature: that logits are divided by (Guo et al. 2017).
        center, scale: of each value; outputs are in units of `scale` from `center`.
        pair: column of the other sequence, where pairs are predicted.
        pairing: concat, both in one sequence; bi, each embedded alone.
        length: of the longest window.
        template, words: of a prompt (`seqmlm.inference.prompts`), a word for each class.
    """

    kind: Kind
    label: str
    names: tuple[str, ...]
    pool: Pool = "mean"
    crf: bool = False
    temperature: float = 1.0
    center: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    pair: str | None = None
    pairing: Pairing = "concat"
    length: int = 512
    template: str = ""
    words: tuple[str, ...] = ()

    @property
    def of_parts(self) -> bool:
        """Whether parts of a record are labelled, not the record."""
        return self.kind in ("tags", "entities")

    @property
    def config(self) -> HeadConfig:
        """Configuration of the head itself.

        One that begins fitted has no dropout: pooled states are nearly all mean, little deviation, which is
        what it reads, and a mean that is dropped outweighs that (of three splice sites a first loss of 5.3
        nats, and an accuracy of .846 instead of .915).
        """
        of: dict[str, Any] = {"kind": self.kind, "outputs": len(self.names), "crf": self.crf}
        return HeadConfig(**of, pairs=self.pairing == "bi", dropout=0.0 if self.begins_fitted else 0.1)

    @property
    def begins_fitted(self) -> bool:
        """Whether a training begins with a head that was fitted to the frozen encoder (Kumar et al. 2022).

        A head at random would first spoil what it reads. Values are read from so little of it, with such
        weights, that a fitted head does (GB1: a Spearman of .43, at random .70); a cosine has one weight.
        """
        values = self.kind == "value" and self.pairing != "bi"
        return not self.of_parts and self.pool != "prompt" and not values

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the card."""
        return dict(to_dict(self))

    @classmethod
    def of(cls, model: LoadedModel) -> HeadCard:
        """The head of a model.

        Raises:
            UsageError: it has none.
        """
        if not model.card.head:
            raise UsageError(
                f"{model.path} is a masked language model that predicts no labels: teach it some with seqmlm "
                "finetune, or use zeroshot, which needs none"
            )
        return from_dict(cls, model.card.head)


class Piece(NamedTuple):
    """A window of a sequence, and which labels are read in it.

    encoding: the window.
    labels: where they are read.
    numbers: (n,) of these labels among those of the sequence.
    """

    encoding: Encoding
    labels: Labels
    numbers: Longs


def unit_bounds(encoding: Encoding) -> NDArray[np.int32]:
    """(U, 2) start and end of each unit in the text of a sequence."""
    assert encoding.spans is not None
    inside = np.flatnonzero(encoding.groups >= 0)
    if not len(inside):
        return np.zeros((0, 2), dtype=np.int32)
    groups, spans = encoding.groups[inside], encoding.spans[inside]
    first = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
    starts, ends = spans[first, 0], np.maximum.reduceat(spans[:, 1], first)
    return np.column_stack([starts, ends]).astype(np.int32)


def pieces(
    encoding: Encoding, space: TokenSpace, card: HeadCard, bounds: NDArray[np.int32] | None = None
) -> tuple[list[Piece], NDArray[np.bool_]]:
    """The windows in which the labels of a sequence are read, and (S,) which parts have a token.

    `bounds`: (S, 2) of the labelled parts in its text, ascending; None for the sequence itself, whose S is 1.
    """
    if bounds is None:
        return _of_record(encoding, space, card), np.ones(1, dtype=np.bool_)
    assert encoding.spans is not None
    # The unknown token is of no unit, and stands for a text.
    inside = np.flatnonzero((encoding.groups >= 0) | (encoding.spans[:, 1] > encoding.spans[:, 0]))
    spans = encoding.spans[inside]
    # Ends may go back where characters are several tokens: the largest so far finds the first that overlaps.
    first = np.searchsorted(np.maximum.accumulate(spans[:, 1]), bounds[:, 0], side="right")
    stop = np.searchsorted(spans[:, 0], bounds[:, 1], side="left")
    has_token = stop > first
    if card.pool == "start":
        stop = np.minimum(stop, first + 1)
    counts = np.where(has_token, stop - first, 0)
    label = np.repeat(np.arange(len(bounds)), counts)
    begins = np.repeat(np.cumsum(counts) - counts, counts)
    tokens = inside[np.repeat(first, counts) + np.arange(len(label)) - begins] if len(label) else label
    weights = (1.0 / np.maximum(counts, 1))[label].astype(np.float32)
    return _of_parts(encoding, space, card.length, tokens, label, weights), has_token


def _of_record(encoding: Encoding, space: TokenSpace, card: HeadCard) -> list[Piece]:
    parts = windows(encoding, space, card.length)
    pieces = []
    for part in parts:
        tokens = np.arange(1 if card.pool == "start" else len(part))
        weights = np.full(len(tokens), 1.0 / len(tokens) / len(parts), dtype=np.float32)
        pieces.append(Piece(part, Labels(tokens, tokens == tokens[0], weights), np.zeros(1, dtype=np.int64)))
    return pieces


def _of_parts(
    encoding: Encoding, space: TokenSpace, length: int, read_tokens: Longs, label: Longs, weights: Floats
) -> list[Piece]:
    """The windows in which parts are read: each where its first token is most central."""
    if not len(read_tokens):
        return []
    first = np.r_[True, label[1:] != label[:-1]]
    selected = np.zeros(len(encoding), dtype=np.bool_)
    selected[read_tokens[first]] = True
    # The column `weights` travels with the tokens: it says which of the sequence's a window has.
    numbered = replace(encoding, weights=np.arange(len(encoding), dtype=np.float32))
    pieces = []
    for window, owned in central_windows(numbered, space, length, selected):
        assert window.weights is not None
        place = np.full(len(encoding), -1)
        tokens = window.weights.astype(np.int64)
        place[tokens] = np.arange(len(window))
        mine = np.zeros(len(encoding), dtype=np.bool_)
        mine[tokens[owned]] = True
        owned_here = mine[read_tokens[first]][np.cumsum(first) - 1] & (place[read_tokens] >= 0)
        labels = Labels(place[read_tokens[owned_here]], first[owned_here], weights[owned_here])
        pieces.append(Piece(replace(window, weights=None), labels, label[owned_here & first]))
    return pieces


def pieces_of_pair(
    first: Encoding, second: Encoding, space: TokenSpace, card: HeadCard, types: bool
) -> list[Piece]:
    """Where the label of two sequences is read: in both as one, or in the windows of the one, then the other.

    Args:
        types: whether the model has segment ids.

    Raises:
        DataError: as one they are longer than the model reads.
    """
    if card.pairing == "concat":
        return _of_record(_join_pair(first, second, space, types, card.length), space, card)
    pieces = []
    for encoding in (first, second):
        for number, piece in enumerate(_of_record(encoding, space, card)):
            first_of, weights = piece.labels.first & (number == 0), piece.labels.weights * np.float32(0.5)
            # Further windows go on with what the first one began.
            pieces.append(piece._replace(labels=piece.labels._replace(first=first_of, weights=weights)))
    return pieces


def pieces_read_together(pieces: Sequence[Piece], card: HeadCard) -> list[Sequence[Piece]]:
    """Pieces by what the head reads at once: each alone, but all of a pair that is embedded apart."""
    return [pieces] if card.pairing == "bi" else [[piece] for piece in pieces]


def _join_pair(first: Encoding, second: Encoding, space: TokenSpace, types: bool, length: int) -> Encoding:
    """Two sequences as one: start, the first, end, the second, end (Devlin et al. 2019)."""
    pair = join([first, second], space, len(first) + len(second))[0]
    if len(pair) > length:
        why = f"a pair of {len(pair)} tokens, and the model reads {length}"
        raise DataError(why, remedy="shorten it, or leave it out")
    if not types:
        return replace(pair, spans=None)
    segment = (np.arange(len(pair)) >= len(first)).astype(np.float32)
    return replace(pair, spans=None, channels={**pair.channels, TOKEN_TYPES: segment})


def standardized(values: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of (N, K) values; 1 where they do not differ."""
    deviation = values.std(axis=0)
    return tuple(values.mean(axis=0).tolist()), tuple(np.where(deviation > 0, deviation, 1.0).tolist())
