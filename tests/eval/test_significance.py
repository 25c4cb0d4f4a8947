"""Intervals and p-values against scipy's, loops over resamples, closed forms, and how often they hold."""

import itertools
import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pbr_jax.eval.metrics import plain_mean, text_metric
from pbr_jax.eval.significance import Column, estimates, holm, mcnemar, paired_difference, resampled_means
from pbr_jax.options import Eval

COVERAGE = Path(__file__).parents[2] / "benchmarks" / "coverage.py"


def column(values) -> np.ndarray:
    return np.asarray(values, float).reshape(-1, 1)


def equal_users(users: int, each: int) -> list[str]:
    return [f"u{i:03d}" for i in range(users) for _ in range(each)]


def interval(statistics, users, finish, **how) -> tuple[float, float]:
    (one,) = estimates([Column(finish, [statistics])], users, **how)
    return one.low, one.high


@pytest.mark.parametrize("name", ["accuracy", "f1_macro"])
def test_resampled_means_equal_a_loop_that_copies_drawn_users(name):
    """The same draws of users, but examples repeated one by one, and the metric of what results."""
    key = np.random.default_rng(3)
    users = key.choice(["u1", "u2", "u3", "u4"], 30).tolist()
    targets, predictions = (key.choice(["a", "b", "c"], 30).tolist() for _ in range(2))
    metric = text_metric(name, ("a", "b", "c"))
    rows = metric.statistics(predictions, targets)
    names = sorted(set(users))
    counts = [users.count(name) for name in names]
    assert len(set(counts)) > 1  # users of different weight
    sums = np.stack([rows[[user == name for user in users]].sum(0) for name in names])
    found = metric.finish(resampled_means(sums, np.array(counts, float), resamples=20, seed=5))
    draws = np.random.default_rng(5).integers(len(names), size=(20, len(names)))
    for value, drawn in zip(found, draws, strict=True):
        chosen = [i for one in drawn for i in range(30) if users[i] == names[one]]
        statistics = metric.statistics([predictions[i] for i in chosen], [targets[i] for i in chosen])
        assert value == pytest.approx(float(metric.finish(statistics.mean(0))))


def test_the_usual_number_of_draws_has_the_bootstraps_standard_deviation():
    """That of a mean of equal users has a closed form. 2,000 draws are off by up to 4 %."""
    values = np.random.default_rng(7).normal(size=25)
    exact = values.std() / 25**0.5
    sums, counts = column(values), np.ones(25)
    draws = [resampled_means(sums, counts, resamples=Eval().resamples, seed=seed) for seed in range(20)]
    errors = [float(one.std()) / exact - 1 for one in draws]
    assert np.abs(errors).max() < 0.02
    assert abs(np.mean(errors)) < 0.005


def test_chunks_change_nothing(monkeypatch):
    sums, counts = column(np.arange(12.0)), np.ones(12)
    whole = resampled_means(sums, counts, resamples=50, seed=0)
    monkeypatch.setattr("pbr_jax.eval.significance._CELLS", 100)
    np.testing.assert_array_equal(resampled_means(sums, counts, resamples=50, seed=0), whole)


@pytest.mark.parametrize("users", [2, 3, 6, 10, 19])
def test_few_users_of_equal_size_have_the_t_interval_over_their_means(users):
    key = np.random.default_rng(users)
    first, second = key.normal(size=(2, users * 4))
    names = equal_users(users, 4)
    means = first.reshape(users, 4).mean(1)
    expected = stats.t.interval(0.9, users - 1, means.mean(), stats.sem(means))
    assert interval(column(first), names, plain_mean, confidence=0.9) == pytest.approx(expected)
    gaps = (first - second).reshape(users, 4).mean(1)
    found = paired_difference(column(first), column(second), names, plain_mean, confidence=0.9)
    expected = stats.t.interval(0.9, users - 1, gaps.mean(), stats.sem(gaps))
    assert (found.low, found.high) == pytest.approx(expected)
    _, p = stats.ttest_1samp(gaps, 0)
    assert found.p_value == (None if users < 10 else pytest.approx(p))


def test_unequal_users_have_the_jackknife_and_kishs_degrees_of_freedom():
    """A ratio that is no mean of examples, each user left out by a loop over the examples."""
    key = np.random.default_rng(8)
    users = np.repeat(["a", "b", "c", "d"], [3, 9, 14, 6])
    targets, predictions = (key.choice(["x", "y"], 32).tolist() for _ in range(2))
    metric = text_metric("f1_macro", ("x", "y"))

    def value(rows) -> float:
        found = metric.statistics([predictions[i] for i in rows], [targets[i] for i in rows])
        return float(metric.finish(found.mean(0)))

    whole = value(range(32))
    without = [value(np.flatnonzero(users != user)) for user in "abcd"]
    error = np.sqrt(3 / 4 * sum((one - whole) ** 2 for one in without))
    freedom = 32**2 / (9 + 81 + 196 + 36) - 1
    found = interval(metric.statistics(predictions, targets), users.tolist(), metric.finish)
    assert found == pytest.approx(stats.t.interval(0.95, freedom, whole, error))


