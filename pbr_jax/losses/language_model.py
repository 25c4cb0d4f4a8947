"""The training loss of language models."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def token_cross_entropy(
    logits: Float[Array, "*b v"], targets: Int[Array, "*b"], *, where: Bool[Array, "*b"] | None = None
) -> Float[Array, "*b"]:
    r"""Cross-entropy of each target token, in nats.

    .. math:: -\log \frac{\exp z_y}{\sum_v \exp z_v}

    Args:
      logits: z, the scores of all tokens of the vocabulary before the softmax.
      targets: y, the id of the target token.
      where: True for the tokens that count; None: all. Other tokens have value and gradient 0, whatever their
        ids and logits are (-100 and NaN included).

    Returns:
      One float32 value per token. For the mean, divide the sum by the number of tokens that count.

    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([[0.25, 0.75], [0.5, 0.5]]))
    >>> [round(float(x), 4) for x in token_cross_entropy(logits, jnp.array([1, -100]),
    ...                                                  where=jnp.array([True, False]))]
    [0.2877, 0.0]
    """
    where = jnp.ones(targets.shape, bool) if where is None else where
    # Masked before the softmax as well as after: a gradient of 0 times NaN would be NaN.
    logits = jnp.where(where[..., None], logits.astype(jnp.float32), 0.0)
    targets = jnp.where(where, targets, 0)
    right = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.where(where, jax.nn.logsumexp(logits, axis=-1) - right, 0.0)
