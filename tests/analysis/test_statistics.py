"""Intervals against SciPy, closed forms and simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mars.analysis import statistics as st


def binary(n: int, p: float, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random(n) < p).astype(float)


def test_mean_interval_agrees_with_scipy():
    values = np.random.default_rng(1).choice([0.0, 0.25, 0.5, 1.0], size=300)
    ours = st.Estimate(values.mean(), st.resample_mean(values, st.generator("a"), 20_000)).interval
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=2
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.004)


def test_spread_of_draws_is_the_closed_form():
    values = binary(400, 0.3)
    p = values.mean()
    draws = st.resample_mean(values, st.generator("b"), 20_000)
    assert draws.mean() == pytest.approx(p, abs=0.001)
    assert draws.std() == pytest.approx(np.sqrt(p * (1 - p) / 400), rel=0.03)


def test_ratio_interval_agrees_with_scipy():
    rng = np.random.default_rng(3)
    forwards = rng.integers(5, 30, 250).astype(float)
    tokens = np.ceil(forwards * rng.uniform(1, 2.5, 250))
    draws = st.resample_ratio(tokens, forwards, st.generator("c"), 10_000)
    theirs = stats.bootstrap(
        (tokens, forwards),
        lambda t, f, axis: t.sum(axis) / f.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=10_000,
        method="percentile",
        rng=4,
    ).confidence_interval
    interval = st.Estimate(tokens.sum() / forwards.sum(), draws).interval
    assert interval == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_macro_average_weights_sub_tasks_equally():
    values = np.array([1.0] * 30 + [0.0] * 10)
    tasks = np.array(["a"] * 30 + ["b"] * 10)
    assert st.mean(values, tasks, "equal") == 0.5
    assert st.mean(values, tasks, "size") == 0.75
    # resampled within sub-tasks: neither sub-task varies, so neither does the macro average
    assert set(st.resample_tasks(values, tasks, st.generator("d"))) == {0.5}
    # resampling over all documents would vary
    assert st.resample_mean(values, st.generator("d")).std() > 0.05


def test_macro_spread_is_the_closed_form():
    values = np.concatenate([binary(100, 0.5, 5), binary(25, 0.5, 6)])
    tasks = np.array(["a"] * 100 + ["b"] * 25)
    expected = np.sqrt(values[:100].var() / 100 + values[100:].var() / 25) / 2
    draws = st.resample_tasks(values, tasks, st.generator("e"), resamples=20_000)
    assert draws.std() == pytest.approx(expected, rel=0.03)


def test_intervals_cover_the_truth():
    rng = np.random.default_rng(7)
    covered = 0
    for trial in range(300):
        values = (rng.random(400) < 0.6).astype(float)
        draws = st.resample_mean(values, st.generator("coverage", trial))
        low, high = st.Estimate(values.mean(), draws).interval or (1, 0)
        covered += low <= 0.6 <= high
    assert 0.91 <= covered / 300 <= 0.985


def test_draws_depend_on_the_name_only():
    values = binary(50, 0.5)
    first = st.resample_mean(values, st.generator("x", 1))
    st.resample_mean(values, st.generator("x", 2))
    assert (first == st.resample_mean(values, st.generator("x", 1))).all()
    assert (first != st.resample_mean(values, st.generator("x", 2))).any()


def test_average_needs_every_part():
    part = st.Estimate(50.0, np.array([49.0, 51.0]), {0: 50.0})
    assert st.average([part, None]) is None
    assert st.average([]) is None
    both = st.average([part, st.Estimate(30.0, np.array([30.0, 30.0]), {0: 30.0})])
    assert both is not None
    assert both.value == 40.0
    assert list(both.draws) == [39.5, 40.5]
    without = st.average([part, st.Estimate(30.0)])
    assert without is not None
    assert without.interval is None


def test_seeds_spread_with_two_or_more():
    assert st.Estimate(1.0, per_seed={0: 1.0}).seed_sd is None
    assert st.Estimate(2.0, per_seed={0: 1.0, 1: 3.0}).seed_sd == pytest.approx(np.sqrt(2))
