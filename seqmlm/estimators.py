"""Models on scikit-learn's contract: in a `Pipeline`, in `cross_val_score`, in a search of parameters."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OutlierMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

import seqmlm
from seqmlm.errors import UsageError
from seqmlm.frames import Data, RowFrame
from seqmlm.parsing import Share, share


class ScoringModel(Protocol):
    """The methods of `seqmlm.Model` that estimators call."""

    def score(self, data: Data, **settings: Any) -> RowFrame:
        """A row, or several, for each sequence."""

    def embed(self, data: Data, **settings: Any) -> RowFrame:
        """A row with a vector for each sequence."""


class Detector(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """Outliers among sequences: `fit` on normal ones sets the threshold, `predict` gives 1 or -1.

    The threshold is the score that a share `fpr` of new normal sequences exceeds at most, in the mean over
    draws of the normal ones: split conformal prediction (Vovk et al. 2005). The model itself is not trained.

    Args:
        model: a `seqmlm.Model`, or a name, folder or hub id that `seqmlm.load` takes.
        fpr: share of normal sequences that may be called outliers, such as 0.05 or "5%".
        level: what is judged, such as "protein"; the highest score of a sequence counts. None for the field's
            default.
        mode: how log-probabilities are computed. None for the field's default.

    Attributes:
        offset_: minus the threshold, in the unit of `score_samples`.
        normal_: (N,) scores of the normal sequences, ascending.
    """

    def __init__(
        self,
        model: ScoringModel | str | Path,
        *,
        fpr: Share | str = 0.05,
        level: str | None = None,
        mode: str | None = None,
    ) -> None:
        self.model, self.fpr, self.level, self.mode = model, fpr, level, mode

    def fit(self, X: Data, y: object = None) -> Self:
        """Set the threshold by normal sequences.

        Raises:
            UsageError: they are too few for the rate: 1 / `fpr` - 1 are needed.
        """
        self.model_ = _opened(self.model)
        try:
            rate = share(self.fpr)
        except ValueError:
            rate = math.nan
        if not 0 < rate < 1:
            raise UsageError(f"fpr is a share between 0 and 1, such as 0.05 or '5%'; got {self.fpr!r}")
        self.normal_ = np.sort(self._scores(X))
        rank = int(np.ceil((1 - rate) * (len(self.normal_) + 1) - 1e-9))
        if rank > len(self.normal_):
            raise UsageError(
                f"no threshold for fpr={rate:g} of {len(self.normal_)} normal sequences: "
                f"{1 / rate - 1:.0f} are needed"
            )
        self.offset_ = -float(self.normal_[rank - 1])
        return self

    def score_samples(self, X: Data) -> NDArray[np.float64]:
        """(N,) minus the score of each sequence: lower = more unusual, as scikit-learn has it."""
        check_is_fitted(self)
        return -self._scores(X)

    def decision_function(self, X: Data) -> NDArray[np.float64]:
        """(N,) below 0 for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Data) -> NDArray[np.int64]:
        """(N,) 1 for normal sequences, -1 for outliers."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def _scores(self, X: Data) -> NDArray[np.float64]:
        """(N,) the highest score of each sequence; one of which nothing can be scored counts as the least."""
        rows = self.model_.score(X, level=self.level, mode=self.mode)
        # Sequences that are no file stand one a line.
        highest = rows.groupby("line", sort=True)["score"].max()
        _check(X, len(highest))
        scores: NDArray[np.float64] = highest.to_numpy(dtype=float)
        return np.nan_to_num(scores, nan=float(np.nanmin(scores, initial=0.0)))  # type: ignore[no-any-return]

    def __sklearn_tags__(self) -> Any:
        return _of_strings(super().__sklearn_tags__())


class Embedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Sequences to vectors in context, for a classifier behind it in a `Pipeline`; nothing is fitted.

    Args:
        model: a `seqmlm.Model`, or a name, folder or hub id that `seqmlm.load` takes.
        layers: last, a number, or -4:mean or -4:sum of the last four.
        pool: over the units of a sequence: mean, start, max or tokens.
    """

    def __init__(self, model: ScoringModel | str | Path, *, layers: str = "last", pool: str = "mean") -> None:
        self.model, self.layers, self.pool = model, layers, pool

    def fit(self, X: Data, y: object = None) -> Self:
        """Open a model that is named; it has learnt."""
        self.model_ = _opened(self.model)
        return self

    def transform(self, X: Data) -> NDArray[np.float32]:
        """(N, D) a vector for each sequence."""
        rows = _opened(getattr(self, "model_", self.model)).embed(X, layers=self.layers, pool=self.pool)
        _check(X, len(rows))
        return rows.vectors()

    def __sklearn_tags__(self) -> Any:
        tags = _of_strings(super().__sklearn_tags__())
        tags.requires_fit = False
        return tags


def _opened(model: ScoringModel | str | Path) -> ScoringModel:
    return seqmlm.load(model) if isinstance(model, str | Path) else model


def _check(X: Data, records: int) -> None:
    """Refuse strings that are no sequences of their own.

    Raises:
        UsageError: they became another number of records.
    """
    if not isinstance(X, str) and hasattr(X, "__len__") and records != len(X):
        raise UsageError(
            f"{len(X)} strings became {records} records: here a string is no sequence of its own; use "
            "Model.score or Model.embed on files"
        )


def _of_strings(tags: Any) -> Any:
    tags.input_tags.string, tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False, True
    return tags
