"""What T5 has beside the layers of `causal_lm_layers`: a bias for distances, and an encoder that is read."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.models.attention import Layout
from pbr_jax.models.causal_lm_layers import Own, Projection, Same, norm, scanned
from pbr_jax.models.layers import token_numbers
from pbr_jax.models.t5_config import T5Config

Rows = Int[Array, "b"] | None
"""Numbers of rows, for dropout; None: no dropout."""


class Cross(NamedTuple):
    """Keys and values of the encoder's output in every decoder layer, and which of its tokens are real."""

    keys: Float[Array, "l b n s h"]
    values: Float[Array, "l b n s h"]
    mask: Bool[Array, "b s"]


class Past(NamedTuple):
    """The decoder's keys and values: slot i holds token i of every row; the first `length` are filled."""

    keys: Float[Array, "l r n s h"]
    values: Float[Array, "l r n s h"]
    length: Int[Array, ""]


class Stack(nn.Module):
    """The encoder, or the decoder: its layers and the last norm. Gives hidden states, and of a decoder the
    keys and values of the tokens."""

    config: T5Config
    dtype: Any
    dropout: float = 0.0
    decodes: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "r t d"],
        mask: Bool[Array, "r t"] | None = None,
        cross: Cross | None = None,
        past: Past | None = None,
        rows: Rows = None,
    ) -> tuple[Float[Array, "r t d"], Any]:
        c, (r, t, _) = self.config, x.shape
        shape = (c.num_buckets, c.num_heads)
        table = self.param("distance_bias", nn.initializers.normal(1.0), shape, self.dtype)
        order = jnp.arange(t) + (0 if past is None else past.length)
        # An encoder's tokens see all of their text: for attention they are at one position.
        positions = jnp.broadcast_to(order, (r, t)) if mask is None else jnp.where(mask, 0, -1)
        slots, held, places = [order], (), ()
        if past is not None:
            slots.append(jnp.arange(past.keys.shape[3]))
            filled = jnp.where(slots[1] < past.length, slots[1], -1)
            held, places = (past[:2],), (jnp.broadcast_to(filled, (r, len(filled))),)
        bias = tuple(self._bias(table, order[:, None] - keys[None]) for keys in slots)
        own, text = (None, None) if cross is None else (cross[:2], jnp.where(cross.mask, 0, -1))
        length = c.num_decoder_layers if self.decodes else c.num_layers
        layers = scanned(c, self.dtype, self.dropout, length, keeps=self.decodes)
        layout = Layout(positions, None, None, _numbers(rows, t))
        flat = x.reshape(r * t, -1), Own(held=held, cross=own), Same(layout, places, None, bias, text)
        states, kept = layers(*flat)
        return norm(c, self.dtype, "norm")(states).reshape(x.shape), kept

    def _bias(self, table: Float[Array, "e n"], back: Int[Array, "t s"]) -> Float[Array, "n t s"]:
        """Each head's bias for the distance to keys so far back. Raffel et al. (2020), section 2.1: the near
        distances have a bucket each, farther ones share buckets that widen logarithmically. An encoder keeps
        half of the buckets for the tokens ahead."""
        c = self.config
        count = c.num_buckets if self.decodes else c.num_buckets // 2
        bucket = jnp.asarray(_buckets(count, c.max_distance))[jnp.clip(jnp.abs(back), max=c.max_distance)]
        ahead = (back < 0) & (not self.decodes)
        return jnp.moveaxis(table.astype(jnp.float32)[jnp.where(ahead, bucket + count, bucket)], -1, 0)


class CrossProjection(nn.Module):
    """Keys and values of the encoder's output, for all decoder layers at once."""

    config: T5Config
    dtype: Any
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, encoded: Float[Array, "b s d"], rows: Rows = None
    ) -> tuple[Float[Array, "l b n s h"], Float[Array, "l b n s h"]]:
        c, (b, s, d) = self.config, encoded.shape
        layers = nn.vmap(
            Projection,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=None,  # pyright: ignore[reportArgumentType]
            axis_size=c.num_decoder_layers,
        )
        inputs = encoded.reshape(b * s, d), _numbers(rows, s)
        keys, values = (
            layers(c.num_heads * c.head_width, False, self.dtype, self.dropout, name=name)(*inputs)
            .reshape(-1, b, s, c.num_heads, c.head_width)
            .swapaxes(2, 3)
            for name in ("key", "value")
        )
        return keys, values


def _numbers(rows: Rows, tokens: int) -> Int[Array, "n"] | None:
    """The numbers of the tokens of whole rows, for dropout."""
    return None if rows is None else token_numbers(rows, jnp.arange(tokens)[None]).reshape(-1)


def _buckets(count: int, max_distance: int) -> np.ndarray:
    """The bucket of each distance from 0 to `max_distance`. In float32, as the weights were trained with:
    where a logarithm is a whole number, rounding decides."""
    exact = count // 2
    distance = np.arange(max_distance + 1)
    octaves = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    share = octaves / np.float32(math.log(max_distance / exact)) * np.float32(count - exact)
    return np.where(distance < exact, distance, np.minimum(exact + share.astype(np.int32), count - 1))
