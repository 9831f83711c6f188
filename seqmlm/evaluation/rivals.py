"""Cheap baselines that a model must exceed. They use the same training and test examples.

An example is a list of units (words, residues, codes, templates). If every unit is one letter, the baselines
use longer runs and wider windows. Classes are indices of `names`. Predictions have the forms for `measures`.
If a baseline cannot be fitted, it raises `UnfittedError`; there is no substitute.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.rows import filled, number
from seqmlm.data.tags import entities, tagged
from seqmlm.errors import SeqmlmError

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
Examples = Sequence[Sequence[str]]

MOST_UNITS = 300_000
BEYOND = "\n"
"""The unit that represents positions beyond the ends of an example."""

COMMON = 200
"""Number of examples from which a bag uses only runs that occur in two examples."""


class UnfittedError(SeqmlmError):
    """A baseline cannot be fitted to these examples. The message has the reason."""


def majority_predictions(task: str, truth: Any, n_test: Any, *, names: Sequence[str]) -> Any:
    """The same prediction for all items: training frequencies of classes and labels, or means of values.

    Args:
        task, truth, names: as in `predictions.measures`, for the training items.
        n_test: number of test items (units for "tags"). For "entities", the length of each sentence.

    Returns:
        (n_test, K) probabilities, (n_test,) or (n_test, K) values, or lists of the most frequent tag.
    """
    if task == "entities":
        [(tag, _)] = Counter(tag for tags in truth for tag in tags).most_common(1)
        return [[tag] * length for length in n_test]
    truth = np.asarray(truth)
    if task in ("class", "tags"):
        truth = np.eye(len(names))[truth]
    return np.repeat(truth.mean(axis=0, keepdims=True), n_test, axis=0)


def bag_predictions(
    task: str, train: Examples, truth: Any, test: Examples, *, names: Sequence[str]
) -> Doubles:
    """Predictions of a linear model on counts of units and pairs of neighbours (runs of up to 4 letters).

    The model is logistic or ridge regression on sublinear TF-IDF. 3-fold cross-validation selects its
    regularization.

    Args:
        task: "class", "multilabel" or "value".
        train, test: N training examples, and M examples to predict.
        truth: (N,) class numbers, (N, K) labels of 0 and 1, or (N,) or (N, K) values.
        names: the names of the K classes or labels.

    Returns:
        (M, K) probabilities; (M,) or (M, K) values.

    Raises:
        UnfittedError: no example has a unit, or there are many examples and no two share a unit.
    """
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

    min_examples = 2 if len(train) >= COMMON else 1
    examples_with = Counter(chain.from_iterable(map(set, train)))
    if max(examples_with.values(), default=0) < min_examples:
        raise UnfittedError("no unit occurs in two examples" if examples_with else "no example has a unit")
    sizes = range(1, 5 if _letters(train) else 3)

    def runs(units: Sequence[str]) -> list[str]:
        return ["\t".join(units[at : at + n]) for n in sizes for at in range(len(units) - n + 1)]

    counter = CountVectorizer(analyzer=runs, min_df=min_examples)
    weigher = TfidfTransformer(sublinear_tf=True)
    features = weigher.fit_transform(counter.fit_transform(train))
    test_features = weigher.transform(counter.transform(test))
    return _predictions(task, _linear_model, features, truth, test_features, names)


def place_predictions(
    task: str, train: Examples, truth: Any, test: Examples, *, names: Sequence[str]
) -> Doubles:
    """Predictions of a linear model on the unit at each position.

    It is the baseline for variants of one protein, and for sites in a genome. Arguments and result are as in
    `bag_predictions`.

    Raises:
        UnfittedError: examples differ in length, or have no unit.
    """
    from sklearn.preprocessing import OneHotEncoder

    if len({len(units) for units in (*train, *test)}) != 1:
        raise UnfittedError("examples differ in length")
    if not train[0]:
        raise UnfittedError("no example has a unit")
    encoder = OneHotEncoder(handle_unknown="ignore")
    features = encoder.fit_transform(np.array(train))
    return _predictions(task, _linear_model, features, truth, encoder.transform(np.array(test)), names)


def window_predictions(
    task: str, train: Examples, truth: Any, test: Examples, *, names: Sequence[str] = (), seed: int = 0
) -> Any:
    """Predictions by logistic regression on each unit and its neighbours.

    It uses 7 neighbours on each side for letters, and 2 for words. For words, it also uses their lower case,
    suffixes of 1 to 3 letters, and shape. It is trained on whole random examples with about 300,000 units at
    most.

    Args:
        task: "tags" or "entities".
        train, test: N training examples, and M examples to predict.
        truth: N lists of class numbers, with -1 for units without a class, or N lists of BIO tags.
        names: the names of the K classes of "tags".
        seed: seed of the selection of examples.

    Returns:
        M arrays (units, K) of probabilities, or M lists of tags. An I- that continues no entity becomes B-.
    """
    from sklearn.linear_model import LogisticRegression

    if task == "entities":
        names = sorted({tag for tags in truth for tag in tags})
        truth = [[names.index(tag) for tag in tags] for tags in truth]
    order = np.random.default_rng(seed).permutation(len(train))
    ends = np.cumsum([len(train[number]) for number in order])
    chosen = order[: 1 + np.searchsorted(ends, MOST_UNITS)]
    examples = [train[number] for number in chosen]
    windows = _Windows(examples)
    labels = np.concatenate([np.asarray(truth[number], dtype=np.int64) for number in chosen])
    features = windows.matrix(examples)[labels >= 0]
    model = LogisticRegression(max_iter=40)
    p = _probabilities(model, features, labels[labels >= 0], windows.matrix(test), len(names))
    probabilities = np.split(p, np.cumsum([len(units) for units in test])[:-1])
    if task == "tags":
        return probabilities
    tag_lists = [[names[tag] for tag in rows.argmax(axis=1)] for rows in probabilities]
    return [tagged(entities(tags)[0], len(tags), "bio") for tags in tag_lists]


def boosting_predictions(
    task: str,
    train: Mapping[str, Sequence[Any]],
    truth: Any,
    test: Mapping[str, Sequence[Any]],
    *,
    names: Sequence[str],
) -> Doubles:
    """Predictions by gradient boosting on the columns of a table.

    Numbers can be written as text. Other texts are replaced by their rank by frequency. As unordered
    categories, columns with many values (diagnoses) would overfit. None, "", NaN, NA and texts that are not
    in the training data are missing values. 3-fold cross-validation selects large or small trees, because
    large trees overfit noisy data.

    Args:
        task, truth, names: as in `bag_predictions`.
        train, test: column -> its N training values, and its M values to predict.

    Returns:
        As `bag_predictions`.

    Raises:
        UnfittedError: no column has a value in the training data.
    """
    columns = [_column(values, test[name]) for name, values in train.items() if any(map(filled, values))]
    if not columns:
        raise UnfittedError("no column has a value in the training examples")
    tables = [np.column_stack(part) for part in zip(*columns, strict=True)]
    return _predictions(task, _tree_model, tables[0], truth, tables[1], names)


class _Windows:
    """Traits of each unit and its neighbours as weighted columns.

    The numbers and weights of columns come from the training examples. Traits that occur there once or never
    share a column. The weight of a column is the fourth root of its rarity, which halves the iterations of
    the optimizer.
    """

    def __init__(self, examples: Examples) -> None:
        self.letters = _letters(examples)
        self.reach = 7 if self.letters else 2
        often: Counter[tuple[int, str]] = Counter(self.traits(BEYOND) * 2)
        for unit, n in Counter(unit for units in examples for unit in units).items():
            often.update(dict.fromkeys(self.traits(unit), n))
        frequent = [trait for trait, n in often.items() if n > 1]
        self.numbers = {trait: number for number, trait in enumerate(frequent, len(self.traits(BEYOND)))}
        self.width = len(self.traits(BEYOND)) + len(frequent)
        self.weights = np.ones((2 * self.reach + 1) * self.width, dtype=np.float32)
        counts = self.matrix(examples).sum(axis=0)
        self.weights = ((10_000 / np.maximum(counts, 1)) ** 0.25).astype(np.float32)

    def traits(self, unit: str) -> list[tuple[int, str]]:
        """The traits of a unit, each with the number of its kind: itself, or parts and shape of a word."""
        if self.letters:
            return [(0, unit)]
        shape = re.sub("[A-Z]+", "A", re.sub("[a-z]+", "a", re.sub("[0-9]+", "0", unit)))
        return list(enumerate((unit, unit.lower(), unit[-1:], unit[-2:], unit[-3:], shape)))

    def matrix(self, examples: Examples) -> Any:
        """The sparse matrix (units, columns) of all examples, concatenated."""
        from scipy import sparse

        beyond = [BEYOND] * self.reach
        flat = [unit for units in examples for unit in (*beyond, *units, *beyond)]
        rows = {unit: row for row, unit in enumerate(dict.fromkeys(flat))}
        # A trait without its own column uses the column of its kind, which is its first part.
        unit_columns = [[self.numbers.get(trait, trait[0]) for trait in self.traits(unit)] for unit in rows]
        traits = np.array(unit_columns)[[rows[unit] for unit in flat]]
        lengths = np.array([len(units) for units in examples])
        places = np.arange(lengths.sum()) + np.repeat(np.arange(len(lengths)) * 2 * self.reach, lengths)
        columns = np.hstack([traits[places + at] + at * self.width for at in range(2 * self.reach + 1)])
        n, per_unit = columns.shape
        starts = np.arange(0, n * per_unit + 1, per_unit, dtype=np.int32)
        columns = columns.ravel().astype(np.int32)
        return sparse.csr_array((self.weights[columns], columns, starts), shape=(n, len(self.weights)))


def _linear_model(task: str, truth: Any) -> Any:
    """A linear model; cross-validation selects its regularization."""
    from sklearn.linear_model import LogisticRegression, Ridge

    grid = [0.1, 1.0, 10.0]
    if task == "value":
        return tuned_model(task, truth, Ridge(), {"alpha": grid})
    return tuned_model(task, truth, LogisticRegression(solver="newton-cg", max_iter=100), {"C": grid})


def _tree_model(task: str, truth: Any) -> Any:
    """A model of boosted trees; cross-validation selects their size."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingRegressor if task == "value" else HistGradientBoostingClassifier
    sizes = [{"learning_rate": [rate], "max_leaf_nodes": [leaves]} for rate, leaves in ((0.1, 31), (0.05, 8))]
    model = kind(categorical_features=None, early_stopping=False, random_state=0)
    return tuned_model(task, truth, model, sizes, None if task == "value" else "neg_log_loss")


