"""The page of a training: its result, curves, filled examples, calibration, and the next command."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from markupsafe import Markup

from seqmlm import __version__
from seqmlm.inference.model_folder import Card
from seqmlm.privacy import sensitive_data
from seqmlm.reports.drawing import HEIGHT, MARK, THRESHOLD, WIDTH, page_style, picture
from seqmlm.reports.page import Page

PAGE = "training.html"
"""The file name of the page, the main artifact of a training."""

_SMALLEST = re.compile(r"calibration/(.*)_smallest_rate")
_CALIBRATED = re.compile(r"calibration/(.*)_rows")
_PALE = "#9db8d9"  # colour of single steps, behind their mean


def score_command(model: str, values: Mapping[str, float]) -> str:
    """The command that scores new data. It requests a false positive rate that the calibrations support.

    If they support no rate, the command requests none.

    Args:
        model: name of the model.
        values: metrics of the training and of the calibrations.
    """
    rates = [rate for name, rate in values.items() if _SMALLEST.fullmatch(name)]
    rate = max(0.05, math.ceil(100 * min(rates) - 1e-9) / 100) if rates else 1.0
    alarms = f" --fpr {rate:g}" if rate < 0.5 else ""
    # rows of sensitive data may not be shown on the console
    rows = " --out new.jsonl" if sensitive_data() else ""
    return f"seqmlm score {model} NEW{alarms} --report new.html{rows}"


def training_page(
    model: str,
    card: Card,
    facts: Mapping[str, Any],
    values: Mapping[str, float],
    sentences: Sequence[str],
    metrics: Sequence[Mapping[str, Any]],
    examples: str,
) -> Page:
    """The page of a training: its result in sentences, loss curves, calibrations and filled examples.

    Args:
        model: name and version.
        card: the card of the model.
        facts: other facts for the head of the page.
        values: the final evaluation and the results of the calibrations.
        sentences: the result of the training, then warnings.
        metrics: lines of metrics.jsonl.
        examples: sequences in their original, masked and filled form. Empty if no sequence may be shown.
    """
    lead, *warnings = sentences
    page = Page(f"Training: {model}", lead)
    page.warnings(warnings)
    command = score_command(model.partition(":")[0], values)
    page.head({**facts, **date(), "next": command})
    hidden = f"bits per {card.unit}, with 15 % of them masked"
    curve = "eval/bits_per_unit", hidden, "eval/unigram_bits_per_unit"
    page.section("Loss", curves(metrics, *curve))
    modes = [match[1] for key in values if (match := _CALIBRATED.fullmatch(key))]
    if modes:
        rows = [
            (mode, int(values[f"calibration/{mode}_rows"]), values.get(f"calibration/{mode}_smallest_rate"))
            for mode in modes
        ]
        page.table("Calibration", ("mode", "normal rows", "smallest --fpr"), rows)
    if examples:
        caption = "Held-out sequences: the original, with a part masked, and as filled by the model."
        text = Markup('<p>{}</p><div class="coloured">{}</div>').format(caption, examples)
        page.section("Examples filled", text)
    return page


def description(sentences: Iterable[str]) -> str:
    """The description of a training in MLflow: its sentences, and the name of its page."""
    return " ".join([*(f"{sentence}." for sentence in sentences), f"See {PAGE} among the artifacts."])


def date() -> dict[str, str]:
    """The date of the page and the version of seqmlm, for the head of the page."""
    return {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, seqmlm {__version__}"}


def curves(metrics: Sequence[Mapping[str, Any]], metric: str, label: str, floor: str | None = None) -> Markup:
    """Draw the training loss, and a metric on held-out data with its floor, against steps.

    Without losses or evaluations, their panel is left out. Without both, the result is empty.
    """
    from matplotlib.figure import Figure

    losses = [(line["step"], line["train/loss"]) for line in metrics if _is_number(line.get("train/loss"))]
    evaluations = [line for line in metrics if _is_number(line.get(metric))]
    panels = sum(map(bool, (losses, evaluations)))
    if not panels:
        return Markup()
    nats = "loss, nats per masked token" if floor else "loss"
    with page_style():
        figure = Figure(figsize=(WIDTH / 72, 1.3 * HEIGHT / 72))
        axes = figure.subplots(1, panels, squeeze=False)[0]
        figure.subplots_adjust(left=0.06, right=0.99, bottom=0.18, top=0.9, wspace=0.16)
        if losses:
            _draw_losses(axes[0], losses)
            axes[0].set(xlabel="optimizer step", ylabel=nats, title="training")
        if evaluations:
            _draw_evaluations(axes[-1], evaluations, metric, floor)
            axes[-1].set(xlabel="optimizer step", ylabel=label, title="held out")
        names = [name for name, lines in (("loss", losses), (label, evaluations)) if lines]
        return picture(figure, f"{' and '.join(names)} against steps")


def _is_number(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def _draw_losses(axes: Any, losses: Sequence[tuple[int, float]]) -> None:
    steps, values = np.array(losses).T
    axes.plot(steps, values, color=_PALE, linewidth=0.8, label="each step")
    if (width := len(values) // 25) > 1:
        smooth = np.convolve(values, np.ones(width) / width, mode="valid")
        axes.plot(steps[width - 1 :], smooth, color=MARK, label=f"mean of {width} steps")
    axes.legend(frameon=False)


def _draw_evaluations(
    axes: Any, evaluations: Sequence[Mapping[str, Any]], metric: str, floor: str | None
) -> None:
    if floor is not None:
        axes.axhline(evaluations[-1][floor], label="unit frequencies", **THRESHOLD)
    if floor is not None and len(evaluations) > 1:  # the final evaluation of a pretraining reads more records
        last, evaluations = evaluations[-1], evaluations[:-1]
        at_end = "final model, on more data"
        axes.plot(last["step"], last[metric], "D", color=MARK, markersize=5, label=at_end)
    steps, values = zip(*((line["step"], line[metric]) for line in evaluations), strict=True)
    axes.plot(steps, values, "o-", color=MARK, markersize=3, label="model")
    axes.legend(frameon=False)
