"""The page of a training: what it came to, its curves, examples filled, calibration, and what to do next."""

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
"""The main artifact of a training."""

_SMALLEST = re.compile(r"calibration/(.*)_smallest_rate")
_CALIBRATED = re.compile(r"calibration/(.*)_rows")
_PALE = "#9db8d9"  # single steps, behind their mean


def score_command(model: str, values: Mapping[str, float]) -> str:
    """The command that judges new data: with a rate that the calibrations support, none where none does.

    Args:
        model: its name.
        values: what calibrations came to, among other figures.
    """
    rates = [rate for name, rate in values.items() if _SMALLEST.fullmatch(name)]
    rate = max(0.05, math.ceil(100 * min(rates) - 1e-9) / 100) if rates else 1.0
    alarms = f" --fpr {rate:g}" if rate < 0.5 else ""
    rows = " --out new.jsonl" if sensitive_data() else ""  # they may not be shown on the console
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
    """The page of a training: its end in sentences, loss curves, calibrations and examples filled.

    Args:
        model: name and version. facts: further ones for the head. metrics: lines of metrics.jsonl.
        values: the final evaluation, and what calibrations came to.
        sentences: what the training came to, and warnings.
        examples: sequences as they are, masked and filled; empty where none may be shown.
    """
    lead, *warnings = sentences
    page = Page(f"Training: {model}", lead)
    page.warnings(warnings)
    command = score_command(model.partition(":")[0], values)
    page.head({**facts, **date(), "next": command})
    hidden = f"bits per {card.unit}, 15 % of them hidden"
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
        caption = "Sequences held out, as they are, with a part hidden, and as the model fills it."
        text = Markup('<p>{}</p><div class="coloured">{}</div>').format(caption, examples)
        page.section("Examples filled", text)
    return page


def description(sentences: Iterable[str]) -> str:
    """The description of a training in MLflow: its sentences, and where its page is."""
    return " ".join([*(f"{sentence}." for sentence in sentences), f"See {PAGE} among the artifacts."])


def date() -> dict[str, str]:
    """When the page was made, and by which version, for its head."""
    return {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, seqmlm {__version__}"}


def curves(metrics: Sequence[Mapping[str, Any]], metric: str, label: str, floor: str | None = None) -> Markup:
    """Training loss, and what is measured on data held out beside its floor, against steps.

    Of what was not measured there is no picture, and of nothing none at all.
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
    if floor is not None and len(evaluations) > 1:  # the last one of a pretraining is of more records
        last, evaluations = evaluations[-1], evaluations[:-1]
        at_end = "model, at the end: of more data"
        axes.plot(last["step"], last[metric], "D", color=MARK, markersize=5, label=at_end)
    steps, values = zip(*((line["step"], line[metric]) for line in evaluations), strict=True)
    axes.plot(steps, values, "o-", color=MARK, markersize=3, label="model")
    axes.legend(frameon=False)
