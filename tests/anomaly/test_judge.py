"""Calibrations: valid on fresh normal rows whatever the statistics are like, monotone, exact on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import combine_pvalues, genpareto

from seqmlm.anomaly import judge, p_values
from seqmlm.anomaly.judge import (
    FUSIONS,
    Fusion,
    Normal,
    TwoPopulations,
    calibration_from_state,
    fisher,
    harmonic,
)
from seqmlm.anomaly.p_values import LEAST_P, NO_TAIL, fit_tail, survival_ratio
from seqmlm.anomaly.ranks import Ranks, length_edges
from seqmlm.errors import DataError, StateError

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
    monkeypatch.setattr(judge, "fit_tail", lambda values: NO_TAIL)
    alphas = np.array([0.01, 0.02, 0.05, 0.1, 0.3, 0.5, 0.9])
    draws, fresh = 250, 50
    below = np.zeros((draws, len(alphas)))
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        statistics, lengths = rows(rng, 401)
        calibration = Normal.fit(some(statistics, names), lengths, seed=seed, fusion=fusion)
        new, sizes = rows(rng, fresh)
        below[seed] = (calibration.judge(some(new, names), sizes).p_value[:, None] <= alphas).mean(axis=0)
    error = below.std(axis=0) / np.sqrt(draws)
    assert (below.mean(axis=0) <= alphas + 4.5 * error).all()
    if "heavy" in names:  # and not idle either: steps of 1 / (n + 1) are all that is lost
        steps = 1 / (200 if len(names) > 1 else 150)
        assert (below.mean(axis=0) >= alphas - steps - 4.5 * error).all()


@pytest.mark.parametrize("seed", range(3))
def test_rates_below_what_ranks_resolve_are_extrapolated(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = []
    for _ in range(40):
        calibration = Normal.fit({"a": rng.exponential(size=400)}, np.full(400, 9), seed=0)
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
    calibration = Normal.fit(normal, rng.integers(1, 4, size=count), seed=seed)
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
    calibration = Normal.fit({"a": values}, lengths, seed=0)
    new = np.array([4.0, 5.5, 50.5, 49.0])
    found = calibration.judge({"a": new}, np.array([5, 5, 50, 50])).p_value
    own = [values[:300], values[:300], values[301:], values[301:]]  # one row opened the second bin
    naive = [(1 + int((v >= x).sum())) / (len(v) + 1) for v, x in zip(own, new, strict=True)]
    assert found == pytest.approx(naive)
    assert calibration.smallest_rate == 1 / 300


def test_what_says_nothing_and_what_is_infinite() -> None:
    rng = np.random.default_rng(0)
    calibration = Normal.fit({"a": rng.normal(size=1000), "flat": np.zeros(1000)}, np.ones(1000), seed=0)
    judged = calibration.judge(
        {"a": np.array([NAN, 0.0, 9.0, np.inf]), "flat": np.array([NAN, 0.0, 0.0, np.inf])}, np.ones(4)
    )
    assert judged.p_values["a"][0] == judged.p_values["flat"][0] == judged.p_value[0] == 1
    assert judged.p_values["flat"].tolist() == [1, 1, 1, pytest.approx(1 / 801, rel=0.01)]
    assert judged.p_values["a"][3] == LEAST_P
    assert judged.p_value[3] < judged.p_value[2] < 1 / 1001
    assert judged.extrapolated.tolist() == [False, False, True, True]
    # Infinite normals are as unusual as infinite others.
    both = Ranks.of(np.array([1.0, np.inf, NAN]), np.ones(3), np.zeros(0))
    new = np.array([np.inf, 1.0, 5.0, NAN, -np.inf])
    assert both.p_values(new, np.ones(5))[0].tolist() == [0.5, 0.75, 0.5, 1, 1]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("names", ["a", "ab"])
def test_next_to_nothing_to_learn_from(count: int, names: str) -> None:
    calibration = Normal.fit({n: np.arange(count) for n in names}, np.ones(count), seed=0)
    judged = calibration.judge({n: np.array([99.0, -1.0, NAN]) for n in names}, np.ones(3))
    assert 1 / (count + 1) <= judged.p_value[0] <= judged.p_value[1] == judged.p_value[2] == 1
    assert not calibration.has_tail


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
    """Rows that take turns keep to alpha too, above all at the smallest rate; without tails, for time.

    Proven is no more than twice alpha; half of alpha was what the largest of a row's p-values gave.
    """
    monkeypatch.setattr(judge, "fit_tail", lambda values: NO_TAIL)
    alphas = np.array([1 / (count + 1), 2 / (count + 1), 0.1, 0.3, 0.7])
    below = np.zeros((250, len(alphas)))
    for seed in range(len(below)):
        rng = np.random.default_rng(seed)
        calibration = Normal.fit(*drawn(rng, count), seed=seed, fusion=fusion)
        assert calibration.smallest_rate == 1 / (count + 1)
        new, sizes = drawn(rng, 60)
        p_values = calibration.judge(new, sizes).p_value
        below[seed] = (p_values[:, None] <= alphas + 1e-9).mean(axis=0)
    error = 4.5 * below.std(axis=0) / np.sqrt(len(below))
    assert (below.mean(axis=0) <= alphas + error).all()
    if count > 10:  # a step of 1 / (n + 1) is nearly all that is lost
        assert (below.mean(axis=0)[2:] >= 0.94 * alphas[2:] - 1 / (count + 1) - error[2:]).all()


FEW = {name: np.random.default_rng(number).normal(size=23) for number, name in enumerate("ab")}
NEW = {"a": np.array([0.5, 1.5, -1.0, 9.0]), "b": np.array([-0.5, 1.0, NAN, 9.0])}


def own_p_value(name: str, taught: np.ndarray, value: float) -> float:
    """The p-value of one statistic among some of the few rows."""
    own = Ranks.of(FEW[name][taught], np.ones(int(taught.sum())), np.zeros(0))
    return float(own.p_values(np.array([value]), np.ones(1))[0][0])


def fused_by(taught: np.ndarray, values: dict[str, float]) -> float:
    """Fisher's statistic of one row by some of the few rows."""
    return -2 * sum(float(np.log(own_p_value(name, taught, values[name]))) for name in FEW)


