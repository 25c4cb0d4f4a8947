"""Masked means and sums, which all other losses use.

Masked entries change no value and no gradient, whatever they contain, NaN included. A NaN in an entry that
counts appears in the result.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def masked_mean(values: Float[Array, "*b"], where: Bool[Array, "*b"]) -> Float[Array, ""]:
    """Mean of the unmasked values, in float32. If all are masked, value and gradient are 0.

    >>> import jax.numpy as jnp
    >>> float(masked_mean(jnp.array([1.0, 2.0, jnp.nan]), jnp.array([True, True, False])))
    1.5
    """
    values = jnp.where(where, values.astype(jnp.float32), 0.0)
    return values.sum() / jnp.maximum(where.sum(), 1)


def masked_logsumexp(logits: Float[Array, "*b n"], where: Bool[Array, "*b n"]) -> Float[Array, "*b"]:
    r"""Log-sum-exp of the unmasked logits, in float32.

    .. math:: \log \sum_{n : \mathrm{where}_n} \exp z_n

    If all are masked, it is -inf (the log of an empty sum), and gradients are 0. So results over parts can be
    combined by another log-sum-exp.
    """
    some = where.any(axis=-1, keepdims=True)
    # A row where nothing counts is replaced as a whole: the gradient of a row of -inf passes through
    # 0/0, which the mask would discard, but which would set off jax_debug_nans.
    logits = jnp.where(where, logits.astype(jnp.float32), jnp.where(some, -jnp.inf, 0.0))
    return jnp.where(some[..., 0], jax.nn.logsumexp(logits, axis=-1), -jnp.inf)


def masked_log_softmax(logits: Float[Array, "*b n"], where: Bool[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Log-softmax over the unmasked logits, in float32, and 0 at masked ones, so that weighted sums over n
    remain finite. For probabilities, mask the exponential again."""
    total = masked_logsumexp(logits, where)[..., None]
    return jnp.where(where, logits.astype(jnp.float32), 0.0) - jnp.where(where, total, 0.0)
