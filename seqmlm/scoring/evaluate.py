"""`seqmlm evaluate`: compare scores and alarms with labels, next to a baseline and trivial floors.

There are two kinds of thresholds, in separate tables. Some need labels: recall at a false positive rate, and
oracle F1. The threshold of the alarm column was set without labels. Only this kind is possible in practice.

For sensitive data, every figure that would reveal a count from 1 to 10 is withheld.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from seqmlm.data.counts import SMALLEST, redacted
from seqmlm.errors import DataError, UsageError
from seqmlm.evaluation.detection import Confusion, Curve, Detection, Measure, compare, confusion, f1_of_alarms
from seqmlm.evaluation.intervals import Estimate, Rate, exact_rate
from seqmlm.parsing import Share
from seqmlm.reports.drawing import page_style, picture
from seqmlm.reports.page import Cell, Page
from seqmlm.reports.verdict import ranking_sentence
from seqmlm.scoring.labels import Columns, Labelled, is_column, ranked_by, read_labelled, scores_of_keys
from seqmlm.streams.outputs import check_outputs

FALSE_POSITIVE_RATES = (1e-2, 1e-3)
FLOOR = " (floor)"
"""Suffix of the names of baselines without a model."""

_COLOURS = ("#1f4e8c", "#b0562c", "#4f7f4f", "#777777")
_POINTS = 500  # points of a drawn curve
_LOWEST = 1e-4  # false positive rate below which the axis is linear

Doubles = NDArray[np.float64]
Table = tuple[tuple[str, ...], list[tuple[Cell, ...]]]
"""Headings and rows."""


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Settings of `seqmlm evaluate`.

    Args:
        paths: files written by seqmlm score or seqmlm predict (.jsonl, .csv, .parquet), or the
            predictions.parquet of a fine-tuning.
        labels: file of ids and labels, or the truth.json of a sample. Default: a column of the scores.
        label_field: column of the labels. Default: label.
        label_id: column of the ids in the file of labels. Default: id.
        positive: value that marks a positive (anomalous) row. Default: 1 or true.
        negative: value that marks a negative (normal) row; every other value is positive.
        score: column to rank the rows by. p_value and channels.NAME are negated, because their low values are
            the unusual values. Default: p_value if the rows have it, next to score; otherwise score.
        baseline: compare with this column, or with this other file of scores.
        prevalence: re-weight precision and F1 of the alarms to this share of positives, in (0, 1).
        group: column of the unit to resample in the bootstrap, such as a patient. Default: each row.
        partial: allow labels without a score, and count them.
        sensitive: withhold small counts, even if the scores are not marked as sensitive.
        draws: number of bootstrap resamples.
        seed: seed of the random draws.
        report: write an HTML report: curves, or a confusion matrix and the most confident mistakes.
    """

    option_fields: ClassVar[tuple[str, ...]] = (
        *("labels", "label_field", "label_id", "positive", "negative"),
        *("score", "baseline", "prevalence", "group", "report"),
    )
    metavar: ClassVar[str] = "SCORES"

    paths: tuple[str, ...] = ()
    labels: str | None = None
    label_field: str = Columns.label
    label_id: str = Columns.id
    positive: str | None = None
    negative: str | None = None
    score: str | None = None
    baseline: str | None = None
    prevalence: Share | None = None
    group: str | None = None
    partial: bool = False
    sensitive: bool = False
    draws: int = 1000
    seed: int = 0
    report: Path | None = None

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise UsageError(f"draws must be at least 1, not {self.draws}")
        if self.seed < 0:
            raise UsageError(f"seed must be at least 0, not {self.seed}")
        if self.prevalence is not None and not 0 < self.prevalence < 1:
            raise UsageError(f"--prevalence must lie between 0 and 1, not {self.prevalence}")
        if self.positive is not None and self.negative is not None:
            raise UsageError("--positive and --negative exclude each other")

    @property
    def columns(self) -> Columns:
        """The columns to read."""
        return Columns(
            score=self.score or ranked_by(self.paths),
            label=self.label_field,
            id=self.label_id,
            positive=self.positive,
            negative=self.negative,
            group=self.group,
        )


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The ranking by one score, compared with the labels.

    Args:
        name: name of the score.
        auroc, auroc_low, auroc_high: AUROC with its 95 % interval. The bounds are None if they cannot be
            estimated.
        average_precision: area under the precision-recall curve (AUPRC).
        recall: recall at each of `FALSE_POSITIVE_RATES`, with exact intervals. None if withheld.
        oracle_f1: F1 at the best threshold, which can be chosen only with labels. None if withheld.
    """

    name: str
    auroc: float
    auroc_low: float | None
    auroc_high: float | None
    average_precision: float
    recall: tuple[Rate | None, ...]
    oracle_f1: float | None


@dataclass(frozen=True, kw_only=True)
class Alarms:
    """Alarms compared with the labels. Their threshold was set without labels.

    Args:
        name: name of the alarms.
        true_positives, false_positives, false_negatives, true_negatives: counts.
        precision, recall, false_positive_rate: rates with exact intervals. None if withheld.
        f1: F1 of the alarms, None if withheld.
        prevalence: assumed share of positives for the next two figures. None if not requested.
        precision_at_prevalence, f1_at_prevalence: precision and F1 with this share of positives.
    """

    name: str
    true_positives: int | str
    false_positives: int | str
    false_negatives: int | str
    true_negatives: int | str
    precision: Rate | None
    recall: Rate | None
    false_positive_rate: Rate | None
    f1: float | None
    prevalence: float | None = None
    precision_at_prevalence: float | None = None
    f1_at_prevalence: float | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Rankings, alarms and counts of scores against labels.

    Args:
        rows, positives: counts, or texts such as "<11" if they are withheld.
        groups: number of groups that the bootstrap resamples.
        unscored: number of rows without a score, which rank as least unusual.
        missing: number of labels without a row.
        interval: method of the AUROC's interval.
        rankings: the score, its baseline, and then the floors.
        alarms: results of the alarm column, and of flagging everything.
        differences: score minus baseline, by measure.
        sensitive: whether small counts, and figures that would reveal them, are withheld.
    """

    rows: int | str
    positives: int | str
    groups: int | str
    unscored: int | str
    missing: int | str
    interval: str
    rankings: tuple[Ranking, ...]
    alarms: tuple[Alarms, ...]
    differences: dict[str, Estimate]
    sensitive: bool