def test_few_rows_are_compared_fold_by_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the definition (Vovk 2015): by what a fold did not teach, with the rows of that fold alone."""
    monkeypatch.setattr(judge, "fit_tail", lambda values: NO_TAIL)
    calibration = Normal.fit(FEW, np.ones(23), seed=0)
    folds = np.random.default_rng(0).permutation(23) % 5
    judged = calibration.judge(NEW, np.ones(4))
    for row in range(4):
        new = {name: float(NEW[name][row]) for name in NEW}
        naive = sum(
            fused_by(folds != folds[other], {name: FEW[name][other] for name in FEW})
            >= fused_by(folds != folds[other], new) - 1e-12
            for other in range(23)
        )
        assert judged.p_value[row] == pytest.approx((1 + naive) / 24)
        for name in FEW:
            mean = np.mean([own_p_value(name, folds != turn, new[name]) for turn in range(5)])
            assert judged.p_values[name][row] == pytest.approx(mean)


@pytest.mark.parametrize("records", [2, 4, 7, 60])
def test_rows_of_one_record_are_in_one_fold(records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record's rows, which are alike, must not say of each other that they are usual."""
    monkeypatch.setattr(judge, "fit_tail", lambda values: NO_TAIL)
    rng = np.random.default_rng(records)
    owner = rng.permutation(np.concatenate([np.arange(records), rng.integers(0, records, size=90)]))
    normal = {"a": rng.normal(size=len(owner)) + owner, "b": owner.astype(float)}
    calibration = Normal.fit(normal, np.ones(len(owner)), seed=3, records=owner * 1000)
    turns = [{value for own in fold.ranks["b"].bins for value in own} for fold in calibration.folds]
    assert len(turns) == min(5, records)
    left_out = [set(map(float, range(records))) - taught for taught in turns]
    assert sorted(value for own in left_out for value in own) == list(range(records))
    sizes = [len(fold.fused) for fold in calibration.folds]
    assert sizes == [sum(int((owner == one).sum()) for one in own) for own in left_out]
    if records == 60:  # folds of about as many rows
        assert max(sizes) - min(sizes) <= 5
    again = Normal.fit(normal, np.ones(len(owner)), seed=3, records=owner * 1000)
    assert json.dumps(again.to_state()[0]) == json.dumps(calibration.to_state()[0])


def test_the_rows_of_one_record_alone_are_divided() -> None:
    calibration = Normal.fit(FEW, np.ones(23), seed=0, records=np.full(23, 5))
    assert len(calibration.folds) == 5
    alone = Normal.fit(FEW, np.ones(23), seed=0)
    assert (calibration.judge(NEW, np.ones(4)).p_value == alone.judge(NEW, np.ones(4)).p_value).all()


