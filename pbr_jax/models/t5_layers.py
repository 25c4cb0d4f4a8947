"""The layers of T5: attention with a bias for distances, gated or plain MLPs, encoder and decoder stacks."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.models import lora
from pbr_jax.models.layers import RMSNorm
from pbr_jax.models.t5_config import T5Config

QUERY_BLOCK = 512  # tokens that attend at once: scores are [.., QUERY_BLOCK, t], never [.., t, t]

Numbers = Int[Array, "b t"] | None
"""Of tokens, by which the dropout of what adapters read knows them (`layers.drop`); None: no dropout."""


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


class Output(NamedTuple):
    """Hidden states of the given tokens, as `logits` takes them, and their keys and values in every layer."""

    hidden: Float[Array, "r t d"]
    keys: Float[Array, "l r n t h"]
    values: Float[Array, "l r n t h"]


class _Module(nn.Module):
    """What all modules of T5 have: the config, the dtype, the dropout of adapters, linear maps and norms."""

    config: T5Config
    dtype: Any
    dropout: float = 0.0

    def _project(
        self, name: str, width: int, x: Float[Array, "b t k"], numbers: Numbers
    ) -> Float[Array, "b t o"]:
        return Projection(width, self.dtype, self.dropout, name=name)(x, numbers)

    def _heads(self, x: Float[Array, "*l b t k"]) -> Float[Array, "*l b n t h"]:
        c = self.config
        return x.reshape(*x.shape[:-1], c.num_heads, c.head_width).swapaxes(-2, -3)

    def _norm(self, name: str, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        return RMSNorm(self.config.norm_epsilon, 0.0, self.dtype, name=name)(x)

    def _bias(
        self, queries: Int[Array, "t"], keys: Int[Array, "s"], *, causal: bool
    ) -> Float[Array, "n t s"]:
        """What is added to the scores: each head's bias for the distance; the lowest number for what is
        ahead. Raffel et al. (2020), section 2.1: the near distances have a bucket each, farther ones share
        buckets that widen logarithmically. An encoder keeps half of the buckets for the tokens ahead."""
        c = self.config
        shape = (c.num_buckets, c.num_heads)
        table = self.param("distance_bias", nn.initializers.normal(1.0), shape, self.dtype)
        back = queries[:, None] - keys[None, :]
        count = c.num_buckets if causal else c.num_buckets // 2
        bucket = jnp.asarray(_buckets(count, c.max_distance))[jnp.clip(jnp.abs(back), max=c.max_distance)]
        bias = jnp.moveaxis(table.astype(jnp.float32)[jnp.where(back < 0, bucket + count, bucket)], -1, 0)
        return jnp.where(back[None] < 0, jnp.finfo(jnp.float32).min, bias) if causal else bias

    def _scanned(self, length: int, *inputs: Any, in_axes: tuple[Any, ...]) -> Any:
        layers = nn.scan(
            _Layer,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=in_axes,  # pyright: ignore[reportArgumentType]
            length=length,
        )
        return layers(self.config, self.dtype, self.dropout, name="layers")(*inputs)


class Encoder(_Module):
    @nn.compact
    def __call__(
        self, x: Float[Array, "b s d"], mask: Bool[Array, "b s"], numbers: Numbers = None
    ) -> Float[Array, "b s d"]:
        order, same = jnp.arange(x.shape[1]), nn.broadcast
        bias = self._bias(order, order, causal=False)
        inputs = x, None, None, bias, mask, numbers
        x, _ = self._scanned(self.config.num_layers, *inputs, in_axes=(same,) * 5)
        return self._norm("norm", x)


class CrossProjection(_Module):
    """Keys and values of the encoder's output, for all decoder layers at once."""

    @nn.compact
    def __call__(
        self, encoded: Float[Array, "b s d"], numbers: Numbers = None
    ) -> tuple[Float[Array, "l b n s h"], Float[Array, "l b n s h"]]:
        layers = nn.vmap(
            Projection,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=None,  # pyright: ignore[reportArgumentType]
            axis_size=self.config.num_decoder_layers,
        )
        keys, values = (
            layers(self.config.inner, self.dtype, self.dropout, name=name)(encoded, numbers)
            for name in ("key", "value")
        )
        return self._heads(keys), self._heads(values)


class Decoder(_Module):
    @nn.compact
    def __call__(self, x: Float[Array, "r t d"], cross: Cross, past: Past, numbers: Numbers = None) -> Output:
        c, same = self.config, nn.broadcast
        slots = jnp.arange(past.keys.shape[3])
        places = past.length + jnp.arange(x.shape[1])
        # A slot that is not filled yet is as far ahead as no token is, so nothing sees it.
        slots = jnp.where(slots < past.length, slots, jnp.iinfo(jnp.int32).max)
        bias = self._bias(places, jnp.concatenate([slots, places]), causal=True)
        inputs = x, (past.keys, past.values), (cross.keys, cross.values), bias, cross.mask, numbers
        x, (keys, values) = self._scanned(c.num_decoder_layers, *inputs, in_axes=(0, 0, same, same, same))
        x = self._norm("norm", x)
        # The scale belongs to the tied head; here, `logits` needs no config.
        return Output(x * c.width**-0.5 if c.scaled else x, keys, values)


