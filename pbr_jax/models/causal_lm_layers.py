"""The layers of `causal_lm`: what a decoder computes, step by step."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.models.causal_lm_config import CausalLMConfig
from pbr_jax.models.norms import RMSNorm
from pbr_jax.models.rope import Rope

EVERYTHING = 2**30  # tokens: the window of a layer without one
FEW_ROWS = 48  # as in decoding
QUERY_BLOCK, QUERY_BLOCKS = 64, 8  # tokens that attend at once, and in one pass: scores are never [t, t]


class Past(NamedTuple):
    """Keys and values of earlier tokens, in `s` slots; a slot of negative position is never attended to.

    Without the axis b, all rows of a batch have these tokens before them, and attend to one copy.
    """

    keys: Float[Array, "l *b k s h"]
    values: Float[Array, "l *b k s h"]
    positions: Int[Array, "*b s"]


class Output(NamedTuple):
    """Normed hidden states of the given tokens, and their keys (rotated) and values in every layer."""

    hidden: Float[Array, "b t d"]
    keys: Float[Array, "l b k t h"]
    values: Float[Array, "l b k t h"]


def capped(x: Array, cap: float | None) -> Array:
    """Squashed into (-cap, cap); None leaves it alone."""
    return x if cap is None else cap * jnp.tanh(x / cap)


class Decoder(nn.Module):
    """Embedding, scanned layers and the last norm; `causal_lm` documents the arguments."""

    config: CausalLMConfig
    dtype: Any

    @nn.compact
    def __call__(
        self,
        ids: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        past: Past | tuple[Past, ...] | None,
        tokens: int | None,
        long: Bool[Array, "*b"] | None = None,
    ) -> Output:
        config = self.config
        shape = (config.vocab_size, config.width)
        embedding = self.param("embedding", nn.initializers.normal(0.02), shape, self.dtype)
        if not config.tied:
            self.param("head", nn.initializers.normal(0.02), shape, self.dtype)
        parts = () if past is None else (past,) if isinstance(past, Past) else past
        pasts = [part for part in parts if part.positions.shape[-1]]
        layout = _layout(positions, tokens)
        rotation = _rotations(config, positions, layout, long)
        layers = nn.scan(
            _Layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, 0, nn.broadcast, nn.broadcast, nn.broadcast),  # pyright: ignore[reportArgumentType]
            length=config.num_layers,
        )(config, self.dtype, name="layers")
        x = embedding[layout.pack(ids)]
        if config.scale_embedding:
            x = x * jnp.asarray(config.width**0.5, self.dtype)  # rounded, as the models were trained
        held = tuple((part.keys, part.values) for part in pasts)
        places = tuple(part.positions for part in pasts)
        x, (keys, values) = layers(x, _kinds(config), held, places, layout, rotation)
        x = _norm(config, self.dtype, "norm")(x)
        return Output(layout.spread(x), keys, values)


class _Layout(NamedTuple):
    """Where tokens lie: in rows, [b t], for attention, and one after another, [n], for everything else."""

    positions: Int[Array, "b t"]
    rows: Int[Array, "n"] | None  # of each packed token: its place in the b t; None: all of them in order
    packed: Int[Array, "b t"] | None  # of each place in the rows: its packed token

    def pack(self, x: Array) -> Array:
        """[b t ...] -> [n ...]."""
        flat = x.reshape(-1, *x.shape[2:])
        return flat if self.rows is None else jnp.take(flat, self.rows, axis=0, mode="clip")

    def spread(self, x: Array) -> Array:
        """[n ...] -> [b t ...]; places of padding get some token's values."""
        if self.packed is None:
            return x.reshape(*self.positions.shape, *x.shape[1:])
        return jnp.take(x, self.packed, axis=0, mode="clip")


def _layout(positions: Int[Array, "b t"], tokens: int | None) -> _Layout:
    if tokens is None or tokens >= positions.size:
        return _Layout(positions, None, None)
    real = positions.reshape(-1) >= 0
    (rows,) = jnp.nonzero(real, size=tokens, fill_value=0)
    return _Layout(positions, rows, (jnp.cumsum(real) - 1).reshape(positions.shape))


