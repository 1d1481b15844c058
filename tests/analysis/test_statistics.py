"""Intervals and tests against SciPy, closed forms and simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mars.analysis import statistics as st

ONE = "one task"


def binary(n: int, p: float, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random(n) < p).astype(float)


def resampling(*tasks: tuple[str, int], name: str = "a", resamples: int = 20_000) -> st.Resampling:
    names = np.repeat([t for t, _ in tasks], [n for _, n in tasks])
    return st.Resampling(names, st.generator(name), resamples)


def test_mean_interval_agrees_with_scipy():
    values = np.random.default_rng(1).choice([0.0, 0.25, 0.5, 1.0], size=300)
    ours = st.Estimate(values.mean(), resampling((ONE, 300)).means(values)).interval
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=2
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.004)


def test_spread_of_draws_is_the_closed_form():
    values = binary(400, 0.3)
    p = values.mean()
    draws = resampling((ONE, 400), name="b").means(values)
    assert draws.mean() == pytest.approx(p, abs=0.001)
    assert draws.std() == pytest.approx(np.sqrt(p * (1 - p) / 400), rel=0.03)


def test_ratio_interval_agrees_with_scipy():
    rng = np.random.default_rng(3)
    forwards = rng.integers(5, 30, 250).astype(float)
    tokens = np.ceil(forwards * rng.uniform(1, 2.5, 250))
    theirs = stats.bootstrap(
        (tokens, forwards),
        lambda t, f, axis: t.sum(axis) / f.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=10_000,
        method="percentile",
        rng=4,
    ).confidence_interval
    draws = resampling((ONE, 250), name="c", resamples=10_000).ratios(tokens, forwards)
    interval = st.Estimate(tokens.sum() / forwards.sum(), draws).interval
    assert interval == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_macro_average_weights_sub_tasks_equally():
    values = np.array([1.0] * 30 + [0.0] * 10)
    tasks = np.array(["a"] * 30 + ["b"] * 10)
    assert st.mean(values, tasks, "equal") == 0.5
    assert st.mean(values, tasks, "size") == 0.75
    drawn = resampling(("a", 30), ("b", 10), resamples=100)
    # resampled within sub-tasks: neither sub-task varies, so neither does the macro average
    assert set(drawn.means(values)) == {0.5}
    assert set(drawn.means(values, "size")) == {0.75}
    # resampling over all documents would vary
    assert resampling((ONE, 40), resamples=100).means(values).std() > 0.05


@pytest.mark.parametrize("weighting", ["equal", "size"])
def test_macro_spread_is_the_closed_form(weighting):
    values = np.concatenate([binary(100, 0.5, 5), binary(25, 0.5, 6)])
    weights = (0.5, 0.5) if weighting == "equal" else (0.8, 0.2)
    expected = np.sqrt(
        weights[0] ** 2 * values[:100].var() / 100 + weights[1] ** 2 * values[100:].var() / 25
    )
    draws = resampling(("a", 100), ("b", 25), name="e").means(values, weighting)
    assert draws.std() == pytest.approx(expected, rel=0.03)


def test_differences_of_draws_are_paired_by_document():
    first = binary(300, 0.6, 1)
    second = np.where(binary(300, 0.1, 2) > 0, 1 - first, first)
    drawn = resampling((ONE, 300), name="p")
    paired = drawn.means(first) - drawn.means(second)
    assert paired.std() == pytest.approx((first - second).std() / np.sqrt(300), rel=0.03)
    assert set(drawn.means(first) - drawn.means(first)) == {0.0}


def test_an_interval_has_its_value_in_it():
    """Two benchmarks of 16 and 8 documents, all wrong; and replicates that are all above it."""
    drawn = [
        st.Estimate(0.0, st.unseen(np.zeros(st.RESAMPLES), n, st.generator(n))) for n in (16, 8)
    ]
    mean = st.average(drawn)
    assert mean is not None
    assert np.quantile(mean.draws, 0.025) >= 0
    assert mean.interval == (0.0, pytest.approx(np.quantile(mean.draws, 0.975)))
    above = st.Estimate(0.0, np.linspace(1.0, 2.0, 2000))
    assert above.interval == (0.0, pytest.approx(1.975))


def test_unseen_answers_give_extreme_scores_an_interval_like_agresti_and_coulls():
    """All 60 right: the lower bound is near the exact (Clopper-Pearson) one, the upper is 100."""
    drawn = resampling((ONE, 60)).means(np.full(60, 100.0))
    assert drawn.std() == 0
    interval = st.Estimate(100.0, st.unseen(drawn, 60, st.generator("u"))).interval
    assert interval is not None
    exact = 100 * stats.binomtest(60, 60).proportion_ci(method="exact").low
    assert interval[0] == pytest.approx(exact, abs=2)
    assert interval[1] == 100.0
    # in the middle, and with many documents, they change next to nothing
    values = 100 * binary(2000, 0.5)
    drawn = resampling((ONE, 2000), resamples=4000).means(values)
    widened = st.unseen(drawn, 2000, st.generator("u"))
    assert widened.std() == pytest.approx(drawn.std(), rel=0.02)


def test_models_that_agree_on_every_document_may_still_differ():
    scores = 100 * binary(70, 0.5)
    drawn = resampling((ONE, 70)).means(scores)
    first, second = (st.unseen(drawn, 70, st.generator(name)) for name in "ab")
    low, high = st.Estimate(0.0, first - second).interval or (0, 0)
    # the rule of three: no case among 70 says only that it is rarer than about 3 in 70
    assert low == pytest.approx(-100 * 3 / 70, abs=1.5)
    assert high == pytest.approx(100 * 3 / 70, abs=1.5)


def coverage(draw, truth: float, trials: int = 300) -> float:
    covered = 0
    for trial in range(trials):
        low, high = draw(trial).interval
        covered += low <= truth <= high
    return covered / trials


@pytest.mark.parametrize(("n", "p"), [(400, 0.6), (60, 0.5), (60, 0.95), (40, 0.03)])
def test_intervals_of_scores_cover_the_truth(n, p):
    rng = np.random.default_rng(7)
    drawn = resampling((ONE, n), resamples=1000)

    def one(trial: int) -> st.Estimate:
        values = 100 * (rng.random(n) < p)
        draws = st.unseen(drawn.means(values), n, st.generator("coverage", trial))
        return st.Estimate(values.mean(), draws)

    assert coverage(one, 100 * p) >= 0.915


@pytest.mark.parametrize(("n", "p"), [(16, 0.1), (60, 0.1), (100, 0.1), (60, 0.5)])
def test_intervals_of_the_mean_of_six_benchmarks_cover_the_truth(n, p):
    """What unseen answers move in one benchmark they must not move in six alike."""
    rng = np.random.default_rng(11)
    drawn = [resampling((ONE, n), name=f"mean {i}", resamples=1000) for i in range(6)]

    def one(trial: int) -> st.Estimate:
        made = []
        for i, each in enumerate(drawn):
            values = 100 * (rng.random(n) < p)
            draws = st.unseen(each.means(values), n, st.generator("mean", trial, i))
            made.append(st.Estimate(values.mean(), draws))
        mean = st.average(made)
        assert mean is not None
        return mean

    assert coverage(one, 100 * p, trials=200) >= 0.91


@pytest.mark.parametrize("changed", [0.02, 0.2])
def test_intervals_of_paired_differences_cover_the_truth(changed):
    """The second model loses 80 % of the answers that change: few documents, rare changes too."""
    rng = np.random.default_rng(8)
    n = 80
    drawn = resampling((ONE, n), resamples=1000)

    def one(trial: int) -> st.Estimate:
        fate = rng.random(n)
        first, second = np.full((2, n), 100.0) * (rng.random(n) < 0.5)
        first[fate < 0.8 * changed], second[fate < 0.8 * changed] = 100, 0
        lost = (fate >= 0.8 * changed) & (fate < changed)
        first[lost], second[lost] = 0, 100
        draws = [
            st.unseen(drawn.means(v), n, st.generator(trial, i))
            for i, v in enumerate((first, second))
        ]
        return st.Estimate((first - second).mean(), draws[0] - draws[1])

    assert coverage(one, 100 * 0.6 * changed) >= 0.93


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_over_seeds_cover_the_truth_of_another_training(seeds):
    """Seeds differ by 3 points, far more than documents do: documents alone would not cover."""
    rng = np.random.default_rng(9)
    n = 500
    drawn = resampling((ONE, n), resamples=1000)
    alone = []

    def one(trial: int) -> st.Estimate:
        truths = 0.6 + 0.03 * rng.standard_normal(seeds)
        values = np.stack([100 * (rng.random(n) < truth) for truth in truths])
        per_seed = {i: float(v.mean()) for i, v in enumerate(values)}
        alone.append(st.Estimate(values.mean(), drawn.means(values.mean(0))))
        return st.Estimate(values.mean(), alone[-1].draws, per_seed)

    assert 0.92 <= coverage(one, 60.0) <= 0.99
    assert coverage(lambda trial: alone[trial], 60.0) < 0.8


def test_seeds_alone_give_students_interval():
    per_seed = {0: 50.0, 1: 52.0, 2: 53.0}
    estimate = st.Estimate(155 / 3, np.full(2000, 155 / 3), per_seed)
    theirs = stats.t.interval(
        0.95, 2, loc=155 / 3, scale=np.std(list(per_seed.values()), ddof=1) / np.sqrt(3)
    )
    assert estimate.interval == pytest.approx(theirs, abs=0.05)


def test_draws_depend_on_the_name_only():
    values = binary(50, 0.5)
    first = resampling((ONE, 50), name="x").means(values)
    resampling((ONE, 50), name="y").means(values)
    assert (first == resampling((ONE, 50), name="x").means(values)).all()
    assert (first != resampling((ONE, 50), name="y").means(values)).any()


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


def test_sums_of_estimates_keep_the_seeds_that_all_have():
    first = st.Estimate(3.0, np.array([2.0, 4.0]), {0: 2.0, 1: 4.0})
    second = st.Estimate(1.0, np.array([1.0, 1.0]), {1: 1.0, 2: 1.0})
    made = st.combine([(2.0, first), (-1.0, second)])
    assert made is not None
    assert made.value == 5.0
    assert list(made.draws) == [3.0, 7.0]
    assert made.per_seed == {1: 7.0}
    assert st.combine([(1.0, first), (1.0, None)]) is None


def test_seeds_spread_with_two_or_more():
    assert st.Estimate(1.0, per_seed={0: 1.0}).seed_sd is None
    assert st.Estimate(2.0, per_seed={0: 1.0, 1: 3.0}).seed_sd == pytest.approx(np.sqrt(2))


def test_mcnemar_is_the_binomial_test_of_the_documents_that_changed():
    first = 100 * np.array([1.0] * 9 + [0.0] * 3 + [1.0] * 20)
    second = 100 * np.array([0.0] * 9 + [1.0] * 3 + [1.0] * 20)
    assert st.mcnemar(first, second) == pytest.approx(stats.binomtest(3, 12).pvalue)
    assert st.mcnemar(first, first) == 1.0


def test_p_of_an_estimate_agrees_with_its_interval():
    rng = np.random.default_rng(5)
    assert st.Estimate(1.0).p is None
    for shift in (0.0, 1.9, 2.1, 4.0):
        estimate = st.Estimate(shift, shift + rng.standard_normal(2000))
        low, high = estimate.interval or (0, 0)
        assert (estimate.p < 0.05) == (not low <= 0 <= high)
        assert estimate.p == pytest.approx(2 * stats.norm.sf(shift), abs=0.06)


def test_a_p_too_small_to_be_counted_is_that_of_the_fitted_tail():
    """Fewer than ten replicates beyond 0 say little, and Holm would hold none of many as known."""
    even = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)
    for z in (3.0, 5.0, 8.0):
        assert st.Estimate(z, z + even).p == pytest.approx(2 * stats.norm.sf(z), rel=0.05)
        assert st.Estimate(-z, even - z).p == pytest.approx(2 * stats.norm.sf(z), rel=0.05)
    assert st.holm([st.Estimate(5.0, 5 + even).p] * 70)[0] < 0.001
    assert st.Estimate(2.0, np.full(2000, 2.0)).p == pytest.approx(2 / 2001)  # nothing to fit


def test_a_p_of_several_seeds_has_students_tail():
    even = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)
    three = {0: 29.0, 1: 30.0, 2: 31.0}
    error = 1 / np.sqrt(3)
    alone = st.Estimate(30.0, np.full(2000, 30.0) + 1e-9 * even, three)
    assert alone.p == pytest.approx(2 * stats.t.sf(30 / error, 2), rel=0.01)
    # with documents: the tail of a normal plus a Student's t, here by drawing many
    seeds, draws = {0: 9.4, 1: 10.0, 2: 10.6}, 10 + 2 * even
    rng = np.random.default_rng(6)
    many = 10 + 2 * rng.standard_normal(10**6) + 0.6 / np.sqrt(3) * rng.standard_t(2, 10**6)
    both = st.Estimate(10.0, draws, seeds).p
    assert both == pytest.approx(2 * (many < 0).mean(), rel=0.1)
    assert st.Estimate(10.0, draws, dict.fromkeys(range(3), 10.0)).p == pytest.approx(
        2 * stats.norm.sf(5), rel=0.1
    )


def test_holm_is_the_step_down_rule_and_leaves_out_what_is_not_known():
    assert st.holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert st.holm([None]) == [None]
    assert st.holm([]) == []


def test_binary_scores_are_told_from_others():
    assert st.is_binary(np.array([0.0, 100.0]))
    assert not st.is_binary(np.array([0.0, 50.0]))
