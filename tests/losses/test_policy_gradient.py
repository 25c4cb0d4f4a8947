"""Policy gradients against enumeration of all ordered subsets, and samples against their law."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy.stats import chisquare

from pbr_jax.losses import policy_gradient

RANDOM = np.random.default_rng(0)
SCORES = np.array([0.9, 0.2, 0.45, 0.7], np.float32)
LOG_SCORES = jnp.log(SCORES)
WHERE = np.array([True, True, False, True])

log_prob = jax.jit(policy_gradient.plackett_luce_log_prob)
draw = jax.jit(policy_gradient.sample_plackett_luce, static_argnames=("k", "rollouts"))
z_scored = jax.jit(policy_gradient.z_scored, static_argnames="epsilon")
leave_one_out = jax.jit(policy_gradient.leave_one_out)
reinforce = jax.jit(policy_gradient.reinforce)
grpo = jax.jit(policy_gradient.grpo, static_argnames="clip")


def subsets(candidates, k):
    """All ordered subsets of k candidates, or of all where there are fewer, filled up with -1."""
    size = min(k, len(candidates))
    return np.array([p + (-1,) * (k - size) for p in itertools.permutations(candidates, size)], np.int32)


def law(scores, actions):
    """Probabilities by the product over places, in double precision; an empty place adds nothing."""
    probabilities = []
    for action in actions:
        left, probability = float(np.sum(scores, dtype=float)), 1.0
        for a in (a for a in action if a >= 0):
            probability *= float(scores[a]) / left
            left -= float(scores[a])
        probabilities.append(probability)
    return np.array(probabilities)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_log_probs_are_those_of_drawing_one_by_one(k):
    actions = subsets(range(4), k)
    found = np.exp(log_prob(LOG_SCORES, jnp.array(actions)))
    np.testing.assert_allclose(found, law(SCORES, actions), rtol=1e-5)
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-5)


@pytest.mark.parametrize("k", [2, 4, 6])
def test_masking_candidates_equals_dropping_them_also_where_k_is_larger_than_the_set(k):
    actions = subsets([0, 1, 3], k)
    log_scores = jnp.where(WHERE, LOG_SCORES, jnp.nan)
    found = np.exp(log_prob(log_scores, jnp.array(actions), where=jnp.array(WHERE)))
    np.testing.assert_allclose(found, law(np.where(WHERE, SCORES, 0), actions), rtol=1e-5)
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-5)


def test_each_example_of_a_batch_has_its_own_set():
    where = jnp.array([[True] * 4, [True, True, False, True], [False] * 4])
    log_scores = np.log([SCORES, SCORES[::-1], SCORES])
    actions = jnp.array([[[0, 2, 1], [3, 1, 2]], [[3, 0, 1], [1, -1, -1]], [[-1, -1, -1], [-1, -1, -1]]])
    found = log_prob(log_scores, actions, where=where)
    wanted = [
        law(SCORES, np.asarray(actions[0])),
        law(np.where(where[1], SCORES[::-1], 0), np.asarray(actions[1])),
        [1.0, 1.0],
    ]
    np.testing.assert_allclose(np.exp(found), wanted, rtol=1e-5)


@pytest.mark.parametrize("action", [[2, 0], [0, 0], [1, 4]], ids=["masked", "twice", "out of range"])
def test_actions_that_cannot_be_drawn_have_no_probability(action):
    found, pull_back = jax.vjp(lambda x: log_prob(x, jnp.array([action]), where=jnp.array(WHERE)), LOG_SCORES)
    assert found.tolist() == [-np.inf]
    assert jnp.isfinite(pull_back(jnp.ones(1))[0]).all()


def test_log_prob_gradients_equal_torch_and_finite_differences():
    torch: Any = pytest.importorskip("torch")
    actions = subsets([0, 1, 3], 2)
    weights = RANDOM.normal(size=len(actions)).astype(np.float32)
    logits = torch.tensor(np.asarray(LOG_SCORES), requires_grad=True)
    total = torch.zeros(())
    for weight, action in zip(weights, actions):
        left = [0, 1, 3]
        for a in action:
            place = torch.distributions.Categorical(logits=logits[left])
            total = total + float(weight) * place.log_prob(torch.tensor(left.index(a)))
            left.remove(a)
    total.backward()

    def weighted(log_scores):
        return (log_prob(log_scores, jnp.array(actions), where=jnp.array(WHERE)) * weights).sum()

    np.testing.assert_allclose(weighted(LOG_SCORES), total.item(), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(weighted)(LOG_SCORES), logits.grad.numpy(), rtol=1e-4, atol=1e-6)
    check_grads(weighted, (LOG_SCORES,), order=1, modes=["rev"], atol=2e-3, rtol=2e-2)  # float32 differences


def counts_of(drawn, actions):
    """How often each of the actions was drawn."""
    return np.array([(drawn == action).all(axis=-1).sum() for action in actions])


# Three examples: the whole set, a part of another, and nothing.
BATCH_SCORES = np.stack([SCORES, SCORES[::-1], SCORES])
BATCH_LOG_SCORES = np.log(BATCH_SCORES)
BATCH_WHERE = np.stack([np.ones(4, bool), WHERE, np.zeros(4, bool)])


def samples(k, seed=7, log_scores: Any = BATCH_LOG_SCORES, where: Any = BATCH_WHERE):
    return np.asarray(draw(jax.random.key(seed), log_scores, k=k, rollouts=20_000, where=where))


@pytest.mark.parametrize("k", [2, 5])
def test_samples_follow_the_law_of_each_example(k):
    drawn = samples(k)
    for rollouts, scores, where in zip(drawn[:2], BATCH_SCORES, BATCH_WHERE):
        for places in (1, k):  # the first of the places follow the law of fewer places
            actions = subsets(np.flatnonzero(where), places)
            counts = counts_of(rollouts[:, :places], actions)
            assert counts.sum() == 20_000  # nothing else was drawn
            expected = 20_000 * law(np.where(where, scores, 0), actions)
            assert chisquare(counts, expected).pvalue > 1e-3
            assert chisquare(counts).pvalue < 1e-6  # the same test tells it from drawing evenly
    assert (drawn[2] == -1).all()


def test_samples_are_fixed_by_the_key_and_independent_between_examples():
    same = BATCH_LOG_SCORES[[0, 0, 0]], np.ones((3, 4), bool)
    drawn = samples(2, 0, *same)
    np.testing.assert_array_equal(drawn, samples(2, 0, *same))
    assert 0.1 < (drawn[0] == drawn[1]).all(axis=-1).mean() < 0.3
    assert 0.1 < (drawn == samples(2, 1, *same)).all(axis=-1).mean() < 0.3


@pytest.mark.parametrize(("k", "rollouts"), [(0, 4), (2, 0)])
def test_drawing_nothing_is_refused(k, rollouts):
    with pytest.raises(ValueError, match=f"k={k} and rollouts={rollouts}"):
        draw(jax.random.key(0), LOG_SCORES, k=k, rollouts=rollouts)


REWARDS = RANDOM.normal(size=(3, 5)).astype(np.float32) * 20 - 100


def test_z_scores_divide_by_the_unbiased_deviation():
    wanted = (REWARDS - REWARDS.mean(1, keepdims=True)) / REWARDS.std(1, ddof=1, keepdims=True)
    np.testing.assert_allclose(z_scored(jnp.array(REWARDS)), wanted, rtol=1e-4, atol=1e-5)


def test_leave_one_out_compares_with_the_mean_of_the_others():
    wanted = [[row[m] - np.delete(row, m).mean() for m in range(5)] for row in REWARDS]
    np.testing.assert_allclose(leave_one_out(jnp.array(REWARDS)), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("advantages", [z_scored, leave_one_out])
@pytest.mark.parametrize("reward", [0.1, -123.4567, 1e-7, 3e5])
def test_equal_rewards_give_exactly_zero(advantages, reward):
    assert (advantages(jnp.full((2, 7), reward)) == 0).all()


SETS = [(4, 3, None), (5, 2, None), (5, 2, [1, 0, 1, 1, 0]), (3, 4, [1, 1, 0])]


def exact(n, k, where=None):
    """Log-scores, mask, all actions with a reward each, and the gradient of the expected reward."""
    random = np.random.default_rng(n + k)
    mask = np.ones(n, bool) if where is None else np.array(where, bool)
    log_scores, step = random.normal(size=n), 1e-5
    actions = subsets(np.flatnonzero(mask), k)
    rewards = random.normal(size=len(actions)) * 5 + 3

    def expected_reward(log_scores):
        return law(np.where(mask, np.exp(log_scores), 0), actions) @ rewards

    # Differences of double precision, which share nothing with what is tested.
    gradient = [
        (expected_reward(log_scores + d) - expected_reward(log_scores - d)) / (2 * step)
        for d in np.eye(n) * step
    ]
    arrays = (jnp.asarray(x, jnp.float32) for x in (log_scores, rewards))
    return *arrays, jnp.array(mask), jnp.array(actions), np.array(gradient)


@pytest.mark.parametrize(("n", "k", "where"), SETS)
def test_the_expected_gradient_of_reinforce_is_the_exact_one_for_any_baseline(n, k, where):
    log_scores, rewards, mask, actions, wanted = exact(n, k, where)
    probabilities = law(np.where(mask, np.exp(log_scores), 0), np.asarray(actions)).astype(np.float32)

    @jax.jit
    @jax.grad
    def expected_gradient(log_scores, baseline):
        losses = reinforce(log_prob(log_scores, actions, where=mask), rewards - baseline)
        return (probabilities * losses).sum()

    for baseline in (0.0, 3.7, -10.0):
        np.testing.assert_allclose(-expected_gradient(log_scores, baseline), wanted, rtol=1e-4, atol=1e-5)


def test_leave_one_out_keeps_the_expected_gradient_exact():
    log_scores, rewards, _, actions, wanted = exact(3, 2)
    pairs = np.array(list(itertools.product(range(len(actions)), repeat=2)))  # all draws of two rollouts
    probabilities = law(np.exp(log_scores), np.asarray(actions)).astype(np.float32)[pairs].prod(axis=1)

    @jax.jit
    @jax.grad
    def expected_gradient(log_scores):
        losses = reinforce(log_prob(log_scores, actions)[pairs], leave_one_out(rewards[pairs]))
        return (probabilities * losses.mean(axis=1)).sum()

    np.testing.assert_allclose(-expected_gradient(log_scores), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", [reinforce, lambda *x, **options: grpo(x[0], x[0], x[1], **options)])
def test_advantages_and_old_log_probs_are_constants(loss):
    gradients = jax.grad(lambda *x: loss(*x).sum(), (0, 1))(jnp.array([-1.0, -2.0]), jnp.array([3.0, -4.0]))
    np.testing.assert_allclose(gradients, [[-3, 4], [0, 0]])


@pytest.mark.parametrize("loss", [reinforce, lambda *x, **options: grpo(x[0], x[0], x[1], **options)])
def test_masked_rollouts_may_hold_anything(loss):
    where = jnp.array([True, False, False])
    arrays = jnp.array([-1.0, -jnp.inf, -2.0]), jnp.array([3.0, 1.0, jnp.nan])
    value, gradient = jax.value_and_grad(lambda *x: loss(*x, where=where).sum())(*arrays)
    assert jnp.isfinite(value)
    assert gradient.tolist() == [-3, 0, 0]
    assert (loss(*arrays, where=jnp.zeros(3, bool)) == 0).all()


def test_grpo_takes_the_lower_of_the_clipped_and_the_plain_objective():
    ratios = np.array([0.5, 0.9, 1.0, 1.1, 2.0], np.float32)
    for advantage, effective, slope in [
        (3.0, [0.5, 0.9, 1.0, 1.1, 1.2], [1, 1, 1, 1, 0]),
        (-3.0, [0.8, 0.9, 1.0, 1.1, 2.0], [0, 1, 1, 1, 1]),
    ]:
        old, advantages = jnp.full(5, -4.0), jnp.full(5, advantage)
        log_probs = old + jnp.log(ratios)
        found = grpo(log_probs, old, advantages, clip=0.2)
        np.testing.assert_allclose(found, -advantage * np.array(effective), rtol=1e-5)
        gradient = jax.grad(lambda x, old=old, a=advantages: grpo(x, old, a, clip=0.2).sum())(log_probs)
        np.testing.assert_allclose(gradient, -advantage * ratios * slope, rtol=1e-5)