def tuned_model(task: str, truth: Any, model: Any, grid: Any, scoring: str | None = None) -> Any:
    """A model tuned by 3-fold cross-validation, or the model itself if a class has too few examples."""
    from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold

    if task == "value":
        enough, folds = len(truth) >= 6, KFold(3, shuffle=True, random_state=0)
    else:
        fewest = min(Counter(truth.tolist()).values())
        enough, folds = fewest >= 3, StratifiedKFold(3, shuffle=True, random_state=0)
    return GridSearchCV(model, grid, cv=folds, scoring=scoring) if enough else model


def _predictions(
    task: str, make: Callable[[str, Any], Any], train: Any, truth: Any, test: Any, names: Sequence[str]
) -> Doubles:
    """Predictions (M, ...) of one estimator for each column of the truth (N, ...)."""
    truth = np.asarray(truth)
    if task == "class":
        return _probabilities(make(task, truth), train, truth, test, len(names))
    columns = truth.reshape(len(truth), -1).T
    if task == "multilabel":
        outputs = [_probabilities(make(task, column), train, column, test, 2)[:, 1] for column in columns]
    else:
        outputs = [make(task, column).fit(train, column).predict(test) for column in columns]
    return np.column_stack(outputs).reshape(-1, *truth.shape[1:])


def _probabilities(model: Any, train: Any, truth: Longs, test: Any, width: int) -> Doubles:
    """Fit a classifier, and return its (M, K) probabilities. With only one class, that class is certain."""
    from sklearn.dummy import DummyClassifier
    from sklearn.exceptions import ConvergenceWarning

    model = model if len(np.unique(truth)) > 1 else DummyClassifier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(train, truth)
    p = np.zeros((test.shape[0], width))
    p[:, model.classes_] = model.predict_proba(test)
    return p


def _letters(examples: Examples) -> bool:
    """Whether every unit is one letter."""
    return all(len(unit) == 1 for units in examples for unit in units)


def _column(train: Sequence[Any], test: Sequence[Any]) -> list[list[float]]:
    """The training and test values as numbers; NaN if missing."""
    often = Counter(str(value) for value in train if filled(value)).most_common()
    ranks = {value: float(rank) for rank, (value, _) in enumerate(often)}
    if any(math.isnan(number(value)) for value in ranks):
        return [[ranks.get(str(value), math.nan) for value in part] for part in (train, test)]
    return [[number(value) for value in part] for part in (train, test)]