class _Kind(NamedTuple):
    """What one layer does otherwise than others; None: nothing. Stacked over layers for the scan."""

    window: Int[Array, "*l"] | None  # tokens that it sees
    rope: Int[Array, "*l"] | None  # which rotation it takes


def _kinds(config: CausalLMConfig) -> _Kind:
    windows = np.array(config.windows, np.int32)
    if not windows.any():
        return _Kind(None, None)
    rope = None if config.local_rope is None else jnp.asarray(windows > 0, jnp.int32)
    return _Kind(jnp.asarray(np.where(windows > 0, windows, EVERYTHING), jnp.int32), rope)


_Rotation = tuple[Float[Array, "r n 1 w"], Float[Array, "r n 1 w"]]


class _Layer(nn.Module):
    """Attention and MLP, each after a norm and added to the stream. One step of the scan."""

    config: CausalLMConfig
    dtype: Any

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "n d"],
        kind: _Kind,
        held: tuple[tuple[Float[Array, "*_ k _ h"], Float[Array, "*_ k _ h"]], ...],
        places: tuple[Int[Array, "*_"], ...],
        layout: _Layout,
        rotations: _Rotation,
    ) -> tuple[Float[Array, "n d"], tuple[Float[Array, "b k t h"], Float[Array, "b k t h"]]]:
        c = self.config
        y = _norm(c, self.dtype, "attention_norm")(x)
        query, key = self._heads("query", c.num_heads, y), self._heads("key", c.num_kv_heads, y)
        value = self._heads("value", c.num_kv_heads, y)
        if c.qk_norm:
            query, key = (
                _norm(c, self.dtype, f"{name}_norm")(z) for name, z in (("query", query), ("key", key))
            )
        cosine, sine = (x[0] if kind.rope is None else x[kind.rope] for x in rotations)
        query, key = _rotate(query, cosine, sine), _rotate(key, cosine, sine)
        # Heads before tokens: the layout that attention multiplies and that a cache is kept in.
        key, value = layout.spread(key).swapaxes(1, 2), layout.spread(value).swapaxes(1, 2)
        pieces = [(key, value, layout.positions), *((*kv, at) for kv, at in zip(held, places))]
        query = layout.spread(query) * (c.attention_scale or c.head_width**-0.5)
        attended = _attend(query, pieces, layout.positions, kind.window, c.attention_cap)
        attended = self._project("output", c.width, c.output_bias, layout.pack(attended))
        if c.post_norms:
            attended = _norm(c, self.dtype, "attention_post_norm")(attended)
        x = x + attended
        y = self._mlp(_norm(c, self.dtype, "mlp_norm")(x))
        if c.post_norms:
            y = _norm(c, self.dtype, "mlp_post_norm")(y)
        return x + y, (key, value)

    def _mlp(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        c = self.config
        gate = self._project("gate", c.mlp_width, c.mlp_bias, x)
        up = self._project("up", c.mlp_width, c.mlp_bias, x)
        return self._project("down", c.width, c.mlp_bias, _ACTIVATIONS[c.activation](gate) * up)

    def _heads(self, name: str, heads: int, x: Float[Array, "n d"]) -> Float[Array, "n a h"]:
        c = self.config
        return self._project(name, heads * c.head_width, c.qkv_bias, x).reshape(-1, heads, c.head_width)

    def _project(self, name: str, width: int, bias: bool, x: Array) -> Array:
        return _Projection(width, bias, self.dtype, name=name)(x)


class _Projection(nn.Module):
    """A linear map whose kernel is kept as in Hugging Face's files."""

    width: int
    use_bias: bool
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "n i"]) -> Float[Array, "n o"]:
        start = nn.initializers.lecun_normal(in_axis=-1, out_axis=-2)
        y = times(x, self.param("kernel", start, (self.width, x.shape[-1]), self.dtype), self.dtype)
        if self.use_bias:
            y += self.param("bias", nn.initializers.zeros, (self.width,), self.dtype)[None, :]
        return y


