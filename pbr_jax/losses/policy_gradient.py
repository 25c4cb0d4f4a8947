"""Policy gradients for choosing an ordered subset: its distribution, samples, advantages and losses.

An action is an ordered subset of the n candidates of an example. It lists their indices in the order drawn,
followed by -1 if the example has fewer than k candidates. A training step is

    actions = sample_plackett_luce(key, log_scores, k=5, rollouts=32, where=where)
    rewards = ...  # of each rollout
    log_probs = plackett_luce_log_prob(log_scores, actions, where=where)
    loss = reinforce(log_probs, z_scored(rewards)).mean()
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from pbr_jax.losses.reduction import masked_logsumexp


def plackett_luce_log_prob(
    log_scores: Float[Array, "*b n"],
    actions: Int[Array, "*b m k"],
    *,
    where: Bool[Array, "*b n"] | None = None,
) -> Float[Array, "*b m"]:
    r"""Log-probability of drawing candidates in this order without replacement (Plackett-Luce model).

    .. math:: \sum_k \log \frac{f_{a_k}}{\sum_n f_n - \sum_{j<k} f_{a_j}}

    The denominator is summed anew for each k, not by subtraction. So it is exact even if a few scores make
    up nearly the whole sum.

    Args:
      log_scores: log f; -inf is a score of 0. Adding a constant to all of them does not change the result.
      actions: a, the candidate indices of m rollouts of length k. An index of -1 is empty and adds 0.
      where: False for padding, whose values are ignored.

    Returns:
      One float32 value per rollout: 0 for an empty action, and -inf for an action that cannot be drawn.

    Du et al. (PURPLE), https://arxiv.org/abs/2601.12078, 2026, Eq. 3.

    >>> import jax.numpy as jnp
    >>> log_scores, actions = jnp.log(jnp.array([0.5, 0.3, 0.2])), jnp.array([[1, 0]])
    >>> round(float(jnp.exp(plackett_luce_log_prob(log_scores, actions)[0])), 4)  # 0.3 * 0.5 / 0.7
    0.2143
    """
    present = _present(log_scores, where)[..., None, None, :]
    drawn = jax.nn.one_hot(actions, log_scores.shape[-1], dtype=bool)  # [*b m k n]
    drawn_before = (jnp.cumsum(drawn, axis=-2) - drawn) > 0
    left = present & ~drawn_before
    log_scores = jnp.broadcast_to(log_scores.astype(jnp.float32)[..., None, None, :], left.shape)
    hits = drawn & left
    log_probs = jnp.where(hits, log_scores, 0.0).sum(axis=-1) - masked_logsumexp(log_scores, left)
    log_probs = jnp.where(hits.any(axis=-1), log_probs, -jnp.inf)
    return jnp.where(actions < 0, 0.0, log_probs).sum(axis=-1)


def sample_plackett_luce(
    key: Key[Array, ""],
    log_scores: Float[Array, "*b n"],
    *,
    k: int,
    rollouts: int,
    where: Bool[Array, "*b n"] | None = None,
) -> Int[Array, "*b {rollouts} {k}"]:
    r"""Samples ordered subsets from the distribution of `plackett_luce_log_prob`.

    .. math:: \text{the } k \text{ highest of } \log f_n + g_n, \quad g_n \sim \mathrm{Gumbel}(0, 1)

    If an example has fewer than k candidates, all of them are drawn, followed by -1.

    Kool, van Hoof and Welling, https://arxiv.org/abs/1903.06059, 2019.

    >>> import jax
    >>> log_scores, where = jax.numpy.zeros(3), jax.numpy.array([False, True, False])
    >>> sample_plackett_luce(jax.random.key(0), log_scores, k=2, rollouts=1, where=where).tolist()
    [[1, -1]]
    """
    if k < 1 or rollouts < 1:
        raise ValueError(f"found k={k} and rollouts={rollouts}; draw at least 1 candidate in 1 rollout")
    *b, n = log_scores.shape
    log_scores = jnp.where(_present(log_scores, where), log_scores.astype(jnp.float32), -jnp.inf)
    noise = jax.random.gumbel(key, (*b, rollouts, n), jnp.float32)
    values, actions = jax.lax.top_k(log_scores[..., None, :] + noise, min(k, n))
    actions = jnp.where(jnp.isneginf(values), -1, actions)
    return jnp.pad(actions, [(0, 0)] * (actions.ndim - 1) + [(0, max(k - n, 0))], constant_values=-1)


def z_scored(
    rewards: Float[Array, "*b m"], *, where: Bool[Array, "*b m"] | None = None, epsilon: float = 1e-8
) -> Float[Array, "*b m"]:
    r"""Advantages: the rewards of an example's m rollouts, centred and divided by their standard deviation.

    .. math:: \frac{r_m - \bar r}{\mathrm{std}(r) + \epsilon}, \quad
       \mathrm{std}(r)^2 = \frac{1}{m - 1} \sum_m (r_m - \bar r)^2

    Advantages are exactly 0 for equal rewards, for a single rollout and for masked rollouts, which are
    ignored.

    Du et al. (PURPLE), Appendix A, which has no epsilon. The standard deviation is that of the paper's code.

    >>> import jax.numpy as jnp
    >>> z_scored(jnp.array([1.0, 2.0, 3.0])).tolist()
    [-1.0, 0.0, 1.0]
    """
    centred, count = _centred(rewards, where)
    variance = jnp.square(centred).sum(axis=-1, keepdims=True) / jnp.maximum(count - 1, 1)
    return centred / (jnp.sqrt(variance) + epsilon)


def leave_one_out(
    rewards: Float[Array, "*b m"], *, where: Bool[Array, "*b m"] | None = None
) -> Float[Array, "*b m"]:
    r"""Advantages: each reward minus the mean reward of the example's other rollouts.

    .. math:: r_m - \frac{1}{m - 1} \sum_{j \ne m} r_j

    This baseline does not depend on the rollout itself, so the gradient is unbiased. A single rollout keeps
    its reward. Masked rollouts have advantage 0 and are ignored.

    Kool, van Hoof and Welling, https://openreview.net/forum?id=r1lgTGL5DE, 2019.

    >>> import jax.numpy as jnp
    >>> leave_one_out(jnp.array([1.0, 2.0, 6.0])).tolist()
    [-3.0, -1.5, 4.5]
    """
    centred, count = _centred(rewards, where)
    alone = rewards if where is None else jnp.where(where, rewards, 0)
    return jnp.where(count > 1, centred * (count / jnp.maximum(count - 1, 1)), alone)


def reinforce(
    log_probs: Float[Array, "*b"], advantages: Float[Array, "*b"], *, where: Bool[Array, "*b"] | None = None
) -> Float[Array, "*b"]:
    r"""The REINFORCE loss of each rollout. Its gradient estimates that of the negative expected reward.

    .. math:: -A \log \pi(a)

    Only the gradient is meaningful, not the value. No gradient flows to the advantages. Masked rollouts have
    value 0.

    Williams, https://doi.org/10.1007/BF00992696, 1992; Du et al. (PURPLE), Eq. 1, 2
    and 5.
    """
    log_probs, advantages = _masked(where, log_probs, advantages)
    return -jax.lax.stop_gradient(advantages) * log_probs


def grpo(
    log_probs: Float[Array, "*b"],
    old_log_probs: Float[Array, "*b"],
    advantages: Float[Array, "*b"],
    *,
    clip: float = 0.2,
    where: Bool[Array, "*b"] | None = None,
) -> Float[Array, "*b"]:
    r"""The clipped loss for several steps on the same rollouts, without a KL penalty.

    .. math:: -\min\left(\rho A, \mathrm{clip}(\rho, 1 - \epsilon, 1 + \epsilon) A\right), \quad
       \rho = \exp(\log \pi(a) - \log \pi_\mathrm{old}(a))

    Args:
      old_log_probs: log-probabilities under the policy that drew the actions. No gradient flows to them.
      advantages: with `z_scored` rewards this is GRPO. No gradient flows to them.
      clip: epsilon. A rollout has no gradient once its ratio has moved by more than this in the direction of
        its advantage.
      where: False for masked rollouts, whose value is 0.

    Schulman et al. (PPO), https://arxiv.org/abs/1707.06347, 2017, Eq. 7; Shao et al. (DeepSeekMath),
    https://arxiv.org/abs/2402.03300, 2024.
    """
    log_probs, old_log_probs, advantages = _masked(where, log_probs, old_log_probs, advantages)
    old_log_probs, advantages = jax.lax.stop_gradient((old_log_probs, advantages))
    ratio = jnp.exp(log_probs - old_log_probs)
    return -jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - clip, 1 + clip) * advantages)


def _present(log_scores: Float[Array, "*b n"], where: Bool[Array, "*b n"] | None) -> Bool[Array, "*b n"]:
    present = ~jnp.isneginf(log_scores)
    return present if where is None else present & where


def _centred(
    rewards: Float[Array, "*b m"], where: Bool[Array, "*b m"] | None
) -> tuple[Float[Array, "*b m"], Float[Array, "*b 1"]]:
    """Rewards minus the mean of those that count (0 for the others), and the number that count."""
    counted = jnp.ones(rewards.shape, bool) if where is None else where
    count = counted.sum(axis=-1, keepdims=True).astype(jnp.float32)
    # Measured from one of the rewards: the mean of equal rewards is rounded, and a deviation that is
    # nothing but rounding would be blown up to advantages of 1.
    rewards = jnp.where(counted, rewards.astype(jnp.float32), 0)
    first = jnp.take_along_axis(rewards, jnp.argmax(counted, axis=-1, keepdims=True), axis=-1)
    rewards = jnp.where(counted, rewards - first, 0)
    mean = rewards.sum(axis=-1, keepdims=True) / jnp.maximum(count, 1)
    return jnp.where(counted, rewards - mean, 0), count


def _masked(where: Bool[Array, "*b"] | None, *values: Float[Array, "*b"]) -> list[Float[Array, "*b"]]:
    if where is None:
        return [value.astype(jnp.float32) for value in values]
    return [jnp.where(where, value.astype(jnp.float32), 0.0) for value in values]
