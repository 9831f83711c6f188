"""What a level must know of normal data before it can judge: learnt once, saved with the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

from numpy.typing import NDArray

from seqmlm.anomaly.values import Scored
from seqmlm.engine.types import Sequences
from seqmlm.tokenizers.base import Tokenizer


class Background(ABC):
    """Statistics of the training split (what occurs), and of scored calibration records (what is usual).

    Class attributes:
        needs_scores: whether `learn` must be called with scored normal records before it can be used.
    """

    needs_scores: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        """Learn from the training split, in bounded memory."""

    def learn(self, normal: Iterable[Scored]) -> Self:
        """The same, knowing also how normal records are scored; by default nothing of it matters."""
        return self

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is saved; holds no single record where data are sensitive."""

    @classmethod
    @abstractmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], tokenizer: Tokenizer) -> Self:
        """Back from `arrays`."""