def times(x: Float[Array, "n i"], kernel: Float[Array, "o i"], dtype: Any) -> Float[Array, "n o"]:
    """The product of rows and a kernel, in `dtype`."""
    if len(x) > FEW_ROWS or jax.default_backend() != "cpu":
        return jnp.einsum("ni,oi->no", x, kernel, preferred_element_type=dtype)
    # On a CPU the large matrix should come first (benchmarks/RESULTS.md); XLA would turn it round again.
    return jax.lax.optimization_barrier(jnp.einsum("oi,ni->on", kernel, x, preferred_element_type=dtype)).T


_ACTIVATIONS = {"silu": nn.silu, "gelu_tanh": nn.gelu}  # nn.gelu is the tanh approximation


def _norm(config: CausalLMConfig, dtype: Any, name: str) -> RMSNorm:
    return RMSNorm(config.norm_epsilon, config.norm_offset, dtype, name=name)


def _rotations(
    config: CausalLMConfig, positions: Int[Array, "b t"], layout: _Layout, long: Bool[Array, "*b"] | None
) -> _Rotation:
    """Cosines and sines of the packed tokens: those of `rope`, then those of `local_rope` if there is one."""
    ropes = [config.rope] if config.local_rope is None else [config.rope, config.local_rope]
    cosines, sines = zip(*(_rotation(rope, positions, layout, long) for rope in ropes))
    return jnp.stack(cosines), jnp.stack(sines)


def _rotation(
    rope: Rope, positions: Int[Array, "b t"], layout: _Layout, long: Bool[Array, "*b"] | None
) -> tuple[Float[Array, "n 1 w"], Float[Array, "n 1 w"]]:
    """Cosine and sine of position times frequency, for both halves of what turns."""
    half = rope.width // 2
    frequency = rope.theta ** (-jnp.arange(half, dtype=jnp.float32)[None, :] / half)
    if rope.long_divisors:
        rows = positions.max(axis=1) >= rope.original if long is None else long
        which = layout.pack(jnp.broadcast_to(jnp.reshape(rows, (-1, 1)), positions.shape))
        factors = jnp.array([rope.divisors, rope.long_divisors], jnp.float32)
        frequency = frequency / factors[which.astype(jnp.int32)]
    elif rope.divisors:
        frequency = frequency / jnp.array(rope.divisors, jnp.float32)[None, :]
    angle = layout.pack(positions)[:, None].astype(jnp.float32) * frequency
    angle = jnp.concatenate([angle, angle], axis=-1)[:, None, :]
    if rope.scale == 1.0:
        return jnp.cos(angle), jnp.sin(angle)
    return rope.scale * jnp.cos(angle), rope.scale * jnp.sin(angle)


def _rotate(
    x: Float[Array, "n a h"], cosine: Float[Array, "n 1 w"], sine: Float[Array, "n 1 w"]
) -> Float[Array, "n a h"]:
    """Turns the pairs (i, i + w/2) of each head's first w: the half-split layout of Hugging Face weights."""
    width = cosine.shape[-1]
    turning, still = x[..., :width], x[..., width:]
    first, second = jnp.split(turning, 2, axis=-1)
    turned = turning * cosine + jnp.concatenate([-second, first], axis=-1) * sine
    turned = turned.astype(x.dtype)
    return turned if width == x.shape[-1] else jnp.concatenate([turned, still], axis=-1)


_Piece = tuple[Float[Array, "*_ k _ h"], Float[Array, "*_ k _ h"], Int[Array, "*_"]]


