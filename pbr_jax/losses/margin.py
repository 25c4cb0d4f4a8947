"""A margin loss, which requires that a positive scores higher than each negative by a given margin."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def rank_weighted_margin(
    positive_scores: Float[Array, "*b"],
    negative_scores: Float[Array, "*b n"],
    ranks: Int[Array, "*b n"],
    *,
    margin: float,
    power: float = 1.0,
    normalize: bool = False,
    where: Bool[Array, "*b n"] | None = None,
) -> Float[Array, "*b"]:
    r"""Hinge loss of a positive against hard negatives, weighted by the ranks of the negatives.

    .. math:: \sum_n r_n^{-\mathrm{power}} \max(0, \gamma - s^+ + s^-_n)

    Args:
      positive_scores: s+, one positive for each query.
      ranks: r, the rank of each negative in the retrieval, from 1.
      margin: gamma.
      power: the weights are r to the power of minus this; 0 gives equal weights. LUF does not specify it.
      normalize: divides a query's weights by their sum, so that the loss does not grow with the number of
        negatives.
      where: False for padding, whose values are ignored.

    Returns:
      One float32 value per query. A query without negatives has value and gradient 0.

    LUF (anonymous ACL submission), Eq. 4.

    >>> import jax.numpy as jnp
    >>> positive, negatives = jnp.array([1.0]), jnp.array([[1.5, 0.5, 0.8]])
    >>> loss = rank_weighted_margin(positive, negatives, jnp.array([[1, 2, 4]]), margin=0.25)
    >>> round(float(loss[0]), 4)  # 0.75 / 1 + 0 / 2 + 0.05 / 4
    0.7625
    """
    if where is None:
        where = jnp.ones_like(negative_scores, bool)
    weights = jnp.where(where, jnp.where(where, ranks, 1).astype(jnp.float32) ** -power, 0.0)
    if normalize:
        weights /= jnp.where(where.any(axis=-1), weights.sum(axis=-1), 1.0)[..., None]
    gaps = positive_scores.astype(jnp.float32)[..., None] - negative_scores.astype(jnp.float32)
    return jnp.where(where, weights * jnp.maximum(margin - gaps, 0.0), 0.0).sum(axis=-1)