def test_interval_of_many_independent_users_is_the_normal_one():
    values = np.random.default_rng(0).gamma(2.0, size=2000)
    low, high = interval(column(values), [str(i) for i in range(2000)], plain_mean, resamples=4000)
    error = values.std() / np.sqrt(2000)
    expected = stats.norm.interval(0.95, values.mean(), error)
    # 4,000 resamples place the ends within about 0.05 standard errors.
    np.testing.assert_allclose([low, high], expected, atol=0.15 * error)


def test_the_bootstrap_of_twenty_users_is_as_wide_as_t():
    values = np.random.default_rng(11).normal(size=20)
    low, high = interval(column(values), equal_users(20, 1), plain_mean, resamples=20_000)
    expected = stats.t.interval(0.95, 19, values.mean(), stats.sem(values))
    assert high - low == pytest.approx(expected[1] - expected[0], rel=0.05)
    assert high - low > 1.05 * 2 * 1.96 * values.std() / 20**0.5  # what plain percentiles would give


@pytest.mark.parametrize("users", [6, 100])
def test_users_that_answer_alike_widen_the_interval(users):
    """20 copies of each example carry no information: the width stays that of as many users."""
    values = np.random.default_rng(1).normal(size=users)
    alone = interval(column(values), equal_users(users, 1), plain_mean)
    copied = interval(column(np.repeat(values, 20)), equal_users(users, 20), plain_mean)
    np.testing.assert_allclose(copied, alone, rtol=1e-9)


def test_same_seed_same_interval_whatever_the_order_of_examples():
    key = np.random.default_rng(2)
    values, users = key.normal(size=150), key.choice([f"u{i}" for i in range(25)], 150)
    order = key.permutation(150)
    first = interval(column(values), users.tolist(), plain_mean, seed=4)
    assert interval(column(values[order]), users[order].tolist(), plain_mean, seed=4) == pytest.approx(first)
    assert interval(column(values), users.tolist(), plain_mean, seed=5) != first


@pytest.mark.parametrize(("values", "users"), [([0.25], ["u"]), ([0.0, 0.5], ["u", "u"])])
def test_one_user_gives_no_width(values, users):
    assert interval(column(values), users, plain_mean) == (0.25, 0.25)
    found = paired_difference(column(values), column(np.zeros(len(values))), users, plain_mean)
    assert found == (0.25, 0.25, 0.25, None, None)


@pytest.mark.parametrize("users", [12, 40])
def test_users_that_differ_alike_say_nothing_of_chance(users):
    """Without a guard rounding errors alone would be a tiny variance, and p as small as you like."""
    first = column(np.random.default_rng(0).normal(size=users))
    found = paired_difference(first + 0.1, first, equal_users(users, 1), plain_mean)
    assert found.low == found.high == pytest.approx(0.1)
    assert (found.p_value, found.detectable) == (None, None)


def test_paired_difference_of_correlated_runs_is_narrower_than_the_two_intervals():
    key = np.random.default_rng(6)
    base = key.normal(size=400)
    first, second = base + 0.3 + 0.1 * key.normal(size=400), base
    users = [str(i) for i in range(400)]
    found = paired_difference(column(first), column(second), users, plain_mean)
    gaps = first - second
    assert found.value == pytest.approx(gaps.mean())
    expected = stats.norm.interval(0.95, gaps.mean(), gaps.std() / 20)
    np.testing.assert_allclose([found.low, found.high], expected, atol=0.2 * gaps.std() / 20)
    assert found.p_value is not None
    assert found.p_value < 1e-20  # the share of 2,000 draws beyond zero could not say so
    swapped = paired_difference(column(second), column(first), users, plain_mean)
    assert swapped.value == -found.value
    np.testing.assert_allclose([swapped.low, swapped.high], [-found.high, -found.low])


@pytest.mark.parametrize(("users", "near"), [(15, 1e-9), (30, 0.03)])
def test_p_is_the_level_at_which_the_interval_ends_at_zero(users, near):
    """Exactly where the interval is t's, nearly where it is the draws'."""
    gaps = column(np.random.default_rng(4).normal(0.4, 1.0, size=users))
    names, zeros = equal_users(users, 1), np.zeros((users, 1))
    p = paired_difference(gaps, zeros, names, plain_mean).p_value
    assert p is not None
    found = paired_difference(gaps, zeros, names, plain_mean, resamples=20_000, confidence=1 - p)
    assert found.low == pytest.approx(0, abs=near)