@dataclass(frozen=True, eq=False)
class Evaluated:
    """The result, and the curves for a report."""

    result: Evaluation
    curves: dict[str, Curve]


def evaluate_scores(config: EvaluateConfig) -> Evaluated:
    """Compare scores with labels.

    Raises:
        UsageError: settings exclude each other, or the report is also an input.
        DataError: files cannot be read or joined, there is only one class, or sensitive data have fewer than
            11 rows of a class.
    """
    file_options = [config.labels, config.baseline]
    label_files = [path for path in file_options if path is not None and not is_column(path)]
    check_outputs({"--report": config.report}, inputs=[*config.paths, *label_files])
    has_baseline_column = config.baseline is not None and is_column(config.baseline)
    columns = config.columns
    if has_baseline_column:
        columns = replace(columns, baseline=config.baseline)
    elif config.baseline is None and columns.score != (config.score or Columns.score):
        columns = replace(columns, baseline=Columns.score)
    labelled = read_labelled(
        config.paths, columns, labels=config.labels, partial=config.partial, sensitive=config.sensitive
    )
    scores = {columns.score: Detection(labelled.labels, labelled.scores)}
    positives = sum(labelled.labels)
    if labelled.sensitive and min(positives, len(labelled.labels) - positives) < SMALLEST:
        few = f"one class has fewer than {SMALLEST} rows"
        why = "for sensitive data such small counts are withheld"
        raise DataError(f"{few}; {why}", remedy="evaluate on more records")
    differences: dict[str, Estimate] = {}
    if config.baseline is None and columns.baseline is not None:
        scores[columns.baseline] = Detection(labelled.labels, labelled.baseline)
    if config.baseline is not None:
        rival, raised = labelled.baseline, None
        if not has_baseline_column:
            column = config.score or ranked_by([config.baseline])
            rival, raised = scores_of_keys(config.baseline, column, labelled.keys, labelled.sensitive)
        name = config.baseline if config.baseline != columns.score else "baseline"
        scores[name] = Detection(labelled.labels, rival)
        compared = partial(compare, groups=labelled.groups, draws=config.draws, seed=config.seed)
        differences = compared(scores[columns.score], scores[name], _MEASURES)
        if raised is not None and labelled.alarms is not None:
            alarm_pair = Detection(labelled.labels, labelled.alarms), Detection(labelled.labels, raised)
            differences |= compared(*alarm_pair, {"f1": f1_of_alarms})
    if labelled.lengths is not None:
        scores[f"length{FLOOR}"] = Detection(labelled.labels, labelled.lengths)
    scores[f"flag everything{FLOOR}"] = Detection(labelled.labels, np.zeros(len(labelled.labels)))
    result = _evaluation(labelled, config, scores, differences)
    curves = {} if labelled.sensitive else {name: score.curve() for name, score in scores.items()}
    return Evaluated(result, curves)


_MEASURES: dict[str, Measure] = {
    "auroc": lambda curve: curve.auroc,
    "average_precision": lambda curve: curve.average_precision,
    "oracle_f1": lambda curve: curve.oracle_f1,
    **{f"recall_at_fpr_{rate:g}": partial(Curve.recall_at, rate=rate) for rate in FALSE_POSITIVE_RATES},
}


