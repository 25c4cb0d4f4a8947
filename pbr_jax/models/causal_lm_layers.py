"""The layers of `causal_lm`: what a decoder computes, step by step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.models import lora
from pbr_jax.models.attention import Layout, attend, mass
from pbr_jax.models.causal_lm_config import CausalLMConfig, DecoderLayerConfig
from pbr_jax.models.layers import KEPT, token_numbers
from pbr_jax.models.rope import Rope
from pbr_jax.models.sharding import data_devices

EVERYTHING = 2**30  # tokens: the window of a layer without one
FEW_ROWS = 48  # as in decoding
PRODUCT = "product"  # the name of what linear maps gave, bias and adapter included


class Past(NamedTuple):
    """Keys and values of earlier tokens, in `s` slots; a slot of negative position is never attended to.

    Without the axis b, all rows of a batch have these tokens before them, and attend to one copy.
    """

    keys: Float[Array, "l *b k s h"]
    values: Float[Array, "l *b k s h"]
    positions: Int[Array, "*b s"]


class Output(NamedTuple):
    """Normed hidden states of the given tokens, and their keys (rotated) and values in every layer.

    `mass`: where tokens were watched, the attention that the given tokens get, then that of each part of the
    past, summed over layers and heads.
    """

    hidden: Float[Array, "b t d"]
    keys: Float[Array, "l b k t h"]
    values: Float[Array, "l b k t h"]
    mass: tuple[Float[Array, "b s"], ...] | None = None


class Decoder(nn.Module):
    """Embedding, scanned layers and the last norm; `causal_lm` documents the arguments."""

    config: CausalLMConfig
    dtype: Any
    dropout: float = 0.0  # of what adapters read
    remat: bool = False  # whether a layer is computed again for its gradient, products too

    @nn.compact
    def __call__(
        self,
        ids: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        past: Past | tuple[Past, ...] | None,
        tokens: int | None,
        long: Bool[Array, "*b"] | None = None,
        rows: Int[Array, "b"] | None = None,
        watched: Float[Array, "b t"] | None = None,
    ) -> Output:
        config = self.config
        shape = (config.vocab_size, config.width)
        embedding = self.param("embedding", nn.initializers.normal(0.02), shape, self.dtype)
        if not config.tied:
            self.param("head", nn.initializers.normal(0.02), shape, self.dtype)
        parts = () if past is None else (past,) if isinstance(past, Past) else past
        pasts = [part for part in parts if part.positions.shape[-1]]
        layout = _numbered(_layout(positions, tokens), rows)._replace(watched=watched)
        rotation = _rotations(config, positions, layout, long)
        layers = scanned(config, self.dtype, self.dropout, config.num_layers, remat=self.remat)
        x = embedding[layout.pack(ids)]
        if config.scale_embedding:
            x = x * jnp.asarray(config.width**0.5, self.dtype)  # rounded, as the models were trained
        own = _kinds(config)._replace(held=tuple((part.keys, part.values) for part in pasts))
        same = Same(layout, tuple(part.positions for part in pasts), rotation)
        x, (keys, values, got) = layers(x, own, same)
        x = norm(config, self.dtype, "norm")(x)
        return Output(layout.spread(x), keys, values, got and tuple(each.sum(0) for each in got))


def _layout(positions: Int[Array, "b t"], tokens: int | None) -> Layout:
    if tokens is None or tokens >= positions.size:
        return Layout(positions, None, None)
    real = positions.reshape(-1) >= 0
    (rows,) = jnp.nonzero(real, size=tokens, fill_value=0)
    return Layout(positions, rows, (jnp.cumsum(real) - 1).reshape(positions.shape))


def _numbered(layout: Layout, rows: Int[Array, "b"] | None) -> Layout:
    """With the numbers that tokens have by those of their rows, wherever they lie."""
    if rows is None:
        return layout
    return layout._replace(numbers=layout.pack(token_numbers(rows, layout.positions)))


_Numbers = Int[Array, "n"] | None
_Rotation = tuple[Float[Array, "r n 1 w"], Float[Array, "r n 1 w"]]
_Pair = tuple[Float[Array, "*_ k _ h"], Float[Array, "*_ k _ h"]]


class Own(NamedTuple):
    """What one layer has for itself. Stacked over layers for the scan."""

    window: Int[Array, "*l"] | None = None  # tokens that it sees; None: all
    rope: Int[Array, "*l"] | None = None  # which rotation it takes; None: the first
    held: tuple[_Pair, ...] = ()  # keys and values of earlier tokens, part by part
    cross: _Pair | None = None  # those of another text, which an encoder has read


class Same(NamedTuple):
    """What all layers share."""

    layout: Layout
    places: tuple[Int[Array, "*_"], ...] = ()  # positions of the earlier tokens, part by part
    rotations: _Rotation | None = None
    bias: tuple[Float[Array, "a t _s"], ...] | None = None  # added to the scores, as in `attend`
    text: Int[Array, "c s"] | None = None  # of the other texts' tokens: 0; -1: padding


def _kinds(config: CausalLMConfig) -> Own:
    windows = np.array(config.windows, np.int32)
    if not windows.any():
        return Own()
    rope = None if config.local_rope is None else jnp.asarray(windows > 0, jnp.int32)
    return Own(jnp.asarray(np.where(windows > 0, windows, EVERYTHING), jnp.int32), rope)


def scanned(
    config: DecoderLayerConfig,
    dtype: Any,
    dropout: float,
    length: int,
    *,
    remat: bool = False,
    keeps: bool = True,
) -> Any:
    """The layers of a module, stacked as `layers`: `(x, own, same) -> (x, what each layer has)`.

    `keeps`: whether they have keys and values, and `Output.mass`.
    """
    # For a gradient only what linear maps gave, and what dropout left in, is kept: computing the rest
    # again takes less time than moving it (benchmarks/RESULTS.md), and less than half of the memory.
    kept = jax.checkpoint_policies.save_only_these_names(KEPT, PRODUCT)
    return nn.scan(
        nn.remat(_Layer, prevent_cse=False, policy=None if remat else kept),
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast),  # pyright: ignore[reportArgumentType]
        length=length,
    )(config, dtype, dropout, keeps, name="layers")


class _Layer(nn.Module):
    config: DecoderLayerConfig
    dtype: Any
    dropout: float = 0.0
    keeps: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "n d"], own: Own, same: Same) -> tuple[Float[Array, "n d"], Any]:
        c, layout = self.config, same.layout
        x = layout.divided(x, None)
        y = norm(c, self.dtype, "attention_norm")(x)
        query, key = (
            self._heads(name, heads, y, layout)
            for name, heads in (("query", c.num_heads), ("key", c.num_kv_heads))
        )
        value = self._heads("value", c.num_kv_heads, y, layout)
        if c.qk_norm:
            query, key = (
                norm(c, self.dtype, f"{name}_norm")(z) for name, z in (("query", query), ("key", key))
            )
        if same.rotations is not None:
            cosine, sine = (x[0] if own.rope is None else x[own.rope] for x in same.rotations)
            query, key = _rotate(query, cosine, sine), _rotate(key, cosine, sine)
        # Heads before tokens: the layout that attention multiplies and that a cache is kept in.
        key, value = layout.spread(key).swapaxes(1, 2), layout.spread(value).swapaxes(1, 2)
        pieces = [(key, value, layout.positions), *((*kv, at) for kv, at in zip(own.held, same.places))]
        query = query * c.scale
        how = pieces, layout, own.window, c.attention_cap
        attended, got = attend(query, *how, same.bias), None if layout.watched is None else mass(query, *how)
        attended = self._project("output", c.width, c.output_bias, attended, layout)
        if c.post_norms:
            attended = norm(c, self.dtype, "attention_post_norm")(attended)
        x = layout.divided(x + attended, None)
        if own.cross is not None and same.text is not None:
            x = x + self._cross(norm(c, self.dtype, "cross_norm")(x), (*own.cross, same.text), layout)
        y = self._mlp(norm(c, self.dtype, "mlp_norm")(x), layout)
        if c.post_norms:
            y = norm(c, self.dtype, "mlp_post_norm")(y)
        return x + y, (key, value, got) if self.keeps else None

    def _cross(self, x: Float[Array, "n d"], piece: Any, own: Layout) -> Float[Array, "n d"]:
        """Attention to other texts. Consecutive rows that read one text are more queries of it: no position
        and no order matters here."""
        c, texts = self.config, len(piece[2])
        query = self._heads("cross_query", c.num_heads, x, own) * c.scale
        layout = Layout(jnp.zeros((texts, len(x) // texts), jnp.int32), None, None)
        nowhere = jnp.zeros((1, len(x) // texts, 1), jnp.float32)
        read = attend(query, [piece], layout, None, c.attention_cap, [nowhere])
        return self._project("cross_output", c.width, c.output_bias, read, own)

    def _mlp(self, x: Float[Array, "n d"], layout: Layout) -> Float[Array, "n d"]:
        c, act = self.config, _ACTIVATIONS[self.config.activation]
        if c.gated:
            gate = self._project("gate", c.mlp_width, c.mlp_bias, x, layout)
            inner = act(gate) * self._project("up", c.mlp_width, c.mlp_bias, x, layout)
        else:
            inner = act(self._project("up", c.mlp_width, c.mlp_bias, x, layout))
        return self._project("down", c.width, c.mlp_bias, inner, layout)

    def _heads(self, name: str, heads: int, x: Float[Array, "n d"], layout: Layout) -> Float[Array, "n a h"]:
        c = self.config
        y = self._project(name, heads * c.head_width, c.qkv_bias, x, layout)
        return y.reshape(-1, heads, c.head_width)

    def _project(self, name: str, width: int, bias: bool, x: Array, layout: Layout) -> Array:
        product = Projection(width, bias, self.dtype, self.dropout, name=name)
        return layout.divided(product(layout.divided(x), layout.numbers))


class Projection(nn.Module):
    """A linear map whose kernel is kept as in Hugging Face's files."""

    width: int
    use_bias: bool
    dtype: Any
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: Float[Array, "n i"], numbers: _Numbers = None) -> Float[Array, "n o"]:
        start = nn.initializers.lecun_normal(in_axis=-1, out_axis=-2)
        y = times(x, self.param("kernel", start, (self.width, x.shape[-1]), self.dtype), self.dtype)
        if self.use_bias:
            y += self.param("bias", nn.initializers.zeros, (self.width,), self.dtype)[None, :]
        return checkpoint_name(lora.added(self, x, y, self.dropout, numbers), PRODUCT)


