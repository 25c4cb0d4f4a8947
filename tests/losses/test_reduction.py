"""Masked means and log-sums against numpy on what is left when the masked is dropped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.losses import reduction

masked_mean = jax.jit(reduction.masked_mean)
masked_logsumexp = jax.jit(reduction.masked_logsumexp)
masked_log_softmax = jax.jit(reduction.masked_log_softmax)
LOGITS = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32) * 3
WHERE = np.array([[1, 1, 1, 1, 1, 1], [1, 0, 0, 1, 1, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]], bool)
ONE_VALUE_EACH = [masked_logsumexp, masked_log_softmax]


def with_anything_masked(values=LOGITS, where=WHERE):
    return jnp.asarray(np.where(where, values, np.nan))


@settings(max_examples=30)
@given(st.lists(st.booleans(), min_size=6, max_size=6))
def test_the_mean_is_that_of_what_is_not_dropped(where):
    found = masked_mean(with_anything_masked(LOGITS[0], where), jnp.array(where))
    np.testing.assert_allclose(found, LOGITS[0][where].mean() if any(where) else 0, rtol=1e-6)


def test_the_mean_of_nothing_is_zero_with_gradients_of_zero():
    value, gradient = jax.value_and_grad(masked_mean)(jnp.full((3,), jnp.nan), jnp.zeros(3, bool))
    assert value == 0
    assert (gradient == 0).all()


@pytest.mark.parametrize("function", [masked_mean, *ONE_VALUE_EACH])
def test_nan_that_counts_is_not_hidden(function):
    assert jnp.isnan(function(jnp.array([1.0, jnp.nan]), jnp.array([True, True]))).any()


def test_log_sums_are_those_of_what_is_not_dropped():
    found = masked_logsumexp(with_anything_masked(), jnp.array(WHERE))
    wanted = [np.log(np.exp(row[where].astype(np.float64)).sum()) for row, where in zip(LOGITS[:3], WHERE)]
    np.testing.assert_allclose(found, [*wanted, -np.inf], rtol=1e-6)


def test_log_softmax_is_that_of_what_is_not_dropped():
    found = np.asarray(masked_log_softmax(with_anything_masked(), jnp.array(WHERE)))
    for row, logits, where in zip(found, LOGITS, WHERE):
        shares = np.exp(logits[where].astype(np.float64))
        np.testing.assert_allclose(np.exp(row[where]), shares / shares.sum(), rtol=1e-5)
        assert (row[~where] == 0).all()


@pytest.mark.parametrize("function", ONE_VALUE_EACH)
def test_gradients_reach_what_counts_and_nothing_else(function):
    values, pull_back = jax.vjp(lambda x: function(x, jnp.array(WHERE)), with_anything_masked())
    gradient = np.asarray(pull_back(jax.random.normal(jax.random.key(0), values.shape))[0])
    assert (gradient[~WHERE] == 0).all()
    assert np.isfinite(gradient).all()
    assert (gradient[:2][WHERE[:2]] != 0).all()


def test_a_row_where_nothing_counts_does_not_set_off_the_search_for_nan():
    with jax.debug_nans(True):
        gradient = jax.grad(lambda x: reduction.masked_logsumexp(x, jnp.array(WHERE))[1])(jnp.array(LOGITS))
    assert (gradient[3] == 0).all()


def test_log_sums_of_parts_sum_to_the_whole():
    logits, where = jnp.array(LOGITS), jnp.array(WHERE)
    parts = jnp.stack(
        [masked_logsumexp(logits[:, :2], where[:, :2]), masked_logsumexp(logits[:, 2:], where[:, 2:])]
    )
    merged = masked_logsumexp(parts.T, ~jnp.isneginf(parts.T))
    np.testing.assert_allclose(merged, masked_logsumexp(logits, where), rtol=1e-6)


def test_extreme_logits_stay_finite():
    logits, where = jnp.array([1e30, -1e30, 1e30]), jnp.array([True, True, False])
    assert masked_logsumexp(logits, where) == jnp.float32(1e30)
    assert jnp.isfinite(jax.grad(masked_logsumexp)(logits, where)).all()