def test_the_detectable_difference_is_found_in_eight_of_ten_samples():
    key = np.random.default_rng(12)
    users, zeros = equal_users(12, 1), np.zeros((12, 1))
    truth = (stats.t.ppf(0.975, 11) + stats.t.ppf(0.8, 11)) / 12**0.5  # of gaps with deviation 1
    found = [
        paired_difference(column(key.normal(truth, 1, size=12)), zeros, users, plain_mean) for _ in range(200)
    ]
    assert np.mean([one.low > 0 for one in found]) == pytest.approx(0.8, abs=0.08)
    assert np.sqrt(np.mean([one.detectable**2 for one in found if one.detectable])) == pytest.approx(
        truth, rel=0.05
    )


def test_seeds_are_a_second_source_of_chance():
    """What seeds move at once for all users is known from the seeds alone: t over their values."""
    users = equal_users(8, 3)
    runs = [column(np.full(24, value)) for value in (0.2, 0.5, 0.3, 0.6)]
    (found,) = estimates([Column(plain_mean, runs)], users)
    values = [0.2, 0.5, 0.3, 0.6]
    expected = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected)


def test_equal_seeds_leave_the_users_interval():
    values = column(np.random.default_rng(5).normal(size=60))
    users = equal_users(15, 4)
    (found,) = estimates([Column(plain_mean, [values] * 3)], users)
    assert (found.low, found.high) == pytest.approx(interval(values, users, plain_mean))


def test_users_and_seeds_together_are_two_way_analysis_of_variance():
    """Components by mean squares of the balanced table, users by seeds."""
    key = np.random.default_rng(9)
    table = key.normal(size=(3, 1)) + key.normal(size=(1, 10)) + 0.5 * key.normal(size=(3, 10))
    (found,) = estimates([Column(plain_mean, [column(row) for row in table])], equal_users(10, 1))
    residual = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    users = table.mean(0).var(ddof=1) / 10
    seeds = table.mean(1).var(ddof=1) / 3 - (residual**2).sum() / (2 * 9) / 30
    assert seeds > 0
    reach = np.sqrt(stats.t.ppf(0.975, 9) ** 2 * users + stats.t.ppf(0.975, 2) ** 2 * seeds)
    assert (found.low, found.high) == pytest.approx((table.mean() - reach, table.mean() + reach))


def test_rows_of_equal_seeds_are_one_row_of_their_differences():
    """What a seed does to both rows alike is no chance of the difference."""
    key = np.random.default_rng(11)
    moved = 3 * key.normal(size=(4, 1))
    first, second = (moved + shift + key.normal(size=(4, 30)) for shift in (0.4, 0.0))
    users = equal_users(10, 3)
    rows = [column(row) for row in first], [column(row) for row in second]
    (paired,) = estimates([Column(plain_mean, *rows, by_seed=True)], users)
    (one_row,) = estimates([Column(plain_mean, [a - b for a, b in zip(*rows)])], users)
    assert paired == pytest.approx(one_row)
    (apart,) = estimates([Column(plain_mean, *rows)], users)
    assert apart.value == pytest.approx(paired.value)
    assert apart.high - apart.low > 3 * (paired.high - paired.low)


@pytest.mark.long
def test_holm_is_that_of_statsmodels():
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    key = np.random.default_rng(0)
    for size in (1, 2, 7, 40):
        p = key.beta(0.5, 3, size).round(2).tolist()  # rounded: some are equal
        assert holm(p) == pytest.approx(multitest.multipletests(p, method="holm")[1].tolist())
    assert holm([]) == []


def test_mcnemar_is_the_exact_sign_test():
    for gained, lost, both in itertools.product(range(7), range(7), (0, 5)):
        first = np.array([1.0] * gained + [0.0] * lost + [1.0] * both)
        second = np.array([0.0] * gained + [1.0] * lost + [1.0] * both)
        expected = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
        assert mcnemar(first, second) == (gained, lost, pytest.approx(expected))


@pytest.fixture(scope="module")
def tried():
    return runpy.run_path(str(COVERAGE))["tried"]


@pytest.mark.parametrize(
    ("scene", "users"),
    [("mean, accuracy", 3), ("mean, accuracy", 6), ("mean, accuracy", 40),
     ("paired difference, macro F1", 3), ("paired difference, macro F1", 6)],
)  # fmt: skip
def test_intervals_hold_the_truth_about_as_often_as_they_say(tried, scene, users):
    """Percentiles of draws hold .74 of 3 users and .87 of 6; the script measures it in earnest."""
    covered, _ = tried(scene, users, 200, (5, 40), resamples=500)
    assert 0.905 <= covered <= 0.996
