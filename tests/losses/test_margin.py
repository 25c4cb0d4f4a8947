"""Margin losses against loops, torch, and norms known by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.losses.margin import margin_mse, rank_weighted_margin, triplet

B, N, D = 4, 5, 3
RANDOM = np.random.default_rng(0)
POSITIVES = RANDOM.normal(size=B).astype(np.float32)
NEGATIVES = RANDOM.normal(size=(B, N)).astype(np.float32)
RANKS = np.array([RANDOM.permutation(np.arange(1, 20))[:N] for _ in range(B)], np.int32)
WEIGHTS = RANDOM.normal(size=B).astype(np.float32)
WHERE = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]], bool)
ALL = np.ones((B, N), bool)

compiled = jax.jit(rank_weighted_margin, static_argnames=("margin", "power", "normalize"))


def ranked(
    positives: Any = POSITIVES, negatives: Any = NEGATIVES, ranks: Any = RANKS, where: Any = ALL, **options
):
    arrays = (jnp.asarray(x) for x in (positives, negatives, ranks))
    return compiled(*arrays, where=jnp.asarray(where), **(dict(margin=0.4) | options))


@pytest.mark.parametrize("power", [1.0, 0.0, 0.5])
def test_hard_negatives_are_weighted_by_their_rank(power):
    wanted = [
        sum(
            max(0.0, 0.4 - float(POSITIVES[b]) + float(NEGATIVES[b, n])) / float(RANKS[b, n]) ** power
            for n in range(N)
            if WHERE[b, n]
        )
        for b in range(B)
    ]
    np.testing.assert_allclose(ranked(where=WHERE, power=power), wanted, rtol=1e-5)


def test_without_weights_it_is_the_margin_ranking_loss_of_torch():
    torch: Any = pytest.importorskip("torch")
    positives, negatives = (torch.tensor(x, requires_grad=True) for x in (POSITIVES, NEGATIVES))
    pairs = positives[:, None].expand(B, N), negatives, torch.ones(B, N)
    wanted = torch.nn.functional.margin_ranking_loss(*pairs, margin=0.4, reduction="none").sum(1)
    (wanted * torch.tensor(WEIGHTS)).sum().backward()
    np.testing.assert_allclose(ranked(power=0.0), wanted.detach().numpy(), rtol=1e-5)
    found = jax.grad(lambda *x: (ranked(*x, power=0.0) * WEIGHTS).sum(), (0, 1))(POSITIVES, NEGATIVES)
    for mine, theirs in zip(found, (positives.grad, negatives.grad)):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4)


def test_the_gradient_of_a_negative_is_its_weight_within_the_margin_and_zero_beyond():
    gradient = jax.grad(lambda x: ranked(negatives=x).sum())(NEGATIVES)
    within = POSITIVES[:, None] - NEGATIVES < 0.4
    np.testing.assert_allclose(gradient, np.where(within, 1 / RANKS, 0), rtol=1e-5)
    assert within.any()
    assert not within.all()


@pytest.mark.parametrize("filler", [np.nan, -np.inf, np.inf])
def test_masked_negatives_may_hold_anything_and_no_negatives_give_zero(filler):
    positives = np.where(WHERE.any(axis=1), POSITIVES, np.float32(filler))
    negatives = np.where(WHERE, NEGATIVES, np.float32(filler))
    ranks = np.where(WHERE, RANKS, 0)
    found = ranked(positives, negatives, ranks, WHERE)
    np.testing.assert_array_equal(found, ranked(where=WHERE))
    assert found[3] == 0
    gradients = jax.jit(jax.grad(lambda p, n: ranked(p, n, ranks, WHERE).sum(), (0, 1)))
    for gradient in gradients(positives, negatives):
        assert jnp.isfinite(gradient).all()
        assert (gradient[3] == 0).all()


TRIPLETS = [RANDOM.normal(size=(B, D)).astype(np.float32) for _ in range(3)]


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, jnp.inf])
def test_triplet_values_and_gradients_equal_torch(order):
    torch: Any = pytest.importorskip("torch")
    tensors = [torch.tensor(x, requires_grad=True) for x in TRIPLETS]
    wanted = torch.nn.functional.triplet_margin_loss(*tensors, margin=0.7, p=order, eps=0.0, reduction="none")
    (wanted * torch.tensor(WEIGHTS)).sum().backward()
    assert (wanted > 0).any()

    def loss(*arrays):
        return triplet(*arrays, margin=0.7, order=order)

    arrays = [jnp.asarray(x) for x in TRIPLETS]
    values, pull_back = jax.vjp(jax.jit(loss), *arrays)
    np.testing.assert_allclose(values, wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
    found = pull_back(jnp.asarray(WEIGHTS))
    for mine, tensor in zip(found, tensors):
        np.testing.assert_allclose(mine, tensor.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("order", [1.0, 1.5, 2.0, jnp.inf])
def test_equal_vectors_have_a_distance_and_gradients_of_zero(order):
    anchors = jnp.zeros((2, D))
    positives = anchors.at[1, 0].set(1e-30)  # its square is 0 in float32
    both = jax.jit(jax.value_and_grad(lambda *x: triplet(*x, order=order).sum(), (0, 1, 2)))
    value, gradients = both(anchors, positives, anchors)
    np.testing.assert_allclose(value, 2)
    for gradient in gradients:
        assert jnp.isfinite(gradient).all()
        assert (gradient[0] == 0).all()


def test_masked_triplets_may_hold_anything():
    where = jnp.array([True, False, True, False])
    arrays = [jnp.where(where[:, None], x, jnp.nan) for x in TRIPLETS]
    found, pull_back = jax.vjp(jax.jit(lambda *x: triplet(*x, where=where)), *arrays)
    wanted = jax.jit(triplet)(*TRIPLETS)
    np.testing.assert_allclose(found, np.where(where, wanted, 0), rtol=1e-6)
    for gradient in pull_back(jnp.ones(B)):
        assert jnp.isfinite(gradient).all()
        assert (gradient[~where] == 0).all()


@pytest.mark.parametrize("order", [0.5, 0.0, -1.0, float("nan")])
def test_what_is_no_norm_is_refused(order):
    with pytest.raises(ValueError, match="a norm has an order of 1 or more"):
        triplet(*map(jnp.asarray, TRIPLETS), order=order)


SCORES = [RANDOM.normal(size=(B, N)).astype(np.float32) for _ in range(4)]


def test_margin_mse_values_and_gradients_equal_torch():
    torch: Any = pytest.importorskip("torch")
    tensors = [torch.tensor(x, requires_grad=True) for x in SCORES]
    wanted = torch.nn.functional.mse_loss(tensors[0] - tensors[1], tensors[2] - tensors[3], reduction="none")
    (wanted * torch.tensor(WHERE)).sum().backward()
    found = margin_mse(*map(jnp.asarray, SCORES))
    np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-5, atol=1e-6)

    def total(*scores):
        return margin_mse(*scores, where=jnp.asarray(WHERE)).sum()

    arrays = [jnp.where(WHERE, x, -jnp.inf) for x in SCORES]  # as a retriever fills short lists
    np.testing.assert_allclose(total(*arrays), (found * WHERE).sum(), rtol=1e-6)
    for mine, tensor in zip(jax.jit(jax.grad(total, (0, 1, 2, 3)))(*arrays), tensors):
        np.testing.assert_allclose(mine, tensor.grad.numpy(), rtol=1e-4, atol=1e-6)