def _evaluation(
    labelled: Labelled,
    config: EvaluateConfig,
    scores: dict[str, Detection],
    differences: dict[str, Estimate],
) -> Evaluation:
    grouped = config.group is not None
    counts = {
        "rows": len(labelled.labels),
        "positives": sum(labelled.labels),
        "groups": len(set(labelled.groups)),
        "unscored": sum(score == -math.inf for score in labelled.scores),
        "missing": labelled.missing,
    }
    raised = {} if labelled.alarms is None else {"alarms": labelled.alarms}
    raised[f"flag everything{FLOOR}"] = [True] * len(labelled.labels)
    confusions = {name: confusion(labelled.labels, is_raised) for name, is_raised in raised.items()}
    by_group = config if grouped else None
    return Evaluation(
        **(redacted(counts) if labelled.sensitive else counts),
        interval="bootstrap over groups" if grouped else "DeLong",
        rankings=tuple(_ranking(name, detection, labelled, by_group) for name, detection in scores.items()),
        alarms=tuple(
            _alarm_figures(name, confusion_counts, config.prevalence, labelled.sensitive)
            for name, confusion_counts in confusions.items()
        ),
        differences=differences,
        sensitive=labelled.sensitive,
    )


def _ranking(
    name: str, score: Detection, labelled: Labelled, bootstrap_config: EvaluateConfig | None
) -> Ranking:
    curve = score.curve()
    if bootstrap_config is None:
        low, high = score.auroc_interval()
    else:
        measure = {"auroc": _MEASURES["auroc"]}
        interval = score.bootstrap(
            measure, labelled.groups, draws=bootstrap_config.draws, seed=bootstrap_config.seed
        )["auroc"]
        low, high = interval.low, interval.high
    recalls = [exact_rate(int(curve.hits_at(rate)), int(curve.positives)) for rate in FALSE_POSITIVE_RATES]
    return Ranking(
        name=name,
        auroc=curve.auroc,
        auroc_low=None if math.isnan(low) else low,
        auroc_high=None if math.isnan(high) else high,
        average_precision=curve.average_precision,
        recall=tuple(_rate(recall_rate, labelled.sensitive) for recall_rate in recalls),
        oracle_f1=None if labelled.sensitive else curve.oracle_f1,
    )


def _alarm_figures(
    name: str, confusion_counts: Confusion, prevalence: float | None, sensitive: bool
) -> Alarms:
    """The counts and rates of alarms. For sensitive data they are withheld if a count is small."""
    counts: dict[str, Any] = asdict(confusion_counts)
    small = sensitive and any(0 < count < SMALLEST for count in counts.values())
    # A rate with a known denominator reveals its count. If one count is small, all rates are withheld.
    rates: dict[str, Any] = {
        rate: None if small else getattr(confusion_counts, rate)
        for rate in ("precision", "recall", "false_positive_rate")
    }
    if small:
        counts = dict.fromkeys(counts, "withheld")
    precision, f1 = (
        (None, None) if prevalence is None or small else confusion_counts.precision_and_f1_at(prevalence)
    )
    return Alarms(
        name=name,
        **counts,
        **rates,
        f1=None if small else confusion_counts.f1,
        prevalence=prevalence,
        precision_at_prevalence=precision,
        f1_at_prevalence=f1,
    )


def _rate(rate: Rate, sensitive: bool) -> Rate | None:
    small = any(0 < count < SMALLEST for count in (rate.hits, rate.trials - rate.hits))
    return None if sensitive and small else rate


def write_report(evaluated: Evaluated, path: Path) -> None:
    """Write a self-contained HTML page. For sensitive data it has no curves, and its mode is 0600.

    Raises:
        StateError: the page cannot be written.
    """
    result = evaluated.result
    page = Page("Scores against labels", f"{sentence(result)}.", sensitive=result.sensitive)
    page.table("Ranking", *ranking_table(result))
    page.table("Alarms", *alarm_table(result))
    if result.differences:
        name = result.rankings[1].name
        page.table(
            f"{result.rankings[0].name} minus {name}",
            ("measure", "difference", "95 % low", "95 % high"),
            [
                (measure, change.value, change.low, change.high)
                for measure, change in result.differences.items()
            ],
        )
    if evaluated.curves:
        page.section("Curves", _picture(evaluated.curves))
    page.section("Notes", notes(result))
    page.write(path)


def sentence(result: Evaluation) -> str:
    """A sentence with the AUROC of each score. It tells if the first score is not better than a floor."""
    areas = {ranking.name: ranking.auroc for ranking in result.rankings}
    floors = [name for name in areas if name.endswith(FLOOR)]
    return f"{result.rows} rows, {result.positives} positive; {ranking_sentence(areas, floors)}"


