"""The margin loss against loops and closed forms."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.losses.margin import rank_weighted_margin

B, N = 4, 5
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
