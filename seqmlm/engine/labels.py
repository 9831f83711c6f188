"""Labels in the engine: the tokens that have a label, the packed arrays, and the outputs of a head.

A label belongs to some tokens of a document: all tokens, the first, or the tokens of a word. These tokens
have weights. Within one label, the weights divided by their sum average the hidden states. The sum is the
weight of the label in the loss.
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
"""How the two sequences of a label are read: "concat" joins them into one, "bi" embeds each separately."""


class Labels(NamedTuple):
    """Labels of one document, in the order of their tokens.

    Args:
        asked: (A,) positions of the tokens that have a label, label by label.
        first: (A,) True at the first token of each of N labels.
        weights: (A,) weights of the tokens, above 0; see the module.
        targets: (N, K) a class (K = 1), 0 or 1 for each of K classes, or K values; None if they are to be
            predicted.
    """

    asked: Longs
    first: NDArray[np.bool_]
    weights: Floats
    targets: Floats | None = None

    def document(self, encoding: Encoding, sample: int) -> Document:
        """The document to pack.

        The targets of each token are a flag, 1 at the first token of a label, and the targets of its label.

        Args:
            encoding: the sequence.
            sample: index of the sequence.
        """
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
    """Settings of a head, the part of a fine-tuned model that predicts labels.

    With `pairs`, labels 2n and 2n + 1 are one label for two sequences. Each of the two has half of the
    weight and all targets. The head reads u, v, |u - v| and u v, where u and v are the states of the two
    sequences. For values it reads only the cosine of u and v (Reimers and Gurevych 2019).

    Args:
        kind: "class" predicts one of several classes, "multilabel" any number of classes, "value" numbers,
            "tags" a class for each unit, and "entities" groups of units.
        outputs: number of classes or values to predict, K.
        crf: whether the tags of entities are predicted together as one chain (a CRF) instead of separately.
        pairs: whether each label belongs to two sequences, which are embedded separately and then compared.
        dropout: probability of dropping a feature of the pooled states, in [0, 1).
    """

    kind: Kind
    outputs: int
    crf: bool = False
    pairs: bool = False
    dropout: Share = 0.1

    @property
    def cosine(self) -> bool:
        """Whether outputs are a function of a single number, the cosine of two states."""
        return self.pairs and self.kind == "value"

    def __post_init__(self) -> None:
        if self.outputs < 1:
            raise UsageError(f"a head needs at least one output, not {self.outputs}")
        if self.crf and self.kind != "entities":
            raise UsageError(
                "a CRF joins the tags of entities; other labels do not depend on each other: leave out "
                "crf=true"
            )
