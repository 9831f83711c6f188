"""The page of an evaluation: its tables, and the curves behind them."""

from __future__ import annotations

import base64
import io
import math
from pathlib import Path

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from seqmlm.evaluation.detection import Curve
from seqmlm.evaluation.intervals import Rate
from seqmlm.reports.page import Cell, Page
from seqmlm.tasks.detection import FALSE_POSITIVE_RATES, Alarms, Evaluated, Evaluation, Ranking

_COLOURS = ("#1f4e8c", "#b0562c", "#4f7f4f", "#777777")
_POINTS = 500
_LOWEST = 1e-4  # false positive rate, below which the axis is linear

Doubles = NDArray[np.float64]


def write_report(evaluated: Evaluated, path: Path) -> None:
    """Write a self-contained HTML page; of sensitive data, one without curves, that only its owner reads.

    Raises:
        StateError: it cannot be written.
    """
    result = evaluated.result
    page = Page("Scores against labels", f"{result.rows} rows, {result.positives} to be found")
    page.table("Ranking", ranking_columns(result), [ranking_cells(one) for one in result.rankings])
    page.table("Alarms", ALARM_COLUMNS, [alarm_cells(one) for one in result.alarms])
    if result.differences:
        name = result.rankings[1].name
        page.table(
            f"{result.rankings[0].name} minus {name}",
            ("measure", "difference", "95 % low", "95 % high"),
            [(measure, one.value, one.low, one.high) for measure, one in result.differences.items()],
        )
    if evaluated.curves:
        page.section("Curves", _picture(evaluated.curves))
    page.section("Notes", notes(result))
    page.write(path, private=result.sensitive)


ALARM_COLUMNS = ("threshold", "TP", "FP", "FN", "TN", "precision", "recall", "F1", "at prevalence")


def ranking_columns(result: Evaluation) -> tuple[str, ...]:
    """Headings of the table of rankings."""
    rates = (f"recall at FPR {rate:g}" for rate in FALSE_POSITIVE_RATES)
    return ("score", "AUROC", f"95 % ({result.interval})", "AUPRC", *rates, "oracle F1")


def ranking_cells(one: Ranking) -> tuple[Cell, ...]:
    """A row of the table of rankings."""
    interval = "-" if one.auroc_low is None else f"{one.auroc_low:.4f} to {one.auroc_high:.4f}"
    oracle = "withheld" if one.oracle_f1 is None else f"{one.oracle_f1:.4f}"
    recalls = (shown(rate) for rate in one.recall)
    return (one.name, f"{one.auroc:.4f}", interval, f"{one.average_precision:.4f}", *recalls, oracle)


def alarm_cells(one: Alarms) -> tuple[Cell, ...]:
    """A row of the table of alarms."""
    at = "-"
    if one.f1_at_prevalence is not None:
        at = f"{one.prevalence:g}: precision {one.precision_at_prevalence:.4f}, F1 {one.f1_at_prevalence:.4f}"
    return (
        one.name,
        one.true_positives,
        one.false_positives,
        one.false_negatives,
        one.true_negatives,
        shown(one.precision),
        shown(one.recall),
        "withheld" if one.f1 is None else f"{one.f1:.4f}",
        at,
    )


def shown(rate: Rate | None) -> str:
    """A rate with its interval; of nothing, as the precision where nothing alarmed, there is none."""
    if rate is None:
        return "withheld"
    return "-" if math.isnan(rate.value) else f"{rate.value:.4f} ({rate.low:.4f} to {rate.high:.4f})"


def notes(result: Evaluation) -> str:
    """What one must know to read the tables."""
    parts = [
        "Recall at a false positive rate and oracle F1 take their threshold from these very labels; the "
        "alarms took theirs from normal data. Rates have exact (Clopper-Pearson) intervals."
    ]
    if result.unscored:
        parts.append(f"{result.unscored} rows have no score and rank as least unusual.")
    if result.missing:
        parts.append(f"{result.missing} labels have no score and are in no figure.")
    if result.sensitive:
        parts.append("The data is sensitive: counts below 11, and what would give them away, are withheld.")
    return "\n\n".join(parts)


def _picture(curves: dict[str, Curve]) -> Markup:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, curve), colour in zip(curves.items(), _COLOURS, strict=False):
        left.plot(*_roc(curve), color=colour, label=name)
        right.plot(*_precision_recall(curve), color=colour, drawstyle="steps-pre")
    left.set_xscale("symlog", linthresh=_LOWEST)
    left.set(xlabel="false positive rate", ylabel="recall", title="ROC", xlim=(0, 1))
    right.set(xlabel="recall", ylabel="precision", title="precision and recall", xlim=(0, 1), ylim=(0, 1.02))
    left.legend(frameon=False, fontsize="small")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    encoded = base64.b64encode(drawn.getvalue()).decode()
    return Markup('<img alt="ROC and precision-recall curves" src="data:image/svg+xml;base64,{}">').format(
        encoded
    )


def _roc(curve: Curve) -> tuple[Doubles, Doubles]:
    """Rates of false positives and their recalls; ties are alarmed in part, as the AUROC counts them."""
    false = np.concatenate([[0.0], curve.false / curve.negatives])
    recall = np.concatenate([[0.0], curve.true / curve.positives])
    rates = np.concatenate([np.linspace(0, _LOWEST, 50), np.geomspace(_LOWEST, 1, _POINTS)])
    return rates, np.interp(rates, false, recall)


def _precision_recall(curve: Curve) -> tuple[Doubles, Doubles]:
    """Recalls and the precisions at which they are reached."""
    wanted = np.linspace(0, 1, _POINTS)[1:] * curve.positives
    points = np.unique(np.minimum(np.searchsorted(curve.true, wanted), len(curve.true) - 1))
    recall, precision = curve.true[points], curve.true[points] / (curve.true + curve.false)[points]
    return np.concatenate([[0.0], recall / curve.positives]), np.concatenate([precision[:1], precision])
