"""Predicted classes against true ones, beside guesses that need no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seqmlm.evaluation.intervals import exact_rate


def class_measures(counts: Mapping[tuple[str, str], int], names: Sequence[str]) -> dict[str, Any]:
    """Accuracy, macro F1, two baselines and the confusion counts of predicted classes, by name.

    Args:
        counts: of each (true class, predicted class); one at least.
        names: all classes.

    Returns:
        `accuracy` and its 95 % `interval` (Clopper and Pearson 1934); `macro_f1`, the mean of the classes'
        F1; `majority`, the accuracy of the most frequent class, always; `calibrated_random`, that of guesses
        drawn as often as each class was predicted; `confusion`, true class to predicted class to count.

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
