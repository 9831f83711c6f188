"""The learning rate: its shape, its bounds, and the decisions of a time limit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.engine.schedule import TimePlan, learning_rate_factor, warmup_steps

KINDS = st.sampled_from(["cosine", "linear", "wsd"])


@given(kind=KINDS, total=st.integers(1, 400), warmup=st.one_of(st.floats(0, 0.99), st.integers(1, 500)))
def test_rises_once_to_one_then_only_falls_and_ends_at_zero(kind: str, total: int, warmup: float) -> None:
    values = [learning_rate_factor(step, total, kind=kind, warmup=warmup) for step in range(total)]
    rising = warmup_steps(warmup, total)
    assert all(0 < value <= 1 for value in values)
    assert values[: rising + 1] == sorted(set(values[: rising + 1]))
    assert values[rising] == 1.0
    assert values[rising:] == sorted(values[rising:], reverse=True)
    assert learning_rate_factor(total, total, kind=kind, warmup=warmup) == 0.0


def test_cosine_by_its_formula() -> None:
    values = [learning_rate_factor(step, 10, kind="cosine", warmup=0.2) for step in range(10)]
    expected = [1 / 3, 2 / 3] + [0.5 * (1 + math.cos(math.pi * k / 8)) for k in range(8)]
    assert values == pytest.approx(expected, rel=1e-12)


def test_linear_by_its_formula() -> None:
    values = [learning_rate_factor(step, 5, kind="linear", warmup=1) for step in range(6)]
    assert values == pytest.approx([0.5, 1.0, 0.75, 0.5, 0.25, 0.0])


def test_wsd_is_flat_until_the_last_fifth() -> None:
    values = [learning_rate_factor(step, 20, kind="wsd", warmup=0) for step in range(20)]
    assert values[:17] == [1.0] * 17
    assert values[17:] == pytest.approx([1 - math.sqrt(k / 4) for k in (1, 2, 3)], rel=1e-12)


def test_warmup_in_steps_or_as_a_share() -> None:
    assert warmup_steps(30, 100) == 30
    assert warmup_steps(0.06, 100) == 6
    assert warmup_steps(500, 100) == 99


def run(plan: TimePlan, first: float, per_step: float, warmup: float = 0.1) -> tuple[list[float], float]:
    """Follow a plan with a clock that advances evenly; returns the factors of all steps and the time used."""
    elapsed, step, factors = 0.0, 0, []
    while not plan.is_over(step, elapsed):
        factors.append(plan.warmup_factor(step, warmup) * plan.decay_factor(step))
        step, elapsed = step + 1, elapsed + (first if step == 0 else per_step)
        plan.observe(step, elapsed)
    return factors, elapsed


@pytest.mark.parametrize("first", [1.0, 60.0])
def test_time_limit_decays_over_its_last_fifth(first: float) -> None:
    plan = TimePlan(seconds=1000, limit=1000)
    factors, elapsed = run(plan, first, 1.0)
    assert plan.decay_start is not None
    assert plan.end == len(factors)
    assert plan.decay_start + first - 1 == pytest.approx(800, abs=1)
    assert 998 <= elapsed <= 1000
    assert factors[plan.decay_start - 1] == 1.0
    assert 0 < factors[-1] < 0.01
    # a slow first step (compilation) does not lengthen the warm-up
    assert plan.expected is not None
    assert factors.index(1.0) == pytest.approx(0.1 * plan.expected, abs=1)
    assert plan.expected == pytest.approx(1000 - first, abs=2)


def test_a_step_longer_than_the_limit_still_ends() -> None:
    plan = TimePlan(seconds=10, limit=10)
    factors, _ = run(plan, 50.0, 50.0)
    assert len(factors) == 1