def times(x: Float[Array, "n i"], kernel: Float[Array, "o i"], dtype: Any) -> Float[Array, "n o"]:
    """The product of rows and a kernel, in `dtype`."""
    if len(x) > FEW_ROWS or jax.default_backend() != "cpu":
        return jnp.einsum("ni,oi->no", x, kernel, preferred_element_type=dtype)
    # On a CPU the large matrix should come first (benchmarks/RESULTS.md); XLA would turn it round again.
    return jax.lax.optimization_barrier(jnp.einsum("oi,ni->on", kernel, x, preferred_element_type=dtype)).T


_ACTIVATIONS = {"silu": nn.silu, "gelu_tanh": nn.gelu, "relu": nn.relu}  # nn.gelu: the tanh approximation


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
        if data_devices():  # or x would be divided like the scale, and exchanged before each product
            scale = jax.lax.with_sharding_constraint(scale, jax.sharding.PartitionSpec())
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.epsilon)
        if self.offset:  # Gemma multiplies before it rounds
            return (wide * (self.offset + scale.astype(jnp.float32))).astype(self.dtype)
        return scale * wide.astype(self.dtype)


def norm(config: DecoderLayerConfig, dtype: Any, name: str) -> RMSNorm:
    return RMSNorm(config.norm_epsilon, config.norm_offset, dtype, name=name)


def _rotations(
    config: CausalLMConfig, positions: Int[Array, "b t"], layout: Layout, long: Bool[Array, "*b"] | None
) -> _Rotation:
    """Cosines and sines of the packed tokens: those of `rope`, then those of `local_rope` if there is one."""
    ropes = [config.rope] if config.local_rope is None else [config.rope, config.local_rope]
    cosines, sines = zip(*(_rotation(rope, positions, layout, long) for rope in ropes))
    return jnp.stack(cosines), jnp.stack(sines)


def _rotation(
    rope: Rope, positions: Int[Array, "b t"], layout: Layout, long: Bool[Array, "*b"] | None
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