def _attend(
    query: Float[Array, "b t a h"],
    pieces: list[_Piece],
    positions: Int[Array, "b t"],
    window: Int[Array, ""] | None,
    cap: float | None,
) -> Float[Array, "b t d"]:
    """Softmax attention of every token over `pieces` of keys, values and their positions.

    The pieces (own tokens, parts of the past, of each row or of all) are never joined: what is only read is
    not moved, and in a decoding loop what does not change is not copied.
    """
    b, t, a, h = query.shape
    k = pieces[0][0].shape[1]
    # Scores come out as [b k g r s] without moving them: the largest arrays of the layer.
    query = query.reshape(b, t, k, a // k, h).transpose(0, 2, 3, 1, 4)

    def block(some: Array, own: Array, pieces: list[_Piece]) -> Array:  # [b k g r h], [b r]
        scores = [_masked(_scores(some, keys), own, places, window, cap) for keys, _, places in pieces]
        # Divided after the product: of a width h, not of as many as there are keys.
        most = functools.reduce(jnp.maximum, [x.max(axis=-1, keepdims=True) for x in scores])
        weights = [jnp.exp(x - most) for x in scores]
        total = functools.reduce(jnp.add, [x.sum(axis=-1, keepdims=True) for x in weights])
        mixed = [_mix(x.astype(values.dtype), values) for x, (_, values, _) in zip(weights, pieces)]
        return (functools.reduce(jnp.add, mixed) / total).astype(query.dtype)

    if t <= QUERY_BLOCKS * QUERY_BLOCK:
        # Tokens stand in order: no block sees what comes after it.
        (keys, values, places), *past = pieces
        mixed = []
        for start in range(0, t, QUERY_BLOCK):
            end = min(start + QUERY_BLOCK, t)
            seen = [(keys[:, :, :end], values[:, :, :end], places[:, :end]), *past]
            mixed.append(block(query[:, :, :, start:end], positions[:, start:end], seen))
        mixed = jnp.concatenate(mixed, axis=3)
    else:
        size = QUERY_BLOCKS * QUERY_BLOCK
        padding = -t % size
        query = jnp.pad(query, ((0, 0), (0, 0), (0, 0), (0, padding), (0, 0)))
        own = jnp.pad(positions, ((0, 0), (0, padding)), constant_values=-1)
        blocks = jnp.moveaxis(query.reshape(*query.shape[:3], -1, size, h), 3, 0)
        owns = own.reshape(b, -1, size).swapaxes(0, 1)
        mixed = jax.lax.map(lambda rows: block(rows[0], rows[1], pieces), (blocks, owns))
        mixed = jnp.moveaxis(mixed, 0, 3).reshape(*query.shape)[:, :, :, :t]
    return mixed.transpose(0, 3, 1, 2, 4).reshape(b, t, a * h)


def _masked(
    scores: Float[Array, "b k g r s"],
    own: Int[Array, "b r"],
    places: Int[Array, "*b s"],
    window: Int[Array, ""] | None,
    cap: float | None,
) -> Float[Array, "b k g r s"]:
    """Scores of keys at `places` for queries at `own`, those that are not seen made very small.

    A finite fill: a row that sees nothing (padding) averages everything instead of making NaN.
    """
    own, places = own[:, :, None], jnp.atleast_2d(places)[:, None, :]
    visible = (places >= 0) & (places <= own)
    if window is not None:
        visible &= places > own - window
    return jnp.where(visible[:, None, None], capped(scores, cap), jnp.finfo(jnp.float32).min)


def _scores(query: Float[Array, "b k g r h"], keys: Float[Array, "*b k s h"]) -> Float[Array, "b k g r s"]:
    if keys.ndim == 3:
        return jnp.einsum("bkgrh,ksh->bkgrs", query, keys, preferred_element_type=jnp.float32)
    if query.shape[3] == 1:  # one token a row: on CPU faster by far with the long side first
        scores = jnp.einsum("bksh,bkgrh->bksgr", keys, query, preferred_element_type=jnp.float32)
        return jnp.moveaxis(scores, 2, 4)
    return jnp.einsum("bkgrh,bksh->bkgrs", query, keys, preferred_element_type=jnp.float32)


def _mix(weights: Float[Array, "b k g r s"], values: Float[Array, "*b k s h"]) -> Float[Array, "b k g r h"]:
    if values.ndim == 3:
        return jnp.einsum("bkgrs,ksh->bkgrh", weights, values, preferred_element_type=jnp.float32)
    return jnp.einsum("bkgrs,bksh->bkgrh", weights, values, preferred_element_type=jnp.float32)
