"""The norm that language models share."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float


class RMSNorm(nn.Module):
    """x / rms(x), times a scale; computed in float32.

    `offset` is added to the scale: 1 in Gemma, whose weights are kept around 0.

    Reference: Zhang and Sennrich, Root Mean Square Layer Normalization, https://arxiv.org/abs/1910.07467,
    2019.
    """

    epsilon: float
    offset: float
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "n *a d"]) -> Float[Array, "n *a d"]:
        start = nn.initializers.constant(1.0 - self.offset)
        scale = self.param("scale", start, (x.shape[-1],), self.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.epsilon)
        if self.offset:  # Gemma multiplies before it rounds
            return (wide * (self.offset + scale.astype(jnp.float32))).astype(self.dtype)
        return scale * wide.astype(self.dtype)
