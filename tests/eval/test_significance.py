"""The bootstrap against a loop over resamples, closed forms and identities."""

import numpy as np
import pytest
from scipy import stats

from pbr_jax.eval.metrics import plain_mean, text_metric
from pbr_jax.eval.significance import (
    bootstrap,
    difference,
    interval,
    paired_difference,
    resampled_means,
)


def column(values) -> np.ndarray:
    return np.asarray(values, float).reshape(-1, 1)


@pytest.mark.parametrize("name", ["accuracy", "f1_macro"])
def test_means_equal_a_loop_that_copies_drawn_users(name):
    """The same multinomial draws, but examples repeated one by one, and the metric of what results."""
    key = np.random.default_rng(3)
    users = key.choice(["u1", "u2", "u3", "u4"], 30).tolist()
    targets, predictions = (key.choice(["a", "b", "c"], 30).tolist() for _ in range(2))
    metric = text_metric(name, ("a", "b", "c"))
    rows = metric.statistics(predictions, targets)
    found = metric.finish(resampled_means(rows, users, resamples=20, seed=5))
    names = sorted(set(users))
    assert len({users.count(user) for user in names}) > 1  # users of different weight
    draws = np.random.default_rng(5).multinomial(len(names), [1 / len(names)] * len(names), size=20)
    for value, counts in zip(found, draws, strict=True):
        chosen = [
            i for name, c in zip(names, counts) for _ in range(c) for i in range(30) if users[i] == name
        ]
        statistics = metric.statistics([predictions[i] for i in chosen], [targets[i] for i in chosen])
        assert value == pytest.approx(float(metric.finish(statistics.mean(0))))


def test_interval_of_many_independent_users_is_the_normal_one():
    values = np.random.default_rng(0).gamma(2.0, size=2000)
    low, high = bootstrap(column(values), [str(i) for i in range(2000)], plain_mean, resamples=4000)
    error = values.std() / np.sqrt(2000)
    expected = stats.norm.interval(0.95, values.mean(), error)
    # 4,000 resamples place the ends within about 0.05 standard errors.
    np.testing.assert_allclose([low, high], expected, atol=0.15 * error)


def test_users_that_answer_alike_widen_the_interval():
    """20 copies of each example carry no information: the width stays that of 100 users."""
    values = np.random.default_rng(1).normal(size=100)
    users = [str(i) for i in range(100)]
    alone = bootstrap(column(values), users, plain_mean)
    copied = bootstrap(column(np.repeat(values, 20)), list(np.repeat(users, 20)), plain_mean)
    np.testing.assert_allclose(copied, alone, rtol=1e-9)


def test_same_seed_same_interval_whatever_the_order_of_examples():
    key = np.random.default_rng(2)
    values, users = key.normal(size=50), key.choice(list("abcdefgh"), 50)
    order = key.permutation(50)
    first = bootstrap(column(values), users.tolist(), plain_mean, seed=4)
    assert bootstrap(column(values[order]), users[order].tolist(), plain_mean, seed=4) == pytest.approx(first)
    assert bootstrap(column(values), users.tolist(), plain_mean, seed=5) != first


def test_chunks_change_nothing(monkeypatch):
    values, users = column(np.arange(12.0)), [str(i) for i in range(12)]
    whole = resampled_means(values, users, resamples=50, seed=0)
    monkeypatch.setattr("pbr_jax.eval.significance._CELLS", 100)
    np.testing.assert_array_equal(resampled_means(values, users, resamples=50, seed=0), whole)


@pytest.mark.parametrize(("values", "users"), [([0.25], ["u"]), ([0.0, 0.5], ["u", "u"])])
def test_one_user_gives_no_width(values, users):
    assert bootstrap(column(values), users, plain_mean) == (0.25, 0.25)


def test_percentiles_share_the_tails():
    assert interval(np.arange(101.0), 0.9) == pytest.approx((5.0, 95.0))


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
    assert found.p_value == pytest.approx(2 / 2001)
    swapped = paired_difference(column(second), column(first), users, plain_mean)
    assert swapped.value == -found.value
    np.testing.assert_allclose([swapped.low, swapped.high], [-found.high, -found.low])


def test_p_value_of_a_small_difference_is_near_the_normal_one():
    key = np.random.default_rng(7)
    gaps = key.normal(0.05, 1.0, size=1000)
    zeros = np.zeros(1000)
    users = [str(i) for i in range(1000)]
    found = paired_difference(column(gaps), column(zeros), users, plain_mean, resamples=4000)
    assert found.p_value == pytest.approx(
        2 * stats.norm.sf(abs(gaps.mean()) / gaps.std() * 1000**0.5), abs=0.03
    )


def test_equal_runs_differ_by_nothing():
    values = column([0.0, 1.0, 1.0])
    assert paired_difference(values, values, ["a", "b", "c"], plain_mean) == (0.0, 0.0, 0.0, 1.0)


def test_p_value_counts_the_rarer_side():
    resampled = np.array([-1.0] * 2 + [0.0] + [1.0] * 6)
    assert difference(0.5, resampled, 0.95).p_value == pytest.approx(2 * (1 + 3) / 10)
