"""Calibrations: valid on fresh normal rows whatever the statistics are like, monotone, exact on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from seqmlm.errors import DataError, StateError
from seqmlm.evaluation.conformal import Calibration, Choice, Fusion, teaching_part
from seqmlm.evaluation.ranks import LEAST_P, Ranks, Tail, length_edges

NAN = float("nan")


def rows(rng: np.random.Generator, count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Normal rows: statistics that depend on each other and on length, with ties, NaN and infinities."""
    lengths = rng.geometric(0.05, size=count)
    common = rng.normal(size=count) + np.log(lengths)
    heavy = np.exp(common + rng.normal(size=count))
    sometimes = np.where(rng.random(count) < 0.3, NAN, common + rng.exponential(size=count))
    unseen = np.where(rng.random(count) < 0.004, np.inf, 0.0)
    statistics = {"heavy": heavy, "sometimes": sometimes, "ties": np.round(common), "unseen": unseen}
    return statistics, lengths


def some(statistics: dict[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    return {name: statistics[name] for name in names}


@pytest.mark.parametrize(
    "names", [["heavy"], ["unseen"], ["heavy", "ties"], ["heavy", "sometimes", "ties", "unseen"]], ids=len
)
@pytest.mark.parametrize("fusion", ["fisher", "harmonic"])
def test_fresh_normals_are_super_uniform(
    names: list[str], fusion: Fusion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P(p <= alpha) <= alpha over draws of calibration and fresh rows together, to 4.5 standard errors.

    Without tails, which matter below 1 / (n + 1) alone, and would take nearly all of the time.
    """
    monkeypatch.setattr(Tail, "fit", lambda values: None)
    alphas = np.array([0.01, 0.02, 0.05, 0.1, 0.3, 0.5, 0.9])
    draws, fresh = 400, 50
    below = np.zeros((draws, len(alphas)))
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        statistics, lengths = rows(rng, 401)
        calibration = Calibration.fit(
            some(statistics, names), lengths, seed=seed, choice=Choice(fusion=fusion)
        )
        new, sizes = rows(rng, fresh)
        below[seed] = (calibration.judge(some(new, names), sizes).p_value[:, None] <= alphas).mean(axis=0)
    error = below.std(axis=0) / np.sqrt(draws)
    assert (below.mean(axis=0) <= alphas + 4.5 * error).all()
    if "heavy" in names:  # and not idle either: steps of 1 / (n + 1) are all that is lost
        steps = 1 / (200 if len(names) > 1 else 150)
        assert (below.mean(axis=0) >= alphas - steps - 4.5 * error).all()


@pytest.mark.parametrize("seed", range(4))
def test_the_rate_of_alarms_is_the_one_asked_for(seed: int) -> None:
    """Given one large calibration the rate itself varies (a beta law); the limits are exact binomial ones."""
    rng = np.random.default_rng(100 + seed)
    calibration = Calibration.fit(*rows(rng, 40_000), seed=seed)
    judged = calibration.judge(*rows(rng, 20_000))
    for alpha in (0.001, 0.01, 0.1):
        # The calibration's own alarms are binomial too: both together vary as 20,000 rows and once more.
        low, high = binom.ppf([1e-4, 1 - 1e-4], 10_000, alpha) / 10_000
        assert low <= (judged.p_value <= alpha).mean() <= high


@pytest.mark.parametrize("seed", range(3))
def test_rates_below_what_ranks_resolve_are_extrapolated(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = []
    for _ in range(40):
        calibration = Calibration.fit({"a": rng.exponential(size=400)}, np.full(400, 9), seed=0)
        judged = calibration.judge({"a": rng.exponential(size=100_000)}, np.full(100_000, 9))
        assert (judged.extrapolated == (judged.p_value < 1 / 401)).all()
        counts.append((judged.p_value <= 2e-4).mean())
    assert 0.5e-4 < np.mean(counts) < 4e-4  # a tail from 25 excesses, not a guarantee


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 60),
    statistics=st.integers(1, 3),
    seed=st.integers(0, 9),
    steps=st.lists(st.sampled_from([0.0, 0.5, 1.0, 5.0, float("inf")]), min_size=3, max_size=3),
)
def test_more_unusual_is_never_less_significant(
    count: int, statistics: int, seed: int, steps: list[float]
) -> None:
    rng = np.random.default_rng(seed)
    names = "abc"[:statistics]
    normal = {name: np.round(rng.normal(size=count), 1) for name in names}
    calibration = Calibration.fit(normal, rng.integers(1, 4, size=count), seed=seed)
    low = {name: np.round(rng.normal(size=50), 1) for name in names}
    high = {name: low[name] + step for name, step in zip(names, steps, strict=False)}
    sizes = rng.integers(0, 6, size=50)
    first, second = calibration.judge(low, sizes), calibration.judge(high, sizes)
    assert (second.p_value <= first.p_value).all()
    assert ((second.p_value >= LEAST_P) & (first.p_value <= 1)).all()


def test_p_values_are_ranks_within_the_length_bin() -> None:
    rng = np.random.default_rng(0)
    lengths = np.repeat([5, 50], 300)
    values = rng.normal(size=600) + lengths
    calibration = Calibration.fit({"a": values}, lengths, seed=0)
    new = np.array([4.0, 5.5, 50.5, 49.0])
    found = calibration.judge({"a": new}, np.array([5, 5, 50, 50])).p_value
    own = [values[:300], values[:300], values[301:], values[301:]]  # one row opened the second bin
    naive = [(1 + int((v >= x).sum())) / (len(v) + 1) for v, x in zip(own, new, strict=True)]
    assert found == pytest.approx(naive)
    assert calibration.smallest_rate == 1 / 300


def test_what_says_nothing_and_what_is_infinite() -> None:
    rng = np.random.default_rng(0)
    calibration = Calibration.fit({"a": rng.normal(size=1000), "flat": np.zeros(1000)}, np.ones(1000), seed=0)
    judged = calibration.judge(
        {"a": np.array([NAN, 0.0, 9.0, np.inf]), "flat": np.array([NAN, 0.0, 0.0, np.inf])}, np.ones(4)
    )
    assert judged.p_values["a"][0] == judged.p_values["flat"][0] == judged.p_value[0] == 1
    assert judged.p_values["flat"].tolist() == [1, 1, 1, pytest.approx(1 / 501)]
    assert judged.p_values["a"][3] == LEAST_P
    assert judged.p_value[3] < judged.p_value[2] < 1 / 501
    assert judged.extrapolated.tolist() == [False, False, True, True]
    # Infinite normals are as unusual as infinite others.
    both = Ranks.of(np.array([1.0, np.inf, NAN]))
    assert both.p_values(np.array([np.inf, 1.0, 5.0, NAN, -np.inf]))[0].tolist() == [0.5, 0.75, 0.5, 1, 1]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("names", ["a", "ab"])
def test_next_to_nothing_to_learn_from(count: int, names: str) -> None:
    calibration = Calibration.fit({n: np.arange(count) for n in names}, np.ones(count), seed=0)
    judged = calibration.judge({n: np.array([99.0, -1.0, NAN]) for n in names}, np.ones(3))
    assert 1 / (count + 1) <= judged.p_value[0] <= judged.p_value[1] == judged.p_value[2] == 1
    assert not calibration.has_tail


def test_of_few_rows_a_quarter_teaches() -> None:
    assert [int(teaching_part(n, 0).sum()) for n in (1, 2, 3, 25, 40, 132, 199, 200, 485)] == [
        0, 1, 1, 12, 12, 33, 50, 100, 242,
    ]  # fmt: skip
    assert 1 / (~teaching_part(132, 0)).sum() <= 1 / 99


def independent(rng: np.random.Generator, count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Like the statistics of a log session: most say nothing of most rows, none knows of another."""
    often = {f"often{i}": rng.normal(size=count) for i in range(3)}
    share = {
        f"seldom{i}": np.where(rng.random(count) < 0.1, rng.exponential(size=count), 0) for i in range(4)
    }
    return {**often, **share}, np.ones(count)


@pytest.mark.parametrize("count", [10, 60, 120])
@pytest.mark.parametrize("fusion", ["fisher", "harmonic"])
@pytest.mark.parametrize("drawn", [rows, independent])
def test_few_fresh_normals_are_super_uniform(
    count: int, fusion: Fusion, drawn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that take turns keep to alpha too, above all at the smallest rate; without tails, for time."""
    monkeypatch.setattr(Tail, "fit", lambda values: None)
    alphas = np.array([1 / (count + 1), 2 / (count + 1), 0.1, 0.3, 0.7])
    below = np.zeros((250, len(alphas)))
    for seed in range(len(below)):
        rng = np.random.default_rng(seed)
        calibration = Calibration.fit(*drawn(rng, count), seed=seed, choice=Choice(fusion=fusion))
        assert calibration.smallest_rate == 1 / (count + 1)
        new, sizes = drawn(rng, 60)
        p_values = calibration.judge(new, sizes).p_value
        below[seed] = (p_values[:, None] <= alphas + 1e-9).mean(axis=0)
    assert (below.mean(axis=0) <= alphas + 4.5 * below.std(axis=0) / np.sqrt(len(below))).all()


def test_few_rows_take_turns() -> None:
    """Against the definition: each row's fused statistic by statistics that it did not teach."""
    rng = np.random.default_rng(0)
    normal = {"a": rng.normal(size=23), "b": rng.normal(size=23)}
    calibration = Calibration.fit(normal, np.ones(23), seed=0)
    folds = np.random.default_rng(0).permutation(23) % 5

    def p_value(name: str, turn: int, values: np.ndarray) -> float:
        return float(Ranks.of(normal[name][folds != turn]).p_values(values)[0][0])

    naive = [
        -2 * sum(float(np.log(p_value(name, folds[row], normal[name][[row]]))) for name in normal)
        for row in range(23)
    ]
    assert calibration.fused is not None
    assert calibration.fused.values == pytest.approx(np.sort(naive))
    # A new row is ranked in every turn, and its largest p-values count.
    new = {"a": np.array([0.5]), "b": np.array([-0.5])}
    judged = calibration.judge(new, np.ones(1))
    largest = {name: max(p_value(name, turn, new[name]) for turn in range(5)) for name in normal}
    assert {name: float(p[0]) for name, p in judged.p_values.items()} == pytest.approx(largest)
    statistic = -2 * sum(float(np.log(p)) for p in largest.values())
    assert judged.p_value == pytest.approx([(1 + sum(value >= statistic for value in naive)) / 24])


def test_nothing_to_learn_from_is_an_error() -> None:
    with pytest.raises(DataError, match="nothing to calibrate with"):
        Calibration.fit({"a": np.zeros(0)}, np.zeros(0), seed=0)
    with pytest.raises(DataError, match="nothing to calibrate with"):
        Calibration.fit({}, np.zeros(3), seed=0)


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=300), st.integers(1, 40))
def test_every_length_bin_has_enough_rows(lengths: list[int], fewest: int) -> None:
    edges = length_edges(np.array(lengths), fewest)
    counts = np.bincount(np.searchsorted(edges, lengths, side="right"), minlength=len(edges) + 1)
    assert counts.min() >= min(fewest, len(lengths))
    assert len(counts) <= 10


@pytest.mark.parametrize("names", [["heavy"], ["heavy", "sometimes", "unseen"]], ids=len)
@pytest.mark.parametrize("fusion", ["fisher", "harmonic"])
@pytest.mark.parametrize("count", [40, 3000])
def test_to_disk_and_back_to_the_last_bit(names: list[str], fusion: Fusion, count: int) -> None:
    rng = np.random.default_rng(5)
    statistics, lengths = rows(rng, count)
    calibration = Calibration.fit(some(statistics, names), lengths, seed=2, choice=Choice(fusion=fusion))
    state, arrays = calibration.to_state()
    back = Calibration.from_state(json.loads(json.dumps(state)), arrays)
    new, sizes = rows(rng, 500)
    ours, theirs = (one.judge(some(new, names), sizes) for one in (calibration, back))
    assert (ours.p_value == theirs.p_value).all()
    assert (ours.extrapolated == theirs.extrapolated).all()
    assert (back.statistics, back.choice) == (tuple(names), Choice(fusion=fusion))
    assert (back.rows, back.smallest_rate) == (calibration.rows, calibration.smallest_rate)


def test_only_sorted_columns_are_held() -> None:
    statistics, lengths = rows(np.random.default_rng(5), 500)
    _, arrays = Calibration.fit(statistics, lengths, seed=2).to_state()
    assert all(one.ndim == 1 for one in arrays.values())
    assert all((one[1:] >= one[:-1]).all() for one in arrays.values())


def test_a_state_that_cannot_be_read_says_so() -> None:
    state, arrays = Calibration.fit({"a": np.arange(9)}, np.ones(9), seed=0).to_state()
    with pytest.raises(StateError, match="format 7"):
        Calibration.from_state({**state, "format": 7}, arrays)
    with pytest.raises(StateError, match="no fusion 'mean'"):
        Calibration.from_state({**state, "fusion": "mean"}, arrays)
    with pytest.raises(StateError, match="incomplete"):
        Calibration.from_state(state, {})
    with pytest.raises(StateError, match="calibrated for the statistics a, not b"):
        Calibration.from_state(state, arrays).judge({"b": np.zeros(1)}, np.ones(1))
