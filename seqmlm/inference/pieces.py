"""Select the tokens that a head reads: long sequences are cut into windows, and labels divided among them.

A part is read in the window in which it is most central, as in scoring. The scores of a record are the mean
over its windows.
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
        kind: kind of prediction.
        label: name of the prediction: the column of the training labels.
        names: names of the classes, tags or values, in the order of the outputs.
        pool: the states that the head reads. Start states ("start") belong to the start token of a record,
            or of the first token of a part. Means ("mean") are over all tokens of a part or record, including
            special tokens, as in transformers. Prompts ("prompt") have the state of the gap.
        crf: see `HeadConfig`.
        temperature: divisor of the logits (Guo et al. 2017).
        center, scale: center and scale of each value. Outputs are in units of `scale` from `center`.
        pair: column of the other sequence, if pairs are predicted.
        pairing: "concat" joins both sequences, and "bi" embeds them separately.
        length: number of tokens of the longest window.
        template, words: template of a prompt, and a word for each class (`seqmlm.inference.prompts`).
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
        """Whether the labels are for parts of a record, not for the whole record."""
        return self.kind in ("tags", "entities")

    @property
    def config(self) -> HeadConfig:
        """Configuration of the head.

        A fitted head starts without dropout. Pooled states are almost equal to their mean, and the head reads
        their small deviations from it. Dropout of the mean would outweigh these deviations. On three splice
        sites, it led to a first loss of 5.3 nats, and an accuracy of .846 instead of .915.
        """
        of: dict[str, Any] = {"kind": self.kind, "outputs": len(self.names), "crf": self.crf}
        return HeadConfig(**of, pairs=self.pairing == "bi", dropout=0.0 if self.begins_fitted else 0.1)

    @property
    def begins_fitted(self) -> bool:
        """Whether training starts with a head that was fitted to the frozen encoder (Kumar et al. 2022).

        A random head would first spoil the states that it reads. Heads for values start at random: they read
        such small differences, with such large weights, that a fitted head would spoil the states instead. On
        GB1, its Spearman correlation is .43, and .70 for a random head. A head for a cosine has only one
        weight.
        """
        values = self.kind == "value" and self.pairing != "bi"
        return not self.of_parts and self.pool != "prompt" and not values

    def to_dict(self) -> dict[str, Any]:
        """The description as plain values, for the card."""
        return dict(to_dict(self))

    @classmethod
    def of(cls, model: LoadedModel) -> HeadCard:
        """The head of a model.

        Raises:
            UsageError: the model has no head.
        """
        if not model.card.head:
            raise UsageError(
                f"{model.path} is a masked language model without labels: train it on labels with seqmlm "
                "finetune, or use zeroshot, which needs none"
            )
        return from_dict(cls, model.card.head)


class Piece(NamedTuple):
    """A window of a sequence, and the labels that are read in it.

    Attributes:
        encoding: the window.
        labels: the tokens at which labels are read.
        numbers: (n,) numbers of these labels among the labels of the sequence.
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
    """The windows in which the labels of a sequence are read, and a mask (S,) of parts with tokens.

    Args:
        encoding: the sequence.
        space: the token space.
        card: the description of the head.
        bounds: (S, 2) start and end of the labelled parts in the text, ascending. With None, the label is
            that of the sequence, and S is 1.
    """
    if bounds is None:
        return _of_record(encoding, space, card), np.ones(1, dtype=np.bool_)
    assert encoding.spans is not None
    # The unknown token belongs to no unit, but represents text.
    inside = np.flatnonzero((encoding.groups >= 0) | (encoding.spans[:, 1] > encoding.spans[:, 0]))
    spans = encoding.spans[inside]
    # Ends may decrease if a character consists of several tokens. The running maximum finds the first
    # overlap.
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
    """The windows in which parts are read. Each part is read where its first token is most central."""
    if not len(read_tokens):
        return []
    first = np.r_[True, label[1:] != label[:-1]]
    selected = np.zeros(len(encoding), dtype=np.bool_)
    selected[read_tokens[first]] = True
    # The column `weights` keeps the token numbers of the sequence, so that they can be found in a window.
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
    """The windows in which the label of a pair is read.

    They are the windows of the joined sequences, or first the windows of one, then of the other.

    Args:
        first, second: the two sequences.
        space: the token space.
        card: the description of the head.
        types: whether the model has segment ids.

    Raises:
        DataError: the joined sequences are longer than the model allows.
    """
    if card.pairing == "concat":
        return _of_record(_join_pair(first, second, space, types, card.length), space, card)
    pieces = []
    for encoding in (first, second):
        for number, piece in enumerate(_of_record(encoding, space, card)):
            first_of, weights = piece.labels.first & (number == 0), piece.labels.weights * np.float32(0.5)
            # Other windows continue the label that the first window started.
            pieces.append(piece._replace(labels=piece.labels._replace(first=first_of, weights=weights)))
    return pieces


def pieces_read_together(pieces: Sequence[Piece], card: HeadCard) -> list[Sequence[Piece]]:
    """Group pieces that the head reads together: single pieces, or all pieces of a pair with pairing "bi"."""
    return [pieces] if card.pairing == "bi" else [[piece] for piece in pieces]


def _join_pair(first: Encoding, second: Encoding, space: TokenSpace, types: bool, length: int) -> Encoding:
    """Join two sequences: start, the first, end, the second, end (Devlin et al. 2019)."""
    pair = join([first, second], space, len(first) + len(second))[0]
    if len(pair) > length:
        why = f"a pair has {len(pair)} tokens, and the model reads {length}"
        raise DataError(why, remedy="shorten it, or leave it out")
    if not types:
        return replace(pair, spans=None)
    segment = (np.arange(len(pair)) >= len(first)).astype(np.float32)
    return replace(pair, spans=None, channels={**pair.channels, TOKEN_TYPES: segment})


def standardized(values: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of values (N, K). The deviation of equal values is set to 1."""
    deviation = values.std(axis=0)
    return tuple(values.mean(axis=0).tolist()), tuple(np.where(deviation > 0, deviation, 1.0).tolist())