@pytest.mark.parametrize("count", [60, 400])
@pytest.mark.parametrize("fusion", ["fisher", "harmonic"])
def test_p_values_do_not_depend_on_the_batch(count: int, fusion: Fusion) -> None:
    """Twelve statistics, with ties between new and normal rows: one row at a time, some, and all at once."""
    rng = np.random.default_rng(2)

    def drawn(number: int) -> dict[str, np.ndarray]:
        return {f"s{i}": rng.integers(0, 4, size=number).astype(float) for i in range(12)}

    normal = drawn(count)
    calibration = Normal.fit(normal, np.ones(count), seed=0, fusion=fusion)
    new = {name: np.concatenate([values, normal[name][:150]]) for name, values in drawn(150).items()}
    together = calibration.judge(new, np.ones(len(new["s0"])))
    for size in (1, 2, 7):
        parts = [
            calibration.judge({name: values[at : at + size] for name, values in new.items()}, ones)
            for at in range(0, len(new["s0"]), size)
            if len(ones := np.ones(len(new["s0"][at : at + size])))
        ]
        assert (np.concatenate([one.p_value for one in parts]) == together.p_value).all()
        assert (np.concatenate([one.extrapolated for one in parts]) == together.extrapolated).all()


def test_nothing_to_learn_from_is_an_error() -> None:
    with pytest.raises(DataError, match="nothing to calibrate with"):
        Normal.fit({"a": np.zeros(0)}, np.zeros(0), seed=0)
    with pytest.raises(DataError, match="nothing to calibrate with"):
        Normal.fit({}, np.zeros(3), seed=0)


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=300), st.integers(1, 40))
def test_every_length_bin_has_enough_rows(lengths: list[int], fewest: int) -> None:
    for most in (10, 40):
        edges = length_edges(np.array(lengths), fewest, most)
        counts = np.bincount(np.searchsorted(edges, lengths, side="right"), minlength=len(edges) + 1)
        assert counts.min() >= min(fewest, len(lengths))
        assert len(counts) <= most


def test_short_rows_are_compared_with_rows_of_their_length() -> None:
    lengths = np.repeat([1, 4, 5, 60, 64], [700, 60, 60, 600, 600])
    assert length_edges(lengths, 50).tolist() == [4, 64], "a tenth of the rows, or more"
    assert length_edges(lengths, 50, 40).tolist() == [4, 5, 60, 64]
    assert length_edges(lengths, 70, 40).tolist() == [4, 60, 64], "too few of each"


@pytest.mark.parametrize("names", [["heavy"], ["heavy", "sometimes", "unseen"]], ids=len)
@pytest.mark.parametrize("fusion", ["fisher", "harmonic"])
@pytest.mark.parametrize("count", [40, 3000])
def test_to_disk_and_back_to_the_last_bit(names: list[str], fusion: Fusion, count: int) -> None:
    rng = np.random.default_rng(5)
    statistics, lengths = rows(rng, count)
    calibration = Normal.fit(some(statistics, names), lengths, seed=2, fusion=fusion)
    state, arrays = calibration.to_state()
    back = Normal.from_state(json.loads(json.dumps(state)), arrays)
    new, sizes = rows(rng, 500)
    ours, theirs = (one.judge(some(new, names), sizes) for one in (calibration, back))
    assert (ours.p_value == theirs.p_value).all()
    assert (ours.extrapolated == theirs.extrapolated).all()
    assert (back.statistics, back.fusion) == (tuple(names), fusion)
    assert (back.rows, back.smallest_rate) == (calibration.rows, calibration.smallest_rate)


def test_only_sorted_columns_are_held() -> None:
    statistics, lengths = rows(np.random.default_rng(5), 500)
    _, arrays = Normal.fit(statistics, lengths, seed=2).to_state()
    kinds = {name.rpartition("/")[2] for name in arrays}
    assert kinds == {"edges", "values", "sizes", "tails", "fused", "tail"}
    assert (arrays["0/fused"] == np.sort(arrays["0/fused"])).all()
    for name, values in arrays.items():
        if name.endswith("/values"):
            sizes = arrays[name.replace("values", "sizes")]
            assert all((np.sort(one) == one).all() for one in np.split(values, np.cumsum(sizes)))


