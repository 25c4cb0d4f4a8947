"""Parts that the encoders share: post-norm transformer layers, small MLPs, masked means, dropout by key.

A layer is that of Vaswani et al., https://arxiv.org/abs/1706.03762, 2017, with layer normalisation after each
residual sum. Dropout happens where `apply` is given an rng named "dropout"; `rngs` makes that argument.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeVar, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.base.types import Model, Params, UserError

Apply = TypeVar("Apply", bound=Callable[..., Any])

XAVIER = nn.initializers.xavier_uniform()
KEPT = "kept"  # the name of what dropout keeps, which layers that are computed again need not draw again
_FAR = 65_521  # tokens: the numbers of a row's tokens start so far from those of the next


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """One transformer encoder layer; its width is that of its input."""

    num_heads: int
    mlp_width: int
    activation: Callable[[Array], Array] = nn.relu
    epsilon: float = 1e-5  # of layer normalisation
    dropout: float = 0.0  # of what attention and MLP add to the stream
    attention_dropout: float = 0.0  # of attention weights
    mlp_dropout: float = 0.0  # of the MLP's hidden units
    kernel_init: nn.initializers.Initializer = XAVIER


def precision(dtype: Any) -> Any:
    """Of products, as a context: accelerators would otherwise shorten float32 to fewer bits."""
    return jax.default_matmul_precision("highest" if jnp.dtype(dtype) == jnp.float32 else "default")


def exact(apply: Apply) -> Apply:
    """A model's `apply(params, ...)` with products of full precision where all parameters are float32."""

    @wraps(apply)
    def applied(params: Params, *arguments: Any, **named: Any) -> Any:
        full = all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))
        with precision(jnp.float32 if full else jnp.bfloat16):
            return apply(params, *arguments, **named)

    return cast(Apply, applied)


def in_format(params: Params, dtype: Any) -> Params:
    """An encoder's parameters in a number format, in which its products are then computed. Those of norms
    stay as they are, and so does the format of what layers add up."""

    def narrow(path: tuple[Any, ...], leaf: Array) -> Array:
        return leaf if any("norm" in key.key for key in path) else leaf.astype(dtype)

    return jax.tree_util.tree_map_with_path(narrow, params)


def check_sizes(config: object, *, positive: tuple[str, ...], width: str, heads: str) -> None:
    """`UserError` naming the field of a config that is no positive number, or heads that do not divide."""
    for name in (*positive, width, heads):
        if getattr(config, name) < 1:
            raise UserError(f"{name} is {getattr(config, name)}; a positive whole number is wanted")
    if getattr(config, width) % getattr(config, heads):
        raise UserError(
            f"{width} {getattr(config, width)} is not a multiple of {heads} {getattr(config, heads)}"
        )


def check_rate(name: str, rate: float) -> None:
    """`UserError` for a dropout rate outside [0, 1)."""
    if not 0 <= rate < 1:
        raise UserError(f"{name} is {rate}; a number from 0 to below 1 is wanted")


def rngs(key: Array | None) -> dict[str, Array]:
    """The `rngs` of a module's `apply`: dropout with that key, none without."""
    return {} if key is None else {"dropout": key}


