"""Means and sums over what counts: the one place that says what happens where nothing does.

Every other loss masks through these functions. What is masked may hold anything, NaN included; it
changes no value and no gradient. What counts is never cleaned: a NaN there shows in the result.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def masked_mean(values: Float[Array, "*b"], where: Bool[Array, "*b"]) -> Float[Array, ""]:
    """Mean of the values that count, in float32; 0 with gradients of 0 where none does.

    >>> import jax.numpy as jnp
    >>> float(masked_mean(jnp.array([1.0, 2.0, jnp.nan]), jnp.array([True, True, False])))
    1.5
    """
    values = jnp.where(where, values.astype(jnp.float32), 0.0)
    return values.sum() / jnp.maximum(where.sum(), 1)


def masked_logsumexp(logits: Float[Array, "*b n"], where: Bool[Array, "*b n"]) -> Float[Array, "*b"]:
    r"""Log of the summed exponentials of the logits that count, in float32.

    .. math:: \log \sum_{n : \mathrm{where}_n} \exp z_n

    Where none counts it is -inf, the log of an empty sum, with gradients of 0. So sums over parts
    can be summed again.
    """
    some = where.any(axis=-1, keepdims=True)
    # A row where nothing counts is replaced as a whole: the gradient of a row of -inf passes through
    # 0/0, which the mask would discard, but which would set off jax_debug_nans.
    logits = jnp.where(where, logits.astype(jnp.float32), jnp.where(some, -jnp.inf, 0.0))
    return jnp.where(some[..., 0], jax.nn.logsumexp(logits, axis=-1), -jnp.inf)


def masked_log_softmax(logits: Float[Array, "*b n"], where: Bool[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Log of the softmax over the logits that count, in float32; 0 at those that do not. So a weighted
    sum over n stays finite; for probabilities, mask the exponential once more."""
    total = masked_logsumexp(logits, where)[..., None]
    return jnp.where(where, logits.astype(jnp.float32), 0.0) - jnp.where(where, total, 0.0)
