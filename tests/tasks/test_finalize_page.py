"""The page of a training: the last evaluation, which is of more records, is no point of the curve."""

from __future__ import annotations

from typing import Any

import pytest

from seqmlm.privacy import handling_sensitive_data
from seqmlm.training.page import curves, description, score_command

STEPS = [{"step": n, "train/loss": 5.0 - n / 10, "bits": 9.0 - n, "floor": 9.5} for n in range(4)]


@pytest.mark.parametrize(("floor", "ends"), [("floor", 1), (None, 0)])
def test_the_last_evaluation_of_a_pretraining_stands_apart(floor: str | None, ends: int) -> None:
    drawn = curves(STEPS, "bits", "bits per word", floor)
    assert drawn.count("final model, on more data") == ends
    assert drawn.count("unit frequencies") == ends
    assert ("loss, nats per masked token" in drawn) == bool(ends)


@pytest.mark.parametrize(
    "metrics", [[], [{"step": 1}], [{"step": 1, "bits": float("nan"), "train/loss": None}]]
)
def test_of_nothing_there_is_no_picture(metrics: list[dict[str, Any]]) -> None:
    assert curves(metrics, "bits", "bits per word", "floor") == ""


def test_what_was_not_measured_has_no_axes() -> None:
    losses = [{"step": n, "train/loss": 5.0 - n / 10} for n in range(4)]
    drawn = curves(losses, "valid/accuracy", "accuracy")
    assert "training<" in drawn
    assert "held out" not in drawn
    drawn = curves([{"step": 3, "valid/accuracy": 0.5}], "valid/accuracy", "accuracy")
    assert "held out<" in drawn
    assert "training<" not in drawn


def test_a_description_is_of_sentences() -> None:
    assert description(["one", "two"]) == "one. two. See training.html among the artifacts."


@pytest.mark.parametrize(
    ("rates", "asked"),
    [
        ([0.001], " --fpr 0.05"),
        ([0.2, 0.112], " --fpr 0.12"),
        ([1 / 6], " --fpr 0.17"),
        ([0.8], ""),
        ([], ""),
    ],
)
def test_the_next_command_has_a_rate_that_the_calibrations_support(rates: list[float], asked: str) -> None:
    values = {f"calibration/mode{n}_smallest_rate": rate for n, rate in enumerate(rates)}
    command = score_command("cohort", values)
    assert command == f"seqmlm score cohort NEW{asked} --report new.html"
    with handling_sensitive_data():
        assert score_command("cohort", values) == f"{command} --out new.jsonl"
    if asked:
        assert float(command.split("--fpr ")[1].split()[0]) >= min(rates)
