"""Cheap rivals that a model must beat: trained on the same training examples, predicting the same test.

An example is a list of units (words, residues, codes, templates). Where every unit is one letter, longer runs
and wider windows are read. Classes are numbers of `names`; predictions have the forms that `measures` takes.
A rival that cannot be fitted raises `UnfittedError`, and no other one takes its place.
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
"""A unit that stands beyond the ends of an example."""

COMMON = 200
"""Examples from which on a bag reads only what occurs in two of them."""


class UnfittedError(SeqmlmError):
    """A rival cannot be fitted to these examples; the message says why."""


def majority_predictions(task: str, truth: Any, n_test: Any, *, names: Sequence[str]) -> Any:
    """The same prediction for all items: training frequencies of classes and labels, means of values.

    Args as of `predictions.measures`, of training; `n_test` counts test items (units for "tags"), for
    "entities" it has the length of each sentence.

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
    """Predictions of a linear model of counts of units and pairs of neighbours (letters: runs of up to 4).

    Logistic or ridge regression on sublinear TF-IDF, its strength chosen by 3-fold cross-validation.

    Args:
        task: "class", "multilabel" or "value".
        train, test: N examples, and M to predict.
        truth: (N,) numbers of classes, (N, K) labels of 0 and 1, or (N,) or (N, K) values.
        names: of the K classes or labels.

    Returns:
        (M, K) probabilities; (M,) or (M, K) values.

    Raises:
        UnfittedError: there is no unit, or of many examples no two share one.
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
    """Predictions of a linear model of which unit stands at each place.

    It is the rival of variants of one protein and of sites cut out of a genome. Arguments and result are as
    of `bag_predictions`.

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
    """Predictions by logistic regression on each unit and its neighbours: 7 a side for letters, 2 for words.

    Words are read with their lower case, suffixes of 1 to 3 letters and shape. Training has at most 300,000
    units, of whole examples that the seed draws.

    Args:
        task: "tags" or "entities".
        train, test: N examples, and M to predict.
        truth: N lists, of numbers of classes with -1 for units that have none, or of BIO tags.
        names: of the K classes of "tags".
        seed: of the draw.

    Returns:
        M arrays (units, K) of probabilities, or M lists of tags, where an I- that continues nothing is a B-.
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
    """Predictions by gradient boosting over N and M values of each column of a table; otherwise as
    `bag_predictions`.

    Numbers may be written as texts; other texts are ranked by how frequent they are: as unordered categories,
    columns of many (diagnoses) overfit. None, "", NaN, NA and texts that training did not have are missing.
    Large or small trees are chosen by 3-fold cross-validation: of noisy data large ones are learnt by heart.

    Raises:
        UnfittedError: no column has a value in training.
    """
    columns = [_column(values, test[name]) for name, values in train.items() if any(map(filled, values))]
    if not columns:
        raise UnfittedError("no column has a value in the training examples")
    tables = [np.column_stack(part) for part in zip(*columns, strict=True)]
    return _predictions(task, _tree_model, tables[0], truth, tables[1], names)


class _Windows:
    """Traits of each unit and its neighbours as columns, in the numbering and the weights of training.

    A trait that training had once shares the column of those that it did not have. A column weighs the fourth
    root of its rarity, which halves the optimizer's iterations.
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
        """Traits of a unit, each with the number of its kind: itself, or parts and shapes of a word."""
        if self.letters:
            return [(0, unit)]
        shape = re.sub("[A-Z]+", "A", re.sub("[a-z]+", "a", re.sub("[0-9]+", "0", unit)))
        return list(enumerate((unit, unit.lower(), unit[-1:], unit[-2:], unit[-3:], shape)))

    def matrix(self, examples: Examples) -> Any:
        """Sparse (units, columns) of all examples, one after the other."""
        from scipy import sparse

        beyond = [BEYOND] * self.reach
        flat = [unit for units in examples for unit in (*beyond, *units, *beyond)]
        rows = {unit: row for row, unit in enumerate(dict.fromkeys(flat))}
        # A trait without a column of its own has that of its kind, which is its first part.
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
    """A linear model whose strength cross-validation chooses."""
    from sklearn.linear_model import LogisticRegression, Ridge

    grid = [0.1, 1.0, 10.0]
    if task == "value":
        return tuned_model(task, truth, Ridge(), {"alpha": grid})
    return tuned_model(task, truth, LogisticRegression(solver="newton-cg", max_iter=100), {"C": grid})


def _tree_model(task: str, truth: Any) -> Any:
    """A model of boosted trees whose size cross-validation chooses."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingRegressor if task == "value" else HistGradientBoostingClassifier
    sizes = [{"learning_rate": [rate], "max_leaf_nodes": [leaves]} for rate, leaves in ((0.1, 31), (0.05, 8))]
    model = kind(categorical_features=None, early_stopping=False, random_state=0)
    return tuned_model(task, truth, model, sizes, None if task == "value" else "neg_log_loss")


def tuned_model(task: str, truth: Any, model: Any, grid: Any, scoring: str | None = None) -> Any:
    """A model that 3-fold cross-validation sets; as it is, where a class has too few examples for that."""
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
    """Predictions (M, ...) of an estimator for each column of the truth (N, ...)."""
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
    """(M, K) probabilities of K classes, by a classifier that is fitted first. One class alone is certain."""
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
    """Training's and test's values as numbers, NaN where missing."""
    often = Counter(str(value) for value in train if filled(value)).most_common()
    ranks = {value: float(rank) for rank, (value, _) in enumerate(often)}
    if any(math.isnan(number(value)) for value in ranks):
        return [[ranks.get(str(value), math.nan) for value in part] for part in (train, test)]
    return [[number(value) for value in part] for part in (train, test)]