def ranking_table(result: Evaluation) -> Table:
    """One row per score: AUROC, AUPRC, recalls, oracle F1."""
    rates = (f"recall at FPR {rate:g}" for rate in FALSE_POSITIVE_RATES)
    columns = ("score", "AUROC", f"95 % ({result.interval})", "AUPRC", *rates, "oracle F1")
    cells: list[tuple[Cell, ...]] = []
    for ranking in result.rankings:
        interval = (
            "-" if ranking.auroc_low is None else f"{ranking.auroc_low:.4f} to {ranking.auroc_high:.4f}"
        )
        oracle = "withheld" if ranking.oracle_f1 is None else f"{ranking.oracle_f1:.4f}"
        precision, recalls = f"{ranking.average_precision:.4f}", map(_rate_text, ranking.recall)
        cells.append((ranking.name, f"{ranking.auroc:.4f}", interval, precision, *recalls, oracle))
    return columns, cells


def alarm_table(result: Evaluation) -> Table:
    """One row per set of alarms: confusion counts, precision, recall, F1."""
    columns = ("threshold", "TP", "FP", "FN", "TN", "precision", "recall", "F1", "at prevalence")
    cells: list[tuple[Cell, ...]] = []
    for alarms in result.alarms:
        at, f1 = "-", "withheld" if alarms.f1 is None else f"{alarms.f1:.4f}"
        if alarms.f1_at_prevalence is not None:
            rates = f"precision {alarms.precision_at_prevalence:.4f}, F1 {alarms.f1_at_prevalence:.4f}"
            at = f"{alarms.prevalence:g}: {rates}"
        counts = alarms.true_positives, alarms.false_positives, alarms.false_negatives, alarms.true_negatives
        cells.append((alarms.name, *counts, _rate_text(alarms.precision), _rate_text(alarms.recall), f1, at))
    return columns, cells


def _rate_text(rate: Rate | None) -> str:
    """A rate with its interval. "-" for NaN (the precision without alarms), "withheld" for None."""
    if rate is None:
        return "withheld"
    return "-" if math.isnan(rate.value) else f"{rate.value:.4f} ({rate.low:.4f} to {rate.high:.4f})"


def notes(result: Evaluation) -> str:
    """Notes for reading the tables."""
    parts = [
        "Recall at a false positive rate and oracle F1 choose their threshold with these labels. The "
        "threshold of the alarms comes from normal data. Rates have exact (Clopper-Pearson) intervals."
    ]
    if result.unscored:
        parts.append(f"{result.unscored} rows have no score. They rank as least unusual.")
    if result.missing:
        parts.append(f"{result.missing} labels have no score and are not evaluated.")
    if result.sensitive:
        small = "counts below 11, and figures that would reveal them, are withheld"
        parts.append(f"The data are sensitive: {small}.")
    return "\n\n".join(parts)


def _picture(curves: dict[str, Curve]) -> Markup:
    from matplotlib.figure import Figure

    with page_style():
        figure = Figure(figsize=(14, 5.6), layout="constrained")
        roc_axes, recall_axes = figure.subplots(1, 2)
        for (name, curve), colour in zip(curves.items(), _COLOURS, strict=False):
            roc_axes.plot(*_roc(curve), color=colour, label=name)
            recall_axes.plot(*_precision_recall(curve), color=colour, drawstyle="steps-pre")
        roc_axes.set_xscale("symlog", linthresh=_LOWEST)
        roc_axes.xaxis.set_major_formatter("{x:g}")
        roc_axes.set(xlabel="false positive rate", ylabel="recall", title="ROC", xlim=(0, 1))
        recall_axes.set(
            xlabel="recall", ylabel="precision", title="precision and recall", xlim=(0, 1), ylim=(0, 1.02)
        )
        roc_axes.legend(frameon=False)
        return picture(figure, "ROC and precision-recall curves")


def _roc(curve: Curve) -> tuple[Doubles, Doubles]:
    """False positive rates and the recalls at these rates. Ties are interpolated, as in the AUROC."""
    false = np.concatenate([[0.0], curve.false / curve.negatives])
    recall = np.concatenate([[0.0], curve.true / curve.positives])
    rates = np.concatenate([np.linspace(0, _LOWEST, 50), np.geomspace(_LOWEST, 1, _POINTS)])
    return rates, np.interp(rates, false, recall)


def _precision_recall(curve: Curve) -> tuple[Doubles, Doubles]:
    """Recalls and the precisions at these recalls."""
    true_positives = np.linspace(0, 1, _POINTS)[1:] * curve.positives
    points = np.unique(np.minimum(np.searchsorted(curve.true, true_positives), len(curve.true) - 1))
    recall, precision = curve.true[points], curve.true[points] / (curve.true + curve.false)[points]
    return np.concatenate([[0.0], recall / curve.positives]), np.concatenate([precision[:1], precision])
