"""Two fine-tunings compared by what they predicted of the same test data; other test data are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from seqmlm.evaluation.predictions import PRIMARY, measures
from seqmlm.finetuning.predictions import PREDICTIONS, Predictions, read_predictions, write_predictions
from seqmlm.tracking import Tracker
from seqmlm.workspace import Workspace

Run = Callable[..., Any]
N = 60
NAMES = {
    "class": ("no", "yes"),
    "tags": ("H", "E"),
    "multilabel": ("a", "b"),
    "value": ("x", "y"),
    "entities": ("B-A", "I-A", "O"),
}


def made(kind: str, seed: int, right: float) -> Predictions:
    """Truth that is the same for all seeds, and predictions of which about a share is right."""
    truth, rng = np.random.default_rng(0), np.random.default_rng(seed)
    names, own = NAMES[kind], rng.random(N) < right
    told: Any
    said: Any
    if kind in ("class", "tags"):
        told = truth.integers(0, 2, N)
        said = np.eye(2)[np.where(own, told, 1 - told)] * 0.8 + 0.1
    elif kind == "entities":
        told = [[names[k] for k in truth.choice([0, 2], 6)] for _ in range(N)]
        said = [one if good else ["O"] * 6 for one, good in zip(told, own, strict=True)]
    else:
        told = truth.integers(0, 2, (N, 2)) if kind == "multilabel" else truth.normal(size=(N, 2))
        said = np.where(own[:, None], told, 1 - told) * 0.75
    ids, groups = [f"r{n}" for n in range(N)], [f"g{n // 2}" for n in range(N)]
    return Predictions(kind, names, ids, groups, told, said)


def ended(name: str, predictions: Predictions | None) -> Path:
    """A run that ended with these predictions."""
    with Tracker(Workspace.locate()).start(name, experiment="e", params={}) as run:
        if predictions is not None:
            write_predictions(run.directory, predictions)
        folder: Path = run.directory
        return folder


@pytest.mark.parametrize("kind", NAMES)
def test_the_difference_is_that_of_the_measures(kind: str, tracked_workspace: Path, seqmlm: Run) -> None:
    both = [made(kind, seed, right) for seed, right in ((1, 0.9), (2, 0.5))]
    for name, one in zip(("good", "bad"), both, strict=True):
        again = read_predictions(ended(name, one))
        assert again[:4] == one[:4]
        for field in ("truth", "predicted"):
            np.testing.assert_array_equal(getattr(again, field), getattr(one, field))
    metric = PRIMARY[kind]
    good, bad = (
        measures(kind, one.truth, one.predicted, groups=one.groups, names=one.names)[metric].value
        for one in both
    )
    found = seqmlm("runs", "compare", "good", "bad", "--metric", metric, "--json")
    assert found.code == 0, found.err
    assert {"runs", "metric", "difference", "low", "high", "p_bootstrap", "p_randomization"} == {*found.json}
    assert found.json["difference"] == pytest.approx(good - bad)
    assert 0 < found.json["low"] < good - bad < found.json["high"]
    assert max(found.json["p_bootstrap"], found.json["p_randomization"]) < 0.02
    if kind != "class":
        return
    turned = seqmlm("runs", "compare", "bad", "good", "--metric", metric, "--json").json
    assert turned["difference"] == pytest.approx(bad - good)
    said = seqmlm("runs", "compare", "good", "bad", "--metric", metric).out
    assert said.startswith(f"{metric} of good minus bad: +{good - bad:.4f} (95 % +")


def other_ids(one: Predictions) -> Predictions:
    return one._replace(ids=[*one.ids[:-1], "new"])


def fewer(one: Predictions) -> Predictions:
    return Predictions(*one[:2], *(own[:-1] for own in one[2:]))


def other_truth(one: Predictions) -> Predictions:
    truth = [*one.truth[:-1], ["B-A", "I-A"] * 3] if one.kind == "entities" else 1 - one.truth
    return one._replace(truth=truth)


def other_names(one: Predictions) -> Predictions:
    return one._replace(names=tuple(f"{name}2" for name in one.names))


REFUSED = {
    other_ids: "tested on different records",
    fewer: "tested on different records (60 and 59 items)",
    other_truth: "true labels of the same records differ",
    other_names: "the other predicts different labels",
}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (kind, change)
        for kind in ("class", "value", "entities")
        for change in REFUSED
        if (kind, change) != ("entities", other_names)  # tags say themselves what they are
    ],
)
def test_other_test_data_are_refused(
    kind: str, change: Callable[[Predictions], Predictions], tracked_workspace: Path, seqmlm: Run
) -> None:
    one = made(kind, 1, 0.9)
    ended("a", one)
    ended("b", change(one))
    done = seqmlm("runs", "compare", "a", "b", "--metric", PRIMARY[kind])
    assert (done.code, done.out) == (2, "")
    assert REFUSED[change] in done.err
    assert "with the same labels and --test" in done.err


def test_an_id_that_differs_is_named_unless_the_data_are_sensitive(
    tracked_workspace: Path, seqmlm: Run
) -> None:
    one = made("class", 1, 0.9)
    ended("a", one)
    folder = ended("b", other_ids(one))
    compared = ("runs", "compare", "a", "b", "--metric", "accuracy")
    told = f"(60 and 60 items; the first ids that differ are {one.ids[-1]!r} and 'new')"
    assert told in seqmlm(*compared).err
    (folder / "predictions.parquet").chmod(0o600)
    assert "(60 and 60 items);" in seqmlm(*compared).err


def test_values_are_the_same_though_each_training_rounds_them(tracked_workspace: Path, seqmlm: Run) -> None:
    one = made("value", 1, 0.9)
    ended("a", one)
    ended("b", one._replace(truth=one.truth * (1 + 1e-7)))
    assert seqmlm("runs", "compare", "a", "b", "--metric", "rmse", "--json").json[
        "difference"
    ] == pytest.approx(0, abs=1e-6)


def test_what_has_no_predictions_cannot_be_compared(tracked_workspace: Path, seqmlm: Run) -> None:
    one = made("class", 1, 0.9)
    folder = ended("a", one)
    ended("b", one)
    ended("plain", None)
    ended("tags", made("tags", 1, 0.9))
    compare = ("runs", "compare", "a")
    seqmlm(*compare, "plain", "--metric", "accuracy").refused(4, "keeps no predictions")
    seqmlm(*compare, "tags", "--metric", "accuracy").refused(2, "one predicts class, the other tags")
    seqmlm(*compare, "b", "--metric", "f2").refused(2, "no measure 'f2'")
    seqmlm(*compare, "b", "plain", "--metric", "f1").refused(2, "of exactly two runs, not of 3")
    assert seqmlm(*compare, "b").code == 0  # settings and final metrics, as of all runs
    table = pq.read_table(folder / PREDICTIONS)
    pq.write_table(table.replace_schema_metadata(None), folder / PREDICTIONS)
    seqmlm(*compare, "b", "--metric", "accuracy").refused(4, "cannot be read")
    (folder / PREDICTIONS).write_bytes(b"PAR1")
    seqmlm(*compare, "b", "--metric", "accuracy").refused(4, "cannot be read")