def test_a_state_that_cannot_be_read_says_so() -> None:
    state, arrays = Normal.fit({"a": np.arange(9)}, np.ones(9), seed=0).to_state()
    with pytest.raises(StateError, match="unknown fusion 'mean'"):
        Normal.from_state({**state, "fusion": "mean"}, arrays)
    with pytest.raises(StateError, match="incomplete"):
        Normal.from_state(state, {})
    with pytest.raises(StateError, match="the calibration is for the statistics a, not b"):
        Normal.from_state(state, arrays).judge({"b": np.zeros(1)}, np.ones(1))


def test_what_normal_rows_never_have_is_beyond_all_of_them_however_many_statistics_there_are() -> None:
    random = np.random.default_rng(3)
    names = [f"s{n}" for n in range(14)]
    normal = {name: random.normal(size=120) for name in names} | {"unseen": np.zeros(120)}
    lengths = random.integers(1, 65, 120)
    calibration = Normal.fit(normal, lengths, seed=0, fusion="harmonic")
    asked = {name: np.zeros(3) for name in names} | {"unseen": np.array([np.inf, 0.0, 3.0])}
    judged = calibration.judge(asked, np.array([2, 2, 2]))
    assert judged.p_value[0] <= calibration.smallest_rate
    assert judged.p_value[1] > 0.2
    assert judged.p_values["unseen"][0] == judged.p_values["unseen"][2], "what is told is its rank"
    assert judged.p_value[0] < judged.p_value[2]
    known = normal | {"unseen": np.where(np.arange(120) < 30, np.inf, 0.0)}
    calibration = Normal.fit(known, lengths, seed=0, fusion="harmonic")
    assert calibration.judge(asked, np.array([2, 2, 2])).p_value[0] > 0.05, "normal rows have it too"


def _of_two_lengths(random: np.random.Generator, rows: int) -> tuple[dict[str, Any], Any]:
    """Short rows whose statistics are mostly equal, and long ones whose statistics never are."""
    long = random.random(rows) < 0.3
    statistics = {
        f"s{n}": np.where(long, random.normal(size=rows), random.random(rows) < 0.1) for n in range(6)
    }
    return statistics, np.where(long, 64, 2)


@pytest.mark.parametrize("fusion", ["fisher", "harmonic"])
def test_p_values_hold_for_rows_of_each_length(fusion: Fusion) -> None:
    random = np.random.default_rng(5)
    normal, lengths = _of_two_lengths(random, 8000)
    calibration = Normal.fit(normal, lengths, seed=0, fusion=fusion)
    asked, sizes = _of_two_lengths(random, 20_000)
    p_value = calibration.judge(asked, sizes).p_value
    for size in (2, 64):
        for rate in (0.05, 0.1):
            assert 0.7 * rate < (p_value[sizes == size] <= rate).mean() < 1.3 * rate
    assert 0.4 < (p_value[sizes == 64] <= 0.5).mean() < 0.6, "it was .77 and .98 without levels"
    state, arrays = calibration.to_state()
    again = Normal.from_state(json.loads(json.dumps(state)), arrays)
    assert (again.judge(asked, sizes).p_value == p_value).all()


# Fusions: against the formulas in plain numbers, to the edge of floating point


def test_the_formulas() -> None:
    rng = np.random.default_rng(0)
    p_values = {name: rng.uniform(1e-6, 1, size=50) for name in "abc"}
    rows = list(zip(*p_values.values(), strict=True))
    assert fisher(p_values) == pytest.approx([combine_pvalues(row, "fisher").statistic for row in rows])
    means = [len(row) / sum(1 / p for p in row) for row in rows]
    assert harmonic(p_values) == pytest.approx([-math.log(mean) for mean in means])


def test_what_says_nothing_dilutes_a_sum_and_hardly_a_mean_led_by_the_smallest() -> None:
    few = {name: np.array([0.5, 0.001]) for name in "ab"}
    faulty = {"a": np.array([0.15, 0.001]), **{name: np.array([0.15, 1.0]) for name in "bcdefghij"}}
    assert fisher(faulty)[0] > fisher(faulty)[1]
    assert harmonic(faulty)[1] > harmonic(faulty)[0]
    for fused in FUSIONS.values():
        assert fused(few)[1] > fused(few)[0]


@pytest.mark.parametrize("name", FUSIONS)
def test_the_least_p_values_are_finite_and_above_all_others(name: str) -> None:
    fused = FUSIONS[name]  # type: ignore[index]
    found = fused({"a": np.array([1.0, 1e-9, LEAST_P]), "b": np.ones(3)})
    assert np.isfinite(found).all()
    assert found[0] == pytest.approx(0)
    assert (np.diff(found) > 0).all()


