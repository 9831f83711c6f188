"""Cascades: the formula against a naive count, validity on fresh rows, to disk and back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from seqmlm.errors import UsageError
from seqmlm.evaluation.conformal import CascadeCalibration, Screening, fisher, teaching_part
from seqmlm.evaluation.ranks import Tail

Statistics = dict[str, np.ndarray]


def rows(rng: np.random.Generator, count: int) -> tuple[Statistics, Statistics, np.ndarray]:
    lengths = rng.integers(1, 200, size=count)
    truth = rng.normal(size=count) + lengths / 50
    exact = {"mean": truth, "max": truth + rng.exponential(size=count)}
    return {"mean": truth + rng.normal(size=count)}, exact, lengths


def fitted(rng: np.random.Generator, count: int, escalate: float = 0.1) -> CascadeCalibration:
    screen, exact, lengths = rows(rng, count)
    screening = Screening.fit(screen, lengths, escalate=escalate, seed=1)
    return CascadeCalibration.fit(screening, screen, exact, lengths, seed=1)


def judged(cascade: CascadeCalibration, screen: Statistics, exact: Statistics, lengths: np.ndarray) -> object:
    return cascade.judge(screen, lengths, cascade.near(screen, lengths), exact)


def test_the_formula() -> None:
    rng = np.random.default_rng(0)
    screen, exact, lengths = rows(rng, 800)
    screening = Screening.fit(screen, lengths, escalate=0.2, seed=1)
    cascade = CascadeCalibration.fit(screening, screen, exact, lengths, seed=1)
    ranked = ~teaching_part(800, 1)
    n = int(ranked.sum())
    cheap = fisher(screening.calibration.turns[0].p_values(screen, lengths)[0])[ranked]
    near = cascade.near(screen, lengths)[ranked]
    dear = fisher(cascade.exact.p_values(exact, lengths)[0])[ranked]
    assert near.mean() == pytest.approx(0.2, abs=0.01)

    new_screen, new_exact, sizes = rows(rng, 300)
    escalated = cascade.near(new_screen, sizes)
    found = cascade.judge(new_screen, sizes, escalated, new_exact)
    new_cheap = fisher(screening.calibration.turns[0].p_values(new_screen, sizes)[0])
    new_dear = fisher(cascade.exact.p_values(new_exact, sizes)[0])
    for p, beyond, up, low, high in zip(
        found.p_value, found.extrapolated, escalated, new_cheap, new_dear, strict=True
    ):
        if beyond:
            assert up
            assert p < 1 / (n + 1)
        elif up:
            assert p == pytest.approx((1 + (dear[near] >= high).sum()) / (n + 1))
        else:
            assert p == pytest.approx((1 + near.sum() + (cheap[~near] >= low).sum()) / (n + 1))
    assert found.p_value[escalated].max() < found.p_value[~escalated].min()


def test_fresh_normals_are_super_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tail, "fit", lambda values: None)  # matters below 1 / (n + 1) alone, and is slow
    alphas = np.array([0.01, 0.05, 0.1, 0.12, 0.3, 0.8])
    draws = 300
    below = np.zeros((draws, len(alphas)))
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        found = judged(fitted(rng, 300), *rows(rng, 50))
        below[seed] = (found.p_value[:, None] <= alphas).mean(axis=0)  # type: ignore[attr-defined]
    error = below.std(axis=0) / np.sqrt(draws)
    assert (below.mean(axis=0) <= alphas + 4.5 * error).all()
    assert (below.mean(axis=0) >= alphas - 1 / 150 - 4.5 * error).all()


def test_only_what_was_escalated_reads_exact_statistics() -> None:
    rng = np.random.default_rng(3)
    cascade = fitted(rng, 1000)
    screen, exact, lengths = rows(rng, 400)
    near = cascade.near(screen, lengths)
    blank = {name: np.where(near, values, np.nan) for name, values in exact.items()}
    first, second = (cascade.judge(screen, lengths, near, one) for one in (exact, blank))
    assert (first.p_value == second.p_value).all()
    assert set(first.p_values) == {"mean", "max"}
    assert (first.p_values["max"][~near] == 1).all()
    assert (first.p_values["mean"][~near] < 1).any()


@pytest.mark.parametrize("count", [1, 2, 15])
def test_next_to_nothing_to_learn_from(count: int) -> None:
    rng = np.random.default_rng(0)
    found = judged(fitted(rng, count), *rows(rng, 50))
    assert (found.p_value >= 1 / (count - count // 2 + 1)).all()  # type: ignore[attr-defined]


def test_to_disk_and_back_to_the_last_bit() -> None:
    rng = np.random.default_rng(5)
    cascade = fitted(rng, 2000)
    state, arrays = cascade.to_state()
    back = CascadeCalibration.from_state(json.loads(json.dumps(state)), arrays)
    new = rows(rng, 500)
    ours, theirs = judged(cascade, *new), judged(back, *new)
    assert (ours.p_value == theirs.p_value).all()  # type: ignore[attr-defined]
    assert (back.rows, back.smallest_rate, back.has_tail) == (2000, cascade.smallest_rate, True)


def test_a_share_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        Screening.fit({"a": np.ones(3)}, np.ones(3), escalate=1.0, seed=0)


@pytest.mark.parametrize("count", [12, 30])
def test_few_rows_that_escalate_nothing_leave_the_screening_to_decide_and_say_so(count: int) -> None:
    rng = np.random.default_rng(4)
    screen, exact, lengths = rows(rng, count)
    cascade = fitted(rng, count, escalate=0.05)
    if cascade.exact.rows:
        pytest.skip("some rows were escalated")
    odd = {name: values + 50 for name, values in screen.items()}
    found = judged(cascade, odd, {name: values + 50 for name, values in exact.items()}, lengths)
    assert (found.p_values["mean"] < 1).all()  # type: ignore[attr-defined]