def row_keys(key: Array, rows: Int[Any, "b"]) -> Array:
    """A key for each row, by the row's number: not by its place, nor by what else is in the batch."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, rows)


def token_numbers(rows: Int[Any, "b"], positions: Int[Any, "#b t"]) -> Int[Array, "b t"]:
    """The numbers that tokens have by those of their rows, wherever they lie: what `drop` knows them by."""
    return rows[:, None] * _FAR + positions


def drop(
    module: nn.Module, rate: float, x: Float[Array, "b *n"], rows: Int[Any, "b"]
) -> Float[Array, "b *n"]:
    """Dropout with a key of the module; `x` itself where the module has no key for it.

    What a row loses follows from the key and the row's number in `rows`, however a batch is divided. The rate
    is rounded to a multiple of 2^-16.
    """
    if not rate or not module.has_rng("dropout"):
        return x
    # Two places share a word of 32 random bits, which are a third of a training step's time on CPU otherwise.
    *inner, n = x.shape[1:]
    keys = row_keys(module.make_rng("dropout"), rows)
    words = jax.vmap(lambda key: jax.random.bits(key, (*inner, -(-n // 2)), jnp.uint32))(keys)
    dropped = min(round(rate * 2**16), 2**16 - 1)
    # The upper 16 bits decide: below them the threshold has zeros.
    halves = jnp.concatenate([words << 16, words], axis=-1)[..., :n]
    kept = checkpoint_name(halves >= jnp.uint32(dropped << 16), KEPT)
    return jnp.where(kept, x / (1 - dropped / 2**16), 0)


class Dense(nn.Module):
    """A linear map with bias, of rows: with one axis before the last, its gradient transposes nothing."""

    width: int
    kernel_init: nn.initializers.Initializer = XAVIER

    @nn.compact
    def __call__(self, inputs: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        *b, i = inputs.shape
        kernel = self.param("kernel", self.kernel_init, (i, self.width))
        bias = self.param("bias", nn.initializers.zeros, (self.width,))
        rows = inputs.reshape(math.prod(b), i).astype(kernel.dtype)  # narrow weights compute narrowly
        return (rows @ kernel + bias[None]).reshape(*b, self.width)


def dense(width: int, name: str, kernel_init: nn.initializers.Initializer = XAVIER) -> Dense:
    """A linear map with bias under an explicit name."""
    return Dense(width, kernel_init, name=name)


def masked_mean(states: Float[Array, "*b n d"], mask: Bool[Array, "*b n"]) -> Float[Array, "*b d"]:
    """The mean over places whose mask is True; zeros, with a finite gradient, where none is."""
    weights = mask.astype(states.dtype)
    weights /= jnp.maximum(weights.sum(-1, keepdims=True), 1)
    return jnp.einsum("...nd,...n->...d", states, weights)


def split_heads(states: Float[Array, "*b t d"], heads: int) -> Float[Array, "*b h t e"]:
    """[.. t d] -> [.. h t e]: h heads of width e. On CPU 3-5 times as fast as contracting [.. t h e]."""
    *b, t, d = states.shape
    return states.reshape(*b, t, heads, d // heads).swapaxes(-3, -2)


def places(x: Array) -> Int[Array, "b"]:
    """The numbers of rows that have no others: 0, 1, 2, ..."""
    return jnp.arange(x.shape[0], dtype=jnp.int32)


def stack(
    module: nn.Module,
    config: LayerConfig,
    num_layers: int,
    states: Float[Array, "b t d"],
    mask: Bool[Array, "b #q t"],
    *,
    rows: Int[Any, "b"] | None = None,
    name: str = "layers",
) -> Float[Array, "b t d"]:
    """States after layers that are scanned; to be called inside a compact `module`.

    Parameters are stacked on axis 0 under `name`; with no layers, or no tokens, there are none. `mask`:
    True where a token (axis 1) may attend to a token (axis 2). Where a token may attend to nothing its
    states are finite and mean nothing. `rows`: the rows' numbers, for dropout; None: their places.
    """
    if not num_layers or not states.shape[1]:
        return states
    # Unrolled, training does not copy what the backward pass needs into and out of a stack of layers. For
    # accelerators the compilation would take a multiple of the time.
    unroll = num_layers if module.has_rng("dropout") and jax.default_backend() == "cpu" else 1
    layers = nn.scan(
        EncoderLayer,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(nn.broadcast, nn.broadcast),  # pyright: ignore[reportArgumentType]  (its annotation says int)
        length=num_layers,
        unroll=unroll,
    )
    states, _ = layers(config, name=name)(states, mask, places(states) if rows is None else rows)
    return states


class EncoderLayer(nn.Module):
    """Self-attention and MLP, each added to the stream and normalised. One step of the scan."""

    config: LayerConfig

    @nn.compact
    def __call__(
        self, states: Float[Array, "b t d"], mask: Bool[Array, "b #q t"], rows: Int[Array, "b"]
    ) -> tuple[Float[Array, "b t d"], None]:
        config = self.config
        norm = partial(nn.LayerNorm, epsilon=config.epsilon)
        attended = Attention(config, name="attention")(states, mask, rows)
        states = norm(name="attention_norm")(states + drop(self, config.dropout, attended, rows))
        hidden = config.activation(dense(config.mlp_width, "up", config.kernel_init)(states))
        hidden = drop(self, config.mlp_dropout, hidden, rows)
        added = dense(states.shape[-1], "down", config.kernel_init)(hidden)
        return norm(name="mlp_norm")(states + drop(self, config.dropout, added, rows)), None


class Attention(nn.Module):
    """Multi-head self-attention under a mask; its products in the states' dtype, softmax in float32."""

    config: LayerConfig

    @nn.compact
    def __call__(
        self, states: Float[Array, "b t d"], mask: Bool[Array, "b #q t"], rows: Int[Array, "b"]
    ) -> Float[Array, "b t d"]:
        config = self.config
        d = states.shape[-1]
        query, key, value = (
            split_heads(dense(d, name, config.kernel_init)(states), config.num_heads)
            for name in ("query", "key", "value")
        )
        query = query * query.shape[-1] ** -0.5
        # Widened behind the product, so that its gradients are products of the states' dtype too.
        logits = jnp.einsum("bhqe,bhke->bhqk", query, key).astype(jnp.float32)
        logits = jnp.where(mask[:, None], logits, jnp.finfo(logits.dtype).min)
        # Softmax with its division after the product, on [q e] instead of [q k]: t / e times less to divide.
        weights = jnp.exp(logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True)))
        total = weights.sum(-1, keepdims=True)
        weights = drop(self, config.attention_dropout, weights, rows).astype(value.dtype)
        attended = jnp.einsum("bhqk,bhke->bhqe", weights, value) / total
        attended = attended.swapaxes(1, 2).reshape(states.shape).astype(states.dtype)
        return dense(d, "output", config.kernel_init)(attended)


class _Mlp(nn.Module):
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        for place, width in enumerate(self.widths):
            x = jnp.tanh(x) if place else x
            x = dense(width, f"dense_{place}")(x)
        return x


def mlp(inputs: int, widths: tuple[int, ...]) -> Model:
    """Linear maps `dense_0`, `dense_1`, ... of these widths with tanh between them, none after the last.
    `apply(params, x [.. inputs]) -> [.. widths[-1]]`."""
    module = _Mlp(widths)

    def init(key: Array) -> Params:
        return dict(module.init(key, jnp.zeros((1, inputs)))["params"])

    def apply(params: Params, x: Float[Any, "*b i"]) -> Float[Array, "*b o"]:
        return cast(Array, module.apply({"params": params}, jnp.asarray(x)))

    return Model(init, exact(apply))