# Tails: known laws, few values, degenerate ones


class Tail(NamedTuple):
    threshold: float
    scale: float
    shape: float
    largest: float


def fitted(values: np.ndarray) -> Tail:
    return Tail(*fit_tail(np.sort(values)).tolist())


@pytest.mark.parametrize("shape", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("scale", [1e-6, 3.0])
def test_many_excesses_give_the_law_back(shape: float, scale: float) -> None:
    rng = np.random.default_rng(1)
    tail = fitted(genpareto.rvs(shape, scale=scale, size=200_000, random_state=rng))
    assert tail.shape == pytest.approx(shape, abs=0.06)
    # Above its threshold, a generalized Pareto law has the scale `scale + shape * threshold`.
    assert tail.scale == pytest.approx(scale + shape * tail.threshold, rel=0.08)
    assert tail.scale / scale > 0.9


@pytest.mark.parametrize("shape", [0.0, 0.2, 0.7])
@pytest.mark.parametrize("count", [25, 200])
def test_no_other_tail_is_more_likely(shape: float, count: int) -> None:
    """The maximum of likelihood times prior, found without a gradient."""
    values = np.sort(genpareto.rvs(shape, size=4 * count, random_state=np.random.default_rng(count)))
    threshold = values[-count - 1]
    tail = Tail(threshold, *p_values._penalised_likelihood(values[-count:] - threshold), 0.0)

    def cost(asked: np.ndarray) -> float:
        likelihood = genpareto.logpdf(values[-count:], asked[1], loc=tail.threshold, scale=asked[0]).sum()
        return float(((asked[1] - 0.1) / 0.25) ** 2 / 2 - likelihood)

    bounds, exact = [(1e-3, 50.0), (0.0, 1.0)], {"xatol": 1e-7, "fatol": 1e-9}
    best = minimize(cost, [1.0, 0.2], bounds=bounds, method="Nelder-Mead", options=exact)
    assert (tail.scale, tail.shape) == pytest.approx(tuple(best.x), abs=2e-4)


def test_it_is_scipys_fit_where_the_prior_has_nothing_to_say() -> None:
    rng = np.random.default_rng(2)
    values = np.sort(genpareto.rvs(0.3, size=500_000, random_state=rng))
    tail = fitted(values)
    excesses = values[values > tail.threshold] - tail.threshold
    shape, _, scale = genpareto.fit(excesses, floc=0)
    assert tail.shape == pytest.approx(shape, abs=0.01)
    assert tail.scale == pytest.approx(scale, rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_few_excesses_stay_sober(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tail = fitted(rng.exponential(size=100))
    assert 0 <= tail.shape < 0.45
    assert 0.3 < tail.scale < 2.5


def test_a_tail_with_an_end_is_given_none() -> None:
    tail = fitted(np.random.default_rng(3).uniform(size=10_000))
    assert tail.shape == 0.0
    assert 0 < genpareto.sf(1.5, tail.shape, loc=tail.threshold, scale=tail.scale) < 1e-3


def test_rarer_and_rarer_beyond_the_largest() -> None:
    tail = fitted(np.random.default_rng(4).normal(size=5_000))
    far = survival_ratio(np.array(tail), tail.largest + np.array([0.0, 1e-9, 0.5, 3.0, 1e6, np.inf]))
    assert far[0] == 1.0
    assert far[1] == pytest.approx(1.0, abs=1e-6)
    assert (np.diff(far) <= 0).all()
    assert far[2] < 1
    assert far[-1] == 0


@pytest.mark.parametrize(
    "values",
    [[], [1.0], [1.0, 2.0, 3.0], [7.0] * 1000, [0.0] * 999 + [1.0], [0.0] * 500 + [np.inf], [-np.inf] * 500],
)
def test_no_tail_where_there_is_none(values: list[float]) -> None:
    assert np.isnan(fit_tail(np.array(values))).all()


@pytest.mark.parametrize("shape", [0.0, 1e-13, 1e-6, 0.1, 0.5, 1.0])
def test_survival_beyond_the_largest_is_that_of_scipy(shape: float) -> None:
    values = np.array([5.0, 5.1, 7.0, 1e3, 1e9, np.inf])
    log = genpareto.logsf(values, shape, loc=2.0, scale=1.5)
    found = survival_ratio(np.array([2.0, 1.5, shape, 5.0]), values)
    assert found == pytest.approx(np.exp(log - log[0]), rel=1e-9)


def test_statistics_that_are_counted_are_judged_by_rows_of_their_own() -> None:
    """Twice the smaller p-value; of fewer rows nothing is extrapolated; the same after it was stored."""
    rng = np.random.default_rng(0)
    statistics, lengths = rows(rng, 300)
    further, sizes = rows(rng, 4000)
    model = Normal.fit(some(statistics, ["heavy", "sometimes"]), lengths, seed=0, fusion="harmonic")
    counts = Normal.fit(some(further, ["ties", "unseen"]), sizes, seed=0, fusion="harmonic")
    both = TwoPopulations(model, counts)
    new, of = rows(rng, 2000)
    new["heavy"][:3] = 1e9
    one, other = (
        model.judge(some(new, ["heavy", "sometimes"]), of),
        counts.judge(some(new, ["ties", "unseen"]), of),
    )
    found = both.judge(new, of)
    bounded = np.maximum(one.p_value, 1 / 301)
    assert found.p_value.tolist() == np.minimum(1, 2 * np.minimum(bounded, other.p_value)).tolist()
    assert found.p_values.keys() == {"heavy", "sometimes", "ties", "unseen"}
    assert found.extrapolated.tolist() == (other.extrapolated & (other.p_value < bounded)).tolist()
    assert (found.p_value[:3] >= 2 / 301).any()
    assert (both.smallest_rate, both.silent_below) == (2 / 4001, 2 / 301)
    for rate in (0.01, 0.003):
        few, sizes_of = rows(rng, both.rows_for(rate))
        fitted = [
            Normal.fit(some(few, names), sizes_of, seed=0, fusion="harmonic")
            for names in (["heavy", "sometimes"], ["ties", "unseen"])
        ]
        again = TwoPopulations(*fitted)
        assert again.smallest_rate <= rate < 1.1 * again.smallest_rate + 1 / len(sizes_of)
    assert (model.silent_below, both.has_tail) == (0.0, counts.has_tail)
    assert both.statistics == both.applying == ("heavy", "sometimes", "ties", "unseen")

    usual = np.array([both.usual("ties", int(size)) for size in sizes])
    assert (further["ties"] > usual).mean() < 0.03, "one in a hundred normal rows exceeds it"
    assert (further["ties"] >= usual).mean() > 0.005
    assert 0 < both.usual("heavy", 1) == model.usual("heavy", 1) < model.usual("heavy", 99)
    state, arrays = both.to_state()
    back = calibration_from_state(json.loads(json.dumps(state)), arrays)
    assert back.judge(new, of).p_value.tolist() == found.p_value.tolist()
    with pytest.raises(StateError, match="incomplete"):
        calibration_from_state(
            state, {name: array for name, array in arrays.items() if "counted" not in name}
        )


def test_twice_the_smaller_p_value_keeps_to_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "fit_tail", lambda values: NO_TAIL)
    alphas, below = np.array([0.01, 0.05, 0.1, 0.3]), np.zeros((130, 4))
    for seed in range(130):
        rng = np.random.default_rng(seed)
        statistics, lengths = rows(rng, 401)
        further, sizes = rows(rng, 800)
        counts = Normal.fit(some(further, ["ties", "unseen"]), sizes, seed=seed, fusion="harmonic")
        model = Normal.fit(some(statistics, ["heavy", "sometimes"]), lengths, seed=seed, fusion="harmonic")
        new, of = rows(rng, 50)
        below[seed] = (TwoPopulations(model, counts).judge(new, of).p_value[:, None] <= alphas).mean(axis=0)
    error = below.std(axis=0) / np.sqrt(len(below))
    assert (below.mean(axis=0) <= alphas + 4.5 * error).all()
    assert (below.mean(axis=0) >= alphas / 3).all(), "it is not idle"


def test_a_row_is_beyond_those_of_its_length_and_as_many_more_are_asked_for() -> None:
    rng = np.random.default_rng(5)
    lengths = np.repeat([1, 50], [300, 900])
    values = np.where(lengths == 1, 10.0, 0.0) + rng.exponential(size=1200)
    normal = Normal.fit({"one": values}, lengths, seed=0, fusion="harmonic")
    # One row of 50 set the edge of its bin and is not in it.
    assert (normal.compared(1), normal.compared(50), normal.rows) == (300, 899, 1200)
    found = normal.judge({"one": np.array([9.0])}, np.array([50]))
    assert found.extrapolated[0], "beyond all of its length, but not beyond all"
    assert normal.rows_for(0.001) == 999 * 4, "so many that the fewest of a length are enough"
