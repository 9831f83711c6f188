"""Test results of a fine-tuned model, compared with the results of simple baselines.

The baselines (`Rivals`) see the same examples, in the units that the model reads. A baseline that cannot be
fitted has a reason instead of results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from seqmlm.evaluation import rivals
from seqmlm.evaluation.intervals import Estimate, bounds_text
from seqmlm.evaluation.predictions import difference, measures
from seqmlm.finetuning.cases import Case, items_of, truth_of
from seqmlm.finetuning.table import Columns
from seqmlm.inference.pieces import HeadCard
from seqmlm.reports.summary import Table
from seqmlm.reports.verdict import BOTH, PLACES

Predictions = Any
"""Predictions in the form that `seqmlm.evaluation.predictions.measures` needs."""
COLUMNS = "boosted columns"
LATE = "no time was left; the same command with --resume and a longer --max-time fits it"


def worth(
    card: HeadCard, cases: Sequence[Case], predictions: Predictions, *, draws: int = 1000
) -> dict[str, Estimate]:
    """Measures of predictions, by name. Measures that cannot be computed are absent."""
    groups = [case.group for case in items_of(card, cases)]
    truth = truth_of(card, cases)
    return measures(card.kind, truth, predictions, groups=groups, names=card.names, draws=draws)


class Rivals:
    """Predictions for the test cases from baselines that need no trained encoder.

    Args:
        is_over: whether no time remains for the baseline with this name.

    Attributes:
        predictions: predictions by the name of the baseline.
        unfitted: reasons why other baselines could not be fitted, by name.
    """

    def __init__(
        self,
        card: HeadCard,
        train: Sequence[Case],
        test: Sequence[Case],
        is_over: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self.predictions: dict[str, Predictions] = {}
        self.unfitted: dict[str, str] = {}
        self._card, self._train, self._test = card, train, test
        self._truth, self._is_over = truth_of(card, train), is_over

    def add(self, name: str, predict: Callable[[], Predictions]) -> None:
        """Add the predictions of a baseline, or the reason why it cannot be fitted."""
        if self._is_over(name):
            self.unfitted[name] = LATE
            return
        try:
            self.predictions[name] = predict()
        except rivals.UnfittedError as error:
            self.unfitted[name] = str(error)

    def add_cheap(self) -> None:
        """Add the most frequent class, and linear models of the units that the model reads."""
        kind, names, truth = self._card.kind, self._card.names, self._truth
        true = truth_of(self._card, self._test)
        sizes = [len(tags) for tags in true] if kind == "entities" else len(true)
        self.add("most frequent", lambda: rivals.majority_predictions(kind, truth, sizes, names=names))
        train, test = ([case.units for case in cases] for cases in (self._train, self._test))
        if self._card.of_parts:
            self.add("neighbouring units", lambda: self._window_predictions(train, test))
            return
        self.add("bags of units", lambda: rivals.bag_predictions(kind, train, truth, test, names=names))
        self.add(PLACES, lambda: rivals.place_predictions(kind, train, truth, test, names=names))

    def _window_predictions(self, train: rivals.Examples, test: rivals.Examples) -> Predictions:
        """Predictions for the units of test cases, from a linear model of each unit and its neighbours."""
        kind, names = self._card.kind, self._card.names
        if kind == "entities":
            return rivals.window_predictions(kind, train, self._truth, test, names=names)
        labels = [case.targets[:, 0].astype(int) for case in self._train]
        return np.concatenate(rivals.window_predictions(kind, train, labels, test, names=names))

    def add_columns(self, columns: Columns, ours: Predictions) -> None:
        """Add gradient boosting on columns of a table, and its mean with the model's predictions."""
        train, test = columns.values_of(self._train), columns.values_of(self._test)
        card, truth = self._card, self._truth
        self.add(
            COLUMNS, lambda: rivals.boosting_predictions(card.kind, train, truth, test, names=card.names)
        )
        if COLUMNS in self.predictions:
            self.predictions[BOTH] = (self.predictions[COLUMNS] + ours) / 2
        else:
            self.unfitted[BOTH] = f"it needs {COLUMNS}"


def figures_of(
    card: HeadCard, primary: str, test: Sequence[Case], ours: Predictions, beaten: Rivals
) -> tuple[dict[str, Any], Table]:
    """Test results of a model's predictions, and a table of them.

    The results have the measures by name and these keys:

    * `intervals`: the 95 % intervals of the measures.
    * `rivals`: the measures of each baseline.
    * `unfitted`: reasons why other baselines could not be fitted.
    * `lead`: the difference to the best baseline in the `primary` measure.
    * `over_columns`: differences to gradient boosting on the columns of a table.
    """
    rival_predictions = beaten.predictions
    estimates = worth(card, test, ours)
    rival_estimates = {who: worth(card, test, theirs) for who, theirs in rival_predictions.items()}
    figures: dict[str, Any] = {name: estimate.value for name, estimate in estimates.items()}
    figures["intervals"] = {name: [estimate.low, estimate.high] for name, estimate in estimates.items()}
    figures["rivals"] = {
        who: {name: estimate.value for name, estimate in theirs.items()}
        for who, theirs in rival_estimates.items()
    }
    if beaten.unfitted:
        figures["unfitted"] = beaten.unfitted

    def over(first: Predictions, second: Predictions) -> dict[str, float]:
        truth, groups = truth_of(card, test), [case.group for case in items_of(card, test)]
        led = difference(card.kind, primary, truth, first, second, groups=groups, names=card.names)
        return led._asdict()

    single = {who: theirs for who, theirs in rival_estimates.items() if primary in theirs and who != BOTH}
    ranked = [(theirs[primary].value, who) for who, theirs in single.items()]
    if ranked and primary in estimates:
        best = max(ranked)[1]
        figures["lead"] = {"over": best, **over(ours, rival_predictions[best])}
    if primary in estimates and primary in rival_estimates.get(COLUMNS, {}):
        mixed = {"this model": ours, BOTH: rival_predictions[BOTH]}
        boosted = rival_predictions[COLUMNS]
        figures["over_columns"] = {who: over(theirs, boosted) for who, theirs in mixed.items()}
    lines = {"this model": estimates, **rival_estimates}
    names = dict.fromkeys(name for line in lines.values() for name in line)
    columns = [name for name in names if not name.startswith("f1_")]
    cells = [[who, *(_estimate_text(line.get(name)) for name in columns)] for who, line in lines.items()]
    if over_columns := figures.get("over_columns"):
        columns.append(f"{primary} over columns")
        for row in cells:
            led = over_columns.get(row[0])
            row.append(led and f"{led['difference']:+.3f}{bounds_text(led['low'], led['high'], '+.3f')}")
    cells += [[who, f"could not be fitted: {why}"] for who, why in beaten.unfitted.items()]
    cells = [row + [None] * (len(columns) + 1 - len(row)) for row in cells]
    return figures, Table("Figures of the test data (95 % intervals)", ["", *columns], cells)


def _estimate_text(estimate: Estimate | None) -> str | None:
    if estimate is None:
        return None
    return f"{estimate.value:.3f}{bounds_text(estimate.low, estimate.high, '.3f')}"
