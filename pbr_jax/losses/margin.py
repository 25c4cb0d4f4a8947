"""Margin losses, which require that a positive scores higher than a negative by a given margin."""

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


def triplet(
    anchors: Float[Array, "*b d"],
    positives: Float[Array, "*b d"],
    negatives: Float[Array, "*b d"],
    *,
    margin: float = 1.0,
    order: float = 2.0,
    where: Bool[Array, "*b"] | None = None,
) -> Float[Array, "*b"]:
    r"""Triplet loss: the anchor must be nearer to the positive than to the negative by the margin.

    .. math:: \max\left(0, \lVert a - p \rVert - \lVert a - n \rVert + \mathrm{margin}\right)

    `order` is the order of the norm: any number from 1, or infinity. The distance of equal vectors is 0, and
    its gradient is 0. Masked triplets have value 0, and their vectors are ignored.

    Schroff et al. (FaceNet), https://arxiv.org/abs/1503.03832, 2015, who use squared distances.

    >>> import jax.numpy as jnp
    >>> anchor, positive, negative = jnp.array([0.0, 0.0]), jnp.array([3.0, 4.0]), jnp.array([0.0, -6.0])
    >>> [float(triplet(anchor, positive, negative, margin=2.0, order=p)) for p in (1.0, 2.0, jnp.inf)]
    [3.0, 1.0, 0.0]
    """
    if not order >= 1:
        raise ValueError(f"order is {order}; a norm has an order of 1 or more, up to infinity")
    if where is None:
        where = jnp.ones(anchors.shape[:-1], bool)
    near = _distance(anchors, positives, order, where)
    far = _distance(anchors, negatives, order, where)
    return jnp.where(where, jnp.maximum(near - far + margin, 0.0), 0.0)


def margin_mse(
    student_positive: Float[Array, "*b"],
    student_negative: Float[Array, "*b"],
    teacher_positive: Float[Array, "*b"],
    teacher_negative: Float[Array, "*b"],
    *,
    where: Bool[Array, "*b"] | None = None,
) -> Float[Array, "*b"]:
    r"""Squared difference between the student's and the teacher's margin of a positive over a negative.

    .. math:: \left((s^+ - s^-) - (t^+ - t^-)\right)^2

    Masked pairs have value 0, even if their scores are -inf.

    Hofstätter et al., https://arxiv.org/abs/2010.02666, 2020.

    >>> import jax.numpy as jnp
    >>> float(margin_mse(*(jnp.array(score) for score in (3.0, 1.0, 9.0, 4.0))))  # (2 - 5) squared
    9.0
    """
    if where is None:
        where = jnp.ones_like(student_positive, bool)
    student_positive, student_negative, teacher_positive, teacher_negative = (
        jnp.where(where, scores.astype(jnp.float32), 0.0)
        for scores in (student_positive, student_negative, teacher_positive, teacher_negative)
    )
    return jnp.square((student_positive - student_negative) - (teacher_positive - teacher_negative))


def _distance(
    a: Float[Array, "*b d"], b: Float[Array, "*b d"], order: float, where: Bool[Array, "*b"]
) -> Float[Array, "*b"]:
    difference = jnp.where(where[..., None], a.astype(jnp.float32) - b.astype(jnp.float32), 0.0)
    # A norm has no gradient at 0, and 0/0 there would spread: such vectors are replaced before the norm.
    equal = jnp.linalg.norm(difference, ord=order, axis=-1) == 0
    difference = jnp.where(equal[..., None], 1.0, difference)
    return jnp.where(equal, 0.0, jnp.linalg.norm(difference, ord=order, axis=-1))