_Pair = tuple[Float[Array, "b n _s h"], Float[Array, "b n _s h"]]


class _Layer(_Module):
    """Attention to the row's own tokens, in a decoder to the encoded text too, and the MLP. One step of the
    scan. `past`, `cross`: keys and values, of a decoder; `mask`: of the encoded text."""

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "r t d"],
        past: tuple[Float[Array, "r n _s h"], Float[Array, "r n _s h"]] | None,
        cross: _Pair | None,
        bias: Float[Array, "n t w"],
        mask: Bool[Array, "b s"],
        numbers: Numbers,
    ) -> tuple[Float[Array, "r t d"], tuple[Float[Array, "r n t h"], Float[Array, "r n t h"]] | None]:
        c, (r, t, _), b = self.config, x.shape, mask.shape[0]
        y = self._norm("attention_norm", x)
        query, key, value = (
            self._heads(self._project(name, c.inner, y, numbers)) for name in ("query", "key", "value")
        )
        if past is None or cross is None:
            mixed = _attend(query, [(key, value)], bias, mask)
        else:
            mixed = _attend(query, [past, (key, value)], bias, jnp.ones((r, 1), bool))
        x = x + self._project("output", c.width, mixed, numbers)
        if cross is not None:
            y = self._norm("cross_norm", x)
            # Rows that read one text are more queries of it: no position and no order matters here.
            query = self._heads(
                self._project("cross_query", c.inner, y, numbers).reshape(b, r // b * t, c.inner)
            )
            nowhere = jnp.zeros((1, query.shape[2], 1), jnp.float32)
            mixed = _attend(query, [cross], nowhere, mask).reshape(r, t, c.inner)
            x = x + self._project("cross_output", c.width, mixed, numbers)
        y = self._norm("mlp_norm", x)
        inner = self._project("up", c.mlp_width, y, numbers)
        inner = nn.gelu(self._project("gate", c.mlp_width, y, numbers)) * inner if c.gated else nn.relu(inner)
        return x + self._project("down", c.width, inner, numbers), None if past is None else (key, value)


class Projection(nn.Module):
    """A linear map without bias; an adapter (`lora`) may stand beside its kernel."""

    width: int
    dtype: Any
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: Float[Array, "*n k"], numbers: Numbers = None) -> Float[Array, "*n o"]:
        start = nn.initializers.lecun_normal()
        kernel = self.param("kernel", start, (x.shape[-1], self.width), self.dtype)
        y = jnp.einsum("...k,ko->...o", x.astype(self.dtype), kernel)
        return lora.added(self, x, y, self.dropout, numbers)


def _buckets(count: int, max_distance: int) -> np.ndarray:
    """The bucket of each distance from 0 to `max_distance`. In float32, as the weights were trained with:
    where a logarithm is a whole number, rounding decides."""
    exact = count // 2
    distance = np.arange(max_distance + 1)
    octaves = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    share = octaves / np.float32(math.log(max_distance / exact)) * np.float32(count - exact)
    return np.where(distance < exact, distance, np.minimum(exact + share.astype(np.int32), count - 1))


def _attend(
    query: Float[Array, "b n t h"],
    pairs: list[_Pair],
    bias: Float[Array, "#n t #s"],
    mask: Bool[Array, "b #s"],
) -> Float[Array, "b t k"]:
    """Softmax attention over all pairs of keys and values one after another, by blocks of queries. The
    pairs are not joined first: a past is only read, so the layer scan moves none of it."""
    b, n, t, h = query.shape

    def block(rows: tuple[Array, Array]) -> Array:
        some, added = rows  # [b n q h], [n q s]
        parts = [
            jnp.einsum("bnqh,bnsh->bnqs", some, keys, preferred_element_type=jnp.float32) for keys, _ in pairs
        ]
        # A finite fill: a row that sees nothing (padding) averages everything instead of making NaN.
        scores = jnp.where(
            mask[:, None, None, :], jnp.concatenate(parts, axis=-1) + added[None], jnp.finfo(jnp.float32).min
        )
        weights, mixed, start = jax.nn.softmax(scores, axis=-1).astype(query.dtype), 0.0, 0
        for _, values in pairs:
            part = weights[..., start : start + values.shape[2]]
            mixed += jnp.einsum("bnqs,bnsh->bnqh", part, values, preferred_element_type=jnp.float32)
            start += values.shape[2]
        return jnp.asarray(mixed, query.dtype)

    if t <= QUERY_BLOCK:
        mixed = block((query, bias))
    else:
        padding = -t % QUERY_BLOCK
        queries = jnp.pad(query, ((0, 0), (0, 0), (0, padding), (0, 0))).reshape(b, n, -1, QUERY_BLOCK, h)
        biases = jnp.pad(bias, ((0, 0), (0, padding), (0, 0)))
        biases = biases.reshape(bias.shape[0], -1, QUERY_BLOCK, bias.shape[2])
        mixed = jax.lax.map(block, (jnp.moveaxis(queries, 2, 0), jnp.moveaxis(biases, 1, 0)))
        mixed = jnp.moveaxis(mixed, 0, 2).reshape(b, n, t + padding, h)[:, :, :t]
    return mixed.swapaxes(1, 2).reshape(b, t, n * h)
