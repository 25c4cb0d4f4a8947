"""Token cross-entropy against a closed form, torch, and what masks must not change."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.losses.language_model import token_cross_entropy

LOGITS = np.random.default_rng(0).normal(size=(3, 5, 11)).astype(np.float32) * 3
TARGETS = np.random.default_rng(1).integers(0, 11, (3, 5), dtype=np.int32)
WHERE = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], bool)


def loss(logits: Any = LOGITS, targets: Any = TARGETS, where: Any = WHERE):
    return token_cross_entropy(jnp.asarray(logits), jnp.asarray(targets), where=jnp.asarray(where))


def test_it_is_minus_the_log_of_the_targets_probability():
    probabilities = np.array([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]], np.float32)
    found = loss(np.log(probabilities) + 4, np.array([2, 1]), np.ones(2, bool))
    np.testing.assert_allclose(found, [-np.log(0.7), -np.log(0.3)], rtol=1e-5)
    of_all = token_cross_entropy(jnp.log(probabilities) + 4, jnp.array([2, 1]))  # no mask: all count
    np.testing.assert_array_equal(of_all, found)


def test_values_and_gradients_equal_torch():
    torch: Any = pytest.importorskip("torch")
    logits = torch.tensor(LOGITS, requires_grad=True)
    labels = torch.tensor(np.where(WHERE, TARGETS, -100).astype(np.int64))
    wanted = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=-100
    )
    weights = np.float32(np.random.default_rng(2).normal(size=15))
    (wanted * torch.tensor(weights)).sum().backward()
    np.testing.assert_allclose(loss().ravel(), wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda x: (loss(x).ravel() * weights).sum())(jnp.asarray(LOGITS))
    np.testing.assert_allclose(gradient, logits.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_what_is_masked_may_hold_anything():
    logits = np.where(WHERE[..., None], LOGITS, np.nan)
    targets = np.where(WHERE, TARGETS, -100)
    np.testing.assert_array_equal(loss(logits, targets), loss())
    gradient = jax.grad(lambda x: loss(x, targets).sum())(jnp.asarray(logits))
    assert jnp.isfinite(gradient).all()
    assert (gradient[~WHERE] == 0).all()
    assert (np.abs(gradient[WHERE]).max(axis=-1) > 0).all()


def test_nothing_that_counts_gives_zero_with_finite_gradients():
    nothing = np.zeros_like(WHERE)
    assert (loss(where=nothing) == 0).all()
    assert (jax.grad(lambda x: loss(x, where=nothing).sum())(jnp.asarray(LOGITS)) == 0).all()
