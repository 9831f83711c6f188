"""What labels are to the engine: which tokens have one, what is packed of them, and what a head predicts.

A label belongs to some tokens of a document: all of them, the first, those of a word. They are asked with
weights: over the tokens of one label their shares say how hidden states are averaged, their sum what the
label's loss counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.types import Encoding, Floats, Longs
from seqmlm.errors import UsageError
from seqmlm.parsing import Share

if TYPE_CHECKING:
    from seqmlm.engine.packing import Document

Kind = Literal["class", "multilabel", "value", "tags", "entities"]
Pairing = Literal["concat", "bi"]
"""How the two sequences of a label are read: concatenated, or each embedded alone."""


class Labels(NamedTuple):
    """Labels of one document, in the order of their tokens.

    asked: (A,) positions of the tokens that have one, label by label.
    first: (A,) True at the first token of each of N labels.
    weights: (A,) above 0; see above.
    targets: (N, K) a class (K = 1), 0 or 1 of each of K classes, or K values; None where they are asked for.
    """

    asked: Longs
    first: NDArray[np.bool_]
    weights: Floats
    targets: Floats | None = None

    def document(self, encoding: Encoding, sample: int) -> Document:
        """The document to pack: each token of a label has its targets, behind whether it begins there."""
        from seqmlm.engine.packing import Document

        assert self.targets is not None
        token_targets = self.targets[np.cumsum(self.first) - 1]
        return Document(
            ids=encoding.ids,
            asked=self.asked,
            targets=np.column_stack([self.first, token_targets]).astype(np.float32),
            weights=self.weights,
            positions=encoding.positions,
            channels=encoding.channels,
            sample=sample,
        )


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The labels that a head predicts.

    Args:
        kind: one of several classes, some of them, numbers; a class of each unit, or entities among units.
        outputs: K, classes or numbers.
        crf: entities are one chain of classes, not each unit alone.
        pairs: what is read belongs to two sequences, embedded apart: of labels 2n and 2n + 1 (as above, each
            with half of the weight and all targets) one is predicted, from their states u and v: from u, v,
            |u - v| and u v, but values from their cosine (Reimers and Gurevych 2019).
        dropout: of the pooled states, in [0, 1).
    """

    kind: Kind
    outputs: int
    crf: bool = False
    pairs: bool = False
    dropout: Share = 0.1

    @property
    def cosine(self) -> bool:
        """Whether outputs are a function of one number, the cosine of two states."""
        return self.pairs and self.kind == "value"

    def __post_init__(self) -> None:
        if self.outputs < 1:
            raise UsageError(f"a head needs one output at least, not {self.outputs}")
        if self.crf and self.kind != "entities":
            raise UsageError("a CRF joins the tags of entities; other labels do not depend on each other")
