"""What a fine-tuned model is worth: figures of its test data beside those of cheap rivals, and a sentence.

The rivals see the same examples. That a model is better is said where the lower bound of the paired
difference to the best of them is above 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seqmlm.evaluation import rivals
from seqmlm.evaluation.intervals import Difference
from seqmlm.evaluation.predictions import difference, measures
from seqmlm.inference.pieces import HeadCard
from seqmlm.tasks.cases import Case, items_of, truth_of
from seqmlm.tasks.table import Columns
from seqmlm.tasks.task import Table

Predictions = Any
"""As `seqmlm.evaluation.predictions.measures` takes them."""
COLUMNS, BOTH = "boosted columns", "model and columns"


def worth(
    card: HeadCard, own: Sequence[Case], said: Predictions, *, draws: int = 1000
) -> dict[str, Difference]:
    """Measures of predictions, by name; those that cannot be had are absent."""
    groups = [one.group for one in items_of(card, own)]
    return measures(card.kind, truth_of(card, own), said, groups=groups, names=card.names, draws=draws)


def of_rivals(card: HeadCard, train: Sequence[Case], test: Sequence[Case]) -> dict[str, Predictions]:
    """Predictions of what needs no model, by name."""
    kind, names = card.kind, card.names
    told, truth = truth_of(card, train), truth_of(card, test)
    sizes = [len(one) for one in truth] if kind == "entities" else len(truth)
    said = {"most frequent": rivals.majority(kind, told, sizes, names=names)}
    of_train, of_test = ([one.units for one in own] for own in (train, test))
    if card.of_parts:
        lists = told if kind == "entities" else [one.targets[:, 0].astype(int) for one in train]
        found = rivals.windowed(kind, of_train, lists, of_test, names=names)
        said["neighbouring units"] = found if kind == "entities" else np.concatenate(found)
    elif any(of_train):
        said["bags of units"] = rivals.bag(kind, of_train, told, of_test, names=names)
        if (found := rivals.placed(kind, of_train, told, of_test, names=names)) is not None:
            said["unit at each place"] = found
    return said


def of_columns(
    card: HeadCard, columns: Columns, train: Sequence[Case], test: Sequence[Case], ours: Predictions
) -> dict[str, Predictions]:
    """Predictions of gradient boosting on columns of a table, and of its mean with the model's."""
    told = truth_of(card, train)
    found = rivals.boosted(card.kind, columns.of(train), told, columns.of(test), names=card.names)
    return {COLUMNS: found, BOTH: (found + ours) / 2}


def figures_of(
    card: HeadCard, primary: str, test: Sequence[Case], ours: Predictions, others: Mapping[str, Predictions]
) -> tuple[dict[str, Any], Table]:
    """Figures of predictions of the test cases by a model, with intervals, and beside those of rivals; a
    table.

    They are measures by name, `intervals`, those of `rivals`, the `lead` over the best of these by the
    `primary` measure, which decides, and, where there are `of_columns`, differences `over_columns`.
    """
    own, beside = worth(card, test, ours), {who: worth(card, test, said) for who, said in others.items()}
    figures: dict[str, Any] = {name: one.value for name, one in own.items()}
    figures["intervals"] = {name: [one.low, one.high] for name, one in own.items()}
    figures["rivals"] = {who: {name: one.value for name, one in said.items()} for who, said in beside.items()}

    def over(first: Predictions, second: Predictions) -> dict[str, float]:
        truth, groups = truth_of(card, test), [one.group for one in items_of(card, test)]
        led = difference(card.kind, primary, truth, first, second, groups=groups, names=card.names)
        return led._asdict()

    ranked = [(said[primary].value, who) for who, said in beside.items() if primary in said and who != BOTH]
    if ranked and primary in own:
        best = max(ranked)[1]
        figures["lead"] = {"over": best, **over(ours, others[best])}
    if primary in own and primary in beside.get(COLUMNS, {}):
        mixed = {"this model": ours, BOTH: others[BOTH]}
        figures["over_columns"] = {who: over(said, others[COLUMNS]) for who, said in mixed.items()}
    every = {"this model": own, **beside}
    names = dict.fromkeys(name for said in every.values() for name in said)
    shown = [name for name in names if not name.startswith("f1_")]
    cells = [[who, *(_shown(said.get(name)) for name in shown)] for who, said in every.items()]
    if over_columns := figures.get("over_columns"):
        shown.append(f"{primary} over columns")
        for row in cells:
            led = over_columns.get(row[0])
            row.append(led and "{difference:+.3f} ({low:+.3f} to {high:+.3f})".format_map(led))
    return figures, Table("Figures of the test data (95 % intervals)", ["", *shown], cells)


def verdict(figures: Mapping[str, Any], primary: str) -> str:
    """The figure that decides, and how it stands beside the best rival."""
    if primary not in figures:
        return f"the test data have no {primary}, being all alike: give others with --test"
    low, high = figures["intervals"][primary]
    text = f"{primary} {figures[primary]:.3f} ({low:.3f} to {high:.3f}), {figures['test']} tested"
    if seeds := figures.get("seeds"):
        text += f", {figures['mean']:.3f} (sd {figures['sd']:.3f}) on average of {len(seeds)} seeds"
    if lead := figures.get("lead"):
        text += f", {lead['over']} {figures['rivals'][lead['over']][primary]:.3f}"
        if lead["difference"] == 0:
            text += "; no better than that"
        elif lead["difference"] < 0:
            text += "; it is no better than that: give it more examples, or a model with more pretraining"
        elif not lead["low"] > 0:
            text += "; not clearly better"
    if BOTH in figures["rivals"]:
        text += f"; {BOTH} {figures['rivals'][BOTH][primary]:.3f}"
    if alike := figures.get("resembling"):
        text += f"; {alike} of the test records resemble training ones"
    return text


def _shown(one: Difference | None) -> str | None:
    if one is None:
        return None
    return f"{one.value:.3f}" if np.isnan(one.low) else f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})"
