"""Figures that are not defined for the data: absent, with the reason, in every task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.evaluation.effects import METRICS, agreement
from seqmlm.evaluation.intervals import bounds_text
from seqmlm.tasks.measurements import agreement_table, fit_from, intervals, not_computed
from seqmlm.tasks.task import NOT_COMPUTED, drop_undefined, format_figure

NAMES = st.sampled_from(["auc", "low", "auroc_high", "model", "n"])
VALUES = st.one_of(st.integers(), st.none(), st.text(), st.just(math.nan), st.floats(allow_nan=False))
FIGURES = st.dictionaries(
    NAMES, st.recursive(VALUES, lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=6)
)


def paths(figures: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Every value by its path."""
    found: dict[str, Any] = {}
    for name, value in figures.items():
        own = paths(value, f"{above}{name}/") if isinstance(value, Mapping) else {f"{above}{name}": value}
        found |= own
    return found


@given(FIGURES)
def test_what_is_not_defined_is_absent_with_its_reason(figures: dict[str, Any]) -> None:
    whole = drop_undefined(figures)
    absent = whole.pop(NOT_COMPUTED, {})
    before, after = paths(figures), paths(whole)
    undefined = {name for name, one in before.items() if isinstance(one, float) and math.isnan(one)}
    assert set(absent) == undefined
    assert all(absent.values())
    assert after == {name: one for name, one in before.items() if name not in undefined}


@given(
    measured=st.lists(st.sampled_from([math.nan, 0.0, 1.0, 2.5]), min_size=1, max_size=30),
    predicted=st.lists(st.sampled_from([math.nan, 0.0, 1.0]), min_size=30, max_size=30),
)
def test_every_metric_is_a_number_or_has_a_reason(measured: list[float], predicted: list[float]) -> None:
    values, own = np.array(measured), np.array(predicted[: len(measured)])
    if np.isnan(values).all():
        return
    fit = values >= fit_from(values)
    found = agreement(values, {"model": own}, fit, list(range(len(values))), draws=3)
    figures, absent = intervals(found.metrics), not_computed(found.metrics, found.undefined)
    assert all(math.isfinite(one["value"]) for one in figures["model"].values())
    assert len(figures["model"]) + len(absent) == len(METRICS)
    assert all(absent.values())
    columns, rows = agreement_table(figures)
    assert all(len(row) == len(columns) for row in rows)
    assert "nan" not in str(rows)
    counted = values[np.isfinite(values) & np.isfinite(own)]
    if set(counted) == {0.0, 1.0} and len(np.unique(values[np.isfinite(values)])) == 2:
        assert {"auc", "mcc"} <= set(figures["model"]), "two classes are enough for these"


@pytest.mark.parametrize("low", [0.1, math.nan])
def test_bounds_that_are_not_defined_are_not_said(low: float) -> None:
    assert "nan" not in bounds_text(low, 0.5, ".2f")
    assert (bounds_text(low, 0.5, ".2f") == "") == math.isnan(low)
    assert format_figure(low) == ("-" if math.isnan(low) else "0.1")
