"""scikit-learn estimators, for a `Pipeline`, `cross_val_score` or a parameter search."""

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
    """The methods of `seqmlm.Model` that the estimators call."""

    def score(self, data: Data, **settings: Any) -> RowFrame:
        """Score sequences: one or more rows for each sequence."""

    def embed(self, data: Data, **settings: Any) -> RowFrame:
        """Embed sequences: a row with a vector for each sequence."""


class Detector(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """Detect outliers among sequences: `fit` on normal sequences sets the threshold of `predict`.

    The threshold comes from split conformal prediction (Vovk et al. 2005). On average over samples of normal
    sequences, at most a share `fpr` of new normal sequences exceeds it. The model itself is not trained.

    Example:

        detector = seqmlm.Detector("english", fpr=0.05).fit(normal)
        detector.predict(new)    # array of 1 (normal) and -1 (outlier)

    Args:
        model: a `seqmlm.Model`, or a name, folder or hub id for `seqmlm.load`.
        fpr: largest share of normal sequences that may be reported as outliers, such as 0.05 or "5%".
        level: kind of part that gets a score, such as "protein". The highest score of a sequence counts. None
            selects the default of the field.
        mode: how log-probabilities are computed. None selects the default of the field.

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
        """Set the threshold from normal sequences.

        Args:
            X: normal sequences, in any form that `seqmlm.Model.score` takes.
            y: ignored.

        Raises:
            UsageError: `fpr` is not between 0 and 1, or there are too few sequences for it: 1 / `fpr` - 1 are
                needed.
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
                f"{len(self.normal_)} normal sequences are too few for fpr={rate:g}: "
                f"{1 / rate - 1:.0f} are needed"
            )
        self.offset_ = -float(self.normal_[rank - 1])
        return self

    def score_samples(self, X: Data) -> NDArray[np.float64]:
        """Return minus the score of each sequence, as an array (N,).

        As in scikit-learn, lower is more unusual.
        """
        check_is_fitted(self)
        return -self._scores(X)

    def decision_function(self, X: Data) -> NDArray[np.float64]:
        """Return the distance of each sequence from the threshold, as an array (N,). Outliers are below 0."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Data) -> NDArray[np.int64]:
        """Return the class of each sequence, as an array (N,): 1 for normal sequences, -1 for outliers."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def _scores(self, X: Data) -> NDArray[np.float64]:
        """Return the highest score of each sequence, as an array (N,).

        A sequence without any score gets the lowest score.
        """
        rows = self.model_.score(X, level=self.level, mode=self.mode)
        # Sequences that do not come from a file have one line each.
        highest = rows.groupby("line", sort=True)["score"].max()
        _check(X, len(highest))
        scores: NDArray[np.float64] = highest.to_numpy(dtype=float)
        return np.nan_to_num(scores, nan=float(np.nanmin(scores, initial=0.0)))  # type: ignore[no-any-return]

    def __sklearn_tags__(self) -> Any:
        return _of_strings(super().__sklearn_tags__())


class Embedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turn sequences into vectors in context, for a classifier after it in a `Pipeline`. Nothing is fitted.

    Example:

        make_pipeline(seqmlm.Embedder("english"), LogisticRegression()).fit(texts, classes)

    Args:
        model: a `seqmlm.Model`, or a name, folder or hub id for `seqmlm.load`.
        layers: layer of the vectors: "last" or a number. "-4:mean" and "-4:sum" combine the last four layers.
        pool: how the units of a sequence become one vector: mean, start, max or tokens.
    """

    def __init__(self, model: ScoringModel | str | Path, *, layers: str = "last", pool: str = "mean") -> None:
        self.model, self.layers, self.pool = model, layers, pool

    def fit(self, X: Data, y: object = None) -> Self:
        """Load the model if it was passed by name. Nothing is fitted, and `X` and `y` are ignored."""
        self.model_ = _opened(self.model)
        return self

    def transform(self, X: Data) -> NDArray[np.float32]:
        """Return the vectors of sequences, as an array (N, D)."""
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
    """Refuse input in which one string is not one sequence, such as the lines of a log.

    Raises:
        UsageError: the number of records differs from the number of strings.
    """
    if not isinstance(X, str) and hasattr(X, "__len__") and records != len(X):
        raise UsageError(
            f"{len(X)} strings became {records} records, so a string is not a sequence here; use Model.score "
            "or Model.embed on files"
        )


def _of_strings(tags: Any) -> Any:
    tags.input_tags.string, tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False, True
    return tags
