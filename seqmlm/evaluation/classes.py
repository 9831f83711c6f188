"""Compare predicted with true classes, next to baselines that need no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seqmlm.evaluation.intervals import exact_rate


def class_measures(counts: Mapping[tuple[str, str], int], names: Sequence[str]) -> dict[str, Any]:
    """Accuracy, macro F1, two baselines and the confusion counts of predicted classes, by name.

    Args:
        counts: (true class, predicted class) -> number of items; there must be at least one item.
        names: all classes.

    Returns:
        `accuracy` and its 95 % `interval` (Clopper and Pearson 1934). `macro_f1` is the mean F1 over classes.
        `majority` is the accuracy if the most frequent class is always predicted. `calibrated_random` is the
        accuracy of random guesses with the frequencies of the predicted classes. `confusion` is true class ->
        predicted class -> count.

    >>> found = class_measures({("a", "a"): 2, ("a", "b"): 1, ("b", "b"): 1}, ["a", "b"])
    >>> found["accuracy"], found["majority"], found["calibrated_random"], found["confusion"]["a"]
    (0.75, 0.75, 0.5, {'a': 2, 'b': 1})
    """
    from sklearn.metrics import confusion_matrix, f1_score

    true, predicted = zip(*counts, strict=True)
    options = {"labels": list(names), "sample_weight": [*counts.values()]}
    table, n = confusion_matrix(true, predicted, **options), sum(counts.values())
    rate, of_class = exact_rate(int(table.trace()), n), table.sum(axis=1)
    cells = [dict(zip(names, row, strict=True)) for row in table.tolist()]
    return {
        "accuracy": rate.value,
        "interval": (rate.low, rate.high),
        "macro_f1": float(f1_score(true, predicted, average="macro", zero_division=0, **options)),
        "majority": float(of_class.max() / n),
        "calibrated_random": float(of_class @ table.sum(axis=0)) / n**2,
        "confusion": dict(zip(names, cells, strict=True)),
    }
